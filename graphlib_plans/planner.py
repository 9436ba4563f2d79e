"""The planner: what a model is told that writes plans, and `plan_and_execute`, which runs what it writes at once.

    query ─▶ planner ─▶ plan ─▶ checked ─▶ run ─▶ solver ─▶ answer
               ▲                   │        │
               └── what was wrong, with the steps that have run, `planning_attempts` plans in all

A step that has run is not run again: the next plan begins with it and its result. Where no plan leads to the end, the
solver says so from what there is: the answer is "degraded", and honest.
"""

import time

from . import documents, execution, tools, validation
from .documents import to_json
from .errors import ToolError, ToolTimeout

#: Steps of one plan that the planner writes for a query.
STEPS_MAX = 20

#: JSON Schema of one step as a planner writes it.
STEP = {
    "type": "object",
    "required": ["id", "tool", "input"],
    "properties": {
        "id": {"type": "string"},
        "tool": {"type": "string"},
        "input": {"type": "object"},
        "reasoning": {"type": "string", "description": "why the step is there, in one sentence"},
    },
}
_PLAN = {
    "type": "object",
    "required": ["steps", "query_to_answer"],
    "properties": {
        "steps": {"type": "array", "maxItems": STEPS_MAX, "items": STEP},
        "query_to_answer": {"type": "string", "description": "what the answer must tell, for the solver"},
    },
}

_ROLE = """\
You write plans: programs of tool calls that a machine runs later, without you. A plan has steps; each calls one tool \
with an input. Strings of an input may hold references to the plan's input and to results of earlier steps. At the end \
a solver answers from the data the steps have collected.

References
- {{input.city}} is a value of the plan's input, {{E0}} the whole result of step E0, {{E0.items.0.name}} a part of it, \
{{E0.items.length}} the length of an array.
- A string that is one reference alone keeps the type of the value; inside other text it becomes text.
- {{#E0.items}}{{name}}{{^@last}}, {{/@last}}{{/E0.items}} repeats for every item.
- Only refer to fields that the tool declares in its output; otherwise pass the whole result on.

Rules
- Use the exact names of the tools below, and only those.
- Never assume that data exists: end early with exit where nothing was found, filter before you iterate.
- Iterate with map, and put what is done per item into its body. In a body, {{item}} and {{index}} are known.
- Use ask only for values that only a person can give, agent only where the way depends on what is found.
- Fetch once and pass results on; never fetch the same thing twice.
- Values that the goal leaves open belong into the input: refer to them as {{input.name}}."""

_AT_ONCE = """\
Write the plan whose results answer the query. It runs at once and has no input, so put every value into the steps. \
Give new steps the ids {first}, {second} and so on."""
_APOLOGY = """\
Not everything that was needed could be found out. Tell what is known, from the collected data alone, and say plainly \
what could not be found out and why. Never invent. Use simple Markdown."""


def instructions(services, context, base=None):
    """Return what a planner is told: the same text in every call of one plan, so that services can cache it.

    base: document of an earlier version of the plan to improve on, or None.
    """
    listed, _ = services.registry.listing(context)
    refused = {tools.PLANNER, *(f"plan__{identifier}" for identifier in context.stack)}  # nothing may call itself
    definitions = [tool.definition() for tool in listed if tool.name not in refused]
    lines = "\n".join(to_json({k: v for k, v in each.items() if v is not None}) for each in definitions)
    parts = [_ROLE, f"Today is {time.strftime('%Y-%m-%d')}.", f"The tools, one JSON object per line:\n{lines}"]
    user = {key: value for key, value in services.user.items() if value}
    if user:
        parts.append(f"About the user: {to_json(user)}")
    if base is not None:
        kept = {key: base[key] for key in ("steps", "solver", "output") if key in base}
        parts.append(f"An earlier version of the plan, which was not executed; improve on it:\n{to_json(kept)}")
    return "\n\n".join(parts)


def as_text(text):
    """Return a model's words as a template: references that are none of the plan's would break it, so none stay."""
    return text.replace("{{", "{ {").replace("}}", "} }")


# plan_and_execute --------------------------------------------------------------------------------------------------


class Planner:
    """The source of the one tool with a bare name that is no control step (tools.Source)."""

    prefix = ""
    label = "(core)"

    def known(self):
        """Return the tool."""
        return [PLAN_AND_EXECUTE]

    def tools(self, context):
        """Return the tool; nothing connects."""
        return [PLAN_AND_EXECUTE]

    def missing(self, name):
        """Return why there is no tool of another bare name."""
        return tools.bare_name_problem(name, documents.BARE_TOOLS)

    def notes(self):
        """Return nothing: it cannot be broken."""
        return []

    def close(self):
        """Do nothing."""


def plan_and_execute(arguments, context):
    """Have a plan written for a query, run it, and return {"answer", "degraded", "steps_executed"}.

    ModelUnavailable, ToolError or ToolTimeout of a model; StopRun.
    """
    return _Planning(arguments["query"], context).run()


