"""The part between messages and the engine, without a process around it."""

import os

import pytest

from graphlib_plans import mcp_calls, mcp_surface


@pytest.fixture
def library(served):
    made = mcp_calls.Library(served.folder, {"HOME": str(served.home)})
    before = os.getcwd()
    yield made
    os.chdir(before)
    made.close()


def test_a_workspace_is_kept_until_a_file_changes(served, library):
    first = library.current()
    assert library.current() is first and library.stamp() == library.stamp()
    path = served.plan("p", {"id": "a", "tool": "builtin__reshape", "input": {"shape": 1}})
    second = library.current()
    assert second is not first and "p" in second.catalog.plans and second.pool is first.pool
    path.write_text(path.read_text().replace("Runs p.", "Runs it."))
    assert library.current().catalog.plans["p"].plan.description == "Runs it."
    served.config("[settings]\nconcurrency = 2\n")
    assert library.current().config.settings.concurrency == 2


def test_every_listed_tool_is_answered(library):
    calls = mcp_calls.Calls(library, lambda: None, lambda text: None)
    assert set(mcp_calls._TOOLS) == set(mcp_surface.STATIC)
    for name in mcp_surface.STATIC:
        result = calls.answer(mcp_calls.Call(name, {}))
        assert result["isError"] is (result["structuredContent"].get("kind") == "bad_argument"), result


def test_only_successful_edits_are_told(library):
    edits = []
    calls = mcp_calls.Calls(library, lambda: edits.append(1), lambda text: None)
    calls.answer(mcp_calls.Call("graph_plan_new", {"identifier": "p"}))
    assert len(edits) == 1
    calls.answer(mcp_calls.Call("graph_plan_new", {"identifier": "p"}))
    calls.answer(mcp_calls.Call("graph_plan_show", {"target": "p"}))
    assert len(edits) == 1


def test_a_cancelled_call_does_nothing(library):
    calls = mcp_calls.Calls(library, lambda: None, lambda text: None)
    call = mcp_calls.Call("graph_plan_new", {"identifier": "p"})
    call.cancel.cancel("too late")
    result = calls.answer(call)
    assert result["structuredContent"]["kind"] == "cancelled" and result["isError"]
    assert library.current().store.directories[0].joinpath("p.json").exists() is False


@pytest.mark.parametrize("attribute, value, expected", [
    ("output", '{"a": 1}', {"a": 1}),
    ("output", "{", "{"),
    ("exemplars", '["a"]', ["a"]),
    ("description", '{"a": 1}', '{"a": 1}'),
    ("on_error", "[1]", "[1]"),
    ("input", {"a": 1}, {"a": 1}),
])
def test_json_text_is_read_where_an_object_is_meant(attribute, value, expected):
    assert mcp_calls._structured(attribute, value) == expected
