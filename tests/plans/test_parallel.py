"""Functions on other threads: the order of the results, which failure is raised, and that nothing is lost."""

import threading

import pytest

from graphlib_plans.errors import Cancelled, ToolError
from graphlib_plans.parallel import in_parallel, result_of


def meeting(parties, function):
    """Return the function made to wait until so many calls of it have begun."""
    barrier = threading.Barrier(parties, timeout=40)

    def together(index, item):
        barrier.wait()
        return function(index, item)

    return together


@pytest.mark.parametrize("error", [ToolError("no"), Cancelled("stop"), KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_whatever_a_function_raises_is_kept(error):
    def raising():
        raise error

    assert result_of(raising) == (None, error)
    assert result_of(lambda: "done") == ("done", None)


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_results_come_in_the_order_of_the_items(limit):
    assert in_parallel(lambda index, item: (index, item), list("abc"), limit, "w") == [(0, "a"), (1, "b"), (2, "c")]
    assert in_parallel(lambda index, item: None, [], limit, "w") == []


def test_all_work_at_the_same_time_on_threads_that_have_names():
    work = meeting(3, lambda index, item: threading.current_thread().name)
    names = in_parallel(work, [0, 1, 2], 3, "plan.p.E1.worker")
    assert sorted(names) == sorted([threading.current_thread().name, "plan.p.E1.worker.1", "plan.p.E1.worker.2"])


def test_after_a_failure_nothing_more_is_begun():
    begun = []

    def failing(index, item):
        begun.append(index)
        raise ToolError(f"no {index}")

    with pytest.raises(ToolError, match="no 0"):
        in_parallel(failing, list(range(20)), 1, "w")
    assert begun == [0]


def test_the_failure_of_the_first_item_is_raised():
    def failing(index, item):
        raise ToolError(f"no {index}")

    with pytest.raises(ToolError, match="no 0"):
        in_parallel(meeting(3, failing), [0, 1, 2], 3, "w")


def test_the_end_of_the_run_counts_more_than_a_failure():
    def both(index, item):
        raise Cancelled("stop") if index else ToolError("no")

    with pytest.raises(Cancelled):
        in_parallel(meeting(2, both), [0, 1], 2, "w")
