"""Drafting: a model writes a plan for a goal, step by step, each step checked before the next is asked for.

    target is free, planner is usable ─▶ outline ─▶ step E0 ─▶ step E1 ─▶ … ─▶ solver ─▶ saved, with its problems

Nothing is executed. What a model gets wrong goes back to it with the list of problems; a step that stays wrong ends the
draft, and the steps before it are kept. What it cost is never lost: there is a file at the end, or a model failed.
"""

import contextlib
import re

from . import authoring, documents, planner, templates, validation
from .documents import to_json
from .errors import BadArgument, InvalidPlan, Refused, ToolError, UnknownPlan, shorten
from .paths import IDENTIFIER_MAX

#: Steps an outline may have; the planner is asked for at least two where the goal needs them.
ITEMS_MAX = 12
#: Tries of one step in all.
ATTEMPTS = 3
#: Steps beyond the outline that the planner may add before it is told to close.
EXTRA_STEPS = 2
#: Longest identifier and name made from a goal, in characters.
SLUG_MAX = 40
NAME_MAX = 60

_OUTLINE = {
    "type": "object",
    "required": ["items", "query_to_answer"],
    "properties": {
        "items": {
            "type": "array",
            "minItems": 1,
            "maxItems": ITEMS_MAX,
            "items": {
                "type": "object",
                "required": ["summary"],
                "properties": {
                    "summary": {"type": "string", "description": "what this step does, in one sentence"},
                    "expected_tool": {"type": "string", "description": "full name of the tool it will call"},
                },
            },
        },
        "input_schema": {
            "type": "object",
            "description": "JSON Schema of the plan's input: an object with every value the goal leaves open",
        },
        "query_to_answer": {"type": "string", "description": "what the answer must tell, for the solver"},
        "system_prompt": {"type": "string", "description": "how the solver must write, where the goal says so"},
    },
}
_STEP = {
    "type": "object",
    "required": ["step", "plan_complete"],
    "properties": {
        "step": {**planner.STEP, "type": ["object", "null"]},
        "plan_complete": {"type": "boolean", "description": "true when no further step is needed"},
    },
}


def draft(workspace, goal, from_, context, editing=contextlib.nullcontext()):
    """Have the planner write a plan and save it; return what to tell.

    from_: identifier of a plan to start from, or None. context: a tools.CallContext with models. editing: held while
    the plan is saved. Returns {"ok", "identifier", "steps", "savedTo", "problems", "usage"} and, for a draft that ended
    early, "salvaged", "failedStep", "stepProblems". Everything that can be refused is refused before a model is asked:
    BadArgument, UnknownPlan, ModelUnavailable. Afterwards ToolError, ToolTimeout, Cancelled of the model.
    """
    if not goal.strip():
        raise BadArgument("the goal is empty; say what the plan must do")
    base = _base(workspace, goal, from_)
    workspace.models.check("planner")
    context.tell("planning")
    made = _Draft(workspace, goal, base if from_ else None, context).run()
    document = _merged(base, made, bool(from_))
    with editing:
        document, path, note = _saved(workspace.store, document, from_)
    body = {"ok": True, "identifier": document["identifier"], "steps": len(document["steps"]), "savedTo": str(path)}
    report = workspace.validate(document)
    body["problems"] = report["problems"]
    notes = [note] if note else []
    if made.failed is not None:
        body |= {"salvaged": True, "failedStep": made.failed, "stepProblems": made.problems}
        notes.append(f"step {made.failed} stayed wrong, so the draft ends before it; add it with graph_plan_step_add")
    if notes:
        body["note"] = "; ".join(notes)
    return {**body, "usage": context.ledger.report()}


# The target --------------------------------------------------------------------------------------------------------


def _base(workspace, goal, from_):
    """Return the document the draft starts from; its identifier is free, or it is the plan that was named."""
    if from_:
        return workspace.store.open(from_)[0]
    identifier = identifier_of(goal)
    with contextlib.suppress(UnknownPlan):
        _, path = workspace.store.open(identifier)
        raise BadArgument(
            f"there is a plan {identifier!r} already: {path}; name the plan in the goal (called …), or start from it"
        )
    first = goal.strip().splitlines()[0]
    return authoring.scaffold(identifier, shorten(_stated_name(goal) or first, NAME_MAX), goal.strip())


def identifier_of(goal):
    """Return the identifier a goal states ("a plan called sprint report"), else one made of its first words."""
    text = _stated_name(goal) or goal[:60]
    slug = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
    return slug[: min(SLUG_MAX, IDENTIFIER_MAX)].strip("_") or "plan"


_STATED = re.compile(r"\b(?:named|called|name it|call it)\s+(?:\"([^\"]+)\"|'([^']+)'|`([^`]+)`|(\S+))", re.IGNORECASE)


def _stated_name(goal):
    found = _STATED.search(goal)
    if not found:
        return ""
    return next(filter(None, found.groups())).strip(" .,;:!?")


# The conversation --------------------------------------------------------------------------------------------------


