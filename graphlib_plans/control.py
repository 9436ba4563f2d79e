"""The seven control steps: what each does with its input, and its definition for people and agents.

They are evaluated here and never dispatched to a tool. Each gets an execution.StepRun: its raw input, and ways to
render it, to run bodies, to call tools, to ask a person and to remember what a model said.
"""

from collections.abc import Callable
from dataclasses import dataclass

from . import schema, validation
from .documents import CONTROL_STEPS, find_json, to_json
from .errors import ExitFired, ModelUnavailable, PlanError, ToolError, shorten, type_name
from .tools import CONTROL, PLANNER, Tool

#: Rounds an agent may take where its step does not say.
DEFAULT_ROUNDS = 8
#: Tool calls of one agent round that run at the same time; models rarely ask for more.
CALLS_AT_ONCE = 8
#: Longest excerpt of a question in an error, in characters.
SHOWN_QUESTION = 80
#: Longest excerpt of a compared value in an error, in characters.
SHOWN_VALUE = 60


@dataclass(frozen=True)
class Control:
    """One control step: its definition for listings, and the function that runs it with a StepRun."""

    name: str
    tool: Tool
    run: Callable


# Gates -------------------------------------------------------------------------------------------------------------


def evaluate(gate):
    """Say whether a rendered gate {"value", "op", "to"?} holds. ToolError, not retryable, names both values.

    Values are equal as JSON Schema says: 1 equals 1.0, "1" does not. Order is for numbers only.
    """
    value, op, to = gate["value"], gate["op"], gate.get("to")
    if op in ("eq", "ne"):
        return (schema.identity(value) == schema.identity(to)) == (op == "eq")
    if op in ("empty", "not_empty"):
        return (value is None or (isinstance(value, (str, list, dict)) and not value)) == (op == "empty")
    if op == "contains":
        return _contains(value, to)
    if not (_is_number(value) and _is_number(to)):
        raise _incomparable(value, op, to, "both sides must be numbers")
    return {"gt": value > to, "lt": value < to, "gte": value >= to, "lte": value <= to}[op]


def _contains(value, to):
    if isinstance(value, str) and isinstance(to, str):
        return to in value
    if isinstance(value, list):
        wanted = schema.identity(to)
        return any(schema.identity(item) == wanted for item in value)
    raise _incomparable(value, "contains", to, "it looks for a string in a string or for an item in an array")


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _incomparable(value, op, to, rule):
    shown = f"{shorten(to_json(value), SHOWN_VALUE)} {op} {shorten(to_json(to), SHOWN_VALUE)}"
    return ToolError(f"{shown} cannot be decided: {rule}", retryable=False)


_JUDGE = (
    "Answer one yes/no question about the data in it. Be conservative: the verdict is true only when the data supports"
    " it. Give the reason in one sentence."
)
_VERDICT = {
    "type": "object",
    "required": ["verdict", "reason"],
    "additionalProperties": False,
    "properties": {"verdict": {"type": "boolean"}, "reason": {"type": "string"}},
}


def verdict(step, question, model, suffix="verdict"):
    """Have a model answer a yes/no question; return (bool, reason). ToolError, ModelUnavailable."""

    def judge():
        return _models(step).structured(
            model, system=_JUDGE, prompt=question, schema=_VERDICT, context=step.context, site=_site(step)
        )

    reply = step.remember(suffix, [model, question], judge)
    return reply["verdict"], reply["reason"]


def _gate(step, key):
    """Return (holds, reason) of a gate: a comparison under `key`, or a question under infer; true without one."""
    if key in step.input:
        return evaluate(step.render(step.input[key])), None
    if "infer" in step.input:
        return verdict(step, step.render_text(step.input["infer"]), _judge_model(step))
    return True, None


def _judge_model(step):
    return step.render_text(step.input.get("model", "")) or "judge"


def _models(step):
    if step.context.models is None:
        raise ModelUnavailable("no model is configured; add [providers.<name>] and [models.default]")
    return step.context.models


def _site(step):
    """Return where a model call is accounted: the path of the step, after the plans that called its plan."""
    return "/".join([*step.context.stack[1:], step.path])


