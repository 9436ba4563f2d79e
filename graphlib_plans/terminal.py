"""What a run shows on stderr, and how it asks a person: for the command line and for logs.

Everything that came from a plan, a tool or a model goes through tools.printable before it reaches a terminal.

Threads: `terminal.tick` redraws the live lines, so that elapsed times move; it blocks on a condition with a timeout and
ends with close. Questions are asked on the thread of the step, which blocks in select until a line, a cancel or the
deadline comes.
"""

import contextlib
import json
import os
import select
import shutil
import threading
import time
import unicodedata

from . import schema
from .documents import read_json, to_json
from .errors import DocumentError, shorten
from .tools import Answer, printable, unavailable

#: Seconds between two drawings of the live lines. Shorter steps never show; an event alone draws nothing, because an
#: iteration has thousands of them.
TICK_S = 0.2
#: Steps that are shown live at most; the rest is counted in one line.
LIVE_LINES = 8
#: Longest excerpt of an error on one line, in characters.
SHOWN_ERROR = 300
#: How often a value is asked for again before the question counts as declined.
TRIES = 3

_MARKS = {"ok": "✓", "failed": "✗", "reused": "↺", "running": "…", "retry": "↻", "within": "▸"}
_PLAIN_MARKS = {"ok": "ok", "failed": "FAILED", "reused": "reused", "running": "...", "retry": "retry", "within": ">"}


def _marks(stream):
    """Return the marks this stream can write."""
    try:
        "".join(_MARKS.values()).encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return _PLAIN_MARKS
    return _MARKS


def is_terminal(stream):
    """Say whether a stream is a terminal."""
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # no such method, or closed
        return False


def place_of(event, within="▸"):
    """Return where an event happened, for people: the calling plans below the root, then the path of the step."""
    return f" {within} ".join([*event["stack"][1:], event["path"]])


# Progress ----------------------------------------------------------------------------------------------------------


class Progress:
    """Takes the events of a run and tells about them on a stream, one line each. Any thread may call it.

    Plain lines for top-level steps, also those of nested plans; bodies and agents' calls only when they fail, or all of
    them when verbose.
    """

    def __init__(self, stream, verbose=False):
        self.stream = stream
        self.verbose = verbose
        self.marks = _marks(stream)
        # Protects the stream and what subclasses know about running steps; held while lines are written.
        self.lock = threading.RLock()

    def __call__(self, event):
        with self.lock:
            line = self.line(event)
            if line is not None:
                self.write(line)

    def write(self, line):
        """Write one line, escaped. A reader that is gone is no reason to end the run."""
        with contextlib.suppress(OSError, ValueError):
            self.stream.write(printable(line) + "\n")
            self.stream.flush()

    def tell(self, text):
        """Write a line that comes from no event."""
        with self.lock:
            self.write(text)

    def close(self):
        """Leave the stream as it should stay."""

    @contextlib.contextmanager
    def paused(self):
        """Keep what moves away while somebody talks with a person; here nothing moves."""
        yield

    def line(self, event):
        """Return the line an event is worth, or None."""
        name = event["event"]
        is_inner = "/" in event["path"]
        if name == "step_started" and (self.verbose or not is_inner):
            return f"{self.title(event)} {self.marks['running']}"
        if name == "step_finished" and (self.verbose or not is_inner or event["is_error"]):
            return self.finished(event)
        if name == "step_retry":
            error = shorten(_one_line(event["error"]), SHOWN_ERROR)
            wait = f"in {event['wait_s']:g} s"
            return f"{self.title(event)} {self.marks['retry']} try {event['attempt']} {wait}, because: {error}"
        if name == "warning":
            return f"warning: {event['text']}"
        if name == "usage_summary":
            return event["text"]
        if name == "synthesizing":
            return "writing the answer " + self.marks["running"]
        if name in ("planning", "replanning", "draft_outline", "draft_step_started", "draft_step_finished"):
            return self.drafting(event)
        return None

    def title(self, event):
        return f"{place_of(event, self.marks['within'])} {event['tool']}"

    def finished(self, event):
        if event["reused"]:
            return f"{self.title(event)} {self.marks['reused']} from the record"
        took = f"{event['elapsed_s']:.1f} s"
        if not event["is_error"]:
            return f"{self.title(event)} {self.marks['ok']} {took}"
        return f"{self.title(event)} {self.marks['failed']} {took}: {_error_text(event.get('error'))}"

    def drafting(self, event):
        name = event["event"]
        if name == "draft_outline":
            return f"outline: {', '.join(_one_line(item) for item in event['items'])}"
        if name == "draft_step_started":
            return (
                f"step {event['index'] + 1} {self.marks['running']} {shorten(_one_line(event['summary']), SHOWN_ERROR)}"
            )
        if name == "draft_step_finished":
            problems = event["problems"]
            ending = f"{self.marks['failed']} {_error_text(problems[0])}" if problems else self.marks["ok"]
            return f"step {event['index'] + 1} {ending}"
        return f"{name} {self.marks['running']}"


