"""Running plans: steps in the order of their dependencies, several at a time, each written down as it finishes.

    run ─▶ check input and names ─▶ _PlanRun: sorter ─▶ ready ─▶ crew ─▶ _CallRun ─▶ registry or control step
                                       ▲                          │         │
                                       └──────── finished ◀───────┘         └─▶ journal, events

Threads: the caller of `run` coordinates. It alone touches the TopologicalSorter and the results; it blocks on the
queue of finished steps, which workers and a cancel fill. Workers (`plan.<identifier>.worker.N`) block on the queue of tasks
and end when the crew is closed. A nested plan is coordinated by the worker that runs the step which calls it.

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

#: Longest chain of plans that call each other, the root included; agents and tools can build chains nobody sees before.
DEPTH_LIMIT = validation.DEPTH_LIMIT
#: How long a cancelled run waits for tools that do not listen, in seconds; then it leaves their threads behind.
CANCEL_GRACE_S = 10.0
#: Longest error text of a failed step, in characters; the whole one is in the payload.
MESSAGE_MAX = 2000
#: Doublings after which the wait between two tries grows no more.
BACKOFF_DOUBLINGS = 20
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
    time.monotonic() by which everything must have ended. concurrency: overrides every limit the plan has.
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
        outcome = _PlanRun(plan, arguments, context, concurrency).run()
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
    problems = validation.static_problems(plan.document)
    if problems:
        raise InvalidPlan.of(problems)
    names = services.models.names() if services.models else None

    def find_plan(identifier):
        return services.catalog.find(identifier).plan

    problems, notes = validation.catalog_check(plan.document, services.registry, find_plan, services.servers, names)
    problems = [*problems, *notes]
    if problems:
        absent = all(problem.code in _ABSENT for problem in problems)
        raise (UnresolvedTools if absent else InvalidPlan).of(problems)
    for name in sorted(_models_needed(plan, services.catalog, set())):
        _models(services).check(name)


def _models(services):
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
        identifier = tool.removeprefix("plan__")
        if identifier != tool and identifier in catalog.plans and identifier not in seen:
            needed |= _models_needed(catalog.plans[identifier].plan, catalog, seen)
    return {name for name in needed if isinstance(name, str) and not templates.has_template(name)}


def read_only_test(services):
    """Return name or pattern → whether it leaves the world as it is; plans are looked into."""
    known = {}

    def is_read_only(name):
        if not name.startswith("plan__") or "*" in name:
            return services.registry.is_read_only(name)
        if name not in known:
            known[name] = False  # for a plan that calls itself
            entry = services.catalog.plans.get(name.removeprefix("plan__"))
            known[name] = entry is not None and all(
                dependencies.reads_only(step.tool, step.input, is_read_only) for step in entry.plan.steps
            )
        return known[name]

    return is_read_only


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
    if len(context.stack) >= DEPTH_LIMIT:
        chain = " → ".join([*context.stack, plan.identifier])
        raise ToolError(f"plans are nested deeper than {DEPTH_LIMIT}: {chain}", retryable=False)
    inner = context.with_(stack=(*context.stack, plan.identifier), path="")
    outcome = _PlanRun(plan, arguments, inner, None).run()
    if isinstance(outcome.cause, StopRun):
        raise outcome.cause
    if outcome.kind == "ran":
        return _nested_result(plan, outcome)
    if outcome.exit:
        fired = _exit_result(outcome.exit)
        raise ToolError(outcome.exit["message"], {"error": fired["message"], **fired}, retryable=False)
    payload = {"error": f"plan {plan.identifier!r}: {outcome.error}"}
    if outcome.kind == "empty_data":
        payload["empty_data"] = True
    raise ToolError(payload["error"], payload, retryable=_is_retryable(outcome.cause))


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


class StepFailed(PlanError):
    """A step failed for good. path and tool name the innermost call; cause is its error."""

    def __init__(self, cause, path, tool):
        super().__init__(cause.message, **cause.details)
        self.kind = cause.kind
        self.cause = cause
        self.path = path
        self.tool = tool

    @property
    def payload(self):
        """The tool's error value, {"error": message} when it gave none."""
        return getattr(self.cause, "payload", {"error": self.message})


