"""What the plan server offers: the tools that are always there, one tool per plan, and how a result is written.

Everything here is values in and values out. Which function answers which tool stands in mcp_calls.
"""

import json
import re

from . import authoring, documents, schema, templates
from .documents import CONTROL_STEPS
from .errors import shorten

#: Tools of plans are called so; everything else the server has begins with "graph_".
PLAN_PREFIX = "plan_"
#: Longest description of one tool, in characters: model APIs refuse or cut longer ones, and exemplars come last.
DESCRIPTION_MAX = 4000

_READS = {"readOnlyHint": True, "openWorldHint": False}
_ADDS = {"readOnlyHint": False, "destructiveHint": False, "idempotentHint": False, "openWorldHint": False}
_CHANGES = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": False}
_SETS = {**_CHANGES, "idempotentHint": True}
_REACHES_OUT = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True}


def _text(description):
    return {"type": "string", "description": description}


_PLAN = _text("Identifier of the plan, as graph_plan_list shows it. Never a path.")
_STEP = _text("Id of the step.")
_RUN = _text("Name of the run, as graph_run_list shows it.")


def _tool(name, title, description, annotations, required=(), /, **properties):
    inputs = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        inputs["required"] = list(required)
    described = {"name": name, "title": title, "description": description, "inputSchema": inputs}
    return {**described, "annotations": annotations}


