"""The verbs: what they write to stdout and to stderr, exit codes, bad input, the examples."""

import functools
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

from graphlib_plans import authoring, execution, records, workspace
from tests.plans.http_double import Service

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
LIMIT_S = 60
GUESTS = '{"guests": [{"first": "Ida", "seat": 3}, {"first": "Bo", "seat": 0}]}'


def reshape(id, shape, **fields):
    return {"id": id, "tool": "builtin__reshape", "input": {"shape": shape}, **fields}


def plan(*steps, identifier="p", **fields):
    return {"identifier": identifier, "name": "P", "description": "", "steps": list(steps), **fields}


# Looking -----------------------------------------------------------------------------------------------------------


def test_listing_shows_plans_and_says_what_is_left_out(graph, project):
    project("plans", "p.json", plan(reshape("E1", 1)))
    project("plans", "q.json", plan(reshape("E1", 1), identifier="q", requires_servers=["tracker"]))
    project("plans", "broken.json", "{")
    result = graph("plan", "list")
    assert (result.code, result.out) == (0, "p\tP\n")
    assert "broken.json" in result.err and "tracker" in result.err
    body = graph("plan", "list", "--json").json
    assert [each["identifier"] for each in body["plans"]] == ["p"]
    assert body["hidden"] == [{"identifier": "q", "missingServers": ["tracker"]}]
    assert len(body["skipped"]) == 1


def test_showing_a_plan_gives_its_file_back(graph, project):
    document = plan(reshape("E1", "{{input}}"))
    path = project("plans", "p.json", document)
    assert json.loads(graph("plan", "show", "p").out) == document
    assert graph("plan", "show", "p", "--json").json == {**document, "path": str(path)}
    assert json.loads(graph("plan", "show", str(path)).out) == document


def test_a_file_in_the_working_directory_never_stands_for_a_plan(graph, project, tmp_path):
    project("plans", "p.json", plan(reshape("E1", 1)))
    (tmp_path / "project/p").mkdir()
    assert graph("plan", "show", "p").code == 0


def test_the_graph_as_text_and_as_a_picture(graph, project, tmp_path):
    project("plans", "p.json", plan(reshape("A", 1), reshape("B", "{{A}}"), output={"b": "{{B}}"}))
    result = graph("plan", "show", "p", "--graph", "--svg", "p.svg")
    assert result.out.splitlines()[1] == "  2 ── B       builtin__reshape  ← A"
    assert (tmp_path / "project/p.svg").read_text().startswith("<svg ")
    assert graph("plan", "show", "p", "--svg", "-").out.startswith("<svg ")
    assert graph("plan", "show", "p", "--svg", "/no/such/folder/p.svg").code == 1


def test_validating_lists_every_problem(graph, project):
    project("plans", "p.json", plan(reshape("A", "{{B}}"), {"id": "C", "tool": "plan__q", "input": {}}))
    result = graph("plan", "validate", "p")
    assert (result.code, result.out) == (1, "")
    assert "/steps/0" in result.err and "plan__q" in result.err or "'q'" in result.err
    body = graph("plan", "validate", "p", "--json").json
    assert body["ok"] is False and len(body["problems"]) == 2
    project("plans", "p.json", plan(reshape("A", 1), output={"a": "{{A}}"}))
    assert graph("plan", "validate", "p").code == 0


@pytest.mark.parametrize("verb", ["show", "validate", "run"])
def test_a_plan_that_is_not_there(graph, project, verb):
    project("plans", "report.json", plan(reshape("A", 1), identifier="report"))
    result = graph("plan", verb, "reprot")
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("graph: there is no plan 'reprot'") and "report" in result.err


# Running -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def echo(project):
    rule = {"type": "object", "properties": {"text": {"type": "string"}, "n": {"type": "number"}, "any": {}}}
    project(
        "plans",
        "echo.json",
        plan(reshape("E1", "{{input}}"), identifier="echo", input_schema=rule, output={"got": "{{E1}}"}),
    )


