"""Running plans: steps in the order of their dependencies, several at a time, each written down as it finishes.

    run ─▶ check input and names ─▶ _PlanRun: sorter ─▶ ready ─▶ crew ─▶ CallRun ─▶ registry or control step
                                       ▲                          │         │
                                       └──────── finished ◀───────┘         └─▶ journal, events

Threads: the caller of `run` coordinates. It alone touches the TopologicalSorter and the results; it blocks on the
queue of finished steps, which workers and a cancel fill. Workers (`plan.<identifier>.worker.N`) block on the queue of
tasks and end when the crew is closed. A nested plan is coordinated by the worker that runs the step which calls it.

What a step or a tool does is never an exception of `run`: it returns an Outcome.
"""

import heapq
import logging
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from . import config, dependencies, documents, records, schema, templates, tools, validation
from .calls import CallRun, Digests, StepFailed, Tally, is_retryable
from .documents import to_json
from .errors import (
    Cancelled,
    EmptyData,
    ExitFired,
    InvalidPlan,
    ModelUnavailable,
    NeedsInput,
    PlanError,
    Problem,
    StopRun,
    Suspended,
    ToolError,
    UnknownPlan,
    UnresolvedTools,
    shorten,
)
from .parallel import result_of

#: Longest chain of plans that call each other, the root included; agents and tools can build chains nobody sees before.
DEPTH_LIMIT = validation.DEPTH_LIMIT
#: How long a cancelled run waits for tools that do not listen, in seconds; then it leaves their threads behind.
CANCEL_GRACE_S = 10.0
#: Longest error text of a failed step, in characters; the whole one is in the payload.
MESSAGE_MAX = 2000
#: Longest data a solver is given, as compact JSON in characters; longer data is cut as below.
SOLVER_DATA_MAX = 400_000
SOLVER_TEXT_MAX = 500
SOLVER_ITEMS_MAX = 25

#: Problems that mean "not on this machine" rather than "not a good plan".
_ABSENT = frozenset(
    "builtin_unknown user_tool_unknown plan_unknown tool_unknown server_unconfigured server_declared model_unknown"
    " pattern_no_match pattern_server_unconfigured".split()
)
_WAKE = object()
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Services:
    """What a run needs besides its plan; put together by workspace, shared by all runs, never changed."""

    registry: tools.Registry
    controls: Mapping
    models: object
    catalog: documents.Catalog
    servers: frozenset
    pricing: Mapping
    settings: config.Settings
    user: Mapping


@dataclass(frozen=True)
class Outcome:
    """How a run ended. kind: as in docs/plans.md, or "suspended" (then `question` waits for an answer).

    answer: text of the solver or of the exit that fired. output: the plan's output. exit: {"status", "message",
    "reason", "output", "step"}. step: path of the step that failed. results: finished top-level steps, in file order.
    """

    kind: str
    plan: str
    answer: str | None = None
    output: object = None
    exit: dict | None = None
    steps_executed: int = 0
    usage: dict | None = None
    run: str | None = None
    error: str | None = None
    step: str | None = None
    tool: str | None = None
    details: dict = field(default_factory=dict)
    results: dict = field(default_factory=dict)
    question: tools.Question | None = None
    #: The exception behind a failure.
    cause: Exception | None = field(default=None, repr=False, compare=False)

    def body(self):
        """Return what the caller gets, as a JSON object with a stable `kind`."""
        if self.kind in ("ran", "exit_error"):
            names = ("kind", "answer", "output", "plan", "steps_executed", "exit", "usage", "run")
            return {name: getattr(self, name) for name in names}
        body = {name: getattr(self, name) for name in ("kind", "error", "plan", "steps_executed", "usage", "run")}
        for name, value in (("step", self.step), ("tool", self.tool), ("finished", self.results)):
            if value:
                body[name] = value
        return {**self.details, **body}

    @property
    def exit_code(self):
        """The status of a command that ran the plan: 0 ran, 3 needs input, 4 an error exit, 1 anything else."""
        return {"ran": 0, "needs_input": 3, "exit_error": 4}.get(self.kind, 1)


# A run from the outside --------------------------------------------------------------------------------------------