# exit, decide ------------------------------------------------------------------------------------------------------


def _exit(step):
    fired, reason = _gate(step, "when")
    if not fired:
        return {"passed": True, "verdict": False, "reason": reason}
    status = step.input["status"]
    default = "the plan ended early" if status == "success" else "the plan found that something is wrong"
    message = step.render_text(step.input.get("message", "")) or default
    message += f" ({reason})" if reason else ""
    output = step.render(step.input["output"]) if "output" in step.input else None
    raise ExitFired({"status": status, "message": message, "reason": reason, "output": output, "step": step.path})


def _decide(step):
    holds, reason = _gate(step, "if")
    branch = "then" if holds else "else" if "else" in step.input else None
    result = step.body(step.input[branch], branch) if branch else None
    return {"branch": branch, "verdict": holds, "reason": reason, "result": result}


# filter, map, reduce -----------------------------------------------------------------------------------------------


def _filter(step):
    items = _items(step)
    model = _judge_model(step) if "infer" in step.input else None

    def keeps(index, item):
        try:
            return _keeps(step, model, index, item)
        except PlanError as error:
            error.message = f"item {index}: {error.message}"
            raise

    # Comparing is instant; only questions to a model gain from running at the same time.
    kept = step.each(keeps, items, step.input.get("concurrency", 1) if model else 1)
    chosen = [item for item, keep in zip(items, kept) if keep]
    dropped = [item for item, keep in zip(items, kept) if not keep]
    return {"items": chosen, "count": len(chosen), "dropped": dropped, "dropped_count": len(dropped)}


def _keeps(step, model, index, item):
    if model is None:
        return evaluate(step.render(step.input["where"], item=item, index=index))
    question = step.render_text(step.input["infer"], item=item, index=index)
    return verdict(step, question, model, f"verdict.{index}")[0]


def _map(step):
    items = _items(step)
    body = step.input["do"]

    def result_of(index, item):
        return step.body(body, f"do.{index}", item=item, index=index)

    results = step.each(result_of, items, step.input.get("concurrency", 1))
    return {"count": len(items), "results": results}


def _reduce(step):
    items = _items(step)
    accumulator = step.render(step.input.get("initial"))
    for index, item in enumerate(items):
        accumulator = step.body(step.input["do"], f"do.{index}", item=item, index=index, accumulator=accumulator)
    return {"count": len(items), "result": accumulator}


def _items(step):
    """Return the array to go through. ToolError when it is none."""
    items = step.render(step.input["over"])
    if not isinstance(items, list):
        raise ToolError(f"over must be an array, and it is {type_name(items)}", retryable=False)
    return items


# ask ---------------------------------------------------------------------------------------------------------------


def _ask(step):
    prompt = step.render_text(step.input["prompt"])
    wanted = step.input["output_schema"]
    answer = step.ask(prompt, wanted)
    if answer.status == "answered":
        _conform(answer.value, wanted, f"the answer to {shorten(prompt, SHOWN_QUESTION)!r}")
        return {"answer": answer.value, "answered": True}
    if step.input.get("when_unanswered", "fail") == "fail":
        happened = "was declined" if answer.status == "declined" else "could not be put to anybody"
        message = f"the question {shorten(prompt, SHOWN_QUESTION)!r} {happened}"
        raise ToolError(message, {"error": message, "reason": answer.status}, retryable=False)
    default = step.render(step.input["default"])
    _conform(default, wanted, "the default")
    return {"answer": default, "answered": False, "reason": answer.status}


def _conform(value, wanted, what):
    problems = schema.problems(value, wanted)
    if problems:
        raise ToolError(f"{what} does not keep to output_schema: {'; '.join(map(str, problems))}", retryable=False)


# agent -------------------------------------------------------------------------------------------------------------

_AGENT = (
    "Work on the task with the tools in as few turns as you can; ask for independent calls together. When you are done,"
    " reply with one JSON object alone, without any other text. Never invent data: where there is none, leave the"
    " result empty. The object must keep to this JSON Schema:"
)
_LAST_TURN = "This is your final turn: no tools are left. Give the JSON object from what you know."
_NOTHING_SAID = "Your reply was empty. Call a tool, or reply with the JSON object."
_REPAIR = "Change the document as little as possible, so that it keeps to the schema. Reply with the document alone."