@pytest.mark.parametrize(
    ("arguments", "stdin", "got"),
    [
        ([], "", {}),
        ([""], "", {}),
        (['{"n": 9007199254740993}'], "", {"n": 9007199254740993}),
        (["-"], '{"n": 2}', {"n": 2}),
        (["@in.json"], "", {"n": 3}),
        (["--input", "text=1.10"], "", {"text": "1.10"}),
        (["--input", "n=1e1"], "", {"n": 10.0}),
        (["--input", "any=1.10"], "", {"any": "1.10"}),
        (["--input", "any=1.5"], "", {"any": 1.5}),
        (["--input", "any=012"], "", {"any": "012"}),
        (["--input", "any=[1, null]"], "", {"any": [1, None]}),
        (["--input", "any=a=b"], "", {"any": "a=b"}),
        (['{"n": 1, "text": "a"}', "--input", "n=2", "--input", "text=b"], "", {"n": 2, "text": "b"}),
    ],
)
def test_inputs(graph, echo, tmp_path, arguments, stdin, got):
    (tmp_path / "project/in.json").write_text('{"n": 3}')
    result = graph("plan", "run", "echo", *arguments, stdin=stdin)
    assert (result.code, result.json) == (0, {"got": got})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{"], ["not well formed", "line 1"]),
        (["[1]"], ["JSON object", "array"]),
        (["@absent.json"], ["absent.json", "cannot be read"]),
        (["--input", "novalue"], ["novalue", "NAME=VALUE"]),
        (['{"n": NaN}'], ["NaN"]),
    ],
)
def test_inputs_that_are_none(graph, echo, arguments, words):
    result = graph("plan", "run", "echo", *arguments)
    assert (result.code, result.out) == (1, "")
    assert all(word in result.err for word in words)


def test_needing_other_input_exits_3_and_shows_what_is_taken(graph, echo):
    result = graph("plan", "run", "echo", "--input", "txt=hello")
    assert (result.code, result.out) == (3, "")
    assert "txt" in result.err and '"properties"' in result.err
    body = graph("plan", "run", "echo", '{"text": 1}', "--json")
    assert (body.code, body.json["kind"]) == (3, "needs_input")
    assert body.json["problems"] and body.json["inputSchema"]
    assert graph("plan", "runs", "--json").json["count"] == 0


def test_a_run_writes_output_to_stdout_and_progress_to_stderr(graph, project):
    project("plans", "p.json", plan(reshape("A", 1), output={"z": "{{A}}", "a": [1]}))
    result = graph("plan", "run", "p")
    assert (result.code, result.out) == (0, '{\n  "z": 1,\n  "a": [\n    1\n  ]\n}\n')
    assert "A builtin__reshape" in result.err
    assert graph("plan", "run", "p", "--quiet").err == ""


def test_a_silent_plan_only_says_that_it_is_done(graph, project):
    project("plans", "p.json", plan(reshape("A", 1)))
    result = graph("plan", "run", "p", "-q")
    assert (result.code, result.out, result.err) == (0, "", "plan 'p' is done, 1 step\n")


@pytest.mark.parametrize(("status", "code", "word"), [("success", 0, "ended"), ("error", 4, "FAILED")])
def test_exits(graph, project, status, code, word):
    leave = {"id": "X", "tool": "exit", "input": {"status": status, "message": "50% lost", "output": {"n": 1}}}
    project("plans", "p.json", plan(leave))
    result = graph("plan", "run", "p", "-q")
    assert (result.code, result.out) == (code, '{\n  "n": 1\n}\n')
    assert result.err == f"{word} at step X: 50% lost\n"
    body = graph("plan", "run", "p", "--json").json
    assert body["exit"]["status"] == status and body["answer"] == "50% lost"
    told = graph("plan", "run", "p", "-q", GRAPH_EVENTS="github").out
    assert ("::error::50%25 lost" in told) == (status == "error")


def test_the_envelope_of_a_run(graph, project):
    project("plans", "p.json", plan(reshape("A", 1), output={"a": "{{A}}"}))
    body = graph("plan", "run", "p", "--json").json
    assert list(body) == ["kind", "answer", "output", "plan", "steps_executed", "exit", "usage", "run"]
    assert graph("plan", "run", "p", "--json", "--no-record").json["run"] is None
    assert graph("plan", "run", "p", "--json", GRAPH_STORAGE="memory").json["run"] is None