def run(
    plan,
    arguments,
    services,
    *,
    cancel=None,
    ask=tools.unavailable,
    emit=lambda event: None,
    record=None,
    finished=None,
    deadline=None,
    concurrency=None,
):
    """Run a plan to its end on the calling thread and return its Outcome. Never raises for what plans and tools do.

    arguments: the plan's input, an object. cancel: a CancelToken. ask: Question → Answer, called from one thread at a
    time; may raise Suspended. emit: takes events (docs/plans.md) from any thread, must neither block nor raise.
    record, finished: an open Record and what records.reopen returned; the record is closed at the end. deadline:
    time.monotonic() by which everything must have ended. concurrency: over every limit that plans and steps have.
    """
    cancel = cancel or tools.CancelToken()
    context = tools.CallContext(
        cancel=cancel,
        deadline=deadline,
        emit=emit,
        ask=_one_at_a_time(ask, cancel),
        models=services.models,
        ledger=records.UsageLedger(services.pricing),
        journal=records.Journal(record, finished),
        services=services,
        stack=(plan.identifier,),
        concurrency=concurrency,
    )
    try:
        arguments = _checked_input(plan, arguments)
        check_runnable(plan, services)
    except PlanError as error:
        if record is not None:
            record.discard()  # nothing was done, so there is nothing to tell or to resume
        return Outcome(error.kind, plan.identifier, error=error.message, details=error.details, cause=error)
    try:
        context.tell("steps_total", total=len(plan.steps))
        outcome = _PlanRun(plan, arguments, context).run()
        usage, summary = context.ledger.report(), context.ledger.summary()
        outcome = replace(outcome, usage=usage, run=record.run if record else None)
        if record is not None:
            record.finish(outcome.body(), time.time())
    finally:
        if record is not None:
            record.close()
    if context.journal.trouble:
        context.tell("warning", text=context.journal.trouble)
    if summary:
        context.tell("usage_summary", usage=usage, text=summary)
    return outcome


def _one_at_a_time(ask, cancel):
    # Held while a person answers, so that questions of parallel steps come one after the other. Nobody waits on it
    # beyond a cancel: the host ends the open question then, and the others find the run cancelled.
    lock = threading.Lock()

    def ask_in_turn(question):
        with lock:
            cancel.check()
            return ask(question)

    return ask_in_turn


def _checked_input(plan, arguments):
    """Return the input with defaults. NeedsInput."""
    arguments, problems = validation.input_problems(plan, arguments)
    if problems:
        message = f"plan {plan.identifier!r} needs other input: {'; '.join(problems)}"
        raise NeedsInput(message, problems=problems, inputSchema=plan.input_schema)
    return arguments


def check_runnable(plan, services):
    """Raise what keeps a plan from running here, before any step: InvalidPlan, UnresolvedTools, ModelUnavailable."""
    problems = [] if services.catalog.has_checked(plan) else validation.static_problems(plan.document)
    if problems:
        raise InvalidPlan.of(problems)
    names = services.models.names() if services.models else None
    problems, notes = validation.catalog_check(
        plan.document, services.registry, services.catalog.find_plan, services.servers, names
    )
    problems = [*problems, *notes]
    if problems:
        absent = all(problem.code in _ABSENT for problem in problems)
        raise (UnresolvedTools if absent else InvalidPlan).of(problems)
    for name in sorted(_models_needed(plan, services.catalog, set())):
        models_of(services).check(name)


def models_of(services):
    """Return the models of a run. ModelUnavailable."""
    if services.models is None:
        raise ModelUnavailable("no model is configured; add [providers.<name>] and [models.default]")
    return services.models


def _models_needed(plan, catalog, seen):
    """Return the names of the models a plan may ask, plans it calls included; templates are left to the run."""
    seen.add(plan.identifier)
    needed = {"solver"} if plan.finish == "solver" else set()
    for _, tool, arguments in documents.calls(plan.document):
        if tool in ("agent", "builtin__infer"):
            needed.add(arguments.get("model") or "chat")
        elif tool in documents.CONTROL_STEPS and "infer" in arguments:
            needed.add(arguments.get("model") or "judge")
        elif tool == tools.PLANNER:
            needed |= {"planner", "solver"}
        identifier = tool.removeprefix("plan__")
        if identifier != tool and identifier in catalog.plans and identifier not in seen:
            needed |= _models_needed(catalog.plans[identifier].plan, catalog, seen)
    return {name for name in needed if isinstance(name, str) and not templates.has_template(name)}


def read_only_test(services):
    """Return tool name or agent pattern → whether a call of it leaves the world as it is, as far as that is known."""
    return dependencies.read_only_test(services.registry, services.catalog.find_plan)


def connect_servers(plan, context):
    """Connect to the servers a plan calls, at the same time, so that it is known which steps may run so. StopRun.

    Only a server itself knows which of its tools just read. Returns sentences about those that cannot be reached:
    they are left to their steps, which may cope with that. A plan of one step has no order and waits for nothing.
    """
    if len(plan.steps) < 2:
        return []
    names = {tool for _, tool, _ in documents.calls(plan.document)}
    return context.services.registry.connect(names, context)


