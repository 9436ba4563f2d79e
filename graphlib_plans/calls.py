"""One call of a plan: a top-level step, a step of a body, or a call of an agent.

A call is rendered, looked up among what is finished, tried as often as its `retry` says, written down, and told about.
What it calls is a tool of the registry or a control step; a control step gets a StepRun, through which it runs bodies
and calls of its own. Everything here runs on the thread of the step, except for `StepRun.each`.
"""

import threading
import time

from . import documents, records, templates, tools
from .errors import ExitFired, PlanError, StopRun, ToolError
from .parallel import in_parallel

#: Doublings after which the wait between two tries grows no more.
BACKOFF_DOUBLINGS = 20


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


def is_retryable(error):
    """Say whether trying again may help: a tool failed, and not because of what it was given."""
    error = getattr(error, "cause", error)
    return isinstance(error, ToolError) and error.retryable


class Tally:
    """Counts executed steps; what is added counts for the enclosing tallies too."""

    def __init__(self, parent=None):
        self._parent = parent
        # Protects count; held for one addition.
        self._lock = threading.Lock()
        self.count = 0

    def add(self, number):
        """Count so many more steps."""
        with self._lock:
            self.count += number
        if self._parent is not None:
            self._parent.add(number)


class Digests:
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


class CallRun:
    """One call in one place: a top-level step, a step of a body, or an agent's call. Used once, on one thread.

    is_literal: the input came from a model and is not rendered, whatever it contains.
    """

    def __init__(self, call, path, key, scope, context, tally, digests, is_literal=False):
        self.call = call
        self.scope = scope
        self.context = context.with_(path=path, key=key)
        self.tally = tally
        self.inner = Tally(tally)
        self.digests = digests
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
                if self.attempts >= retry.attempts or not is_retryable(error):
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
        return CallRun(
            call,
            self.path + path_suffix,
            self.key + key_suffix,
            scope,
            self.context,
            run.inner,
            run.digests,
            is_literal,
        )

    def each(self, function, items, concurrency=1):
        """Return [function(index, item), …] in the order of the items, at most `concurrency` at a time.

        After a failure nothing more is started; what runs ends first, and the failure of the lowest index is raised.
        """
        limit = min(concurrency, self.context.concurrency or concurrency, len(items))
        if limit <= 1:
            return [function(index, item) for index, item in enumerate(items)]
        return in_parallel(function, items, limit, f"plan.{self.context.stack[-1]}.{self.path}.worker")

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
        return self.context.journal.remember(f"{self.key}/{suffix}", request, function)