def test_a_failure_says_how_to_go_on(graph, project):
    project("plans", "p.json", plan(reshape("A", {}), reshape("B", "{{A.nope}}")))
    result = graph("plan", "run", "p")
    assert (result.code, result.out) == (1, "")
    assert "graph: step B (builtin__reshape) failed:" in result.err
    assert "graph plan run --resume " in result.err
    body = graph("plan", "run", "p", "--json")
    assert (body.code, body.json["kind"], body.json["step"], body.json["finished"]) == (
        1,
        "step_failed",
        "B",
        {"A": {}},
    )
    assert "::error::" in graph("plan", "run", "p", GRAPH_EVENTS="github").out


def test_events_for_programs(graph, project):
    project("plans", "p.json", plan(reshape("A", 1)))
    events = [json.loads(line) for line in graph("plan", "run", "p", GRAPH_EVENTS="jsonl").err.splitlines()]
    assert [each["event"] for each in events] == [
        "steps_total",
        "step_started",
        "tool_started",
        "tool_finished",
        "step_finished",
        "message",
    ]


def test_a_time_limit_of_the_whole_run(graph, project):
    project(
        "tools",
        "wait.json",
        {
            "name": "wait",
            "description": "",
            "kind": "exec",
            "command": sys.executable,
            "output": "text",
            "args": ["-c", "import time; time.sleep(600)"],
        },
    )
    project("plans", "p.json", plan({"id": "A", "tool": "user__wait", "input": {}}))
    result = graph("plan", "run", "p", "--timeout", "0.2")
    assert result.code == 1 and "user__wait" in result.err


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_cancels_the_run_and_its_programs(environ, project, tmp_path, number):
    started = tmp_path / "started"
    code = "import os, pathlib, sys, time; pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(600)"
    project(
        "tools",
        "wait.json",
        {
            "name": "wait",
            "description": "",
            "kind": "exec",
            "command": sys.executable,
            "output": "text",
            "args": ["-c", code, str(started)],
        },
    )
    project("plans", "p.json", plan(reshape("A", 1), {"id": "B", "tool": "user__wait", "input": {}, "after": ["A"]}))
    process = subprocess.Popen(
        [sys.executable, "-m", "graphlib_plans", "plan", "run", "p", "--json"],
        cwd=tmp_path / "project",
        env={**environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    seen = ""
    while "B user__wait" not in seen:
        line = process.stderr.readline()
        assert line, seen
        seen += line
    process.send_signal(number)
    out, err = process.communicate(timeout=LIMIT_S)
    body = json.loads(out)
    assert (process.returncode, body["kind"], body["steps_executed"]) == (1, "cancelled", 1), seen + err
    assert "Traceback" not in err
    if started.exists() and started.read_text():
        with pytest.raises(ProcessLookupError):
            os.kill(int(started.read_text()), 0)


def test_a_signal_that_comes_while_the_run_is_starting_cancels_it(graph, project, monkeypatch):
    project("plans", "p.json", plan(reshape("A", 1)))
    start = threading.Thread.start

    def interrupted(thread):
        if thread.name == "plan.run":
            signal.raise_signal(signal.SIGINT)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    result = graph("plan", "run", "p", "--json")
    body = json.loads(result.out)
    assert (result.code, body["kind"]) == (1, "cancelled"), result.err
    assert body["error"].endswith("stopped by Ctrl-C")


# Records -----------------------------------------------------------------------------------------------------------


def test_runs_are_listed_and_shown(graph, project):
    assert "there are no runs" in graph("plan", "runs").err
    project("plans", "p.json", plan(reshape("A", {"x": 1}), output={"a": "{{A.x}}"}))
    run = graph("plan", "run", "p", "--json").json["run"]
    listed = graph("plan", "runs")
    assert run in listed.out and " ran " in listed.out
    assert graph("plan", "runs", "other", "--json").json["count"] == 0
    shown = graph("plan", "show-run", run)
    assert "A builtin__reshape" in shown.out and 'output: {"a":1}' in shown.out
    assert graph("plan", "show-run", run, "--json").json["outcome"]["output"] == {"a": 1}


@pytest.mark.parametrize("run", ["20200101-000000-0000", "../x", "-"])
def test_a_run_that_is_not_there(graph, run):
    for arguments in (["plan", "show-run", run], ["plan", "run", "--resume", run]):
        result = graph(*arguments) if run != "-" else graph(*arguments)
        assert result.code in (1, 2) and result.out == ""


def test_resuming_needs_no_input_and_takes_none(graph, project):
    project("plans", "p.json", plan(reshape("A", {}), reshape("B", "{{A.nope}}")))
    run = graph("plan", "run", "p", "--json").json["run"]
    assert "takes the input from the record" in graph("plan", "run", "p", "{}", "--resume", run).err
    assert "not of 'q'" in graph("plan", "run", "q", "--resume", run).err
    result = graph("plan", "run", "--resume", run)
    assert result.code == 1 and "A builtin__reshape reused from the record" in result.err


def test_a_secret_of_a_tool_is_in_no_record(graph, project, environ):
    project("tools", "leak.json", {"name": "leak", "description": "d", "kind": "exec", "command": "sh",
                                   "args": ["-c", "echo got $K"], "env": {"K": "${LEAKY_TOKEN}"}})
    project("plans", "p.json", plan({"id": "A", "tool": "user__leak", "input": {}}, reshape("B", "{{A.nope}}")))
    run = graph("plan", "run", "p", "--json", LEAKY_TOKEN="s3cr3t-of-mine").json["run"]
    graph("plan", "run", "--resume", run, LEAKY_TOKEN="s3cr3t-of-mine")
    (record,) = pathlib.Path(environ["HOME"]).rglob(f"{run}.jsonl")
    assert record.read_text().count("got [hidden]") >= 2 and "s3cr3t" not in record.read_text()


def test_without_a_place_for_records_the_run_goes_on(graph, project, tmp_path):
    (tmp_path / "file").write_text("")
    project("plans", "p.json", plan(reshape("A", 1)))
    (tmp_path / "project/.graph/config.toml").write_text(f'[settings]\ndata_dir = "{tmp_path}/file"\n')
    result = graph("plan", "run", "p")
    assert result.code == 0 and "no record" in result.err


# Editing -----------------------------------------------------------------------------------------------------------


def test_a_plan_is_built_edited_and_run(graph, tmp_path):
    steps = [
        ["plan", "new", "greet", "--description", "greets"],
        ["plan", "set", "greet", "input_schema", '{"type": "object", "properties": {"who": {"type": "string"}}}'],
        ["plan", "step", "add", "greet", "E1", "builtin__reshape", '{"shape": {"text": "hi {{input.who}}"}}'],
        [
            "plan",
            "step",
            "add",
            "greet",
            "E0",
            "builtin__reshape",
            '{"shape": 1}',
            "--before",
            "E1",
            "--reasoning",
            "why",
        ],
        ["plan", "set", "greet", "output", '{"said": "{{E1.text}}"}'],
        ["plan", "set", "greet", "exemplars", "say hi", "greet her"],
        ["plan", "step", "rename", "greet", "E1", "hello"],
        ["plan", "step", "update", "greet", "hello", "timeout-s", "5"],
        ["plan", "step", "update", "greet", "hello", "after", "E0"],
        ["plan", "step", "unset", "greet", "hello", "after"],
        ["plan", "step", "move", "greet", "E0", "--after", "hello"],
        ["plan", "step", "rm", "greet", "E0"],
        ["plan", "unset", "greet", "exemplars"],
    ]
    for arguments in steps:
        result = graph(*arguments)
        assert (result.code, result.out) == (0, ""), result.err
        assert "saved " in result.err
    document = json.loads((tmp_path / "project/.graph/plans/greet.json").read_text())
    assert document["output"] == {"said": "{{hello.text}}"}
    assert document["steps"] == [
        {"id": "hello", "tool": "builtin__reshape", "input": {"shape": {"text": "hi {{input.who}}"}}, "timeout_s": 5}
    ]
    assert graph("plan", "run", "greet", "--input", "who=Ida").json == {"said": "hi Ida"}


def test_a_refused_edit_lists_the_problems_and_changes_nothing(graph, project):
    path = project("plans", "p.json", plan(reshape("A", 1)))
    before = path.read_bytes()
    arguments = ["plan", "step", "add", "p", "B", "builtin__reshape", '{"shape": "{{C}}"}']
    result = graph(*arguments)
    assert (result.code, result.out) == (1, "")
    assert "refused" in result.err and "C" in result.err
    body = graph(*arguments, "--json")
    assert (body.code, body.json["kind"]) == (1, "refused")
    assert body.json["problemsIntroduced"][0]["code"] == "reference_unknown"
    missing = graph("plan", "step", "rm", "p", "Z")
    assert "steps of the plan:" in missing.err and "- A" in missing.err
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "set", "p", "nope", "1"],
        ["plan", "set", "p", "name", "a", "b"],
        ["plan", "set", "p", "output", "[1]"],
        ["plan", "set", "p", "output", "{"],
        ["plan", "unset", "p", "name"],
        ["plan", "new", "p"],
        ["plan", "new", "a b"],
        ["plan", "new", "x" * 59],
        ["plan", "step", "update", "p", "A", "input", "@absent"],
        ["plan", "step", "update", "p", "A", "id", "B"],
        ["plan", "step", "add", "p", "B", "builtin__reshape", "[]"],
    ],
)
def test_bad_edits_are_one_sentence(graph, project, arguments):
    path = project("plans", "p.json", plan(reshape("A", 1)))
    before = path.read_bytes()
    result = graph(*arguments)
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("graph: ") and path.read_bytes() == before


