"""The registry, cancel tokens, the context of a call, and text for terminals."""

import gc
import threading
import time

import pytest

from graphlib_plans import control, tools
from graphlib_plans.errors import Cancelled, Problem, ToolError, ToolTimeout

RULE = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}, "b": {"default": 2}}}


def tool(name, call=lambda arguments, context: arguments, **fields):
    fields = {"description": name, "input_schema": {"type": "object"}, **fields}
    return tools.Tool(name=name, source=name.partition("__")[0], call=call, **fields)


class Source:
    """A source with fixed tools; `connected=False` lists them only when asked to."""

    def __init__(self, prefix, *found, connected=True, broken=None):
        self.prefix = self.label = prefix
        self._found, self._connected, self._broken = list(found), connected, broken
        self.closed = False

    def known(self):
        return self._found if self._connected else None

    def tools(self, context):
        if self._broken:
            raise ToolError(self._broken)
        self._connected = True
        return self._found

    def missing(self, name):
        return Problem("", "tool_unknown", f"{self.prefix} has no {name!r}", "look again")

    def notes(self):
        return [f"{self.prefix} is odd"] if self.prefix == "odd" else []

    def close(self):
        self.closed = True


@pytest.fixture
def context():
    return tools.quiet_context()


@pytest.fixture
def registry():
    reading = {"readOnlyHint": True}
    return tools.Registry(
        [
            Source("lazy", tool("lazy__a", annotations=reading), tool("lazy__b"), connected=False),
            Source("down", connected=False, broken="down cannot be reached"),
            Source("builtin", tool("builtin__x", annotations=reading), tool("builtin__y", annotations=reading)),
            Source("", tools.Tool("plan_and_execute", "(core)", "plans", {}, lambda arguments, context: None)),
        ],
        {name: each.tool for name, each in control.CONTROLS.items()},
    )


# Finding -----------------------------------------------------------------------------------------------------------


def test_finding_connects_and_peeking_does_not(registry, context):
    assert registry.peek("lazy__a") is None
    assert registry.check("lazy__nope") is None  # cannot be known yet
    assert registry.find("lazy__a", context).name == "lazy__a"
    assert registry.peek("lazy__a").name == "lazy__a"
    assert registry.check("lazy__nope").code == "tool_unknown"


def test_bare_names(registry, context):
    assert registry.find("plan_and_execute", context).source == "(core)"
    assert registry.peek("exit").source == "(control)"
    assert registry.check("exit") is None and registry.check("plan_and_execute") is None


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("builtin__z", "tool_unknown", "builtin has no"),
        ("absent__z", "server_unconfigured", "[mcp.absent]"),
        ("buitin__x", "server_unconfigured", "did you mean 'builtin'"),
        ("exti", None, None),
        ("__x", None, None),
        ("builtin__", None, None),
    ],
)
def test_names_that_are_not_there(registry, context, name, code, words):
    problem = registry.check(name)
    if code:
        assert problem.code == code and words in str(problem)
    with pytest.raises(ToolError) as caught:
        registry.find(name, context)
    assert "unknown tool" in str(caught.value) and not caught.value.retryable


def test_a_control_step_cannot_be_called(registry, context):
    with pytest.raises(ToolError, match="control step"):
        registry.call("exit", {}, context)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("builtin__x", True),
        ("builtin__*", True),
        ("lazy__a", False),
        ("lazy__*", False),
        ("*", False),
        ("nope__*", False),
    ],
)
def test_only_what_is_known_to_read_counts_as_reading(registry, name, answer):
    assert registry.is_read_only(name) is answer


def test_what_is_not_known_to_write_can_count_as_reading(registry):
    names = ("builtin__x", "lazy__a", "lazy__*", "nope__*", "plan_and_execute")
    assert [registry.is_read_only(name, unknown=True) for name in names] == [True, True, True, True, False]


