"""Problems and errors as the data a user or a model sees."""

import inspect

import pytest

from graphlib_plans import errors
from graphlib_plans.errors import InvalidPlan, PlanError, Problem, StopRun, ToolError

KINDS = {
    "needs_input", "refused", "cancelled", "step_failed", "invalid_plan", "empty_data", "unknown_plan",
    "unresolved_tools", "config_error", "model_unavailable", "bad_argument",
}  # fmt: skip


def test_a_problem_is_json_with_its_hint_only_when_there_is_one():
    assert Problem("/a", "code", "It is so.").to_json() == {"pointer": "/a", "code": "code", "text": "It is so."}
    assert Problem("", "code", "It is so", "do this").to_json()["hint"] == "do this"
    assert str(Problem("", "code", "It is so", "do this")) == "It is so (do this)"


ERRORS = [made for _, made in inspect.getmembers(errors, inspect.isclass) if issubclass(made, PlanError)]


@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_has_a_stable_kind_and_a_body(kind):
    error = kind("what happened", extra=[1])
    assert error.kind in KINDS
    assert error.body() == {"kind": error.kind, "error": "what happened", "extra": [1]}
    assert str(error) == "what happened"


def test_an_error_of_problems_says_the_first_and_how_many_more():
    found = [Problem("/a", "x", "First", "hint"), Problem("/b", "y", "Second")]
    assert InvalidPlan.of(found).message == "First (hint) (and 1 more)"
    assert InvalidPlan.of(found[:1]).message == "First (hint)"
    assert InvalidPlan.of(found, "No.").body() == {
        "kind": "invalid_plan", "error": "No.", "problems": [one.to_json() for one in found]
    }  # fmt: skip


def test_a_tool_error_has_a_payload():
    assert ToolError("no").payload == {"error": "no"} and ToolError("no").retryable
    assert ToolError("no", {"stderr": "x"}, retryable=False).payload == {"stderr": "x"}


def test_what_ends_a_run_is_no_failure_of_a_step():
    assert not issubclass(StopRun, PlanError)
    assert issubclass(errors.Cancelled, StopRun) and issubclass(errors.ExitFired, StopRun)
    assert errors.Cancelled("by you").reason == "by you"
    assert errors.ExitFired({"message": "m"}).exit == {"message": "m"} and errors.Suspended(1).question == 1