#: The tools that are always there, in the order they are listed; name → definition.
STATIC = {
    tool["name"]: tool
    for tool in (
        _tool(
            "graph_plan_list", "List plans",
            "List the plans that can be run here, the files that were skipped and why, and the plans that are hidden"
            " because an MCP server they need is not configured.",
            _READS,
        ),
        _tool(
            "graph_plan_show", "Show a plan",
            "Return the whole document of a plan, and the path of its file. Works for hidden and invalid plans too.",
            _READS, ["target"], target=_PLAN,
        ),
        _tool(
            "graph_plan_validate", "Validate a plan",
            "List everything that is wrong with a plan: references, gates, schemas, and tools that do not exist here."
            " ok is true when there is nothing. Notes never keep a plan from running.",
            _READS, ["target"], target=_PLAN,
        ),
        _tool(
            "graph_plan_new", "Create a plan",
            "Create a plan without steps. Then add steps with graph_plan_step_add, and say with graph_plan_set how it"
            " ends: output (a value made of step results) or solver (a model writes the answer). Give it an"
            " input_schema when its steps use {{input.x}}.",
            _ADDS, ["identifier"],
            identifier=_text("Letters, digits, _ and -, at most 58. The plan is served as plan_<identifier>."),
            name=_text("What people call it. Default: the identifier."),
            description=_text("What it does and when to use it; callers choose a plan by it."),
        ),
        _tool(
            "graph_plan_draft", "Draft a plan with a model",
            "Have the configured planner model write a plan for a goal and save it. Takes about half a minute and costs"
            " inference; the only authoring tool that does. Draft once, then correct with graph_plan_set and"
            " graph_plan_step_*: never draft again to fix a draft.",
            _REACHES_OUT, ["goal"],
            goal=_text("What the plan must do, for which input, with which result. It may name the plan: 'called x'."),
            **{"from": _text("Identifier of a plan to start from; its steps are replaced, the rest of it stays.")},
        ),
        _tool(
            "graph_plan_set", "Set an attribute of a plan",
            "Set one attribute of a plan. An edit that would break the plan is refused with the problems it would"
            " introduce. Setting output removes solver, and the other way round. Another identifier makes a second"
            " plan of that name.",
            _SETS, ["target", "attribute", "value"],
            target=_PLAN,
            attribute={"type": "string", "enum": list(authoring.ATTRIBUTES), "description": "Which attribute."},
            value={"description": "Its value: text, a list of texts, an object, or what else the attribute holds."},
        ),
        _tool(
            "graph_plan_unset", "Remove an attribute of a plan",
            "Remove one optional attribute of a plan. Without output and solver a plan is silent: it only acts.",
            _SETS, ["target", "attribute"],
            target=_PLAN,
            attribute={"type": "string", "enum": list(authoring.UNSETTABLE), "description": "Which attribute."},
        ),
        _tool(
            "graph_plan_step_add", "Add a step",
            "Add a step to a plan, at its end or next to another step. Strings of the input may hold {{references}} to"
            " input and to earlier steps, for example {{input.city}} or {{fetch.items}}. graph_tools_show tells what a"
            " tool takes. Refused with the problems it would introduce.",
            _ADDS, ["target", "id", "tool", "input"],
            target=_PLAN,
            id=_text("Id of the step: a letter or _, then letters, digits and _. Later steps refer to it."),
            tool=_text("Full name of the tool, as graph_tools_list shows it, or a control step."),
            input={"type": "object", "description": "What the tool is given."},
            reasoning=_text("Why the step is there."),
            before=_text("Id of the step to put it before."),
            after=_text("Id of the step to put it after."),
        ),
        _tool(
            "graph_plan_step_update", "Change a step",
            "Set one attribute of a step; an input replaces the whole input. Refused with the problems it would"
            " introduce.",
            _SETS, ["target", "id", "attribute", "value"],
            target=_PLAN, id=_STEP,
            attribute={"type": "string", "enum": list(authoring.STEP_ATTRIBUTES), "description": "Which attribute."},
            value={"description": "Its value."},
        ),
        _tool(
            "graph_plan_step_rename", "Rename a step",
            "Give a step another id and rewrite every reference to it.",
            _ADDS, ["target", "id", "new_id"],
            target=_PLAN, id=_STEP, new_id=_text("Its id from now on."),
        ),
        _tool(
            "graph_plan_step_rm", "Remove a step",
            "Remove a step. Refused while something still refers to it.",
            _CHANGES, ["target", "id"],
            target=_PLAN, id=_STEP,
        ),
        _tool(
            "graph_tools_list", "List what steps can call",
            "List every tool a step can name: those of the configured MCP servers, user tools, builtins, plans, and"
            " the seven control steps under (control). graph_tools_show has the schemas. Connects to the servers.",
            {"readOnlyHint": True, "openWorldHint": True},
        ),
        _tool(
            "graph_tools_show", "Show a tool",
            "Return what a tool or control step takes and gives: description, input schema, output schema, and an"
            " example of an output. Every key is present, null where there is nothing.",
            {"readOnlyHint": True, "openWorldHint": True}, ["name"],
            name=_text("Full name, for example builtin__reshape, or a control step, for example map."),
        ),
        _tool(
            "graph_tools_test", "Call a tool once",
            "Call one tool outside any plan and return {tool, isError, result}. What it does to the world is real.",
            _REACHES_OUT, ["name"],
            name=_text("Full name of the tool, for example builtin__reshape."),
            input={"type": "object", "description": "What the tool is given. Default: {}."},
        ),
        _tool(
            "graph_run_list", "List runs",
            "List the runs on record, newest first: name, plan, status, times, steps. A call that timed out in the"
            " client has its run here.",
            _READS,
            plan=_text("Runs of this plan alone."),
            limit={"type": "integer", "minimum": 1, "maximum": 500, "description": "How many. Default: 50."},
        ),
        _tool(
            "graph_run_show", "Show a run",
            "Return one run: its input, each finished step with its result, and the outcome its caller got, null while"
            " it is running.",
            _READS, ["run"], run=_RUN,
        ),
        _tool(
            "graph_run_cancel", "Cancel a run",
            "Cancel a run of this server. What is running is told to stop, no later step starts, and its caller gets"
            " the kind cancelled.",
            _SETS, ["run"], run=_RUN,
        ),
    )
}  # fmt: skip

#: Those that change plan files.
EDITS = frozenset(
    "graph_plan_new graph_plan_draft graph_plan_set graph_plan_unset graph_plan_step_add graph_plan_step_update"
    " graph_plan_step_rename graph_plan_step_rm".split()
)


# Plans as tools ----------------------------------------------------------------------------------------------------


def plan_tool(plan, services):
    """Return the MCP definition of a plan: its own input schema, and what its steps may do to the world."""
    tool = {
        "name": PLAN_PREFIX + plan.identifier,
        "title": plan.name or plan.identifier,
        "description": _description(plan),
        "inputSchema": _input_schema(plan),
        "annotations": plan_annotations(plan, services),
    }
    if plan.output_schema is not None and plan.finish == "output":
        tool["outputSchema"] = _outcome_schema(plan)
    return tool