def _agent(step):
    run = _AgentRun(step)
    limit = step.input.get("max_iterations", DEFAULT_ROUNDS)
    for number in range(1, limit + 1):
        if number > 1:
            step.context.tell("iteration", n=number)
        output = run.round(number) if number < limit else run.last_round(number)
        if output is not None:
            return run.result(output, number, is_final=True)
    return run.result({}, limit, is_final=False)


class _AgentRun:
    """The conversation of one agent step. messages grows by what the model says and what the tools answer."""

    def __init__(self, step):
        self.step = step
        self.model = step.input.get("model", "chat")
        self.wanted = step.input["output_schema"]
        matched = step.context.services.registry.match(step.input.get("tools", ["*"]), step.context)
        running = {f"plan__{identifier}" for identifier in step.context.stack}  # these would only be refused
        self.tools = [tool for tool in matched if tool.name not in running]
        self.offered = {tool.name for tool in self.tools}
        self.messages = [{"role": "user", "text": step.render_text(step.input["prompt"])}]
        self.calls_made = []
        parts = [f"{_AGENT}\n{to_json(self.wanted)}"]
        if step.input.get("system_prompt"):
            parts.append(step.render_text(step.input["system_prompt"]))
        self.system = "\n\n".join(parts)

    def result(self, output, rounds, is_final):
        return {"output": output, "iterations": rounds, "tools_called": self.calls_made, "final": is_final}

    def round(self, number):
        """Take one turn; return the object when the model gave it, None when there is more to do."""
        reply = self.reply(number, tools=self.tools)
        if reply["calls"]:
            self.messages.append({"role": "tools", "results": self.answer(reply["calls"], number)})
            return None
        if not reply["text"].strip():
            if reply["stop"] == "max_tokens":
                raise ToolError("the model reached its token limit before it said anything; raise max_tokens")
            return self.object_to(_NOTHING_SAID)
        output, trouble = self.read(reply["text"], number)
        return self.object_to(f"That is no usable answer: {trouble}.") if trouble else output

    def last_round(self, number):
        """Take the turn that must bring the object: no tools, and the schema is forced."""
        self.messages.append({"role": "user", "text": _LAST_TURN})
        value = self.reply(number, schema=self.wanted)["value"]
        return value if isinstance(value, dict) and not schema.problems(value, self.wanted) else None

    def object_to(self, text):
        self.messages.append({"role": "user", "text": text})

    def reply(self, number, tools=(), schema=None):
        request = [self.model, self.system, self.messages, sorted(tool.name for tool in tools), schema]

        def complete():
            reply = _models(self.step).complete(
                self.model,
                system=self.system,
                messages=list(self.messages),
                context=self.step.context,
                site=_site(self.step),
                tools=tools,
                schema=schema,
            )
            return {
                "text": reply.text,
                "calls": reply.calls,
                "value": reply.value,
                "stop": reply.stop,
                "message": reply.message,
            }

        reply = self.step.remember(f"agent.{number}", request, complete)
        self.messages.append(reply["message"])
        return reply

    def answer(self, calls, number):
        """Run the tool calls of one turn at the same time and return their results for the conversation."""
        self.calls_made += [{"tool": call["name"], "round": number} for call in calls]
        return self.step.each(lambda index, call: self.answer_one(index, call, number), calls, CALLS_AT_ONCE)

    def answer_one(self, index, call, number):
        name, arguments = call["name"], call["arguments"]
        try:
            if name == PLANNER or name not in self.offered:
                raise ToolError(f"there is no tool {shorten(name, SHOWN_QUESTION)!r} for this task")
            if not isinstance(arguments, dict):
                raise ToolError("the arguments are no JSON object")
            places = f"agent.{number}/{name}", f"agent.{number}.{index}/{name}"
            value, is_error = self.step.call(name, arguments, *places), False
        except PlanError as error:
            value, is_error = getattr(error, "payload", {"error": error.message}), True
        return {"id": call["id"], "name": name, "text": to_json(value), "is_error": is_error}

    def read(self, text, number):
        """Return (the object in a reply, ""), or (None, what is wrong with it) when one repair did not help."""
        value = find_json(text)
        if not isinstance(value, dict):
            return None, "it is not one JSON object"
        problems = schema.problems(value, self.wanted)
        if not problems:
            return value, ""
        trouble = "; ".join(map(str, problems))
        repaired = self.repair(value, trouble, number)
        if isinstance(repaired, dict) and not schema.problems(repaired, self.wanted):
            return repaired, ""
        return None, trouble

    def repair(self, value, trouble, number):
        """Have a model mend an object that misses the schema; return it, or None when that failed."""
        prompt = f"Document:\n{to_json(value)}\n\nWhat is wrong with it:\n{trouble}"

        def mend():
            return _models(self.step).structured(
                "repair",
                system=_REPAIR,
                prompt=prompt,
                schema=self.wanted,
                context=self.step.context,
                site=_site(self.step),
            )

        try:
            return self.step.remember(f"agent.{number}.repair", prompt, mend)
        except PlanError:  # the conversation goes on with what was wrong
            return None