# tools, mcp, config ------------------------------------------------------------------------------------------------


def test_tools_are_listed_shown_and_tested(graph, project):
    project("plans", "p.json", plan(reshape("A", 1)))
    project("tools", "bad.json", "{")
    listed = graph("tools", "list")
    assert listed.code == 0 and "builtin__reshape [read-only]" in listed.out and "(control) — 7 tools" in listed.out
    assert "bad" in listed.err
    body = graph("tools", "list", "--json").json
    assert body["count"] == len(body["tools"]) and {"source": "(control)", "count": 7} in body["sources"]
    shown = graph("tools", "show", "exit", "--json").json
    assert set(shown) == {"name", "source", "description", "readOnly", "inputSchema", "outputSchema", "outputExample"}
    assert graph("tools", "show", "builtin__reshape").out.startswith("builtin__reshape — builtin")
    tested = graph("tools", "test", "builtin__reshape", '{"shape": [1]}')
    assert (tested.code, tested.json) == (0, [1])
    failed = graph("tools", "test", "builtin__reshape", "--json")
    assert (failed.code, failed.json["isError"]) == (0, True)
    assert graph("tools", "test", "plan__p").json == {"ok": True, "steps_executed": 1}
    assert "control step" in graph("tools", "test", "exit").err
    assert graph("tools", "show", "builtin__nope").code == 1


