"""Tools and who provides them: the registry a plan's steps are dispatched through, and what every call is given.

A tool's name is `<prefix>__<name>`; the prefix belongs to one Source (an MCP server, `user`, `builtin`, `plan`).
Control steps are listed here so that people find them, but only a plan can run them.
"""

import re
import threading
import time
import unicodedata
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from . import records, schema
from .errors import Cancelled, PlanError, Problem, ToolError, ToolTimeout, did_you_mean, shorten
from .parallel import in_parallel

#: How a listing names the tools that are no source's.
CONTROL = "(control)"
#: Never offered to agents: it writes and runs plans of its own.
PLANNER = "plan_and_execute"


def printable(text):
    """Return text safe for a terminal or log: controls, bidi marks, surrogates are escaped; line feed and tab stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_visible, text))


def _visible(character):
    if character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cf", "Zl", "Zp", "Cs"):
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


# Cancelling --------------------------------------------------------------------------------------------------------


class CancelToken:
    """One flag that any thread may set, wait for or be told about. Once cancelled it stays so."""

    def __init__(self):
        # Protects _reason and _callbacks and wakes the waiters; held for an instant, never while a callback runs.
        self._condition = threading.Condition()
        self._reason = None
        self._callbacks = {}

    @property
    def cancelled(self):
        """Whether cancel was called."""
        return self._reason is not None

    @property
    def reason(self):
        """What the first cancel said, "" before it."""
        return self._reason or ""

    def cancel(self, reason="cancelled"):
        """Set the flag; the first reason stays. Callbacks run on this thread and must not block."""
        with self._condition:
            if self._reason is not None:
                return
            self._reason = reason
            callbacks = list(self._callbacks.values())
            self._callbacks.clear()
            self._condition.notify_all()
        for callback in callbacks:
            callback()

    def on_cancel(self, callback):
        """Have `callback()` called when the flag is set, at once when it is. Returns what takes it back."""
        key = object()
        with self._condition:
            is_late = self._reason is not None
            if not is_late:
                self._callbacks[key] = callback
        if is_late:
            callback()
        return lambda: self._forget(key)

    def _forget(self, key):
        with self._condition:
            self._callbacks.pop(key, None)

    def wait(self, timeout_s=None):
        """Wait until the flag is set or timeout_s seconds have passed; say whether it is set."""
        with self._condition:
            return self._condition.wait_for(lambda: self._reason is not None, timeout_s)

    def check(self):
        """Raise Cancelled when the flag is set."""
        if self._reason is not None:
            raise Cancelled(self._reason)

    def child(self):
        """Return a token that is cancelled with this one, and can be cancelled alone."""
        child = CancelToken()
        reference = weakref.ref(child)

        def pass_on():
            token = reference()
            if token is not None:
                token.cancel(self.reason)

        weakref.finalize(child, self.on_cancel(pass_on))  # a long-lived parent must not collect dead children
        return child


# What a call is given ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """Something only a person can answer. schema: flat object of primitive fields. key: its address in the record.

    deadline: time.monotonic() after which nobody waits for the answer, or None.
    """

    prompt: str
    schema: dict
    path: str
    stack: tuple
    key: str
    deadline: float | None = None


@dataclass(frozen=True)
class Answer:
    """status: "answered" (value is the object), "declined" (a person said no) or "unavailable" (nobody is there)."""

    status: str
    value: object = None


def unavailable(question):
    """Answer for a host without a person."""
    return Answer("unavailable")


def _ignore(event):
    """Take an event of a run that nobody watches."""


@dataclass(frozen=True)
class CallContext:
    """What a call knows about the run it belongs to. Passed down and never changed: with_ makes a variant.

    deadline: time.monotonic() by which the call must have ended, or None. stack: identifiers of the plans that are
    running, the root first. path: place of the step in its plan. key: its address in the whole run.
    """

    cancel: CancelToken = field(default_factory=CancelToken)
    deadline: float | None = None
    emit: Callable = _ignore
    ask: Callable = unavailable
    models: object = None
    ledger: records.UsageLedger = field(default_factory=records.UsageLedger)
    journal: records.Journal = field(default_factory=records.Journal)
    #: execution.Services of the run; None outside a run.
    services: object = None
    stack: tuple = ()
    path: str = ""
    key: str = ""
    #: The limit a run was given for steps and items at the same time, over what its plans say; None for none.
    concurrency: int | None = None

    def remaining(self, limit_s=None):
        """Return how many seconds a wait may last: the smaller of limit_s and the time left; None for no limit.

        ToolTimeout when the deadline has passed.
        """
        if self.deadline is None:
            return limit_s
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise ToolTimeout(f"the time limit of {self.path or 'the call'} has passed")
        return left if limit_s is None else min(left, limit_s)

    def with_(self, **changes):
        """Return a copy with some fields changed."""
        return CallContext(**{**vars(self), **changes})  # three times as fast as dataclasses.replace, and on every call

    def tell(self, event, **details):
        """Emit one event of this place."""
        self.emit({"event": event, "stack": list(self.stack), "path": self.path, **details})


def quiet_context(**overrides):
    """Return the context of a call outside a run: no events, no record, nobody to ask."""
    return CallContext(**overrides)


# Tools -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tool:
    """Something a step can name.

    source: how listings call its origin. call: (arguments, CallContext) → JSON value; raises ToolError, ToolTimeout,
    StopRun or another PlanError, and honours cancel and deadline of the context; None for a control step.
    annotations: as in MCP (readOnlyHint, destructiveHint, idempotentHint, openWorldHint). checks_input: whether
    Registry.call checks the arguments; an MCP server checks its own.
    """

    name: str
    source: str
    description: str
    input_schema: dict
    call: Callable | None
    output_schema: dict | None = None
    output_example: object = None
    title: str = ""
    annotations: Mapping = field(default_factory=dict)
    checks_input: bool = True

    @property
    def read_only(self):
        """Whether the tool says that it leaves the world as it is."""
        return self.annotations.get("readOnlyHint") is True

    def summary(self):
        """Return the tool's entry in a listing."""
        return {
            "name": self.name,
            "source": self.source,
            "description": self.description,
            "readOnly": self.annotations.get("readOnlyHint"),
            "hasOutputSchema": self.output_schema is not None,
        }

    def definition(self):
        """Return everything there is to know about the tool; every key is present, null where there is nothing."""
        return {
            "name": self.name,
            "source": self.source,
            "description": self.description,
            "readOnly": self.annotations.get("readOnlyHint"),
            "inputSchema": self.input_schema,
            "outputSchema": self.output_schema,
            "outputExample": self.output_example,
        }