# Definitions -------------------------------------------------------------------------------------------------------

_BODIES = "A body is one call without an id, or a list of steps that run in order; the last one's result is its own."

_ABOUT = {
    "agent": (
        "Give a model a task, tools, and a JSON Schema for its answer. Use it where the way to the answer depends on"
        " what is found on the way. Later steps read {{id.output.…}}.",
        {"output": {}, "iterations": 2, "tools_called": [{"tool": "files__read", "round": 1}], "final": True},
    ),
    "ask": (
        "Ask a person for values only a person can give. The answer is a flat object of strings, numbers and booleans."
        " Where nobody can answer, when_unanswered decides: fail, or go on with default. Later steps read"
        " {{id.answer.…}}.",
        {"answer": {"go": True}, "answered": True},
    ),
    "exit": (
        "End the plan here when a comparison (when) or a model's verdict (infer) says so, or always without either."
        " status error means that the plan found something wrong. The rest of the steps and the finish are skipped."
        " When it does not fire, the plan goes on.",
        {"passed": True, "verdict": False, "reason": None},
    ),
    "decide": (
        "Run one of two bodies: then when the comparison (if) or the model's verdict (infer) is true, else otherwise."
        f" {_BODIES} A branch may hold exit. Later steps read {{{{id.result}}}} and {{{{id.branch}}}}.",
        {"branch": "then", "verdict": True, "reason": None, "result": {}},
    ),
    "filter": (
        "Keep the items of an array for which a comparison (where) or a model's verdict (infer) is true. Templates see"
        " {{item}} and {{index}}. Later steps read {{id.items}}, {{id.count}}, {{id.dropped}}.",
        {"items": [], "count": 0, "dropped": [], "dropped_count": 0},
    ),
    "map": (
        f"Run a body for every item of an array. {_BODIES} Templates of the body see {{{{item}}}} and {{{{index}}}};"
        " concurrency is how many items run at the same time. Later steps read {{id.results}}, in the order of the"
        " items.",
        {"count": 1, "results": [{}]},
    ),
    "reduce": (
        f"Fold an array into one value: the body's result is the next {{{{accumulator}}}}. {_BODIES} Templates of the"
        " body see {{accumulator}}, {{item}} and {{index}}. Later steps read {{id.result}}.",
        {"count": 0, "result": None},
    ),
}
_RUN = {
    "agent": _agent,
    "ask": _ask,
    "exit": _exit,
    "decide": _decide,
    "filter": _filter,
    "map": _map,
    "reduce": _reduce,
}


def _control(name):
    description, example = _ABOUT[name]
    tool = Tool(
        name=name,
        source=CONTROL,
        description=description,
        input_schema=validation.CONTROL_SCHEMAS[name],
        call=None,
        output_schema=validation.CONTROL_RESULTS[name],
        output_example=example,
        annotations={"readOnlyHint": True} if name in ("exit", "filter") else {},
    )
    return Control(name, tool, _RUN[name])


#: The seven control steps by name, in the order of listings.
CONTROLS = {name: _control(name) for name in CONTROL_STEPS}