PLAN_AND_EXECUTE = tools.Tool(
    name=tools.PLANNER,
    source=Planner.label,
    description="Have the planner model write a plan for a query, run it at once, and answer from what it found. Costs"
    " inference; for work that comes again, write a plan instead.",
    input_schema={
        "type": "object",
        "properties": {"query": {"type": "string", "minLength": 1, "description": "what is to be found out or done"}},
        "required": ["query"],
        "additionalProperties": False,
    },
    call=plan_and_execute,
    output_schema={
        "type": "object",
        "properties": {
            "answer": {"type": "string"},
            "degraded": {"type": "boolean", "description": "true when the answer only tells what could not be done"},
            "steps_executed": {"type": "integer"},
        },
        "required": ["answer", "degraded", "steps_executed"],
    },
)


class _Planning:
    """One query on its way to an answer. steps, results: what has run, over all plans. defects: what was wrong."""

    def __init__(self, query, context):
        self.query = query
        self.context = execution.entered(tools.PLANNER, context)
        self.services = context.services
        self.models = execution.models_of(self.services)
        for role in ("planner", "solver"):
            self.models.check(role)
        self.system = instructions(self.services, self.context)
        self.steps, self.results, self.count = [], {}, 0
        self.plans = self.written = 0
        self.defects = []

    def run(self):
        for _ in range(self.services.settings.planning_attempts):
            plan = self.write()
            outcome = plan and self.execute(plan)
            if outcome and outcome.kind in ("ran", "exit_error"):
                return self.result(outcome.answer, outcome.kind == "exit_error")
        return self.result(self.ask_solver(), True)

    def result(self, answer, is_degraded):
        return {"answer": answer or "", "degraded": is_degraded, "steps_executed": self.count}

    def write(self):
        """Return the next Plan, or None when the planner wrote none that can run; `defects` tells why."""
        self.context.cancel.check()
        self.context.tell("planning")
        self.plans += 1
        prompt = self.request()
        try:
            reply = self.context.journal.remember(
                f"{self.context.key}/planner.{self.plans}", prompt, lambda: self.ask_planner(prompt))
        except ToolTimeout:
            raise
        except ToolError as error:  # no reply that keeps to the schema, even after a repair
            return self.reject([error.message])
        document = self.document(list(map(documents.normalise_call, reply["steps"])), reply["query_to_answer"])
        self.written += len(reply["steps"])
        problems = self.problems(document)
        return self.reject(problems) if problems else documents.to_plan(document)

    def ask_planner(self, prompt):
        return self.models.structured(
            "planner", system=self.system, prompt=prompt, schema=_PLAN, context=self.context, site=self.site("planner"))

    def reject(self, problems):
        """Keep what is wrong with a plan, for the next request."""
        self.defects += map(str, problems)

    def document(self, steps, query):
        """Return the plan of the steps that have run and those that are new."""
        return {"identifier": tools.PLANNER, "name": tools.PLANNER, "description": "",
                "steps": [*self.steps, *steps], "solver": {"query_to_answer": as_text(query or self.query)}}

    def problems(self, document):
        if not document["steps"]:
            return ["the plan has no step"]
        if any(tool == tools.PLANNER for _, tool, _ in documents.calls(document)):
            return [f"a plan of {tools.PLANNER} cannot call {tools.PLANNER}"]
        return validation.problems_of(
            document, self.services.registry, self.services.catalog.find_plan, self.services.servers,
            self.models.names())

    def execute(self, plan):
        """Run a plan from where the last one ended; return its Outcome, and keep what has run. StopRun."""
        outcome = execution.run_inside(plan, {}, self.context, self.results)
        self.count += outcome.steps_executed
        self.results = outcome.results
        self.steps = [step for step in plan.document["steps"] if step["id"] in self.results]
        if outcome.error:
            self.defects.append(outcome.error)
        return outcome

    def request(self):
        """Return what the planner is asked next."""
        ids = {"first": f"E{self.written}", "second": f"E{self.written + 1}"}
        parts = [f"Query:\n{self.query}", _AT_ONCE.format(**ids)]
        if self.steps:
            parts.append("These steps have run. They stay, so do not write them again; refer to their results:\n"
                         + "\n".join(map(to_json, self.executed())))
        if self.defects:
            parts.append("\n".join(["What went wrong so far:", *(f"- {each}" for each in self.defects)]))
        return "\n\n".join(parts)

    def executed(self):
        """Return the steps that have run with their results, as far as a model is given them."""
        results = execution.fitting(self.results)
        return [{**step, "result": results[step["id"]]} for step in self.steps]

    def ask_solver(self):
        """Return what the solver says about a query that could not be answered."""
        wrong = "\n".join(f"- {each}" for each in self.defects)
        text = (f"{self.query}\n\nWhat went wrong:\n{wrong}\n\nCollected data:\n"
                f"{documents.pretty_json(execution.fitting(self.results))}")
        return self.models.complete(
            "solver", system=_APOLOGY, messages=[{"role": "user", "text": text}], context=self.context,
            site=self.site("solver")).text

    def site(self, role):
        return "/".join([*self.context.stack[1:], role])
