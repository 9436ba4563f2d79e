"""Progress lines and questions, on plain streams and on real terminals."""

import io
import json
import os
import threading

import pytest

from graphlib_plans import terminal, tools

pty = pytest.importorskip("pty", reason="terminals need a system with pseudo-terminals")


def event(name, path="E1", stack=("p",), **fields):
    return {"event": name, "stack": list(stack), "path": path, **fields}


def started(path="E1", **fields):
    return event("step_started", path, tool="t__x", input={}, **fields)


def finished(path="E1", **fields):
    fields = {"is_error": False, "elapsed_s": 1.25, "reused": False, "tool": "t__x", **fields}
    return event("step_finished", path, **fields)


def shown(*events, verbose=False, encoding="utf-8"):
    raw = io.BytesIO()
    progress = terminal.Progress(io.TextIOWrapper(raw, encoding=encoding), verbose)
    for each in events:
        progress(each)
    return raw.getvalue().decode("utf-8").splitlines()


# Plain lines -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "line"),
    [
        (started(), "E1 t__x …"),
        (finished(), "E1 t__x ✓ 1.2 s"),
        (finished(reused=True), "E1 t__x ↺ from the record"),
        (finished(is_error=True, error={"error": "no\nway"}), "E1 t__x ✗ 1.2 s: no way"),
        (finished(is_error=True, error=["odd"]), 'E1 t__x ✗ 1.2 s: ["odd"]'),
        (started(stack=("p", "a", "b")), "a ▸ b ▸ E1 t__x …"),
        (event("step_retry", tool="t__x", attempt=2, wait_s=0.5, error="no"), "E1 t__x ↻ try 2 in 0.5 s, because: no"),
        (event("warning", text="odd"), "warning: odd"),
        (event("usage_summary", usage={}, text="1 call · 2 in / 3 out"), "1 call · 2 in / 3 out"),
        (event("synthesizing", ""), "writing the answer …"),
        (finished("E1/do.3", is_error=True, error={"error": "no"}), "E1/do.3 t__x ✗ 1.2 s: no"),
        (started("E1/do.3"), None),
        (finished("E1/do.3"), None),
        (event("tool_started", tool="t__x", arguments={}), None),
        (event("solver_delta", text="x"), None),
    ],
)
def test_lines_for_people(told, line):
    assert shown(told) == ([line] if line else [])


def test_everything_is_told_when_verbose():
    assert shown(started("E1/do.3"), verbose=True) == ["E1/do.3 t__x …"]


def test_what_tools_say_cannot_act_on_the_terminal():
    lines = shown(finished(is_error=True, error={"error": "\x1b[2J\u202egone"}))
    assert lines == ["E1 t__x ✗ 1.2 s: \\x1b[2J\\u202egone"]


def test_a_stream_that_cannot_write_marks_gets_words():
    assert shown(started(), finished(is_error=True, error="no"), encoding="ascii") == [
        "E1 t__x ...",
        "E1 t__x FAILED 1.2 s: no",
    ]


def test_a_reader_that_is_gone_does_not_matter():
    stream = io.StringIO()
    progress = terminal.Progress(stream)
    stream.close()
    progress(started())


def test_events_for_programs():
    stream = io.StringIO()
    progress = terminal.progress(stream, {"GRAPH_EVENTS": "jsonl"})
    progress(started())
    progress(finished(result="\u202e"))
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["step_started", "step_finished"]
    assert "input" not in lines[0] and "result" not in lines[1]


# A real terminal ---------------------------------------------------------------------------------------------------


class Screen:
    """A pseudo-terminal: what is written to `stream`, and a keyboard."""

    def __init__(self):
        self.master, slave = pty.openpty()
        self.input = os.fdopen(os.dup(slave), "r", encoding="utf-8")
        self.output = os.fdopen(slave, "w", encoding="utf-8")
        self.seen = ""

    def type(self, text):
        os.write(self.master, text.encode())

    def until(self, text):
        """Read what is shown until a text has come."""
        while text not in self.seen:
            data = os.read(self.master, 65536).decode("utf-8", "replace")
            assert data, self.seen
            self.seen += data
        return self.seen

    def close(self):
        self.input.close()
        self.output.close()
        os.close(self.master)


@pytest.fixture
def screen():
    made = Screen()
    yield made
    made.close()


def test_live_lines_are_replaced_by_lines_that_stay(screen):
    live = terminal.progress(screen.output, {"TERM": "xterm"})
    assert isinstance(live, terminal.LiveProgress)
    live(started("E1"))
    live(started("E2"))
    screen.until("… E2 t__x 0 s")
    live(finished("E1"))
    text = screen.until("✓ 1.2 s")
    assert "\x1b[2A" in text  # over both live lines
    live(finished("E2"))
    live.close()
    assert not live.ticker.is_alive()
    assert live.running == {} and live.drawn == 0


def test_a_dumb_terminal_gets_plain_lines(screen):
    assert type(terminal.progress(screen.output, {"TERM": "dumb"})) is terminal.Progress


@pytest.mark.parametrize(
    ("text", "width", "fitted"), [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("漢字漢字", 5, "漢…"), ("a\nb", 9, "a b")]
)
def test_live_lines_fit_the_terminal(text, width, fitted):
    assert terminal._fit(text, width) == fitted