# Plans as tools ----------------------------------------------------------------------------------------------------


class PlanSource:
    """The tools `plan__<identifier>` of a catalog."""

    prefix = "plan"
    label = "plan"

    def __init__(self, catalog):
        self._catalog = catalog
        self._tools = [_plan_tool(entry.plan) for entry in catalog.plans.values()]

    def known(self):
        """Return one tool per plan that can be used here."""
        return self._tools

    def tools(self, context):
        """Return the same; nothing connects."""
        return self._tools

    def missing(self, name):
        """Return why there is no such plan."""
        try:
            self._catalog.find(name.removeprefix("plan__"))
        except UnknownPlan as error:
            return Problem("", "plan_unknown", error.message)
        return Problem("", "plan_unknown", f"the plan of {name!r} came after this catalog was read", "try again")

    def notes(self):
        """Return nothing: listings of plans have their own place for skipped files."""
        return []

    def close(self):
        """Do nothing."""


def _plan_tool(plan):
    description = f"{plan.name} — {plan.description}" if plan.description else plan.name
    if plan.exemplars:
        description += f" Examples: {'; '.join(plan.exemplars)}"
    return tools.Tool(
        name=f"plan__{plan.identifier}",
        source=PlanSource.label,
        description=description,
        input_schema=plan.input_schema or {"type": "object", "properties": {}},
        call=lambda arguments, context: run_nested(plan, arguments, context),
        output_schema=plan.output_schema if plan.finish == "output" else None,
        title=plan.name,
        checks_input=plan.input_schema is not None,
    )


def run_nested(plan, arguments, context):
    """Run a plan as one step of another, on the calling thread; return its result. ToolError, StopRun."""
    if plan.identifier in context.stack:
        chain = " → ".join([*context.stack, plan.identifier])
        raise ToolError(f"plans call each other: {chain}", retryable=False)
    outcome = run_inside(plan, arguments, entered(plan.identifier, context))
    if outcome.kind == "ran":
        return _nested_result(plan, outcome)
    if outcome.exit:
        fired = _exit_result(outcome.exit)
        raise ToolError(outcome.exit["message"], {"error": fired["message"], **fired}, retryable=False)
    payload = {"error": f"plan {plan.identifier!r}: {outcome.error}"}
    if outcome.kind == "empty_data":
        payload["empty_data"] = True
    raise ToolError(payload["error"], payload, retryable=is_retryable(outcome.cause))


def entered(identifier, context):
    """Return the context of what runs inside a step, under a name of its own. ToolError where that is too deep."""
    stack = (*context.stack, identifier)
    if len(stack) > DEPTH_LIMIT:
        raise ToolError(f"plans are nested deeper than {DEPTH_LIMIT}: {' → '.join(stack)}", retryable=False)
    return context.with_(stack=stack, path="")


def run_inside(plan, arguments, context, results=None):
    """Run a plan inside the run of another, on the calling thread; return its Outcome. StopRun.

    context: what `entered` returned. results: of steps that have run already and are not run again, by id.
    """
    outcome = _PlanRun(plan, arguments, context, results).run()
    if isinstance(outcome.cause, StopRun):
        raise outcome.cause
    return outcome


def _nested_result(plan, outcome):
    if outcome.exit:
        return _exit_result(outcome.exit)
    if plan.finish == "output":
        return outcome.output
    if plan.finish == "solver":
        return {"answer": outcome.answer}
    return {"ok": True, "steps_executed": outcome.steps_executed}


def _exit_result(fired):
    result = {"exited": True, "status": fired["status"], "message": fired["message"]}
    return result if fired["output"] is None else {**result, "output": fired["output"]}


# One plan ----------------------------------------------------------------------------------------------------------