def _description(plan):
    text = plan.description or f"Runs the plan {plan.name!r}."
    if plan.exemplars:
        text += "\n\nUse it for requests such as:\n" + "\n".join(f"- {exemplar}" for exemplar in plan.exemplars)
    return shorten(text, DESCRIPTION_MAX)


def _input_schema(plan):
    """Return the plan's schema as the pickiest client wants it; without one, an object without properties."""
    if plan.input_schema is None:
        return {"type": "object", "properties": {}}
    return _without_booleans(schema.inline_refs(plan.input_schema))


def _without_booleans(rule):
    """Write properties whose schema is true or false as objects, which every version of the protocol takes."""
    properties = {
        name: entry if isinstance(entry, dict) else {} if entry else {"not": {}}
        for name, entry in rule["properties"].items()
    }
    return {**rule, "properties": properties}


def _outcome_schema(plan):
    """Return the schema of the body a call of the plan gives, errors included: clients check those as well.

    An exit step may end the plan with an output of its own, so that is allowed where there is one.
    """
    outputs = [schema.inline_refs(plan.output_schema), {"type": "null"}]
    if any(tool == "exit" and "output" in given for _, tool, given in documents.calls(plan.document)):
        outputs.append({"type": "object", "description": "what an exit step gave"})
    return {
        "type": "object",
        "required": ["kind"],
        "properties": {
            "kind": {"type": "string", "description": '"ran" when the plan did what it is for'},
            "output": {"anyOf": outputs},
            "answer": {"type": ["string", "null"]},
            "plan": {"type": "string"},
            "steps_executed": {"type": "integer"},
        },
    }


def plan_annotations(plan, services):
    """Return MCP's hints about a plan, derived from every call in it. What is not known counts as the worst."""
    hints = list(_hints_of(plan, services, {plan.identifier}))
    if plan.finish == "solver":
        hints.append(_MODEL)
    if all(hint.get("readOnlyHint") is True for hint in hints):
        reads = {"readOnlyHint": True}
    else:
        writers = [hint for hint in hints if hint.get("readOnlyHint") is not True]
        reads = {
            "readOnlyHint": False,
            "destructiveHint": any(hint.get("destructiveHint") is not False for hint in writers),
            "idempotentHint": all(hint.get("idempotentHint") is True for hint in writers),
        }
    return {**reads, "openWorldHint": any(hint.get("openWorldHint") is not False for hint in hints)}


_PURE = {"readOnlyHint": True, "openWorldHint": False}
_MODEL = {"readOnlyHint": True, "openWorldHint": True}


def _hints_of(plan, services, seen):
    """Yield the hints of every call of a plan, of the plans it calls, and of the models it asks."""
    for _, name, given in documents.calls(plan.document):
        if name in CONTROL_STEPS:
            yield _MODEL if name == "agent" or "infer" in given else _PURE
            for pattern in given.get("tools", ()) if name == "agent" else ():
                yield from _hints_of_pattern(pattern, services)
        elif name.startswith("plan__"):
            inner = services.catalog.plans.get(name.removeprefix("plan__"))
            if inner is None:
                yield {}
            elif inner.plan.identifier not in seen:
                seen.add(inner.plan.identifier)
                yield from _hints_of(inner.plan, services, seen)
                yield _MODEL if inner.plan.finish == "solver" else _PURE
        else:
            tool = services.registry.peek(name)
            yield _hints_of_tool(tool) if tool else {}


def _hints_of_pattern(pattern, services):
    if not isinstance(pattern, str) or templates.has_template(pattern):
        return [{}]
    return [_hints_of_tool(tool) for tool in services.registry.peek_match(pattern) or ()] or [{}]


def _hints_of_tool(tool):
    """Return the hints of a tool; builtins but the one that asks a model work on what they are given and on git."""
    is_closed = tool.source == "builtin" and tool.name != "builtin__infer"
    return {"openWorldHint": False, **tool.annotations} if is_closed else tool.annotations


