"""The dependency graph as text and as a picture."""

import xml.etree.ElementTree as ElementTree

import pytest

from graphlib_plans import drawing, execution

SVG = "{http://www.w3.org/2000/svg}"


def reads(world):
    return execution.read_only_test(world.services())


def test_the_text_shows_levels_tools_and_what_is_waited_for(world, step):
    plan = world.plan(
        step("fetch"),
        step("more"),
        step("write", "t__write", v="{{fetch.v}}{{more.v}}"),
        step("note", "t__write"),
        output={"n": "{{note}}"},
    )
    assert drawing.as_text(plan, reads(world)) == (
        "  1 ┌─ fetch   t__echo\n"
        "    └─ more    t__echo\n"
        "  2 ── write   t__write  ← fetch, more\n"
        "  3 ── note    t__write  ← (write)\n"
        "  4 ── output  finish    ← note\n"
    )


def test_a_silent_plan_has_no_finish_and_long_names_are_cut(world, step):
    text = drawing.as_text(world.plan(step("a" * 50)), reads(world))
    assert text == f"  1 ── {'a' * 31}…  t__echo\n"


def test_a_solver_without_data_reads_every_step(world, step):
    plan = world.plan(step("A"), step("B", v="{{A}}"), solver={"query_to_answer": "?"})
    last = drawing.graph(plan, reads(world))[-1][0]
    assert (last.id, last.after) == ("solver", (("A", "data"), ("B", "data")))


def test_the_picture_is_xml_with_a_box_per_step_and_an_arrow_per_wait(world, step):
    steps = [step(f"E{n}", "t__echo", v=f"{{{{E{n - 1}.v}}}}" if n % 7 else "") for n in range(20)]
    plan = world.plan(*steps, step("W", "t__write"), step("V", "t__write"), output={"v": "{{E19}}"}, name="<A & B>")
    root = ElementTree.fromstring(drawing.as_svg(plan, reads(world)))
    levels = drawing.graph(plan, reads(world))
    edges = [kind for level in levels for node in level for _, kind in node.after]
    assert len(root.findall(f".//{SVG}rect")) == 23
    paths = [path for path in root.findall(f"{SVG}path")]
    assert len(paths) == len(edges)
    assert sum("order" in path.get("class") for path in paths) == edges.count("order") > 0
    assert root.find(f"{SVG}title").text == "<A & B>"
    width = float(root.get("width"))
    for box in root.findall(f".//{SVG}rect"):
        assert 0 <= float(box.get("x")) and float(box.get("x")) + float(box.get("width")) <= width


@pytest.mark.parametrize("name", ["</svg><script>", "\x00\x1b\ufffe\ud800", '"quoted"'])
def test_hostile_names_stay_text(world, step, name):
    plan = world.plan(step("A"), name=name)
    root = ElementTree.fromstring(drawing.as_svg(plan, reads(world)))
    assert len(list(root.iter(f"{SVG}script"))) == 0
