"""Edits as pure changes, the guard, and what is written."""

import concurrent.futures
import copy
import json
import os
import pathlib
import stat
import subprocess
import sys

import pytest

from graphlib_plans import authoring, documents
from graphlib_plans.authoring import Store, guard
from graphlib_plans.errors import BadArgument, ConfigError, PlanError, Refused, UnknownPlan

ROOT = pathlib.Path(__file__).resolve().parents[2]


def step(identifier="a", tool="x__y", input=None, **more):
    return {"id": identifier, "tool": tool, "input": {} if input is None else input, **more}


def document(*steps, **more):
    return {"identifier": "p", "name": "P", "description": "d", "steps": list(steps), **more}


def ref(name):
    return {"x": "{{%s}}" % name}


def codes(found):
    return [(one["pointer"], one["code"]) for one in found]


# Changes


def test_a_scaffold_has_no_steps():
    assert authoring.scaffold("x") == {"identifier": "x", "name": "x", "description": "", "steps": []}
    assert authoring.scaffold("x", "N", "D")["name"] == "N"


TWO = document(step("a"), step("b", input=ref("a")))

CHANGES = [
    (authoring.set_attribute, ("name", "N"), {"name": "N"}, {"identifier": "p", "name": "N"}),
    (authoring.set_attribute, ("exemplars", ["e"]), {"exemplars": ["e"]}, None),
    (authoring.set_attribute, ("requires_servers", []), {"requires_servers": []}, None),
    (authoring.set_attribute, ("input_schema", {"type": "object"}), {"input_schema": {"type": "object"}}, None),
    (authoring.set_attribute, ("concurrency", 2), {"concurrency": 2}, None),
    (authoring.set_attribute, ("identifier", "q"), {"identifier": "q"}, {"identifier": "q", "name": "P"}),
    (authoring.set_attribute, ("solver", {"queryToAnswer": "?"}), {"solver": {"query_to_answer": "?"}}, None),
    (authoring.add_step, ("c", "x__z", {}), {"steps": [*TWO["steps"], step("c", "x__z")]},
     {"id": "c", "index": 2, "steps": 3}),
    (authoring.add_step, ("c", "x__z", {}, "why", "a"), {"steps": [step("c", "x__z", reasoning="why"), *TWO["steps"]]},
     {"id": "c", "index": 0, "steps": 3}),
    (authoring.add_step, ("c", "x__z", {}, None, None, "a"), {"steps": [
        TWO["steps"][0], step("c", "x__z"), TWO["steps"][1]]}, {"id": "c", "index": 1, "steps": 3}),
    (authoring.add_step, ("c", "ask", {"whenUnanswered": "fail"}), {"steps": [
        *TWO["steps"], step("c", "ask", {"when_unanswered": "fail"})]}, None),
    (authoring.update_step, ("a", "tool", "x__z"), {"steps": [step("a", "x__z"), TWO["steps"][1]]}, {"id": "a"}),
    (authoring.update_step, ("b", "input", {"y": 1}), {"steps": [TWO["steps"][0], step("b", input={"y": 1})]}, None),
    (authoring.update_step, ("a", "reasoning", "r"), {"steps": [step("a", reasoning="r"), TWO["steps"][1]]}, None),
    (authoring.update_step, ("a", "retry", {"attempts": 2}), {"steps": [
        step("a", retry={"attempts": 2}), TWO["steps"][1]]}, None),
    (authoring.remove_step, ("b",), {"steps": TWO["steps"][:1]}, {"id": "b", "steps": 1}),
    (authoring.move_step, ("b", "a"), {"steps": TWO["steps"][::-1]}, {"id": "b", "index": 0, "steps": 2}),
    (authoring.move_step, ("a", None, "b"), {"steps": TWO["steps"][::-1]}, {"id": "a", "index": 1, "steps": 2}),
    (authoring.rename_step, ("a", "n"), {"steps": [step("n"), step("b", input=ref("n"))]}, {"id": "n"}),
    (authoring.rename_step, ("a", "a"), {}, {"id": "a"}),
]  # fmt: skip