# Questions ---------------------------------------------------------------------------------------------------------

FORM = {
    "type": "object",
    "required": ["name", "go"],
    "properties": {
        "name": {"type": "string", "description": "Who?"},
        "go": {"type": "boolean"},
        "n": {"type": "integer", "minimum": 2},
        "color": {"enum": ["Red", "Green", 3]},
        "size": {"type": "number", "default": 1.5},
    },
}


def ask(screen, cancel=None, schema=FORM, deadline=None):
    cancel = cancel or tools.CancelToken()
    asking = terminal.asker(screen.input, screen.output, {}, terminal.Progress(screen.output), cancel)
    return asking(tools.Question("Go on \x1b[2J?", schema, "E1/do.0", ("p", "inner"), "k", deadline))


def answer(screen, in_thread, *lines, schema=FORM):
    """Return the Answer of a person who types these lines, each when it is asked for."""
    join = in_thread(lambda: ask(screen, schema=schema))
    for prompt, line in lines:
        screen.until(prompt)
        screen.seen = screen.seen.partition(prompt)[2]
        screen.type(line)
    return join()


def test_a_question_is_asked_field_by_field(screen, in_thread):
    given = answer(
        screen,
        in_thread,
        ("name [text, required]: ", "Ida\n"),
        ("go [y/n, required]: ", "Y\n"),
        ("n [integer]: ", "3\n"),
        ("color [Red | Green | 3]: ", "green\n"),
        ("size [number, default 1.5]: ", "\n"),
    )
    assert given == tools.Answer("answered", {"name": "Ida", "go": True, "n": 3, "color": "Green", "size": 1.5})


def test_the_prompt_says_where_it_comes_from_and_is_harmless(screen, in_thread):
    join = in_thread(lambda: ask(screen))
    text = screen.until("required]: ")
    assert "Go on \\x1b[2J?" in text and "inner ▸ E1/do.0" in text and "Who?" in text
    screen.type("\n")
    assert join() == tools.Answer("declined")


def test_fields_that_are_not_required_may_be_skipped(screen, in_thread):
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}
    given = answer(screen, in_thread, ("a [text]: ", "\n"), ("b [integer]: ", "12\n"), schema=schema)
    assert given == tools.Answer("answered", {"b": 12})


def test_bad_values_are_asked_for_again_three_times(screen, in_thread):
    schema = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer", "minimum": 2}}}
    prompt = "n [integer, required]: "
    assert answer(screen, in_thread, (prompt, "x\n"), (prompt, "1\n"), (prompt, "2\n"), schema=schema).value == {"n": 2}
    screen.seen = ""
    given = answer(screen, in_thread, (prompt, "x\n"), (prompt, "1.5\n"), (prompt, "true\n"), schema=schema)
    assert given.status == "declined"


def test_a_closed_keyboard_means_that_nobody_is_there(screen, in_thread):
    assert answer(screen, in_thread, ("required]: ", "\x04")).status == "unavailable"


def test_a_cancel_ends_the_question(screen, in_thread):
    cancel = tools.CancelToken()
    join = in_thread(lambda: ask(screen, cancel))
    screen.until("required]: ")
    cancel.cancel()
    assert join().status == "unavailable"


def test_a_deadline_ends_the_question(screen):
    assert ask(screen, deadline=0).status == "unavailable"


def test_without_a_terminal_nobody_is_asked(screen):
    cancel, progress = tools.CancelToken(), terminal.Progress(io.StringIO())
    for stdin, stderr, environ in (
        (io.StringIO(), screen.output, {}),
        (screen.input, io.StringIO(), {}),
        (screen.input, screen.output, {"GRAPH_EVENTS": "jsonl"}),
    ):
        assert terminal.asker(stdin, stderr, environ, progress, cancel) is tools.unavailable


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("12", {"type": "integer"}, 12),
        ("9007199254740993", {"type": "integer"}, 9007199254740993),
        ("1.5", {"type": "number"}, 1.5),
        ("f", {"type": "boolean"}, False),
        ("No", {"type": "boolean"}, False),
        ("T", {"type": "boolean"}, True),
        ("12", {"type": "string"}, "12"),
        ("RED", {"enum": ["red"]}, "red"),
        ("true", {"enum": [True, "x"]}, True),
    ],
)
def test_what_is_typed_gets_the_type_of_the_field(text, field, value):
    got, trouble = terminal.coerce(text, field)
    assert (got, trouble) == (value, "") and type(got) is type(value)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("x", {"type": "integer"}),
        ("1.5", {"type": "integer"}),
        ("maybe", {"type": "boolean"}),
        ("NaN", {"type": "number"}),
        ("blue", {"enum": ["red"]}),
        ("ab", {"type": "string", "minLength": 3}),
    ],
)
def test_what_does_not_fit_is_explained(text, field):
    got, trouble = terminal.coerce(text, field)
    assert got is None and trouble


def test_ticking_threads_have_a_name_and_end(screen):
    live = terminal.LiveProgress(screen.output)
    assert "terminal.tick" in [thread.name for thread in threading.enumerate()]
    live.close()
    assert not live.ticker.is_alive()