def _is_retryable(error):
    error = getattr(error, "cause", error)
    return isinstance(error, ToolError) and error.retryable


class _Tally:
    """Counts executed steps; what is added counts for the enclosing tallies too."""

    def __init__(self, parent=None):
        self._parent = parent
        # Protects count; held for one addition.
        self._lock = threading.Lock()
        self.count = 0

    def add(self, number):
        with self._lock:
            self.count += number
        if self._parent is not None:
            self._parent.add(number)


class _PlanRun:
    """One run of one plan, root or nested: made by the thread that coordinates it, used once."""

    def __init__(self, plan, arguments, context, concurrency):
        self.plan = plan
        self.arguments = arguments
        self.context = context
        self.key_prefix = f"{context.key}/" if context.key else ""
        self.forced = concurrency
        settings = context.services.settings
        self.limit = concurrency or plan.document.get("concurrency") or settings.concurrency
        self.is_nested = len(context.stack) > 1
        self.tally = _Tally()
        self.place = {step.id: index for index, step in enumerate(plan.steps)}
        self.results = {}
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
        sorter = dependencies.sorter(self.plan, read_only_test(self.context.services))
        crew = _Crew(f"plan.{self.plan.identifier}.worker")
        forget = self.context.cancel.on_cancel(lambda: crew.finished.put(_WAKE))
        ready, running = [], set()
        try:
            while sorter.is_active():
                for step_id in sorter.get_ready():
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
        call = _CallRun(
            step, step.id, self.key_prefix + step.id, scope, self.context, self.tally, _Digests(scope), self.forced
        )
        return call.run

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
        reply = _models(self.context.services).complete(
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
    if len(to_json(data)) > SOLVER_DATA_MAX:
        data = _cut(data)
    query = query.strip() or f"Run the plan {plan.name!r} and tell its result."
    return f"{query}\n\nCollected data:\n{documents.pretty_json(data)}"


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
        self.finished.put((step_id, *_result_of(function)))

    def close(self):
        """Let every worker end after what it is doing."""
        for _ in range(self._threads):
            self._tasks.put(None)

    def _work(self):
        while (task := self._tasks.get()) is not None:
            step_id, function = task
            self.finished.put((step_id, *_result_of(function)))


def _result_of(function):
    """Return (result, None) or (None, whatever was raised): the outermost frame of a worker, so nothing is lost."""
    try:
        return function(), None
    except BaseException as error:
        return None, error


# One call ----------------------------------------------------------------------------------------------------------


class _Digests:
    """Digests of what a top-level step refers to, computed once for all the items of its bodies."""

    def __init__(self, scope):
        self._scope = scope
        self._known = {}

    def of(self, name, value):
        """Return the digest of a root's value; remembered when it is the step's own and not a body's."""
        if self._scope.get(name, self) is not value:
            return records.digest(value)
        if name not in self._known:
            self._known[name] = records.digest(value)
        return self._known[name]


class _CallRun:
    """One call in one place: a top-level step, a step of a body, or an agent's call. Used once, on one thread.

    is_literal: the input came from a model and is not rendered, whatever it contains.
    """

    def __init__(self, call, path, key, scope, context, tally, digests, concurrency, is_literal=False):
        self.call = call
        self.scope = scope
        self.context = context.with_(path=path, key=key)
        self.tally = tally
        self.inner = _Tally(tally)
        self.digests = digests
        self.concurrency = concurrency
        self.is_literal = is_literal
        self.control = context.services.controls.get(call.tool)
        self.attempts = 0

    def run(self):
        """Run the call with its retries, write down how it ended, and return its result. StepFailed, StopRun."""
        self.context.cancel.check()
        begun = time.monotonic()
        line = None
        try:
            arguments = self.arguments()
            digest = self.digest(arguments)
            line = self.recalled(digest)
            if line is None:
                self.context.tell("step_started", tool=self.call.tool, input=arguments)
                result = self.attempt_until_done(arguments)
            else:
                result = line["result"]
        except PlanError as error:
            if self.attempts == 0:
                self.context.tell("step_started", tool=self.call.tool, input=self.call.input)
                digest = None
            result = self.recover(error, begun)
        except StopRun as stop:
            self.told_stop(stop, begun)
            raise
        elapsed_s = time.monotonic() - begun
        if line is None:
            executed = 1 + self.inner.count
            self.tally.add(1)
            self.note(digest, elapsed_s, executed=executed, result=result)
        else:
            self.tally.add(line.get("executed", 1))
        self.told_end(elapsed_s, result=result, reused=line is not None)
        return result

    def arguments(self):
        if self.control is not None or self.is_literal:
            return self.call.input
        return templates.render(self.call.input, self.scope)

    def digest(self, arguments):
        """Return what the result depends on as a digest; None when there is no record."""
        if not self.context.journal.active:
            return None
        if self.control is None:
            return records.digest([self.call.tool, arguments])
        roots = {name: self.scope[name] for name in templates.roots(arguments) if name in self.scope}
        seen = {name: self.digests.of(name, value) for name, value in roots.items()}
        return records.digest([self.call.tool, arguments, seen])

    def recalled(self, digest):
        line = self.context.journal.recall(self.context.key, digest)
        return line if line is not None and "result" in line else None

    def attempt_until_done(self, arguments):
        retry = self.call.retry
        while True:
            self.attempts += 1
            try:
                return self.attempt(arguments)
            except PlanError as error:
                if self.attempts >= retry.attempts or not _is_retryable(error):
                    raise
                wait_s = retry.backoff_s * 2 ** min(self.attempts - 1, BACKOFF_DOUBLINGS)
                wait_s = self.context.remaining(wait_s)
                self.context.tell(
                    "step_retry", tool=self.call.tool, attempt=self.attempts + 1, wait_s=wait_s, error=error.message
                )
            self.context.cancel.wait(wait_s)
            self.context.cancel.check()

    def attempt(self, arguments):
        limit_s = self.context.remaining(self.call.timeout_s)
        context = self.context
        if self.call.timeout_s is not None:
            context = context.with_(deadline=time.monotonic() + limit_s)
        if self.control is None:
            return context.services.registry.call(self.call.tool, arguments, context)
        return self.control.run(StepRun(self, context))

    def recover(self, error, begun):
        """Return the result that on_error says; without one write the failure down and raise StepFailed."""
        failure = error if isinstance(error, StepFailed) else StepFailed(error, self.context.path, self.call.tool)
        if self.call.on_error == "continue":
            return {"error": failure.message}
        if self.call.on_error != "fail":
            try:
                return templates.render(self.call.on_error, self.scope)
            except PlanError as second:
                failure = StepFailed(second, self.context.path, self.call.tool)
        told = {"kind": failure.kind, "message": failure.message, "payload": failure.payload}
        elapsed_s = time.monotonic() - begun
        self.note(None, elapsed_s, error=told)
        self.told_end(elapsed_s, error=failure.payload, is_error=True)
        raise failure

    def note(self, digest, elapsed_s, **ending):
        if self.context.journal.active:
            self.context.journal.note(
                {
                    "type": "step",
                    "key": self.context.key,
                    "digest": digest,
                    "stack": list(self.context.stack),
                    "path": self.context.path,
                    "tool": self.call.tool,
                    "at": round(time.time(), 3),
                    "elapsed_s": round(elapsed_s, 6),
                    "attempts": self.attempts,
                    **ending,
                }
            )

    def told_end(self, elapsed_s, is_error=False, reused=False, **ending):
        self.context.tell(
            "step_finished", tool=self.call.tool, is_error=is_error, elapsed_s=elapsed_s, reused=reused, **ending
        )

    def told_stop(self, stop, begun):
        ending = {"result": stop.exit} if isinstance(stop, ExitFired) else {"error": {"error": str(stop)}}
        self.told_end(time.monotonic() - begun, is_error="error" in ending, **ending)


class StepRun:
    """What a control step is given: its raw input, ways to render it, to run bodies and calls, to ask and to remember.

    `each` may call into it from several threads at once.
    """

    def __init__(self, call_run, context):
        self._run = call_run
        self.id = getattr(call_run.call, "id", "") or context.path
        self.path = context.path
        self.key = context.key
        self.input = call_run.call.input
        self.scope = call_run.scope
        self.context = context
        #: The limit `run` was given for everything, or None.
        self.concurrency = call_run.concurrency
        self._bodies = {}

    def render(self, value, **extra):
        """Render a value; `extra` are roots over those of the step (item, index, accumulator)."""
        return templates.render(value, {**self.scope, **extra} if extra else self.scope)

    def render_text(self, text, **extra):
        """Render a string to text."""
        return templates.render_text(text, {**self.scope, **extra} if extra else self.scope)

    def body(self, raw, branch, **extra):
        """Run a body and return the result of its last call. branch: "then", "else", "do" or "do.<index>"."""
        body = self._bodies.get(id(raw))
        if body is None:
            body = self._bodies[id(raw)] = documents.parse_body(raw)
        scope = {**self.scope, **extra}
        if isinstance(body, documents.Call):
            return self._call_run(body, f"/{branch}", f"/{branch}", scope).run()
        result = None
        for step in body:
            suffix = f"/{branch}/{step.id}"
            result = scope[step.id] = self._call_run(step, suffix, suffix, scope).run()
        return result

    def call(self, tool, arguments, path_suffix, key_suffix):
        """Call a tool with an input that is taken as it is, as an agent does; counts as one executed step."""
        call = documents.Call(tool, arguments)
        run = self._call_run(call, f"/{path_suffix}", f"/{key_suffix}", self.scope, is_literal=True)
        try:
            return run.run()
        except PlanError:
            self._run.inner.add(1)  # an agent's failed call was made all the same
            raise

    def _call_run(self, call, path_suffix, key_suffix, scope, is_literal=False):
        run = self._run
        return _CallRun(
            call,
            self.path + path_suffix,
            self.key + key_suffix,
            scope,
            self.context,
            run.inner,
            run.digests,
            run.concurrency,
            is_literal,
        )

    def each(self, function, items, concurrency=1):
        """Return [function(index, item), …] in the order of the items, at most `concurrency` at a time.

        After a failure nothing more is started; what runs ends first, and the failure of the lowest index is raised.
        """
        limit = min(concurrency, self.concurrency or concurrency, len(items))
        if limit <= 1:
            return [function(index, item) for index, item in enumerate(items)]
        return _in_parallel(function, items, limit, f"plan.{self.context.stack[-1]}.{self.path}.worker")

    def ask(self, prompt, schema):
        """Put a question to a person and return the Answer. An answer on record is not asked for again."""
        key, journal = f"{self.key}/answer", self.context.journal
        digest = records.digest([prompt, schema])
        line = journal.recall(key, digest)
        if line is not None and "answer" in line:
            return tools.Answer("answered", line["answer"])
        self.context.tell("question", prompt=prompt)
        question = tools.Question(prompt, schema, self.path, self.context.stack, key, self.context.deadline)
        answer = self.context.ask(question)
        self.context.cancel.check()
        self.context.tell("answer", status=answer.status)
        if answer.status == "answered":
            journal.note(records.answer_line(key, prompt, schema, answer.value))
        return answer

    def remember(self, suffix, request, function):
        """Return function(), a JSON value; one on record for the same request is not computed again."""
        journal = self.context.journal
        if not journal.active:
            return function()
        key, digest = f"{self.key}/{suffix}", records.digest(request)
        line = journal.recall(key, digest)
        if line is not None and "value" in line:
            return line["value"]
        value = function()
        journal.note({"type": "model", "key": key, "digest": digest, "value": value})
        return value


def _in_parallel(function, items, limit, name):
    """Return [function(index, item), …] computed by this thread and limit - 1 others."""
    results = [None] * len(items)
    todo = enumerate(items)
    failures = []
    # Protects todo; held for one step of it.
    lock = threading.Lock()

    def work():
        while True:
            with lock:
                index, item = (None, None) if failures else next(todo, (None, None))
            if index is None:
                return
            results[index], error = _result_of(lambda: function(index, item))
            if error is not None:
                failures.append((index, error))

    threads = [threading.Thread(target=work, name=f"{name}.{n}", daemon=True) for n in range(1, limit)]
    for thread in threads:
        thread.start()
    work()
    for thread in threads:
        thread.join()
    if failures:
        raise min(failures, key=lambda failure: (not isinstance(failure[1], StopRun), failure[0]))[1]
    return results