@pytest.mark.parametrize("change, arguments, expected, summary", CHANGES)
def test_a_change_gives_another_document_and_leaves_the_first(change, arguments, expected, summary):
    before = copy.deepcopy(TWO)
    after, told = change(before, *arguments)
    assert before == TWO
    assert after == {**TWO, **expected}
    assert summary is None or told == summary


def test_solver_and_output_replace_each_other():
    after, told = authoring.set_attribute(document(output={"x": 1}), "solver", {})
    assert "output" not in after and told["cleared"] == "output"
    after, told = authoring.set_attribute(after, "output", {})
    assert "solver" not in after and told["cleared"] == "solver"


def test_unsetting():
    full = document(step(reasoning="r", after=[]), exemplars=["e"], output={"x": 1})
    assert authoring.unset_attribute(full, "exemplars")[0] == document(*full["steps"], output={"x": 1})
    assert "output" not in authoring.unset_attribute(full, "output")[0]
    assert authoring.unset_step(full, "a", "reasoning")[0]["steps"] == [step(after=[])]
    with pytest.raises(Refused, match="ends with its output"):
        authoring.unset_attribute(full, "solver")
    with pytest.raises(Refused, match="is silent"):
        authoring.unset_attribute(document(), "output")


def test_a_rename_reaches_everything_that_refers_to_the_step():
    before = document(
        step("z", input={"t": "{{#input.rows}}{{a.x}}{{/input.rows}}"}, after=["a"]),
        step("a"),
        step("b", "map", {"over": "{{ a.rows }}", "do": [step("l", input={"t": "{{#a.m}}{{t}}{{/a.m}}"})]},
             on_error=ref("a")),
        output={"x": [{"y": "{{a}}"}]},
        solver={"query_to_answer": "{{a.q}}", "system_prompt": "{{a.s}}", "data": {"d": ["{{^a}}{{/a}}"]}},
    )  # fmt: skip
    after, _ = authoring.rename_step(before, "a", "new")
    assert after == document(
        step("z", input={"t": "{{#input.rows}}{{a.x}}{{/input.rows}}"}, after=["new"]),
        step("new"),
        step("b", "map", {"over": "{{new.rows}}", "do": [step("l", input={"t": "{{#new.m}}{{t}}{{/new.m}}"})]},
             on_error=ref("new")),
        output={"x": [{"y": "{{new}}"}]},
        solver={"query_to_answer": "{{new.q}}", "system_prompt": "{{new.s}}", "data": {"d": ["{{^new}}{{/new}}"]}},
    )  # fmt: skip