def tool_list(workspace):
    """Return every definition in the order in which it is listed; workspace None gives those that are always there."""
    if workspace is None:
        return list(STATIC.values())
    plans = [plan_tool(entry.plan, workspace.services) for entry in workspace.catalog.plans.values()]
    return [*STATIC.values(), *plans]


# Results -----------------------------------------------------------------------------------------------------------

_SURROGATE = re.compile("[\ud800-\udfff]")


def call_result(body, is_error):
    """Return the result of tools/call for a body: the body, and the same as text for clients that read only that.

    Lone surrogates become U+FFFD in both, because strict clients refuse the whole message over one.
    """
    body = {key: body[key] for key in ("kind", "error") if key in body} | body  # what happened is read first
    text = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    if _SURROGATE.search(text):
        text = _SURROGATE.sub("\ufffd", text)
        body = json.loads(text)
    return {"content": [{"type": "text", "text": text}], "structuredContent": body, "isError": is_error}


# Progress ----------------------------------------------------------------------------------------------------------


class Meter:
    """Turns the events of one run into (progress, total, message); progress rises with every message.

    A whole number is a finished step of the plan (or of a draft); what happens inside of it comes closer to the next.
    Not thread-safe: its owner holds a lock.
    """

    #: Messages about calls inside of steps; a large iteration has thousands, and a client wants to read along.
    INNER_MAX = 200

    def __init__(self):
        self.total = None
        self._done = 0
        self._inside = 0
        self._inner_told = 0
        self._calls = self._tokens = 0

    def read(self, event):
        """Return (progress, total or None, message) of an event that is worth telling, else None."""
        message = self._message(event)
        if message is None:
            return None
        is_root = len(event["stack"]) <= 1
        if event["event"] == "draft_step_finished" or (
            event["event"] == "step_finished" and is_root and "/" not in event["path"] and not event["is_error"]
        ):
            self._done += 1
            self._inside = 0
            return self._at(self._done, message)
        self._inside += 1
        return self._at(self._done + self._inside / (self._inside + 1), message)

    def _at(self, progress, message):
        total = None if self.total is None else max(self.total, int(-(-progress // 1)))
        return progress, total, message

    def _message(self, event):
        name = event["event"]
        if name == "steps_total":
            self.total = event["total"]
            return None
        if name in ("step_started", "step_finished"):
            return self._step(event)
        if name == "llm_call":
            self._calls += 1
            self._tokens += sum(int(count or 0) for count in event["tokens"].values())
            return f"{event['site']}: {self._calls} model call{'s' * (self._calls != 1)}, {self._tokens} tokens so far"
        if name == "step_retry":
            return f"{place(event)} {event['tool']} failed, try {event['attempt']} in {event['wait_s']:g} s"
        if name == "draft_outline":
            self.total = len(event["items"]) + 1
            return f"outline of {len(event['items'])} steps"
        return _SIMPLE[name](event) if name in _SIMPLE else None

    def _step(self, event):
        where = f"{place(event)} {event['tool']}"
        if "/" in event["path"]:
            self._inner_told += 1
            if self._inner_told == self.INNER_MAX:
                return f"{where} (calls inside of steps are no longer told one by one)"
            if self._inner_told > self.INNER_MAX and not event.get("is_error"):
                return None
        if event["event"] == "step_started":
            return where
        if event["is_error"]:
            return f"{where} failed after {event['elapsed_s']:.1f} s"
        if "/" in event["path"]:
            return None
        return f"{where} from the record" if event["reused"] else f"{where} done after {event['elapsed_s']:.1f} s"


_SIMPLE = {
    "synthesizing": lambda event: "writing the answer",
    "planning": lambda event: "planning",
    "replanning": lambda event: f"planning again (try {event['attempt']})",
    "question": lambda event: f"{place(event)} asks: {shorten(event['prompt'], 200)}",
    "answer": lambda event: f"{place(event)} was {event['status']}",
    "draft_step_started": lambda event: f"step {event['index'] + 1}: {event['summary']}",
    "draft_step_finished": lambda event: f"step {event['index'] + 1} done",
    "usage_summary": lambda event: event["text"],
}


def place(event):
    """Return where an event happened: the plans that led there below the root, then the path of the step."""
    return " ▸ ".join([*event["stack"][1:], event["path"]])