def _one_line(text):
    return " ".join(text.split())


def _error_text(error):
    if isinstance(error, dict):
        error = error.get("error", error.get("text", error))
    return shorten(_one_line(error if isinstance(error, str) else to_json(error)), SHOWN_ERROR)


class LiveProgress(Progress):
    """The same on a terminal: besides the lines that stay, one line at the bottom for every step that is running."""

    def __init__(self, stream, verbose=False):
        super().__init__(stream, verbose)
        self.running = {}  # (stack, path) → (title, time.monotonic() of its start)
        self.drawn = 0
        self.is_paused = False
        self.closed = threading.Event()
        self.ticker = threading.Thread(target=self.tick, name="terminal.tick", daemon=True)
        self.ticker.start()

    def __call__(self, event):
        with self.lock:
            key = tuple(event["stack"]), event["path"]
            if event["event"] == "step_started":
                self.running[key] = self.title(event), time.monotonic()
            elif event["event"] == "step_finished":
                self.running.pop(key, None)
            line = None if event["event"] == "step_started" else self.line(event)
            if line is not None:
                self.tell(line)

    def tell(self, text):
        """Write a line that stays, above the live ones."""
        with self.lock:
            self.erase()
            self.write(text)
            self.draw()

    def tick(self):
        while not self.closed.wait(TICK_S):
            with self.lock:
                self.erase()
                self.draw()

    def close(self):
        """Remove the live lines and end the ticking thread."""
        self.closed.set()
        self.ticker.join()
        with self.lock:
            self.erase()

    @contextlib.contextmanager
    def paused(self):
        """Take the live lines away while somebody talks with a person; lines that stay are still written."""
        with self.lock:
            self.erase()
            self.is_paused = True
        try:
            yield
        finally:
            with self.lock:
                self.is_paused = False

    def erase(self):
        if self.drawn:
            self.put(f"\x1b[{self.drawn}A\r\x1b[J")  # up to the first live line, and clear to the end of the screen
            self.drawn = 0

    def draw(self):
        if self.is_paused or not self.running or self.closed.is_set():
            return
        width, height = shutil.get_terminal_size()
        limit = max(1, min(LIVE_LINES, height - 2))
        now = time.monotonic()
        # The newest ones: an iteration is shown by the items it is at, not by itself alone.
        shown = list(self.running.values())[-limit:]
        lines = [_fit(f"{self.marks['running']} {title} {now - start:.0f} s", width - 1) for title, start in shown]
        if len(self.running) > limit:
            lines[0] = _fit(f"{self.marks['running']} and {len(self.running) - limit + 1} more", width - 1)
        self.put("".join(printable(line) + "\n" for line in lines))
        self.drawn = len(lines)

    def put(self, text):
        with contextlib.suppress(OSError, ValueError):
            self.stream.write(text)
            self.stream.flush()


def _fit(text, width):
    """Return a text cut to so many terminal columns, on one line."""
    text, columns = printable(_one_line(text)), 0
    for index, character in enumerate(text):
        columns += 2 if unicodedata.east_asian_width(character) in "WF" else not unicodedata.combining(character)
        if columns > width:
            return text[: max(0, index - 1)] + "…"
    return text


class JsonProgress(Progress):
    """The events themselves, one JSON object per line, for programs that drive ours (GRAPH_EVENTS=jsonl)."""

    def line(self, event):
        """Return the event as JSON; results and inputs are left out, the record has them."""
        kept = {key: value for key, value in event.items() if key not in ("result", "input")}
        return json.dumps(kept, allow_nan=False)


def progress(stream, environ, verbose=False):
    """Return the Progress for a stream: JSON lines when GRAPH_EVENTS says so, live on a terminal, else plain."""
    if environ.get("GRAPH_EVENTS") == "jsonl":
        return JsonProgress(stream, verbose)
    is_live = is_terminal(stream) and environ.get("TERM", "dumb") != "dumb"
    return LiveProgress(stream, verbose) if is_live else Progress(stream, verbose)