# Patterns ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["builtin__*"], ["builtin__x", "builtin__y"]),
        (["lazy__a", "builtin__y"], ["builtin__y", "lazy__a"]),
        (["*__x", "lazy__*"], ["builtin__x", "lazy__a", "lazy__b"]),
        (["*"], ["builtin__x", "builtin__y", "lazy__a", "lazy__b"]),
        (["b*n__*"], ["builtin__x", "builtin__y"]),
    ],
)
def test_patterns(registry, context, patterns, names):
    assert [found.name for found in registry.match(patterns, context)] == names


def test_patterns_that_match_nothing_are_named(registry, context):
    with pytest.raises(ToolError) as caught:
        registry.match(["builtin__*", "lazy__z*", "builtin__[xy]", "exit", "plan_and_execute"], context)
    message = str(caught.value)
    assert all(repr(each) in message for each in ("lazy__z*", "builtin__[xy]", "exit", "plan_and_execute"))
    assert "builtin__*" not in message


def test_a_server_that_is_named_must_be_there_and_any_other_is_only_told_about(registry):
    events = []
    context = tools.quiet_context(emit=events.append)
    with pytest.raises(ToolError, match="cannot be reached"):
        registry.match(["down__*"], context)
    registry.match(["*"], context)
    assert [event["event"] for event in events] == ["warning"]


def test_peeking_at_patterns(registry, context):
    assert registry.peek_match("lazy__*") is None
    assert [found.name for found in registry.peek_match("builtin__x*")] == ["builtin__x"]
    assert registry.peek_match("absent__*") == []


def test_the_listing_has_everything_in_order_and_says_what_is_broken(registry, context):
    found, notes = registry.listing(context)
    names = [each.name for each in found]
    assert names[:4] == ["lazy__a", "lazy__b", "builtin__x", "builtin__y"]
    assert names[4:] == ["plan_and_execute", "agent", "ask", "exit", "decide", "filter", "map", "reduce"]
    assert notes == ["down cannot be reached"]


def test_a_listing_asks_all_sources_at_the_same_time(context):
    """Each waits until the other has been asked too."""
    together = threading.Barrier(2, timeout=40)

    class Slow(Source):
        def tools(self, context):
            together.wait()
            return super().tools(context)

    sources = [Slow("a", tool("a__x"), connected=False), Slow("b", tool("b__x"), connected=False)]
    found, notes = tools.Registry(sources).listing(context)
    assert ([each.name for each in found], notes) == (["a__x", "b__x"], [])


def test_a_fault_of_a_source_is_not_lost(context):
    class Broken(Source):
        def tools(self, context):
            raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        tools.Registry([Source("a"), Broken("b")]).listing(context)


def test_closing_closes_every_source():
    sources = [Source("a"), Source("b")]
    tools.Registry(sources).close()
    assert all(source.closed for source in sources)


# Calling -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def strict():
    return tools.Registry(
        [Source("t", tool("t__x", input_schema=RULE), tool("t__y", input_schema=RULE, checks_input=False))]
    )


def test_arguments_get_defaults(strict, context):
    assert strict.call("t__x", {"a": 1}, context) == {"a": 1, "b": 2}


@pytest.mark.parametrize("arguments", [{}, {"a": "1"}, {"a": 1, "c": 3}])
def test_wrong_arguments_are_told_with_the_schema(strict, context, arguments):
    with pytest.raises(ToolError) as caught:
        strict.call("t__x", arguments, context)
    assert set(caught.value.payload) == {"error", "problems", "inputSchema"}
    assert not caught.value.retryable
    assert strict.call("t__y", arguments, context) == arguments  # a server checks its own


