"""Plan files, their shape, and the catalog."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest
from hypothesis import given, strategies as st

from graphlib_plans import documents
from graphlib_plans.documents import Call, Retry, Step, read_document, read_json, scan, to_plan
from graphlib_plans.errors import DocumentError, InvalidPlan, UnknownPlan

HAS_YAML = importlib.util.find_spec("yaml") is not None
needs_yaml = pytest.mark.skipif(
    not HAS_YAML and os.environ.get("CI") != "true", reason="YAML plans need PyYAML, which is not installed"
)


def plan(**changes):
    step = {"id": "a", "tool": "builtin__reshape", "input": {"shape": 1}}
    return {"identifier": "x", "name": "X", "description": "", "steps": [step], **changes}


# Reading


@pytest.mark.parametrize(
    "text, value",
    [
        ("9007199254740993", 9007199254740993),
        ("1" * 4300, int("1" * 4300)),
        ("[1.5, -0, 1e3]", [1.5, 0, 1000.0]),
        (b'\xef\xbb\xbf{"a": 1}', {"a": 1}),
        ('\ufeff"x"', "x"),
        ('{"a": 1, "a": 2}', {"a": 2}),
        ('"\\ud800"', "\ud800"),
        ("[" * 100 + "]" * 100, eval("[" * 100 + "]" * 100)),
    ],
)
def test_json_is_read_exactly(text, value):
    assert read_json(text) == value


@pytest.mark.parametrize(
    "text, part",
    [
        ("", "line 1, column 1"),
        ('{"a": 1,\n "b" 2}', "line 2, column 6"),
        ("NaN", "NaN is not JSON"),
        ("[-Infinity]", "-Infinity is not JSON"),
        ("1e999", "too large"),
        ("1" * 4301, "4300 digits"),
        ("[" * 101 + "]" * 101, "deeper than 100"),
        ("[" * 100_000, "deeper than 100"),
        (b"\xff", "not UTF-8"),
        (b'{"a":\n"\xc3(" }', "in line 2"),
    ],
)
def test_what_is_no_json_says_why(text, part):
    with pytest.raises(DocumentError) as caught:
        read_json(text, "the answer")
    assert part in caught.value.message and caught.value.message.startswith("the answer")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (' [1, 2]\n', [1, 2]),
        ('Here it is:\n```json\n{"a": 1}\n```\nDone.', {"a": 1}),
        ('```\nno\n```\nrather\n```JSON\n[{"a": 2}]\n```', [{"a": 2}]),
        ('I think {"a": {"b": 3}} is right.', {"a": {"b": 3}}),
        ("nothing", None),
        ("} and {", None),
        ("", None),
    ],
    ids="all fenced second-fence braces none turned empty".split(),
)
def test_json_is_found_in_the_words_of_a_model(text, value):
    assert documents.find_json(text) == value


def test_written_json_can_always_be_encoded():
    value = {"\ud800": "é \udfff", "n": 2**70}
    text = documents.to_json(value)
    assert text.encode() == b'{"\\ud800":"\xc3\xa9 \\udfff","n":1180591620717411303424}'
    assert read_json(text) == value
    assert read_json(documents.pretty_json(value)) == value
    with pytest.raises(ValueError):
        documents.to_json(float("inf"))


TOML = """
identifier = "x"
name = "X"
description = \"\"\"
two
lines\"\"\"
[input_schema]
required = ["n"]
[[steps]]
id = "a"
tool_name = "builtin__reshape"
[steps.input]
shape = "{{input.n}}"
when = 2026-11-30
[output]
n = "{{a}}"
"""
YAML = """
identifier: x
name: X
description: "two\\nlines"
input_schema: {required: [n]}
steps:
  - id: a
    toolName: builtin__reshape
    input:
      shape: "{{input.n}}"
      when: 2026-11-30
output:
  n: "{{a}}"