class _Draft:
    """One draft in the making. steps, outline: what is accepted. failed: id of the step that stayed wrong, or None."""

    def __init__(self, workspace, goal, base, context):
        self.workspace = workspace
        self.goal = goal
        self.context = context
        self.system = planner.instructions(workspace.services, context, base)
        self.input_schema = base.get("input_schema") if base else None
        self.steps = []
        self.outline = {}
        self.failed = None
        self.problems = []
        self.history = []  # [request, accepted reply] of every step

    def run(self):
        """Write the plan; return self."""
        self.outline = self.ask(f"Goal:\n{self.goal}\n\nFirst write the outline: 2 to 8 steps in most cases.", _OUTLINE)
        items = self.outline["items"]
        self.context.tell("draft_outline", items=[item["summary"] for item in items])
        for index in range(len(items) + EXTRA_STEPS):
            is_over = index >= len(items)
            summary = "close the plan, or add what is missing" if is_over else items[index]["summary"]
            self.context.tell("draft_step_started", index=index, summary=summary)
            is_complete = self.step(index, summary, is_over)
            if self.failed is not None or is_complete:
                break
        return self

    def step(self, index, summary, is_over):
        """Get one step accepted, or note that it failed; return whether the plan is complete."""
        identifier = f"E{len(self.steps)}"
        request = f"Write step {identifier}: {summary}"
        if is_over:
            request = (
                f"All steps of the outline are written. If the plan is complete, step is null; else write {identifier}."
            )
        told = request
        for attempt in range(1, ATTEMPTS + 1):
            reply = self.ask(told, _STEP)
            step, is_complete = reply["step"], reply["plan_complete"]
            if step is None and is_complete and self.steps:
                return True
            self.problems = self.problems_of(step, identifier)
            self.context.tell(
                "draft_step_finished", index=index, step=identifier, problems=self.problems, attempt=attempt
            )
            if not self.problems:
                self.steps.append(documents.normalise_call(step))
                self.history += [request, to_json(reply)]
                return is_complete
            wrong = "\n".join(f"- {problem}" for problem in self.problems)
            told = (
                f"{request}\n\nYou wrote:\n{to_json(reply)}\n\nThat has problems:\n{wrong}\n\nWrite {identifier} again."
            )
        self.failed = identifier
        return False

    def problems_of(self, step, identifier):
        """Return sentences about a step that would be the next one; [] accepts it."""
        if step is None:
            return ["there is no step, and the plan is not complete"]
        if step.get("id") != identifier:
            return [f"the id must be {identifier}"]
        document = self.document([*self.steps, documents.normalise_call(step)])
        place = f"/steps/{len(self.steps)}"
        found = [one for one in self.workspace.problems(document) if f"{one.pointer}/".startswith(f"{place}/")]
        return list(map(str, found))

    def document(self, steps):
        """Return a plan of these steps, for checking."""
        document = {"identifier": "draft", "name": "draft", "description": "", "steps": steps}
        rule = self.input_schema or _usable_schema(self.outline.get("input_schema"))
        return {**document, "input_schema": rule} if rule else document

    def ask(self, request, schema):
        """Ask the planner with what was accepted so far. ToolError, ToolTimeout, ModelUnavailable, Cancelled."""
        self.context.cancel.check()
        parts = [f"Goal:\n{self.goal}", *self.history, request] if self.outline else [request]
        return self.context.models.structured(
            "planner", system=self.system, prompt="\n\n".join(parts), schema=schema, context=self.context,
            site="planner",
        )  # fmt: skip


def _usable_schema(rule):
    """Return an input schema that has something to say and is one; else None."""
    if not isinstance(rule, dict) or not isinstance(rule.get("properties"), dict) or not rule["properties"]:
        return None
    document = {"identifier": "draft", "name": "draft", "description": "", "steps": [], "input_schema": rule}
    is_wrong = any(problem.pointer.startswith("/input_schema") for problem in validation.static_problems(document))
    return None if is_wrong else rule


# The plan ----------------------------------------------------------------------------------------------------------


def _merged(base, made, has_base):
    """Return the document of the draft: identity and metadata of the base, the rest as drafted."""
    document = {key: value for key, value in base.items() if key != "steps"}
    if not made.steps:
        raise ToolError(f"the planner wrote no usable step: {'; '.join(made.problems)}", retryable=False)
    rule = _usable_schema(made.outline.get("input_schema"))
    if rule and "input_schema" not in document:
        document["input_schema"] = rule
    document["steps"] = made.steps
    known = {step["id"] for step in made.steps} | {"input"}
    if "output" in document and not set(templates.roots(document["output"])) <= known:
        del document["output"]  # it was made of steps that are no more
    if "output" not in document:
        document["solver"] = _solver(made)
    order = [key for key in documents.PLAN_KEYS if key in document]
    return {key: document[key] for key in order}


def _solver(made):
    query = planner.as_text(made.outline["query_to_answer"]) or planner.as_text(made.goal)
    solver = {"query_to_answer": query}
    if made.outline.get("system_prompt"):
        solver["system_prompt"] = planner.as_text(made.outline["system_prompt"])
    data = {f"{step['id']} {step.get('reasoning', '')}".strip(): f"{{{{{step['id']}}}}}" for step in made.steps}
    return {**solver, "data": data}


def _saved(store, document, from_):
    """Write the document; return (document, path, note). It is never lost: a plan in the way gives it another name."""
    if from_:
        try:
            body = store.edit(from_, lambda before: (document, {}))
            return document, body["savedTo"], body.get("note", "")
        except (Refused, InvalidPlan) as error:
            note = f"{from_!r} could not be changed: {error.message}"
    else:
        note = ""
    identifier = document["identifier"]
    for name in [*([] if from_ else [identifier]), *(f"{identifier[: IDENTIFIER_MAX - 3]}_{n}" for n in range(2, 100))]:
        renamed = {**document, "identifier": name}
        try:
            path = store.create(renamed)
        except BadArgument:  # taken, perhaps while the model was writing
            continue
        return renamed, path, "; ".join(filter(None, [note, f"saved as {name!r}" if name != identifier else ""]))
    raise Refused(f"there are too many plans called {identifier}…; remove some")
