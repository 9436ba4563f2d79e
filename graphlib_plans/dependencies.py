"""Which step waits for which: a plan as a graph for `graphlib.TopologicalSorter`.

A step waits for
  1. the steps its templates refer to, and the steps in its `after`;
  2. the last barrier before it in the file; a barrier waits for every step before it. Barriers are `exit` and `ask`,
     and steps with one of them in a body;
  3. the step before it that may change the world, when it may change the world itself, so that such steps keep
     their file order; a plan with `"parallel": true` gives this rule up.
What is left may run at the same time.
"""

import graphlib

from . import documents, templates
from .errors import InvalidPlan, Problem, UnknownPlan, did_you_mean, pointer, shorten

#: Steps that nothing is moved across: the one may end the plan, the other speaks with a person.
BARRIERS = ("exit", "ask")


def order(plan, is_read_only):
    """Return {step id: ids of the steps it waits for}, in file order; its size is linear in the plan's.

    is_read_only: tool name or agent pattern → whether a call of it leaves the world as it is.
    """
    return _waits(
        [(step.id, step.tool, step.input, step.after, step.on_error) for step in plan.steps],
        is_read_only,
        plan.parallel,
    )


def sorter(plan, is_read_only):
    """Return the plan's TopologicalSorter, prepared. InvalidPlan (order_cycle) when steps wait for each other."""
    graph, cycle = _prepare(order(plan, is_read_only))
    if cycle:
        raise InvalidPlan.of([_cycle_problem(cycle, plan.document)])
    return graph


def _prepare(waits):
    """Return (prepared sorter, None), or (sorter, the steps of a cycle)."""
    # Sorted, because sets of names come in another order in every process, and with them the cycle that is found.
    graph = graphlib.TopologicalSorter({name: sorted(before) for name, before in waits.items()})
    try:
        graph.prepare()
    except graphlib.CycleError as error:
        return graph, error.args[1][:-1]  # the first node is repeated at the end
    return graph, None


def levels(plan, is_read_only):
    """Return the step ids in groups: all of a group could run at the same time, once the groups before it are done."""
    graph, groups = sorter(plan, is_read_only), []
    while graph.is_active():
        groups.append(list(graph.get_ready()))
        graph.done(*groups[-1])
    return groups


def order_problems(document, is_read_only=lambda name: True):
    """Return what is wrong with the order of a document's steps: after_unknown, after_self, order_cycle.

    is_read_only: as for order(). Reading tools give the fewest edges that always hold: a cycle among those is there
    whatever the tools are. Steps of the wrong shape are left out; shape_problems tells about those.
    """
    steps = [
        (step["id"], step.get("tool"), step.get("input"), _names(step.get("after")), step.get("on_error"))
        for _, step in documents.steps_of(document)
        if isinstance(step.get("id"), str)
    ]
    known = {step[0] for step in steps}
    problems = []
    for index, step in documents.steps_of(document):
        for position, name in enumerate(_names(step.get("after"))):
            place = pointer("steps", index, "after", position)
            if name == step.get("id"):
                problems.append(Problem(place, "after_self", f"step {name!r} waits for itself", "remove it from after"))
            elif name not in known:
                text = f"step {step.get('id')!r} waits for {shorten(name, 80)!r}, and there is no such step"
                problems.append(Problem(place, "after_unknown", text, did_you_mean(name, known)))
    _, cycle = _prepare(_waits(steps, is_read_only, bool(document.get("parallel"))))
    if cycle:
        problems.append(_cycle_problem(cycle, document))
    return problems


def _names(after):
    return [name for name in after if isinstance(name, str)] if isinstance(after, list) else []


def _cycle_problem(cycle, document):
    """cycle: ids, each of which the next one waits for. The problem points at a step whose `after` can be changed."""
    places = {
        step["id"]: (not step.get("after"), index)
        for index, step in documents.steps_of(document)
        if isinstance(step.get("id"), str)
    }
    first = min(cycle, key=places.__getitem__)
    start = cycle.index(first)
    chain = " → ".join([*reversed(cycle[start + 1 :] + cycle[: start + 1]), first])
    place = pointer("steps", places[first][1])
    hint = "an arrow means: waits for; change `after`, or the order of the steps"
    return Problem(place, "order_cycle", f"steps wait for each other: {chain}", hint)


def _waits(steps, is_read_only, parallel):
    """steps: (id, tool, input, after, on_error) in file order. Names that are no step's are left out."""
    waits, since_barrier, barrier, writer = {}, [], None, None
    known = {step[0] for step in steps}
    for name, tool, arguments, after, on_error in steps:
        before = {other for other in after if other in known and other != name}
        # Only earlier steps: inside a section the name of a later one is a field of the item.
        before.update(root for root in templates.roots([arguments, on_error]) if root in waits)
        if barrier is not None:
            before.add(barrier)
        if _is_barrier(tool, arguments):
            before.update(since_barrier)
            since_barrier, barrier = [], name
        else:
            since_barrier.append(name)
            if not parallel and not reads_only(tool, arguments, is_read_only):
                if writer is not None:
                    before.add(writer)
                writer = name
        before.discard(name)
        waits[name] = waits.get(name, set()) | before
    return waits


def _is_barrier(tool, arguments):
    """Say whether a call is an exit or an ask, or has one in a body."""
    calls = (call for _, body in documents.bodies(tool, arguments) for call in _calls(body))
    return tool in BARRIERS or any(_is_barrier(call.get("tool"), call.get("input")) for call in calls)


def read_only_test(registry, find_plan, unknown=False):
    """Return tool name or agent pattern → whether a call of it leaves the world as it is; plans are looked into.

    registry: what is_read_only is asked. find_plan: identifier → Plan, UnknownPlan; None to leave plans to the
    registry. unknown: the answer for what is not there, or cannot be known without connecting.
    """
    known = {}

    def is_read_only(name):
        if not isinstance(name, str):
            return unknown  # a static problem
        if find_plan is None or not name.startswith("plan__") or "*" in name:
            return registry.is_read_only(name, unknown)
        if name not in known:
            known[name] = False  # for a plan that calls itself
            try:
                plan = find_plan(name.removeprefix("plan__"))
            except UnknownPlan:
                known[name] = unknown
            else:
                known[name] = all(reads_only(step.tool, step.input, is_read_only) for step in plan.steps)
        return known[name]

    return is_read_only


def reads_only(tool, arguments, is_read_only):
    """Say whether a call, with everything inside its bodies, leaves the world as it is."""
    if tool in ("filter", *BARRIERS):
        return True
    if tool == "agent":
        patterns = arguments.get("tools") if isinstance(arguments, dict) else None
        return isinstance(patterns, list) and all(map(is_read_only, patterns))
    if tool in documents.CONTROL_STEPS:
        return all(_body_reads_only(body, is_read_only) for _, body in documents.bodies(tool, arguments))
    return is_read_only(tool)


def _body_reads_only(body, is_read_only):
    return all(reads_only(call.get("tool"), call.get("input"), is_read_only) for call in _calls(body))


def _calls(body):
    return [call for call in (body if isinstance(body, list) else [body]) if isinstance(call, dict)]