"""


@pytest.mark.parametrize("text, form", [(TOML, "toml"), pytest.param(YAML, "yaml", marks=needs_yaml)])
def test_other_formats_give_the_same_document(text, form):
    assert read_document(text, form) == plan(
        description="two\nlines",
        input_schema={"required": ["n"]},
        steps=[{"id": "a", "tool": "builtin__reshape", "input": {"shape": "{{input.n}}", "when": "2026-11-30"}}],
        output={"n": "{{a}}"},
    )


@needs_yaml
def test_yaml_means_what_it_says():
    text = "a: no\nb: 012\nc: 12:30\nd: 2026-01-01\ne: 1e3\nf: ~\ng: 0x1f\n1: x\non: true\n"
    text += "h: &h {p: 1}\ni: {<<: *h, q: 2}"
    assert read_document(text, "yaml") == {
        "a": "no", "b": 12, "c": "12:30", "d": "2026-01-01", "e": 1000.0, "f": None, "g": 31, "1": "x", "on": True,
        "h": {"p": 1}, "i": {"p": 1, "q": 2},
    }  # fmt: skip


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join(['*' + chr(97 + n)] * 10)}]\n" for n in range(9)
)


@pytest.mark.parametrize(
    "text, form, part",
    [
        ("[1]", "json", "an array, and a plan is an object"),
        ('{"a": 1, "a": 2}', "json", "'a' twice"),
        ('{"a": {"b": 1, "b": 1}}', "json", "'b' twice"),
        ("{", "json", "(line 1, column 2)"),
        ("a = 1\na = 2", "toml", "line 2"),
        ("a = [1", "toml", "(line 1, column 7)"),
        ("a = inf", "toml", "too large"),
        ("a = " + "[" * 5000, "toml", "deeper than 100"),
        ("a = " + "9" * 5000, "toml", "4300 digits"),
        (b"a = '\xff'", "toml", "not UTF-8"),
        pytest.param("a: [", "yaml", "line 1", marks=needs_yaml),
        pytest.param("a: 1\na: 1", "yaml", "'a' is there twice (line 2", marks=needs_yaml),
        pytest.param("a: .inf", "yaml", "number inf", marks=needs_yaml),
        pytest.param("a: .nan", "yaml", "number nan", marks=needs_yaml),
        pytest.param("? [a]\n: 1", "yaml", "plain text", marks=needs_yaml),
        pytest.param("a: !!python/object/apply:os.getcwd []", "yaml", "tag", marks=needs_yaml),
        pytest.param("a: !!set {x}", "yaml", "a set", marks=needs_yaml),
        pytest.param("a: !!binary aGk=", "yaml", "a bytes", marks=needs_yaml),
        pytest.param("a: &a [*a]", "yaml", "recursive", marks=needs_yaml),
        pytest.param("a: 1\n---\nb: 2", "yaml", "another document", marks=needs_yaml),
        pytest.param("\x00", "yaml", "not allowed", marks=needs_yaml),
        pytest.param("", "yaml", "null", marks=needs_yaml),
        pytest.param("[" * 5000, "yaml", "deeper than 100", marks=needs_yaml),
        pytest.param(BOMB, "yaml", "1,000,000 values", marks=needs_yaml),
    ],
)
def test_what_is_no_document_says_why(text, form, part):
    with pytest.raises(DocumentError) as caught:
        read_document(text, form, "plans/x")
    assert part in caught.value.message and "\n" not in caught.value.message
    assert caught.value.kind == "invalid_plan" and caught.value.details["path"] == "plans/x"


def test_without_pyyaml_a_yaml_plan_is_skipped_with_that_reason(tmp_path, monkeypatch):
    (tmp_path / "x.yaml").write_text(YAML)
    monkeypatch.setitem(sys.modules, "yaml", None)
    catalog = catalog_of(tmp_path)
    assert not catalog.plans and "need PyYAML" in catalog.skipped[0].reason


@given(st.binary(), st.sampled_from(["json", "toml", "yaml"]))
def test_any_bytes_give_a_document_or_a_reason(content, form):
    try:
        assert isinstance(read_document(content, form), dict)
    except DocumentError as error:
        assert error.message


def test_no_file_can_block_or_fill_the_memory(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "gone.json").symlink_to(tmp_path / "nowhere")
    (tmp_path / "big.json").write_bytes(b" " * (documents.MAX_FILE_BYTES + 1))
    reasons = {os.path.basename(entry.path): entry.reason for entry in catalog_of(tmp_path).skipped}
    assert "not a regular file" in reasons["pipe.json"] and "not a regular file" in reasons["folder.json"]
    assert "No such file" in reasons["gone.json"] and "larger than 16 MiB" in reasons["big.json"]


# Spelling


def test_other_spellings_are_accepted_and_only_keys_of_the_engine_are_renamed():
    text = json.dumps(
        plan(
            steps=[
                {"toolName": "agent", "id": "a", "input": {
                    "prompt": "", "maxIterations": 2, "systemPrompt": "", "outputSchema": {"outputSchema": 1}}},
                {"tool_name": "ask", "id": "b", "input": {"outputSchema": {}, "whenUnanswered": "fail"}},
                {"tool": "x__y", "id": "c", "input": {"toolName": 1, "outputSchema": 2}},
                {"tool": "map", "id": "d", "input": {"over": [], "do": {"toolName": "x__y", "input": {}}}},
                {"tool": "decide", "id": "e", "input": {
                    "then": [{"id": "f", "toolName": "agent", "input": {"maxIterations": 1}}]}},
            ],
            solver={"queryToAnswer": "q", "systemPrompt": "s", "data": {"queryToAnswer": 1}},
        )
    )  # fmt: skip
    document = read_document(text, "json")
    assert document["steps"][0] == {"tool": "agent", "id": "a", "input": {
        "prompt": "", "max_iterations": 2, "system_prompt": "", "output_schema": {"outputSchema": 1}}}  # fmt: skip
    assert document["steps"][1]["input"] == {"output_schema": {}, "when_unanswered": "fail"}
    assert document["steps"][2]["input"] == {"toolName": 1, "outputSchema": 2}
    assert document["steps"][3]["input"]["do"] == {"tool": "x__y", "input": {}}
    assert document["steps"][4]["input"]["then"][0]["input"] == {"max_iterations": 1}
    assert document["solver"] == {"query_to_answer": "q", "system_prompt": "s", "data": {"queryToAnswer": 1}}
    assert list(document["steps"][0]) == ["tool", "id", "input"]


def test_both_spellings_at_once_are_refused():
    document = documents.normalise(plan(steps=[{"id": "a", "tool": "x__y", "tool_name": "x__z", "input": {}}]))
    assert [str(problem) for problem in documents.shape_problems(document)] == [
        "step 'a' has the unknown key 'tool_name' (did you mean 'tool'?)"
    ]


# Shape


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({}, []),
        ({"version": 1}, []),
        ({"version": 2, "nope": 1}, [("/version", "version_unsupported")]),
        ({"version": "1"}, [("/version", "wrong_type")]),
        ({"naem": 1}, [("/naem", "unknown_key")]),
        ({"name": None}, [("/name", "wrong_type")]),
        ({"exemplars": ["a", 1]}, [("/exemplars", "wrong_type")]),
        ({"steps": {}}, [("/steps", "wrong_type")]),
        ({"concurrency": 0}, [("/concurrency", "wrong_type")]),
        ({"concurrency": True}, [("/concurrency", "wrong_type")]),
        ({"parallel": 1}, [("/parallel", "wrong_type")]),
        ({"steps": [3]}, [("/steps/0", "wrong_type")]),
        ({"steps": [{}]}, [("/steps/0", "missing_key")] * 3),
        ({"solver": {"query": ""}}, [("/solver/query", "unknown_key")]),
    ],
)
def test_shape_problems(changes, expected):
    assert [(problem.pointer, problem.code) for problem in documents.shape_problems(plan(**changes))] == expected


@pytest.mark.parametrize(
    "key, value, pointer",
    [
        ("retries", 3, "/steps/0/retries"),
        ("retry", 3, "/steps/0/retry"),
        ("retry", {"attempts": 0}, "/steps/0/retry/attempts"),
        ("retry", {"backoff_s": -1}, "/steps/0/retry/backoff_s"),
        ("retry", {"times": 1}, "/steps/0/retry/times"),
        ("timeout_s", 0, "/steps/0/timeout_s"),
        ("after", "b", "/steps/0/after"),
        ("input", [], "/steps/0/input"),
        ("a/b~c", 1, "/steps/0/a~1b~0c"),
    ],
)
def test_shape_problems_of_a_step(key, value, pointer):
    step = {"id": "a", "tool": "x__y", "input": {}, key: value}
    assert [problem.pointer for problem in documents.shape_problems(plan(steps=[step]))] == [pointer]


def test_an_unknown_key_names_the_nearest_known_one():
    (problem,) = documents.shape_problems(plan(discription=""))
    assert str(problem) == "the plan has the unknown key 'discription' (did you mean 'description'?)"


def test_a_plan_has_every_field():
    document = plan(
        exemplars=["e"], requires_servers=["s"], input_schema={}, output_schema={}, parallel=True, concurrency=2,
        steps=[{"id": "a", "tool": "x__y", "input": {}, "reasoning": "r", "after": ["b"], "timeout_s": 2,
                "on_error": None, "retry": {"attempts": 3}}],
        output={},
    )  # fmt: skip
    made = to_plan(document, "p.json")
    step = Step("x__y", {}, "r", Retry(3, 1.0), 2, None, "a", ("b",))
    assert made.steps == (step,) and made.exemplars == ("e",) and made.requires_servers == ("s",)
    assert made.finish == "output" and made.parallel and made.concurrency == 2
    assert made.document is document and made.path == "p.json"
    assert to_plan(plan(solver={})).finish == "solver" and to_plan(plan()).finish == "silent"
    with pytest.raises(InvalidPlan):
        to_plan({"identifier": "x"})


def test_a_body_is_a_call_or_steps():
    assert documents.parse_body({"tool": "x__y", "input": {}, "retry": {}}) == Call("x__y", {}, retry=Retry())
    assert documents.parse_body([{"id": "a", "tool": "x__y", "input": {}}]) == (Step("x__y", {}, id="a"),)
    call = {"tool": "x__y", "input": {}}
    for wrong in ([], 3, None, {"tool": "x__y"}, [call], {"id": "a", **call}, [{"id": "a", "after": [], **call}]):
        with pytest.raises(InvalidPlan):
            documents.parse_body(wrong)


def test_calls_finds_every_depth():
    body = [{"id": "f", "tool": "filter", "input": {}}, {"id": "n", "tool": "x__z", "input": {}}]
    document = plan(
        steps=[
            {"id": "a", "tool": "decide", "input": {"then": body, "else": {"tool": "exit", "input": {}}}},
            {"id": "b", "tool": "x__y", "input": {"do": {"tool": "no", "input": {}}}},
            {"tool": 3},
            4,
        ]
    )
    assert [(place, tool) for place, tool, _ in documents.calls(document)] == [
        ("/steps/0", "decide"),
        ("/steps/0/input/then/0", "filter"),
        ("/steps/0/input/then/1", "x__z"),
        ("/steps/0/input/else", "exit"),
        ("/steps/1", "x__y"),
    ]


# The catalog


def put(directory, name, document):
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def catalog_of(*directories, servers=()):
    return scan(directories, servers=servers, check=documents.shape_problems)


def test_the_first_definition_wins(tmp_path):
    first, second = tmp_path / "1", tmp_path / "2"
    put(second, "x.json", plan(name="global"))
    put(second, "y.json", plan(identifier="y"))
    put(first, "z.json", plan(name="project"))
    catalog = catalog_of(first, second, first)
    assert {name: entry.plan.name for name, entry in catalog.plans.items()} == {"x": "project", "y": "X"}
    (skipped,) = catalog.skipped
    assert skipped.path == str(second / "x.json") and "the earlier file wins" in skipped.reason


def test_json_wins_over_hand_written_files_beside_it(tmp_path):
    put(tmp_path, "a.toml", TOML)
    put(tmp_path, "x.json", plan(name="edited"))
    catalog = catalog_of(tmp_path)
    assert catalog.plans["x"].plan.name == "edited"
    assert [entry.path for entry in catalog.skipped] == [str(tmp_path / "a.toml")]
    assert documents.find_file([tmp_path], "x") == tmp_path / "x.json"


def test_a_broken_plan_is_not_replaced_by_another_of_its_name(tmp_path):
    first, second = tmp_path / "1", tmp_path / "2"
    put(first, "x.json", plan(nope=1))
    put(second, "x.json", plan())
    catalog = catalog_of(first, second)
    assert not catalog.plans and len(catalog.skipped) == 2
    with pytest.raises(UnknownPlan, match="unknown key 'nope'"):
        catalog.find("x")


def test_everything_that_cannot_be_used_is_listed_with_its_reason(tmp_path):
    put(tmp_path, "broken.json", "{")
    put(tmp_path, "empty.json", "")
    put(tmp_path, ".hidden.json", "{")
    put(tmp_path, "notes.txt", "")
    (tmp_path / "deeper").mkdir()
    put(tmp_path / "deeper", "y.json", plan(identifier="y"))
    put(tmp_path, "needs.json", plan(identifier="needs", requires_servers=["a", "b"]))
    put(tmp_path, "b.json", plan(identifier="b"))
    put(tmp_path, "good.json", plan())
    catalog = catalog_of(tmp_path, tmp_path / "missing", servers=["b"])
    assert list(catalog.plans) == ["b", "x"]
    assert [os.path.basename(entry.path) for entry in catalog.skipped] == ["broken.json", "empty.json"]
    assert "line 1, column 2" in catalog.skipped[0].reason
    assert [(entry.identifier, entry.missing) for entry in catalog.hidden] == [("needs", ("a",))]


@pytest.mark.parametrize(
    "name, part",
    [
        ("needs", r"not configured: a; add \[mcp.a\]"),
        ("broken", "line 1, column 2"),
        ("god", "did you mean 'good'"),
        ("x" * 500, "there is no plan"),
    ],
)
def test_naming_a_plan_that_is_not_there_says_why(tmp_path, name, part):
    put(tmp_path, "broken.json", "{")
    put(tmp_path, "needs.json", plan(identifier="needs", requires_servers=["a"]))
    put(tmp_path, "good.json", plan(identifier="good"))
    with pytest.raises(UnknownPlan, match=part):
        catalog_of(tmp_path).find(name)
    assert catalog_of(tmp_path).find("good").path == tmp_path / "good.json"


def test_an_unreadable_directory_is_one_entry(tmp_path):
    put(tmp_path, "file", "")
    (entry,) = catalog_of(tmp_path / "file").skipped
    assert "the directory cannot be read" in entry.reason


def test_the_fingerprint_tells_every_change(tmp_path):
    states = [documents.fingerprint([tmp_path])]
    path = put(tmp_path, "x.json", plan())
    states.append(documents.fingerprint([tmp_path]))
    path.write_text(json.dumps(plan(name="longer name")))
    states.append(documents.fingerprint([tmp_path]))
    path.unlink()
    states.append(documents.fingerprint([tmp_path]))
    assert states[0] == states[3] and len(set(states)) == 3


def test_a_file_that_was_just_written_is_looked_at_again(tmp_path, monkeypatch):
    """A second write in one tick of the file system's clock leaves time, size and inode as they were."""
    path = put(tmp_path, "x.json", plan())
    written = path.stat().st_mtime_ns
    moments = iter([written + 1, written + 2, written + documents.TICK_NS, written + documents.TICK_NS + 1])
    monkeypatch.setattr(documents.time, "time_ns", lambda: next(moments))
    states = [documents.fingerprint([tmp_path]) for _ in range(4)]
    assert len(set(states)) == 3 and states[2] == states[3]


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "x/../x", "", "\ud800", "\0", 5])
def test_an_identifier_is_never_a_path(tmp_path, name):
    put(tmp_path / "plans", "y.json", plan(identifier="y"))
    put(tmp_path, "x.json", plan())
    with pytest.raises(UnknownPlan):
        documents.find_file([tmp_path / "plans"], name)


def test_a_hidden_or_invalid_plan_is_found_for_editing(tmp_path):
    put(tmp_path, "odd.json", plan(requires_servers=["a"], nope=1, steps=[]))
    put(tmp_path, "broken.json", "{")
    assert documents.find_file([tmp_path], "x") == tmp_path / "odd.json"
    with pytest.raises(UnknownPlan, match="line 1, column 2"):
        documents.find_file([tmp_path], "broken")
    with pytest.raises(DocumentError, match="must end in"):
        documents.read_file(tmp_path / "x.txt")


def test_any_locale_reads_utf8(tmp_path):
    put(tmp_path, "x.json", "").write_bytes(json.dumps(plan(name="é✓"), ensure_ascii=False).encode())
    code = f"from graphlib_plans import documents as d; print(ascii(d.read_file({str(tmp_path / 'x.json')!r})['name']))"
    environ = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    assert done.stdout == "'\\xe9\\u2713'\n", done.stderr