REFUSALS = [
    (authoring.scaffold, ("a b",), BadArgument, "cannot be an identifier"),
    (authoring.scaffold, ("x" * 59,), BadArgument, "at most 58"),
    (authoring.scaffold, ("../x",), BadArgument, "cannot be an identifier"),
    (authoring.scaffold, (None,), BadArgument, "null cannot be an identifier"),
    (authoring.scaffold, ("x", 3), BadArgument, "name must be a string"),
    (authoring.scaffold, ("x", "n", None), BadArgument, "description must be a string, not null"),
    (authoring.set_attribute, (TWO, "descripton", ""), BadArgument, "did you mean 'description'"),
    (authoring.set_attribute, (TWO, "steps", []), BadArgument, "no attribute 'steps'"),
    (authoring.set_attribute, (TWO, "description", None), BadArgument, "must be a string, not null"),
    (authoring.set_attribute, (TWO, "exemplars", "x"), BadArgument, "must be a list of strings"),
    (authoring.set_attribute, (TWO, "output", "@/etc/passwd"), BadArgument, "must be an object, not a string"),
    (authoring.set_attribute, (TWO, "input_schema", "-"), BadArgument, "must be an object, not a string"),
    (authoring.set_attribute, (TWO, "identifier", "a/b"), BadArgument, "cannot be an identifier"),
    (authoring.set_attribute, (TWO, "output", {"x": json.loads("[" * 101 + "]" * 101)}), BadArgument, "deeper than"),
    (authoring.unset_attribute, (TWO, "name"), BadArgument, "cannot be unset"),
    (authoring.add_step, (TWO, "c", "x__y", {}, None, "a", "b"), Refused, "not both"),
    (authoring.add_step, (TWO, "c", "x__y", {}, None, "q"), Refused, "no step 'q'"),
    (authoring.add_step, (TWO, "c", "x__y", "@x"), BadArgument, "input must be an object"),
    (authoring.add_step, (TWO, "c", "x__y", {}, ""), None, ""),
    (authoring.update_step, (TWO, "q", "tool", "x__y"), Refused, "no step 'q'"),
    (authoring.update_step, (TWO, "a", "id", "x"), BadArgument, "no attribute 'id'"),
    (authoring.update_step, (TWO, "a", "reasoning", ""), BadArgument, "to remove it, unset it"),
    (authoring.update_step, (TWO, "a", "tool", 3), BadArgument, "tool must be a string"),
    (authoring.unset_step, (TWO, "a", "tool"), BadArgument, "cannot be unset"),
    (authoring.rename_step, (TWO, "q", "x"), Refused, "no step 'q'"),
    (authoring.rename_step, (TWO, "a", None), BadArgument, "id must be a string"),
    (authoring.remove_step, (TWO, "q"), Refused, "no step 'q'"),
    (authoring.remove_step, (document(), "q"), Refused, "has no steps"),
    (authoring.move_step, (TWO, "a"), BadArgument, "either before or after"),
    (authoring.move_step, (TWO, "a", "a"), BadArgument, "next to itself"),
    (authoring.remove_step, ({**TWO, "steps": {}}, "a"), Refused, "are no list"),
    (authoring.remove_step, ({**TWO, "steps": [3]}, "a"), Refused, "no step 'a'"),
]


@pytest.mark.parametrize("change, arguments, kind, part", REFUSALS)
def test_what_cannot_be_done_says_why(change, arguments, kind, part):
    if kind is None:
        change(*arguments)
        return
    with pytest.raises(PlanError) as caught:
        change(*arguments)
    assert type(caught.value) is kind and part in caught.value.message


def test_an_unknown_step_lists_the_steps_there_are():
    with pytest.raises(Refused) as caught:
        authoring.remove_step(TWO, "E7")
    assert caught.value.body()["availableSteps"] == ["a", "b"]


# The guard: document, change, codes that would be introduced, codes that stay