def test_servers(graph, project, tmp_path):
    assert graph("mcp", "list", "--json").json["count"] == 0
    text = '[mcp.down]\ncommand = "/no/such/program"\nargs = ["--key", "${KEY}"]\n'
    text += '[mcp.web]\nurl = "http://u:p@127.0.0.1:9/mcp"\n'
    project("plans", "p.json", plan(reshape("A", 1)))
    (tmp_path / "project/.graph/config.toml").write_text(text)
    listed = graph("mcp", "list", KEY="s3cret-value")
    assert "s3cret-value" not in listed.out and "u:p@" not in listed.out
    assert listed.out.startswith("down\tstdio\t/no/such/program --key ***")
    tested = graph("mcp", "test", "down", "--json", KEY="x")
    assert (tested.code, tested.json["ok"]) == (1, False) and "/no/such/program" in tested.json["error"]
    waiting = graph("mcp", "test", "down")
    assert waiting.code == 1 and "KEY" in waiting.err and "mcp.down.args.1" in waiting.err
    assert graph("mcp", "tools", "down", KEY="x").code == 1
    assert "there is no MCP server 'dwn'" in graph("mcp", "test", "dwn").err


def test_configuration(graph, project, tmp_path):
    assert graph("config", "path", "--json").json["layers"][1]["exists"] is False
    assert graph("config", "init").code == 0 and graph("config", "init").code == 1
    assert graph("config", "init", "--force").code == 0
    assert graph("config", "init", "--global").code == 0
    assert graph("config", "check").code == 0
    assert "every key has its default" in graph("config", "show").err
    path = tmp_path / "project/.graph/config.toml"
    path.write_text('[providers.x]\ntype = "openai"\napi_key = "${KEY}"\n[user]\nname = "Ida"\n')
    assert 'api_key = "***"' in graph("config", "show", KEY="s3cret").out
    assert graph("config", "show", "--json", KEY="s3cret").json["user"] == {"name": "Ida"}
    check = graph("config", "check")
    assert check.code == 1 and "providers.x.api_key" in check.err and "KEY" in check.err
    path.write_text("[settings]\nnope = 1\n")
    for arguments in (["config", "check"], ["plan", "list"], ["config", "show"], ["tools", "list", "--json"]):
        result = graph(*arguments)
        assert result.code == 1 and "'nope'" in result.err