class _PlanRun:
    """One run of one plan, root or nested: made by the thread that coordinates it, used once."""

    def __init__(self, plan, arguments, context, results=None):
        self.plan = plan
        self.arguments = arguments
        self.context = context
        self.results = dict(results or {})
        self.key_prefix = f"{context.key}/" if context.key else ""
        settings = context.services.settings
        self.limit = context.concurrency or plan.document.get("concurrency") or settings.concurrency
        self.is_nested = len(context.stack) > 1
        self.tally = Tally()
        self.place = {step.id: index for index, step in enumerate(plan.steps)}
        self.endings = []  # (place in the file, exception): what ends the run before its last step

    def run(self):
        """Run the steps and the finish; return the Outcome, without usage and run."""
        try:
            self.run_steps()
            ran_out = self.ending()
            answer, output = self.finish(ran_out)
            return self.outcome("ran", answer=answer, output=output)
        except ExitFired as fired:
            kind = "exit_error" if fired.exit["status"] == "error" else "ran"
            return self.outcome(kind, answer=fired.exit["message"], output=fired.exit["output"], exit=fired.exit)
        except Cancelled as stop:
            reason = "" if stop.reason in ("", "cancelled") else f": {stop.reason}"
            message = f"plan {self.plan.identifier!r} was cancelled{reason}"
            return self.outcome("cancelled", error=message, details={"reason": stop.reason}, cause=stop)
        except Suspended as stop:
            message = f"plan {self.plan.identifier!r} waits for an answer"
            return self.outcome("suspended", error=message, question=stop.question, cause=stop)
        except StepFailed as failure:
            return self.failed(failure)
        except PlanError as error:
            return self.outcome(error.kind, error=error.message, details=error.details, cause=error)

    def outcome(self, kind, **fields):
        results = {step.id: self.results[step.id] for step in self.plan.steps if step.id in self.results}
        count = self.tally.count
        return Outcome(kind, self.plan.identifier, steps_executed=count, results=results, **fields)

    def failed(self, failure):
        details = dict(failure.details)
        says_more = not isinstance(failure.payload, dict) or set(failure.payload) != {"error"}
        if says_more:
            details["payload"] = failure.payload
        message = f"step {failure.path} ({failure.tool}) failed: {shorten(failure.message, MESSAGE_MAX)}"
        return self.outcome(
            failure.kind, error=message, step=failure.path, tool=failure.tool, details=details, cause=failure.cause
        )

    # Steps

    def run_steps(self):
        """Run steps until all are done or something ends the run; what ended it is in `endings`."""
        connect_servers(self.plan, self.context)
        sorter = dependencies.sorter(self.plan, read_only_test(self.context.services))
        crew = _Crew(f"plan.{self.plan.identifier}.worker")
        forget = self.context.cancel.on_cancel(lambda: crew.finished.put(_WAKE))
        ready, running = [], set()
        try:
            while sorter.is_active():
                for step_id in self.next_ready(sorter):
                    heapq.heappush(ready, self.place[step_id])
                self.start(ready, running, crew)
                if not running:
                    break
                for step_id in self.wait(running, crew):
                    running.discard(step_id)
                    if step_id in self.results:
                        sorter.done(step_id)
        finally:
            forget()
            crew.close()

    def next_ready(self, sorter):
        """Return the steps that may start now; those whose results are known from before are done at once."""
        found = sorter.get_ready()
        known = [step_id for step_id in found if step_id in self.results]
        if not known:
            return found
        sorter.done(*known)
        return [*(step_id for step_id in found if step_id not in self.results), *self.next_ready(sorter)]

    def start(self, ready, running, crew):
        """Start what may start: in file order, as many as the limit allows, nothing once the run is ending."""
        while ready and len(running) < self.limit and not self.endings and not self.context.cancel.cancelled:
            step = self.plan.steps[heapq.heappop(ready)]
            running.add(step.id)
            call = self.call_of(step)
            if self.is_nested and not ready and len(running) == 1:
                crew.do(step.id, call)  # nothing could run beside it, so this thread does it
            else:
                crew.start(step.id, call, len(running))

    def call_of(self, step):
        """Return the function that runs a step with the results its templates refer to."""
        names = templates.roots([step.input, step.on_error])
        scope = {name: self.results[name] for name in names if name in self.results}
        scope["input"] = self.arguments
        key = self.key_prefix + step.id
        return CallRun(step, step.id, key, scope, self.context, self.tally, Digests(scope)).run

    def wait(self, running, crew):
        """Wait for one finished step, keep its result or what it raised, and return its id in a list.

        Once the run is cancelled the wait is bounded, and what still runs then is given up.
        """
        is_cancelled = self.context.cancel.cancelled
        try:
            item = crew.finished.get(timeout=CANCEL_GRACE_S if is_cancelled else None)
        except queue.Empty:
            return list(running)
        if item is _WAKE:
            return []
        step_id, result, error = item
        if error is None:
            self.results[step_id] = result
        else:
            self.endings.append((self.place[step_id], self.told(step_id, error)))
        return [step_id]

    def told(self, step_id, error):
        """Return an error that can be told to a user; one that is a bug is logged with its traceback."""
        if isinstance(error, (PlanError, StopRun)):
            return error
        _log.debug("step %s broke", step_id, exc_info=error)
        tool = self.plan.steps[self.place[step_id]].tool
        cause = ToolError(f"something broke inside: {type(error).__name__}: {error}", retryable=False)
        place = self.context.with_(path=step_id)
        place.tell("step_finished", tool=tool, error=cause.payload, is_error=True, elapsed_s=0.0, reused=False)
        return StepFailed(cause, step_id, tool)

    def ending(self):
        """Raise what ended the run, the first of it in file order; return None when every step is done.

        Data that ran out is returned when a solver can tell about it.
        """
        self.context.cancel.check()
        if not self.endings:
            return None
        error = min(self.endings, key=lambda ending: ending[0])[1]
        if self.plan.finish == "solver" and isinstance(getattr(error, "cause", None), EmptyData):
            return error
        raise error

    # Finish

    def finish(self, ran_out):
        """Return (answer, output). PlanError."""
        if self.plan.finish == "solver":
            return self.solve(ran_out), None
        if self.plan.finish == "silent":
            return None, None
        try:
            output = templates.render(self.plan.output, {**self.results, "input": self.arguments})
        except PlanError as error:
            error.message = f"the output cannot be made: {error.message}"
            raise
        problems = schema.problems(output, self.plan.output_schema) if self.plan.output_schema is not None else []
        if problems:
            sentences = "; ".join(map(str, problems))
            raise ToolError(f"the output does not keep to output_schema: {sentences}", retryable=False)
        return None, output

    def solve(self, ran_out):
        self.context.tell("synthesizing")
        solver, scope = self.plan.solver, {**self.results, "input": self.arguments}
        site = "/".join([*self.context.stack[1:], "solver"])
        reply = models_of(self.context.services).complete(
            "solver",
            system=_solver_system(solver.get("system_prompt"), ran_out),
            messages=[{"role": "user", "text": _solver_message(self.plan, solver, scope)}],
            context=self.context,
            site=site,
            on_text=None if self.is_nested else lambda text: self.context.tell("solver_delta", text=text),
        )
        self.context.cancel.check()
        return reply.text