GUARD = [
    ("a description for an empty plan", document(), lambda d: authoring.set_attribute(d, "description", "x"), [],
     ["no_steps"]),
    ("a step that refers to nothing", document(), lambda d: authoring.add_step(d, "E1", "x__y", ref("E9")),
     ["reference_unknown"], []),
    ("a first step", document(), lambda d: authoring.add_step(d, "E1", "x__y", {}), [], []),
    ("removing what a step uses", document(step("E1"), step("E2", input=ref("E1"))),
     lambda d: authoring.remove_step(d, "E1"), ["reference_unknown"], []),
    ("removing what the output uses", document(step("E1"), step("E2"), output=ref("E1")),
     lambda d: authoring.remove_step(d, "E1"), ["reference_unknown"], []),
    ("removing what a step waits for", document(step("E1"), step("E2", after=["E1"])),
     lambda d: authoring.remove_step(d, "E1"), ["after_unknown"], []),
    ("referring forward", document(step("E1"), step("E2", input=ref("E1"))),
     lambda d: authoring.add_step(d, "E0", "x__y", ref("E1"), None, "E1"), ["reference_unknown"], []),
    ("moving before what it uses", document(step("E1"), step("E2", input=ref("E1"))),
     lambda d: authoring.move_step(d, "E2", "E1"), ["reference_unknown"], []),
    ("mending one of two", document(step("a", "foo"), step("b", "bar")),
     lambda d: authoring.update_step(d, "a", "tool", "x__y"), [], ["tool_bare"]),
    ("removing one of two", document(step("a", "foo"), step("b", "bar")), lambda d: authoring.remove_step(d, "a"), [],
     ["tool_bare"]),
    ("adding before a broken step", document(step("a", "foo")),
     lambda d: authoring.add_step(d, "z", "x__y", {}, None, "a"), [], ["tool_bare"]),
    ("moving a broken step", document(step("a", "foo"), step("b")), lambda d: authoring.move_step(d, "b", "a"), [],
     ["tool_bare"]),
    ("renaming a broken step", document(step("a", "foo")), lambda d: authoring.rename_step(d, "a", "n"), [],
     ["tool_bare"]),
    ("renaming onto another", document(step("a"), step("b")), lambda d: authoring.rename_step(d, "a", "b"),
     ["step_id_duplicate"], []),
    ("a second problem like the first", document(step("a", input=ref("q"))),
     lambda d: authoring.update_step(d, "a", "input", {"x": "{{q}}{{r}}"}), ["reference_unknown"],
     ["reference_unknown"]),
    ("a problem behind an older one", document(step("a", "foo")),
     lambda d: authoring.set_attribute(d, "output", ref("q")), ["reference_unknown"], ["tool_bare"]),
    ("removing one of two steps with one id", document(step("a", "foo"), step("a", "bar"), step("c")),
     lambda d: authoring.remove_step(d, "a"), [], ["tool_bare"]),
    ("a body that grows before its broken step",
     document(step("a", "map", {"over": [], "do": [step("l", "foo")]})),
     lambda d: authoring.update_step(d, "a", "input", {"over": [], "do": [step("k"), step("l", "foo")]}),
     [], ["tool_bare_in_body"]),
    ("a schema without what is used", document(step("a", input=ref("input.n"))),
     lambda d: authoring.set_attribute(d, "input_schema", {"properties": {"m": {}}}), ["input_unknown"], []),
    ("a step that calls its own plan", document(step()), lambda d: authoring.update_step(d, "a", "tool", "plan__p"),
     ["plan_cycle"], []),
    ("a nested question", document(step()), lambda d: authoring.add_step(d, "q", "ask", {
        "prompt": "?", "output_schema": {"properties": {"n": {"type": "object"}}}}), ["ask_schema_not_primitive"], []),
]  # fmt: skip


@pytest.mark.parametrize("before, change, introduced, kept", [row[1:] for row in GUARD], ids=[row[0] for row in GUARD])
def test_the_guard(before, change, introduced, kept):
    after, _ = change(before)
    renamed = authoring._renamed_step(before, after)
    if not introduced:
        assert [problem.code for problem in guard(before, after, renamed)] == kept
        return
    with pytest.raises(Refused) as caught:
        guard(before, after, renamed)
    body = caught.value.body()
    assert [one["code"] for one in body["problemsIntroduced"]] == introduced
    assert [one["code"] for one in body.get("preExistingProblems", [])] == kept
    assert body["kind"] == "refused" and "nothing was changed" in body["error"]


# The store


@pytest.fixture
def store(tmp_path):
    return Store([tmp_path / "first" / "plans", tmp_path / "second"])


def put(directory, name, content):
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(content if isinstance(content, str) else documents.to_text(content), encoding="utf-8")
    return path


def read(path):
    return json.loads(pathlib.Path(path).read_text(encoding="utf-8"))


def test_a_created_plan_goes_into_the_first_directory(store, tmp_path):
    body = store.new("x")
    path = tmp_path / "first" / "plans" / "x.json"
    assert body["ok"] and body["savedTo"] == str(path) and codes(body["problems"]) == [("/steps", "no_steps")]
    assert "no description" in body["note"] and "note" not in store.new("y", "Y", "does y")
    assert read(path) == authoring.scaffold("x")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "name, content", [("x.json", document()), ("x.json", "{"), ("z.json", document(identifier="x"))]
)
def test_a_created_plan_replaces_nothing(store, tmp_path, name, content):
    path = put(tmp_path / "first" / "plans", name, content)
    before = path.read_bytes()
    with pytest.raises(BadArgument, match="already"):
        store.new("x")
    assert path.read_bytes() == before