def test_a_call_is_told_about_before_and_after(context):
    events = []

    def broken(arguments, context):
        raise ToolError("no")

    registry = tools.Registry([Source("t", tool("t__x"), tool("t__y", broken))])
    context = tools.quiet_context(emit=events.append, stack=("p",), path="E1")
    registry.call("t__x", {"a": 1}, context)
    with pytest.raises(ToolError):
        registry.call("t__y", {}, context)
    told = [(each["event"], each["tool"], each.get("is_error"), each["stack"], each["path"]) for each in events]
    assert told == [
        ("tool_started", "t__x", None, ["p"], "E1"),
        ("tool_finished", "t__x", False, ["p"], "E1"),
        ("tool_started", "t__y", None, ["p"], "E1"),
        ("tool_finished", "t__y", True, ["p"], "E1"),
    ]


def test_nothing_is_called_once_cancelled(strict):
    context = tools.quiet_context()
    context.cancel.cancel("stop")
    with pytest.raises(Cancelled, match="stop"):
        strict.call("t__x", {"a": 1}, context)


def test_definitions_have_every_key():
    assert tool("t__x").definition() == {
        "name": "t__x",
        "source": "t",
        "description": "t__x",
        "readOnly": None,
        "inputSchema": {"type": "object"},
        "outputSchema": None,
        "outputExample": None,
    }
    assert tool("t__x").summary() == {
        "name": "t__x",
        "source": "t",
        "description": "t__x",
        "readOnly": None,
        "hasOutputSchema": False,
    }


# Cancel tokens -----------------------------------------------------------------------------------------------------


def test_a_token_stays_cancelled_and_keeps_its_first_reason():
    token, told = tools.CancelToken(), []
    token.on_cancel(lambda: told.append("a"))
    remove = token.on_cancel(lambda: told.append("b"))
    remove()
    assert not token.cancelled and token.reason == "" and not token.wait(0)
    token.cancel("first")
    token.cancel("second")
    token.on_cancel(lambda: told.append("late"))
    assert (token.cancelled, token.reason, told, token.wait(0)) == (True, "first", ["a", "late"], True)
    with pytest.raises(Cancelled) as caught:
        token.check()
    assert caught.value.reason == "first"


def test_a_waiting_thread_is_woken(in_thread):
    token = tools.CancelToken()
    join = in_thread(lambda: token.wait(40))
    token.cancel()
    assert join() is True


def test_a_child_is_cancelled_with_its_parent_and_alone():
    parent = tools.CancelToken()
    first, second = parent.child(), parent.child()
    first.cancel("me")
    assert not parent.cancelled and not second.cancelled
    parent.cancel("all")
    assert (first.reason, second.reason) == ("me", "all")


def test_a_parent_forgets_children_that_are_gone():
    parent = tools.CancelToken()
    for _ in range(100):
        parent.child()
    gc.collect()
    assert len(parent._callbacks) == 0


def test_a_cancel_while_callbacks_are_added():
    for _ in range(50):
        token, told = tools.CancelToken(), []
        adding = threading.Thread(target=lambda: [token.on_cancel(lambda: told.append(1)) for _ in range(20)])
        adding.start()
        token.cancel()
        adding.join()
        assert len(told) == 20


# The context -------------------------------------------------------------------------------------------------------


def test_what_is_left_of_the_time():
    assert tools.quiet_context().remaining() is None
    assert tools.quiet_context().remaining(5) == 5
    soon = tools.quiet_context(deadline=time.monotonic() + 100)
    assert 0 < soon.remaining() <= 100 and soon.remaining(5) == 5
    with pytest.raises(ToolTimeout, match="E1"):
        tools.quiet_context(deadline=time.monotonic() - 1, path="E1").remaining(5)


def test_contexts_are_varied_and_not_changed():
    context = tools.quiet_context(path="E1")
    assert context.with_(path="E2").path == "E2" and context.path == "E1"


# Text for terminals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, also Grüße 漢字 👍", "plain, also Grüße 漢字 👍"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("a\rb\x9b", "a\\x0db\\x9b"),
        ("\u202eevil\u2066", "\\u202eevil\\u2066"),
        ("\ud800", "\\ud800"),
        ("\U000e0001", "\\U000e0001"),
    ],
)
def test_what_could_act_on_a_terminal_is_escaped(text, shown):
    assert tools.printable(text) == shown
