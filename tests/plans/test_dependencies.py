"""Which step waits for which."""

import json

import pytest

from graphlib_plans import dependencies
from graphlib_plans.documents import to_plan
from graphlib_plans.errors import InvalidPlan


def reads(name):
    return name.startswith("r__")


def document(*steps, **more):
    return {"identifier": "p", "name": "P", "description": "", "steps": list(steps), **more}


def step(identifier, tool="r__x", input=None, **more):
    return {"id": identifier, "tool": tool, "input": input or {}, **more}


def ref(*names):
    return {"x": " ".join("{{%s}}" % name for name in names)}


CALL_READ = {"tool": "r__x", "input": {}}
CALL_WRITE = {"tool": "w__x", "input": {}}

ORDERS = [
    ("reading steps are free", [step("a"), step("b")], {"a": "", "b": ""}),
    ("references wait", [step("a"), step("b", input=ref("a.x", "input.y"))], {"a": "", "b": "a"}),
    ("after waits, also for later steps", [step("a", after=["b"]), step("b")], {"a": "b", "b": ""}),
    ("references in on_error wait", [step("a"), step("b", on_error=ref("a"))], {"a": "", "b": "a"}),
    ("writing steps keep their order", [step("a", "w__x"), step("b"), step("c", "w__x")], {"a": "", "b": "", "c": "a"}),
    ("an exit stands between", [step("a"), step("e", "exit"), step("b")], {"a": "", "e": "a", "b": "e"}),
    ("an ask too", [step("a"), step("q", "ask"), step("b", "w__x")], {"a": "", "q": "a", "b": "q"}),
    (
        "an exit or ask in a body too",
        [
            step("a"),
            step("d", "decide", {"then": [step("i"), step("j", "exit")]}),
            step("b"),
            step("m", "map", {"over": [], "do": {"tool": "ask", "input": {}}}),
            step("c"),
        ],
        {"a": "", "d": "a", "b": "d", "m": "b d", "c": "m"},
    ),
    (
        "barriers wait for everything since the last",
        [step("a"), step("b"), step("e", "exit"), step("c"), step("f", "exit")],
        {"a": "", "b": "", "e": "a b", "c": "e", "f": "c e"},
    ),
    (
        "bodies count: what they refer to and what they do",
        [
            step("a"),
            step("m", "map", {"over": [], "do": {"tool": "w__x", "input": ref("a", "item.x")}}),
            step("d", "decide", {"then": CALL_READ, "else": [step("i"), step("j", "w__x")]}),
            step("r", "reduce", {"over": [], "do": CALL_READ}),
            step("w", "w__x"),
        ],
        {"a": "", "m": "a", "d": "m", "r": "", "w": "d"},
    ),
    (
        "an agent reads only when all its patterns do",
        [step("g", "agent", {"tools": ["r__*"]}), step("h", "agent"), step("w", "w__x")],
        {"g": "", "h": "", "w": "h"},
    ),
    ("a later name in a section is an item's field", [step("a", input=ref("#input.x", "b", "/input.x")), step("b")],
     {"a": "", "b": ""}),
    ("an earlier name in a section may be the step", [step("b"), step("a", input=ref("#input.x", "b", "/input.x"))],
     {"b": "", "a": "b"}),
]  # fmt: skip


@pytest.mark.parametrize("name, steps, expected", ORDERS, ids=[row[0] for row in ORDERS])
def test_order(name, steps, expected):
    order = dependencies.order(to_plan(document(*steps)), reads)
    assert order == {key: set(value.split()) for key, value in expected.items()}
    assert list(order) == [one["id"] for one in steps]


def test_a_parallel_plan_gives_the_order_of_writing_steps_up():
    steps = [step("a", "w__x"), step("e", "exit"), step("b", "w__x"), step("c", "w__x", ref("b"))]
    order = dependencies.order(to_plan(document(*steps, parallel=True)), reads)
    assert order == {"a": set(), "e": {"a"}, "b": {"e"}, "c": {"b", "e"}}


def test_the_sorter_hands_out_steps_as_they_become_free():
    plan = to_plan(document(step("a"), step("b"), step("c", input=ref("a", "b")), step("d", input=ref("a"))))
    graph = dependencies.sorter(plan, reads)
    assert set(graph.get_ready()) == {"a", "b"}
    graph.done("a")
    assert graph.get_ready() == ("d",)
    graph.done("b")
    assert graph.get_ready() == ("c",)
    assert [set(group) for group in dependencies.levels(plan, reads)] == [{"a", "b"}, {"c", "d"}]


def test_steps_that_wait_for_each_other_are_refused():
    broken = document(step("a", after=["c"]), step("b", input=ref("a")), step("c", input=ref("b")))
    with pytest.raises(InvalidPlan, match="wait for each other"):
        dependencies.sorter(to_plan(broken), reads)
    (problem,) = dependencies.order_problems(broken)
    assert problem.text == "steps wait for each other: a → c → b → a" and problem.pointer == "/steps/0"


@pytest.mark.parametrize(
    "steps, expected",
    [
        ([step("a", after=["b"]), step("b")], []),
        ([step("a", after=["x", "a"])], [("/steps/0/after/0", "after_unknown"), ("/steps/0/after/1", "after_self")]),
        ([step("a", after=["b"]), step("e", "exit"), step("b")], [("/steps/0", "order_cycle")]),
        ([step("a", after="x"), 3, {"id": 4}, {"after": [5]}], []),
    ],
)
def test_order_problems(steps, expected):
    found = dependencies.order_problems(document(*steps))
    assert [(one.pointer, one.code) for one in found] == expected


def test_the_graph_grows_with_the_plan_and_not_with_its_square():
    steps = [step(f"s{n}", ("w__x", "r__x", "exit", "r__x")[n % 4]) for n in range(2000)]
    order = dependencies.order(to_plan(document(*steps)), reads)
    assert sum(map(len, order.values())) < 3 * len(steps)
    assert json.dumps(sorted(order["s1999"])) == '["s1998"]'