def _solver_system(own, ran_out):
    parts = [own] if own else []
    parts.append(
        "Answer the request from the collected data alone. Lead with the answer. Say what is missing where data is"
        " missing, and never invent. Do not speak about how the data was collected. Use simple Markdown, and give"
        " counts where there are many items."
    )
    if ran_out is not None:
        parts.append(f"Collecting ended early because data ran out: {ran_out.message}")
    parts.append(f"Today is {time.strftime('%Y-%m-%d')}.")
    return "\n\n".join(parts)


def _solver_message(plan, solver, scope):
    try:
        query = templates.render_text(solver.get("query_to_answer", ""), scope)
    except PlanError:  # what was asked is still the best description of what is wanted
        query = solver["query_to_answer"]
    data = {key: _available(value, scope) for key, value in solver.get("data", {}).items()} or scope
    query = query.strip() or f"Run the plan {plan.name!r} and tell its result."
    return f"{query}\n\nCollected data:\n{documents.pretty_json(fitting(data))}"


def fitting(data):
    """Return data as a model is given it: long texts and arrays are cut where all of it would be too much."""
    return _cut(data) if len(to_json(data)) > SOLVER_DATA_MAX else data


def _available(value, scope):
    try:
        return templates.render(value, scope)
    except PlanError as error:
        return f"(not available: {error.message})"


def _cut(value):
    if isinstance(value, str):
        return shorten(value, SOLVER_TEXT_MAX)
    if isinstance(value, list):
        return [_cut(item) for item in value[:SOLVER_ITEMS_MAX]]
    return {key: _cut(item) for key, item in value.items()} if isinstance(value, dict) else value


class _Crew:
    """The threads that run one plan's steps: started when needed, used again, ended by close.

    `finished` gets (step id, result, exception or None) of everything that was started, in the order it ended.
    """

    def __init__(self, name):
        self.finished = queue.SimpleQueue()
        self._name = name
        self._tasks = queue.SimpleQueue()
        self._threads = 0

    def start(self, step_id, function, running):
        """Have a worker call the function. running: how many steps are running, this one included."""
        if running > self._threads:
            self._threads += 1
            # Daemons: a tool that never returns must not keep the program from ending.
            threading.Thread(target=self._work, name=f"{self._name}.{self._threads}", daemon=True).start()
        self._tasks.put((step_id, function))

    def do(self, step_id, function):
        """Call the function on this thread."""
        self.finished.put((step_id, *result_of(function)))

    def close(self):
        """Let every worker end after what it is doing."""
        for _ in range(self._threads):
            self._tasks.put(None)

    def _work(self):
        while (task := self._tasks.get()) is not None:
            step_id, function = task
            self.finished.put((step_id, *result_of(function)))