def test_a_created_plan_may_hide_one_of_a_later_directory(store, tmp_path):
    put(tmp_path / "second", "x.json", document(identifier="x"))
    assert store.new("x")["ok"]


def test_an_edit_keeps_key_order_mode_and_place(store, tmp_path):
    content = (
        '{"steps": [{"input": {"z": 1, "a": 2}, "tool": "x__y", "id": "a"}], "name": "é", "identifier": "p", '
        '"description": "", "output": {"b": 9007199254740993, "a": 1}}'
    )
    path = put(tmp_path / "second", "any.json", content)
    path.chmod(0o644)
    body = store.edit("p", lambda found: authoring.set_attribute(found, "description", "new"))
    assert body == {"ok": True, "identifier": "p", "name": "é", "savedTo": str(path)}
    assert path.read_text(encoding="utf-8") == (
        '{\n  "steps": [\n    {\n      "input": {\n        "z": 1,\n        "a": 2\n      },\n      "tool": "x__y",\n'
        '      "id": "a"\n    }\n  ],\n  "name": "é",\n  "identifier": "p",\n  "description": "new",\n'
        '  "output": {\n    "b": 9007199254740993,\n    "a": 1\n  }\n}\n'
    )
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert sorted(os.listdir(path.parent)) == [".plans.lock", "any.json"]


def test_a_refused_edit_writes_nothing(store, tmp_path):
    path = put(tmp_path / "second", "p.json", document(step()))
    before = path.read_bytes(), path.stat().st_mtime_ns
    with pytest.raises(Refused):
        store.edit("p", lambda found: authoring.add_step(found, "b", "x__y", ref("nope")))
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


def test_problems_that_stay_are_told(store, tmp_path):
    put(tmp_path / "second", "p.json", document(step(tool="foo")))
    body = store.edit("p", lambda found: authoring.set_attribute(found, "name", "N"))
    assert codes(body["preExistingProblems"]) == [("/steps/0/tool", "tool_bare")] and "1 problem left" in body["note"]


def test_a_hidden_or_invalid_plan_can_be_edited(store, tmp_path):
    put(tmp_path / "second", "p.json", document(requires_servers=["none"], nope=1))
    assert store.edit("p", lambda found: authoring.set_attribute(found, "name", "N"))["ok"]
    assert store.open("p")[0]["name"] == "N"
    with pytest.raises(UnknownPlan):
        store.edit("q", lambda found: (found, {}))


TOML = 'identifier = "p"\nname = "P"\ndescription = ""\n[[steps]]\nid = "a"\ntool = "x__y"\ninput = {}\n'


def test_a_hand_written_plan_stays_and_json_takes_its_place(store, tmp_path):
    path = put(tmp_path / "second", "mine.toml", TOML)
    path.chmod(0o640)
    body = store.edit("p", lambda found: authoring.set_attribute(found, "name", "N"))
    target = path.parent / "p.json"
    assert body["savedTo"] == str(target) and "mine.toml is written by hand" in body["note"]
    assert path.read_text() == TOML and stat.S_IMODE(target.stat().st_mode) == 0o640
    assert store.edit("p", lambda found: authoring.set_attribute(found, "name", "M"))["savedTo"] == str(target)
    assert read(target)["name"] == "M"


@pytest.mark.parametrize("content", ["{", document(identifier="other")])
def test_a_file_in_the_way_is_never_overwritten(store, tmp_path, content):
    put(tmp_path / "second", "mine.toml", TOML)
    path = put(tmp_path / "second", "p.json", content)
    before = path.read_bytes()
    with pytest.raises(Refused, match="in the way"):
        store.edit("p", lambda found: authoring.set_attribute(found, "name", "N"))
    assert path.read_bytes() == before