class Source(Protocol):
    """Who fills the registry. prefix: what stands before `__` ("" for bare names). label: Tool.source of its tools."""

    prefix: str
    label: str

    def known(self):
        """Return the tools without any I/O; None when they have not been listed yet."""

    def tools(self, context):
        """Return the tools; may connect. ToolError."""

    def missing(self, name):
        """Return the Problem that says why there is no tool of this full name."""

    def notes(self):
        """Return sentences for listings about what is broken; [] when all is well."""

    def close(self):
        """Give up connections and processes."""


def _ask(sources, context):
    """Return [(tools, None) or ([], why not), …] of the sources, which are all asked at the same time. StopRun."""

    def ask(index, source):
        try:
            return source.tools(context), None
        except PlanError as error:
            return [], error.message

    return in_parallel(ask, sources, len(sources), "tools.list")


class Registry:
    """Finds and calls tools. Immutable; sources look after their own locks.

    sources: in the order of listings. controls: the control steps by name. unconfigured: prefix nobody has → a
    sentence why, or None.
    """

    def __init__(self, sources, controls=None, unconfigured=lambda prefix: None):
        self.sources = tuple(sources)
        self._controls = dict(controls or {})
        self._unconfigured = unconfigured
        self._by_prefix = {source.prefix: source for source in self.sources}

    def find(self, name, context):
        """Return the tool of this name; connects to its source if need be. ToolError, not retryable, without one."""
        if name in self._controls:
            raise ToolError(f"{name} is a control step: it runs inside a plan and cannot be called", retryable=False)
        source = self._source_of(name)
        tool = source and (_named(name, source.known()) or _named(name, source.tools(context)))
        if tool is None:
            problem = source.missing(name) if source else self._no_source(name)
            raise ToolError(f"unknown tool {shorten(name, 80)!r}: {problem}", retryable=False)
        return tool

    def peek(self, name):
        """Return the tool of this name where it is known already, control steps included; never connects."""
        if name in self._controls:
            return self._controls[name]
        source = self._source_of(name)
        return _named(name, source.known()) if source else None

    def check(self, name):
        """Return the Problem with a tool's name; None when it is fine, or cannot be known without connecting."""
        if name in self._controls:
            return None
        source = self._source_of(name)
        if source is None:
            return self._no_source(name)
        known = source.known()
        return None if known is None or _named(name, known) else source.missing(name)

    def is_read_only(self, name, unknown=False):
        """Say whether a tool, or every tool a pattern matches, leaves the world as it is.

        unknown: the answer for what is not there, or cannot be known without connecting.
        """
        tools = self.peek_match(name) if "*" in name else [self.peek(name)]
        return all(unknown if tool is None else tool.read_only for tool in tools or (None,))

    def connect(self, names, context):
        """Have the sources of these tools list theirs if they have not yet, all at the same time. StopRun.

        Returns sentences about those that cannot be reached.
        """
        sources = {source.prefix: source for source in map(self._source_of, names) if source is not None}
        told = _ask([source for source in sources.values() if source.known() is None], context)
        return [problem for _, problem in told if problem]

    def match(self, patterns, context):
        """Return the tools an agent may use, by name. `*` is any run of characters; control steps never match.

        A server that cannot be reached fails the call when a pattern names it, and is only told about (a warning
        event) when the pattern would match any server. ToolError names the patterns that match nothing.
        """
        found, unmatched = {}, []
        for pattern in patterns:
            tools = [tool for tool in self._candidates(pattern, context) if _matches(pattern, tool.name)]
            found.update((tool.name, tool) for tool in tools)
            if not tools:
                unmatched.append(pattern)
        if unmatched:
            names = ", ".join(repr(shorten(pattern, 80)) for pattern in unmatched)
            raise ToolError(f"no tool matches {names}", retryable=False)
        return [found[name] for name in sorted(found)]

    def peek_match(self, pattern):
        """Return the known tools a pattern matches; None when that cannot be known without connecting."""
        found = []
        for source in self._sources_of(pattern):
            known = source.known()
            if known is None:
                return None
            found += [tool for tool in known if _matches(pattern, tool.name)]
        return found

    def listing(self, context):
        """Return (every tool, control steps last; sentences about sources that could not be listed or are broken)."""
        found, notes = [], []
        for source, (listed, problem) in zip(self.sources, _ask(self.sources, context)):
            found += listed
            notes += [problem] if problem else []
            notes += source.notes()
        return found + list(self._controls.values()), notes

    def call(self, name, arguments, context):
        """Check the arguments and call a tool; return its result.

        ToolError, ToolTimeout, StopRun, or another PlanError of the tool. Emits tool_started and tool_finished.
        """
        context.cancel.check()
        tool = self.find(name, context)
        if tool.checks_input:
            arguments = _checked(tool, arguments)
        started = time.monotonic()
        context.tell("tool_started", tool=name, arguments=arguments)
        is_error = True
        try:
            result = tool.call(arguments, context)
            is_error = False
            return result
        finally:
            context.tell("tool_finished", tool=name, is_error=is_error, elapsed_s=time.monotonic() - started)

    def close(self):
        """Close every source."""
        for source in self.sources:
            source.close()

    def _source_of(self, name):
        prefix, separator, rest = name.partition("__")
        return self._by_prefix.get(prefix if separator and rest else "")

    def _sources_of(self, pattern):
        prefix, separator, _ = pattern.partition("__")
        if "*" in prefix or not separator:
            return self.sources
        source = self._by_prefix.get(prefix)
        return (source,) if source else ()

    def _candidates(self, pattern, context):
        sources = self._sources_of(pattern)
        for source in sources:
            try:
                yield from source.tools(context)
            except ToolError as error:
                if len(sources) == 1:
                    raise
                context.tell("warning", text=f"tools left out: {error.message}")

    def _no_source(self, name):
        prefix, separator, rest = name.partition("__")
        if not separator or not rest:
            return bare_name_problem(name, self._controls)
        reason = self._unconfigured(prefix) or f"the MCP server {shorten(prefix, 80)!r} is not configured"
        prefixes = [each for each in self._by_prefix if each]
        close = did_you_mean(prefix, prefixes) if prefixes else ""
        hint = close if close.startswith("did") else f"add [mcp.{shorten(prefix, 80)}] to the configuration"
        return Problem("", "server_unconfigured", reason, hint)


def bare_name_problem(name, known):
    """Return the Problem with a name that has no source and is none of the known bare names."""
    text = f"{shorten(name, 80)!r} has no source; names are <source>__<tool>"
    return Problem("", "tool_bare", text, did_you_mean(name, known))


def _named(name, tools):
    return next((tool for tool in tools or () if tool.name == name), None)


def _matches(pattern, name):
    if name == PLANNER:
        return False
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name, re.DOTALL) is not None


def _checked(tool, arguments):
    """Return the arguments with defaults. ToolError, not retryable, lists every problem and the schema."""
    arguments, found = schema.check_arguments(arguments, tool.input_schema)
    if found:
        sentences = list(map(str, found))
        message = f"wrong input for {tool.name}: {'; '.join(sentences)}"
        payload = {"error": message, "problems": sentences, "inputSchema": tool.input_schema}
        raise ToolError(message, payload, retryable=False)
    return arguments
