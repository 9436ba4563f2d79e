"""What is listed: schemas as picky clients want them, hints about what a plan does, results, progress."""

import json
import re

import pytest

from graphlib_plans import mcp_surface, schema


def hints(world, *steps, **fields):
    plan = world.plan(*steps, **fields)
    return mcp_surface.plan_annotations(plan, world.services())


PURE = {"readOnlyHint": True, "openWorldHint": False}


def test_hints_come_from_every_call_at_every_depth(world, step):
    closed = {"openWorldHint": False}
    world.tool("look", lambda arguments: 1)
    world.tool("mark", lambda arguments: 1)
    for name, annotations in (("look", {"readOnlyHint": True, **closed}),
                              ("mark", {"destructiveHint": False, "idempotentHint": True, **closed})):
        world.functions.add(name, lambda arguments: 1)
        object.__setattr__(world.functions.made[name], "annotations", annotations)
    assert hints(world, step("a", "t__look"), identifier="reads") == PURE
    marked = {"readOnlyHint": False, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}
    assert hints(world, step("a", "t__look"), step("b", "t__mark"), identifier="marks") == marked
    body = {"over": [], "do": {"tool": "t__mark", "input": {}}}
    assert hints(world, {"id": "m", "tool": "map", "input": body}, identifier="deep") == marked
    assert hints(world, step("a", "plan__marks"), identifier="outer") == marked
    assert hints(world, step("a", "plan__reads"), identifier="outer2") == PURE
    unknown = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True}
    assert hints(world, step("a", "t__nope"), identifier="odd") == unknown
    assert hints(world, step("a", "plan__nope"), identifier="odd2") == unknown


def test_models_are_part_of_the_world(world, step):
    assert hints(world, solver={"query_to_answer": "x"}) == {"readOnlyHint": True, "openWorldHint": True}
    infer = {"status": "error", "infer": "bad?"}
    assert hints(world, {"id": "e", "tool": "exit", "input": infer})["openWorldHint"]
    agent = {"prompt": "x", "output_schema": {}, "tools": ["t__write"]}
    assert hints(world, {"id": "a", "tool": "agent", "input": agent})["destructiveHint"]


@pytest.mark.parametrize("rule, expected", [
    (None, {"type": "object", "properties": {}}),
    ({}, {"type": "object", "properties": {}}),
    ({"properties": {"a": True, "b": False}}, {"type": "object", "properties": {"a": {}, "b": {"not": {}}}}),
    ({"type": "object", "$defs": {"n": {"type": "integer"}}, "properties": {"a": {"$ref": "#/$defs/n"}}},
     {"type": "object", "properties": {"a": {"type": "integer"}}}),
])
def test_input_schemas_are_plain(world, rule, expected):
    fields = {} if rule is None else {"input_schema": rule}
    tool = mcp_surface.plan_tool(world.plan(**fields), world.services())
    assert {key: tool["inputSchema"][key] for key in expected} == expected
    assert "$ref" not in json.dumps(tool["inputSchema"])


def test_a_description_routes_with_exemplars_and_stays_short(world):
    plan = world.plan(identifier="x", exemplars=["do this", "do that"])
    text = mcp_surface.plan_tool(plan, world.services())["description"]
    assert text.endswith("- do this\n- do that") and "Runs the plan" in text
    long = world.plan(identifier="y", exemplars=["x" * 10000])
    assert len(mcp_surface.plan_tool(long, world.services())["description"]) == mcp_surface.DESCRIPTION_MAX


def test_every_listed_name_is_one_that_hosts_take():
    for name, tool in mcp_surface.STATIC.items():
        assert re.fullmatch(r"graph_[a-z_]{1,58}", name) and tool["name"] == name
        assert schema.schema_problems(tool["inputSchema"]) == []
        assert set(tool["inputSchema"].get("required", ())) <= set(tool["inputSchema"]["properties"])
    assert mcp_surface.EDITS < set(mcp_surface.STATIC)


def test_a_result_says_the_same_twice_whatever_it_holds():
    for body in ({"a": 1}, {"\ud800": "\udfff"}, {"a": "\U0001f642"}):
        result = mcp_surface.call_result(body, True)
        assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
        result["content"][0]["text"].encode()
    with pytest.raises(ValueError):
        mcp_surface.call_result({"a": float("nan")}, False)


def event(name, path="", stack=("p",), **details):
    return {"event": name, "stack": list(stack), "path": path, **details}


def step_events(path, tool="t__x", **ending):
    ended = {"is_error": False, "reused": False, "elapsed_s": 0.0, **ending}
    return [event("step_started", path, tool=tool), event("step_finished", path, tool=tool, **ended)]


def test_progress_rises_with_every_message_and_ends_at_the_total():
    meter = mcp_surface.Meter()
    events = [event("steps_total", total=2), *step_events("a"), event("step_started", "b", tool="map")]
    for index in range(1000):
        events += step_events(f"b/do.{index}", is_error=index % 7 == 0)
    events += [event("llm_call", "b", site="b", tokens={"input_tokens": 5}), step_events("b", tool="map")[1]]
    told = [each for each in map(meter.read, events) if each]
    numbers = [progress for progress, _, _ in told]
    assert all(low < high for low, high in zip(numbers, numbers[1:])) and numbers[-1] == 2
    assert {total for _, total, _ in told} == {2} and len(told) < 500


def test_a_draft_that_grows_takes_its_total_along():
    meter = mcp_surface.Meter()
    events = [event("draft_outline", items=["one"])]
    for index in range(4):
        events += [event("draft_step_started", index=index, summary="s"), event("draft_step_finished", index=index)]
    told = [each for each in map(meter.read, events) if each]
    assert all(progress <= total for progress, total, _ in told)
    assert [low < high for (low, *_), (high, *_) in zip(told, told[1:])].count(False) == 0