def test_a_configuration_that_is_shown_can_be_read_again(graph, project, tmp_path):
    text = '[mcp.a]\ncommand = "a"\nargs = ["x y", "\\"q\\""]\nenv = { "A.B" = "c" }\n'
    text += '[settings]\nconcurrency = 2\n[pricing."m/1"]\ninput = 1.5\noutput = 2\n'
    project("plans", "p.json", plan(reshape("A", 1)))
    path = tmp_path / "project/.graph/config.toml"
    path.write_text(text)
    first = graph("config", "show", "--json").json
    path.write_text(graph("config", "show").out)
    assert graph("config", "show", "--json").json == first


# The examples ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("identifier", ["place_cards", "table_plan", "check_disks", "keep_note", "recent_changes"])
def test_examples_have_no_problems(graph, identifier):
    body = graph("--dir", str(EXAMPLES), "plan", "validate", identifier, "--json").json
    assert (body["ok"], body["notes"]) == (True, [])


def test_examples_run(graph, tmp_path):
    def run(*arguments):
        return graph("--dir", str(EXAMPLES), "plan", "run", *arguments)

    cards = run("place_cards", GUESTS).json
    assert cards == {"cards": [{"line": "Guest Ida", "seat": 3, "nth": 0}], "total": 1, "without_seat": 1}
    assert run("table_plan", GUESTS, "--input", "title=Dr").json == {"text": "Table plan\n3. Dr Ida"}
    nobody = run("table_plan", '{"guests": []}')
    assert (nobody.code, nobody.json) == (0, {"without_seat": 0})
    disks = run("check_disks", "--input", f'folders=["{tmp_path}", "/no/such/folder"]', "--input", "limit=100")
    assert (disks.code, disks.json["not_measured"]) == (0, 1)
    assert run("check_disks", "--input", f'folders=["{tmp_path}"]', "--input", "limit=-1").code == 4
    note = run("keep_note", "--input", "note=hi")
    assert (note.code, note.out) == (0, "") and "nothing was written" in note.err


def test_the_git_example_runs_in_a_repository(graph, tmp_path):
    project = tmp_path / "project"
    for arguments in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run(["git", *arguments], cwd=project, check=True, timeout=LIMIT_S, env=_git_environ(project))
    (project / "a.txt").write_text("one\n")
    for arguments in (["add", "a.txt"], ["commit", "-q", "-m", "second"]):
        subprocess.run(["git", *arguments], cwd=project, check=True, timeout=LIMIT_S, env=_git_environ(project))
    body = graph("--dir", str(EXAMPLES), "plan", "run", "recent_changes").json
    assert (body["commits"], body["subjects"], body["files"]) == (1, "- second\n", 1)