# Questions ---------------------------------------------------------------------------------------------------------


def asker(stdin, stderr, environ, shown, cancel):
    """Return the `ask` of a run: a dialogue when stdin and stderr are terminals, else nobody is there.

    shown: the Progress that must be silent meanwhile. cancel: the run's CancelToken.
    """
    if not (is_terminal(stdin) and is_terminal(stderr)) or environ.get("GRAPH_EVENTS") == "jsonl":
        return unavailable
    return lambda question: _Dialogue(stdin, stderr, cancel, question).run(shown)


class _EndOfInput(Exception):
    """The terminal was closed, the run was cancelled, or nobody answered in time."""


class _Declined(Exception):
    """The person gave no usable value for something that is needed."""


class _Dialogue:
    """One question, asked field by field."""

    def __init__(self, stdin, stderr, cancel, question):
        self.stdin = stdin
        self.stderr = stderr
        self.cancel = cancel
        self.question = question

    def run(self, shown):
        with shown.paused():
            try:
                return Answer("answered", self.fields())
            except _Declined:
                self.say("declined")
                return Answer("declined")
            except _EndOfInput:
                self.say("")  # the cursor stands behind the prompt
                return Answer("unavailable")

    def fields(self):
        where = " ▸ ".join([*self.question.stack[1:], self.question.path])
        self.say(f"\n{self.question.prompt}")
        self.say(f"(asked by step {where}; an empty line skips a field that is not required)")
        required = self.question.schema.get("required", [])
        answer = {}
        for name, field in self.question.schema["properties"].items():
            value = self.field(name, field, name in required)
            if value is not None:
                answer[name] = value
        return answer

    def field(self, name, field, is_required):
        """Return the value of one field, None when it was skipped."""
        if field.get("description"):
            self.say(f"  {field['description']}")
        default = f", default {to_json(field['default'])}" if "default" in field else ""
        for _ in range(TRIES):
            self.say(f"  {name} [{_hint(field)}{', required' if is_required else ''}{default}]: ", end="")
            text = self.read_line().strip()
            if not text:
                if "default" in field:
                    return field["default"]
                if is_required:
                    raise _Declined
                return None
            value, trouble = coerce(text, field)
            if not trouble:
                return value
            self.say(f"  {trouble}")
        raise _Declined

    def say(self, text, end="\n"):
        with contextlib.suppress(OSError, ValueError):
            self.stderr.write(printable(text) + end)
            self.stderr.flush()

    def read_line(self):
        """Return one line the person typed. _EndOfInput.

        Read from the descriptor: a thread inside stdin.readline() could not be woken by a cancel, and would hold the
        lock of the stream while the interpreter ends.
        """
        descriptor = self.stdin.fileno()
        woken, waker = os.pipe()
        forget = self.cancel.on_cancel(lambda: os.write(waker, b"\n"))
        try:
            limit = self.question.deadline
            left = None if limit is None else max(0, limit - time.monotonic())
            ready, _, _ = select.select([descriptor, woken], [], [], left)
            data = b"" if woken in ready or not ready else os.read(descriptor, 65536)
        finally:
            forget()
            if not self.cancel.cancelled:  # else the thread that cancels may be about to write
                os.close(woken)
                os.close(waker)
        if not data:
            raise _EndOfInput
        return data.decode("utf-8", "replace")


def _hint(field):
    if "enum" in field:
        return " | ".join(value if isinstance(value, str) else to_json(value) for value in field["enum"])
    return {"boolean": "y/n", "integer": "integer", "number": "number"}.get(field.get("type"), "text")


def coerce(text, field):
    """Return (value, "") of what a person typed for a field, or (None, what is wrong with it)."""
    value = _typed(text, field)
    if value is None:
        return None, f"that is none of: {_hint(field)}" if "enum" in field else f"that is no {_hint(field)}"
    problems = schema.problems(value, field)
    return (None, str(problems[0])) if problems else (value, "")


def _typed(text, field):
    if "enum" in field:
        return next((each for each in field["enum"] if _same(text, each)), None)
    kind = field.get("type")
    if kind == "boolean":
        return {"y": True, "yes": True, "true": True, "t": True, "1": True}.get(
            text.lower(), False if text.lower() in ("n", "no", "false", "f", "0") else None
        )
    if kind in ("integer", "number"):
        try:
            value = read_json(text)
        except DocumentError:
            return None
        return value if schema.TYPES[kind](value) else None
    return text


def _same(text, value):
    written = value if isinstance(value, str) else to_json(value)
    return written.casefold() == text.casefold()