def test_an_identifier_that_is_a_path_never_leaves_the_directory(store, tmp_path):
    put(tmp_path / "second", "mine.toml", TOML.replace('"p"', '"../out"'))
    with pytest.raises(Refused, match="cannot be a file name"):
        store.edit("../out", lambda found: authoring.set_attribute(found, "name", "N"))
    assert not (tmp_path / "out.json").exists()


def test_another_identifier_is_another_file(store, tmp_path):
    path = put(tmp_path / "second", "p.json", document(step()))
    put(tmp_path / "second", "c.json", document(step(tool="plan__p"), identifier="caller"))
    body = store.edit("p", lambda found: authoring.set_attribute(found, "identifier", "q"))
    target = tmp_path / "first" / "plans" / "q.json"
    assert body["renamedFrom"] == str(path) and body["savedTo"] == str(target) and body["identifier"] == "q"
    assert "stays in" in body["note"] and "still calling plan__p: caller" in body["note"]
    assert read(path)["identifier"] == "p" and read(target)["identifier"] == "q"
    with pytest.raises(BadArgument, match="already"):
        store.edit("p", lambda found: authoring.set_attribute(found, "identifier", "q"))


def test_an_edit_by_somebody_else_in_the_meantime_is_not_lost(store, tmp_path):
    path = put(tmp_path / "second", "p.json", document(step()))

    def slow_change(found):
        path.write_text(documents.to_text(document(step(), name="theirs")))
        return authoring.set_attribute(found, "name", "ours")

    with pytest.raises(Refused, match="somebody else"):
        store.edit("p", slow_change)
    assert read(path)["name"] == "theirs"


def test_without_a_directory_nothing_can_be_created(tmp_path):
    with pytest.raises(ConfigError, match="no plans directory"):
        Store([]).new("x")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be made"):
        Store([tmp_path / "file" / "plans"]).new("x")


def test_values_json_cannot_say_are_refused(store, tmp_path):
    put(tmp_path / "second", "p.json", document(step()))
    with pytest.raises(BadArgument, match="as JSON"):
        store.edit("p", lambda found: authoring.set_attribute(found, "output", {"x": float("nan")}))


def test_text_that_cannot_be_encoded_is_written_as_escapes(store, tmp_path):
    path = put(tmp_path / "second", "p.json", document(step()))
    store.edit("p", lambda found: authoring.set_attribute(found, "name", "a\ud800é"))
    assert '"a\\ud800é"' in path.read_text(encoding="utf-8") and store.open("p")[0]["name"] == "a\ud800é"


def test_concurrent_edits_of_threads_are_all_kept(store, tmp_path):
    put(tmp_path / "second", "p.json", document(step("a")))

    def add(number):
        return store.edit("p", lambda found: authoring.add_step(found, f"s{number}", "x__y", {}))

    with concurrent.futures.ThreadPoolExecutor(10, "edit") as pool:
        assert all(body["ok"] for body in pool.map(add, range(30)))
    assert {one["id"] for one in store.open("p")[0]["steps"]} == {"a", *(f"s{number}" for number in range(30))}


EDITOR = """
import sys
from graphlib_plans import authoring
store = authoring.Store([sys.argv[1]])
for number in range(10):
    store.edit("p", lambda d: authoring.add_step(d, f"{sys.argv[2]}{number}", "x__y", {}))
"""


def test_concurrent_edits_of_processes_are_all_kept(tmp_path):
    put(tmp_path, "p.json", document(step("a")))
    editors = [
        subprocess.Popen(
            [sys.executable, "-c", EDITOR, str(tmp_path), name], cwd=ROOT, stderr=subprocess.PIPE, text=True
        )
        for name in "xyz"
    ]
    for editor in editors:
        _, errors = editor.communicate(timeout=120)
        assert editor.returncode == 0, errors
    assert len(Store([tmp_path]).open("p")[0]["steps"]) == 31