def _git_environ(home):
    who = {f"GIT_{role}_{key}": "tester@example.org" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
    return {"PATH": os.environ["PATH"], "HOME": str(home), **who}


# Many at once ------------------------------------------------------------------------------------------------------


def test_ten_runs_and_ten_edits_at_once(graph, project, environ, tmp_path, in_thread):
    """Runs do not mix, and no edit is lost: each works on its own snapshot, edits of one folder take turns."""
    rule = {"type": "object", "properties": {"n": {"type": "integer"}}}
    document = plan(reshape("A", "{{input.n}}"), reshape("B", "{{A}}"), input_schema=rule, output={"n": "{{B}}"})
    project("plans", "p.json", document)

    def run(number):
        space = workspace.open_workspace(tmp_path / "project", environ)
        try:
            record = records.create(space.config.runs_dir, space.find_plan("p"), {"n": number}, now=time.time())
            return execution.run(space.find_plan("p"), {"n": number}, space.services, record=record)
        finally:
            space.close()

    def edit(number):
        space = workspace.open_workspace(tmp_path / "project", environ)
        try:
            change = functools.partial(
                authoring.add_step, id=f"X{number}", tool="builtin__reshape", input={"shape": number}
            )
            return space.store.edit("p", change)
        finally:
            space.close()

    running = [in_thread(functools.partial(run, number)) for number in range(10)]
    editing = [in_thread(functools.partial(edit, number)) for number in range(10)]
    outcomes = [join() for join in running]
    assert [outcome.output for outcome in outcomes] == [{"n": number} for number in range(10)]
    assert len({outcome.run for outcome in outcomes}) == 10
    assert all(join()["ok"] for join in editing)
    steps = json.loads((tmp_path / "project/.graph/plans/p.json").read_text())["steps"]
    assert {step["id"] for step in steps} == {"A", "B", *(f"X{number}" for number in range(10))}
    assert graph("plan", "runs", "--json").json["count"] == 10


# With a model ------------------------------------------------------------------------------------------------------


@pytest.fixture
def model(graph, tmp_path):
    """A model service that the project is configured for: it answers what the test puts into `replies`, in order."""

    def handle(request):
        reply = service.replies.pop(0)
        usage = {"prompt_tokens": 1200, "completion_tokens": 5}
        if not request.json.get("stream"):
            choice = {"message": {"role": "assistant", "content": reply}, "finish_reason": "stop"}
            request.reply(200, {"choices": [choice], "usage": usage})
            return
        request.stream()
        for piece in reply:
            request.event({"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]})
        request.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        request.event({"choices": [], "usage": usage})
        request.event("[DONE]")
        request.end()

    with Service(handle) as service:
        service.replies = []
        folder = tmp_path / "project/.graph"
        folder.mkdir(exist_ok=True)
        (folder / "config.toml").write_text(
            f'[providers.local]\ntype = "openai_compat"\nbase_url = "{service.url}/v1"\napi_key = "${{KEY}}"\n'
            '[models.default]\nprovider = "local"\nmodel = "m"\n[pricing."m"]\ninput = 10\noutput = 10\n'
        )
        yield service


def test_a_solver_streams_its_answer_and_tells_what_it_cost(graph, project, model):
    project("plans", "p.json", plan(reshape("A", {"n": 3}), solver={"query_to_answer": "how many?"}))
    model.replies.append(["There ", "are ", "three."])
    result = graph("plan", "run", "p", KEY="s3cret")
    assert (result.code, result.out) == (0, "There are three.\n")
    assert "1 call · 1k in / 5 out · $0.01" in result.err
    model.replies.append(["three"])
    body = graph("plan", "run", "p", "--json", KEY="s3cret").json
    assert (body["answer"], body["usage"]["calls"], body["usage"]["by_step"][0]["path"]) == ("three", 1, "solver")


def test_a_missing_key_disables_what_needs_a_model_and_nothing_else(graph, project, model):
    project("plans", "p.json", plan(reshape("A", 1), solver={"query_to_answer": "?"}))
    project("plans", "q.json", plan(reshape("A", 1), identifier="q", output={"a": "{{A}}"}))
    result = graph("plan", "run", "p", "--json")
    assert (result.code, result.json["kind"], result.json["variable"]) == (1, "model_unavailable", "KEY")
    assert "providers.local.api_key" in result.err
    assert graph("plan", "run", "q").json == {"a": 1}
    assert model.requests == []


def test_a_model_writes_a_plan(graph, model, tmp_path):
    outline = {"items": [{"summary": "greet"}], "query_to_answer": "say hi"}
    step = {"step": reshape("E0", {"text": "hi"}), "planComplete": True, "plan_complete": True}
    model.replies += [json.dumps(outline), json.dumps(step)]
    result = graph("plan", "draft", "a plan called greeter that greets", "--json", KEY="s3cret")
    assert result.code == 0, result.err
    assert result.json["identifier"] == "greeter" and result.json["steps"] == 1
    assert "outline: greet" in result.err and "2 calls" in result.err
    assert (tmp_path / "project/.graph/plans/greeter.json").exists()
    again = graph("plan", "draft", "a plan called greeter that greets", KEY="s3cret")
    assert again.code == 1 and "already" in again.err and len(model.requests) == 2
    assert graph("plan", "draft", " ", KEY="s3cret").code == 1
