"""Taking runs up again: after a failure, after SIGKILL in the middle of a run, after an answer that came later."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from graphlib_plans import execution, records, tools
from graphlib_plans.errors import Suspended, ToolError

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT_S = 60


@pytest.fixture
def recorded(world, tmp_path):
    """run(plan, arguments, run=None, **options) -> Outcome: run with a record, or take up the run of that name."""
    directory = tmp_path / "runs"

    def run_recorded(plan, arguments=None, run=None, secrets=(), **options):
        finished = None
        if run is None:
            record = records.create(directory, plan, arguments or {}, secrets=secrets, now=time.time())
        else:
            record, header, finished = records.reopen(directory, run, secrets=secrets, now=time.time())
            arguments = header["arguments"]
        world.calls.clear()
        return world.run(plan=plan, arguments=arguments, record=record, finished=finished, **options)

    run_recorded.directory = directory
    return run_recorded


@pytest.fixture
def broken_once(world):
    """The tool t__once fails until `repair` is set in what is returned."""
    state = {"repair": False}

    def once(arguments):
        if not state["repair"]:
            raise ToolError("not yet")
        return {"v": arguments.get("v", 0)}

    world.tool("once", once)
    return state


def test_finished_steps_are_not_done_again(world, step, recorded, broken_once):
    plan = world.plan(
        step("A", "t__write", v="{{input.n}}"),
        step("B", "t__once", v="{{A.v}}"),
        step("C", "t__write", v="{{B.v}}"),
        output={"c": "{{C.v}}"},
    )
    failed = recorded(plan, {"n": 9007199254740993})
    assert (failed.kind, failed.step, [name for name, _ in world.calls]) == ("step_failed", "B", ["write", "once"])
    broken_once["repair"] = True
    done = recorded(plan, run=failed.run)
    assert (done.kind, done.output, done.run) == ("ran", {"c": 9007199254740993}, failed.run)
    assert [name for name, _ in world.calls] == ["once", "write"]
    assert done.steps_executed == 3
    assert [(event["path"], event["reused"]) for event in world.events if event["event"] == "step_finished"] == [
        ("A", True),
        ("B", False),
        ("C", False),
    ]
    assert ("step_started", "A") not in world.told("step_started")


def test_items_of_an_iteration_are_not_done_again(world, step, recorded, broken_once):
    body = [
        {"id": "a", "tool": "t__write", "input": {"v": "{{item}}"}},
        {"id": "b", "tool": "t__write", "input": {"v": "{{a.v}}"}},
    ]
    last = {"tool": "t__once", "input": {"v": "{{item}}"}}
    plan = world.plan(
        step("M", "map", over="{{input.items}}", do=body),
        step("N", "map", over="{{M.results}}", do=last),
        output={"n": "{{N.count}}", "m": "{{M.results}}"},
    )
    failed = recorded(plan, {"items": [1, 2, 3]})
    assert (failed.step, failed.steps_executed) == ("N/do.0", 7)
    broken_once["repair"] = True
    done = recorded(plan, run=failed.run)
    assert done.output == {"n": 3, "m": [{"v": 1}, {"v": 2}, {"v": 3}]}
    assert [name for name, _ in world.calls] == ["once"] * 3
    assert done.steps_executed == 7 + 4


def test_a_half_done_iteration_goes_on_where_it_stopped(world, step, recorded):
    state = {"limit": 2}

    def count(arguments):
        if arguments["v"] > state["limit"]:
            raise ToolError("too many")
        return arguments["v"]

    world.tool("count", count)
    plan = world.plan(
        step("M", "map", over=[1, 2, 3, 4], do={"tool": "t__count", "input": {"v": "{{item}}"}}),
        output={"m": "{{M.results}}"},
    )
    failed = recorded(plan)
    state["limit"] = 9
    done = recorded(plan, run=failed.run)
    assert done.output == {"m": [1, 2, 3, 4]}
    assert [arguments["v"] for _, arguments in world.calls] == [3, 4]
    assert done.steps_executed == 5


def test_a_changed_step_runs_again_and_so_does_what_reads_it(world, step, recorded, broken_once):
    def make(text):
        return world.plan(
            step("A", "t__write", v=text),
            step("B", "t__write", v="{{A.v}}"),
            step("C", "t__write", v=1),
            step("D", "t__once"),
        )

    failed = recorded(make("old"))
    broken_once["repair"] = True
    assert recorded(make("new"), run=failed.run).kind == "ran"
    assert [(name, arguments.get("v")) for name, arguments in world.calls] == [
        ("write", "new"),
        ("write", "new"),
        ("once", None),
    ]


def test_control_steps_run_again_when_what_they_read_has_changed(world, step, recorded, broken_once):
    gate = {"value": "{{item}}", "op": "gt", "to": "{{A.v}}"}

    def make(least):
        return world.plan(
            step("A", "t__write", v=least),
            step("F", "filter", over=[1, 2, 3], where=gate),
            step("B", "t__once"),
            output={"f": "{{F.items}}"},
        )

    failed = recorded(make(1))
    broken_once["repair"] = True
    assert recorded(make(2), run=failed.run).output == {"f": [3]}


def test_steps_of_nested_plans_are_not_done_again(world, step, recorded, broken_once):
    world.plan(step("X", "t__write", v=1), step("Y", "t__once", v=2), identifier="inner", output={"y": "{{Y.v}}"})
    plan = world.plan(
        step("A", "map", over=[1, 2], do={"tool": "plan__inner", "input": {"n": "{{item}}"}}),
        output={"a": "{{A.results}}"},
    )
    failed = recorded(plan)
    assert failed.step == "A/do.0"
    broken_once["repair"] = True
    done = recorded(plan, run=failed.run)
    assert done.output == {"a": [{"y": 2}, {"y": 2}]}
    assert [name for name, _ in world.calls] == ["once", "write", "once"]


def test_a_result_with_a_hidden_secret_is_made_again(world, step, recorded, broken_once):
    world.tool("secret", lambda arguments: {"token": "s3cr3t!"})
    plan = world.plan(step("A", "t__secret"), step("B", "t__once", v="{{A.token}}"), output={"b": "{{B.v}}"})
    failed = recorded(plan, secrets=["s3cr3t!"])
    broken_once["repair"] = True
    done = recorded(plan, run=failed.run, secrets=["s3cr3t!"])
    assert done.output == {"b": "s3cr3t!"}
    assert [name for name, _ in world.calls] == ["secret", "once"]
    assert "s3cr3t!" not in (recorded.directory / f"{done.run}.jsonl").read_text()


def test_an_error_that_a_step_coped_with_is_a_result(world, step, recorded, broken_once):
    def broken(arguments):
        raise ToolError("no")

    world.tool("break", broken)
    plan = world.plan(step("A", "t__break", on_error="continue"), step("B", "t__once"), output={"a": "{{A.error}}"})
    failed = recorded(plan)
    broken_once["repair"] = True
    assert recorded(plan, run=failed.run).output == {"a": "no"}
    assert [name for name, _ in world.calls] == ["once"]


# Questions and models ------------------------------------------------------------------------------------------------

FORM = {"type": "object", "required": ["go"], "properties": {"go": {"type": "boolean"}}}


def test_a_question_is_answered_later_and_only_once(world, step, recorded, broken_once):
    asked = []

    def suspend(question):
        asked.append(question)
        raise Suspended(question)

    plan = world.plan(
        step("A", "t__write", v=1),
        step("Q", "ask", prompt="go, {{A.v}}?", output_schema=FORM),
        step("B", "t__once"),
        output={"go": "{{Q.answer.go}}"},
    )
    waiting = recorded(plan, ask=suspend)
    assert (waiting.kind, waiting.question.key) == ("suspended", "Q/answer")
    record, _, finished = records.reopen(recorded.directory, waiting.run, now=time.time())
    line = records.answer_line(waiting.question.key, waiting.question.prompt, waiting.question.schema, {"go": True})
    record.write(line)
    failed = execution.run(
        plan, {}, world.services(), record=record, finished={**finished, line["key"]: line}, ask=suspend
    )
    assert (failed.step, len(asked)) == ("B", 1)
    broken_once["repair"] = True
    assert recorded(plan, run=waiting.run, ask=suspend).output == {"go": True}
    assert [name for name, _ in world.calls] == ["once"]


def test_a_person_who_declined_is_asked_again(world, step, recorded):
    plan = world.plan(step("Q", "ask", prompt="go?", output_schema=FORM), output={"go": "{{Q.answer.go}}"})
    failed = recorded(plan, ask=lambda question: tools.Answer("declined"))
    assert failed.kind == "step_failed"
    done = recorded(plan, run=failed.run, ask=lambda question: tools.Answer("answered", {"go": True}))
    assert done.output == {"go": True}


class Judge:
    """A model that says yes and counts how often it was asked; its agent asks for one tool call, then answers."""

    def __init__(self):
        self.asked = 0

    def names(self):
        return frozenset({"judge", "chat"})

    def check(self, name):
        pass

    def structured(self, name, **request):
        self.asked += 1
        return {"verdict": True, "reason": "so"}

    def complete(self, name, messages, **request):
        self.asked += 1
        calls = [{"id": "1", "name": "t__once", "arguments": {}}] if len(messages) == 1 else []

        class Reply:
            text, value, stop = "" if calls else '{"n": 1}', None, "end"
            message = {"role": "model"}

        Reply.calls = calls
        return Reply


def test_verdicts_are_not_asked_for_again(world, step, recorded, broken_once):
    world.models = judge = Judge()
    plan = world.plan(
        step("F", "filter", over=[1, 2, 3], infer="good {{item}}?"),
        step("D", "decide", infer="go?", then={"tool": "t__once", "input": {}}),
    )
    failed = recorded(plan)
    assert (failed.step, judge.asked) == ("D/then", 4)
    broken_once["repair"] = True
    assert recorded(plan, run=failed.run).kind == "ran"
    assert judge.asked == 4


def test_rounds_of_an_agent_are_not_asked_for_again(world, step, recorded, broken_once):
    world.models = judge = Judge()
    broken_once["repair"] = True
    agent = step("G", "agent", prompt="go", output_schema={"type": "object"}, tools=["t__*"])
    world.tool("late", lambda arguments: None)
    plan = world.plan(agent, step("B", "t__write", x="{{G.output.nope}}"), output={"g": "{{G.output}}"})
    failed = recorded(plan)
    assert (failed.step, judge.asked) == ("B", 2)
    plan = world.plan(agent, output={"g": "{{G.output}}"})
    done = recorded(plan, run=failed.run)
    assert (done.output, judge.asked, world.calls) == ({"g": {"n": 1}}, 2, [])


# SIGKILL -----------------------------------------------------------------------------------------------------------

APPEND = "import sys, pathlib; p = pathlib.Path(sys.argv[1]); p.open('a').write(sys.argv[2] + chr(10)); print('{}')"
#: Writes its line, then waits in the open of a fifo for the test to open the other end; without the fifo it goes on.
BLOCK = APPEND + "; import os; hold = sys.argv[1] + '.hold'; os.path.exists(hold) and open(hold).read()"


@pytest.mark.skipif(os.name == "nt", reason="SIGKILL is a signal of POSIX")
def test_a_killed_run_is_taken_up_where_it_was(tmp_path, in_thread):
    """SIGKILL while a step is running: what was finished stays finished, the rest runs, nothing runs twice."""
    log, hold = tmp_path / "log", tmp_path / "log.hold"
    os.mkfifo(hold)
    tools_dir, plans_dir = tmp_path / ".graph/tools", tmp_path / ".graph/plans"
    tools_dir.mkdir(parents=True)
    plans_dir.mkdir()
    for name, code in (("append", APPEND), ("block", BLOCK)):
        tool = {
            "name": name,
            "description": "",
            "kind": "exec",
            "command": sys.executable,
            "output": "json",
            "args": ["-c", code, str(log), "{{input.text}}"],
            "input_schema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        }
        (tools_dir / f"{name}.json").write_text(json.dumps(tool))
    body = {"tool": "user__append", "input": {"text": "item {{item}}"}}
    plan = {
        "identifier": "p",
        "name": "p",
        "description": "",
        "output": {"m": "{{M.count}}"},
        "steps": [
            {"id": "A", "tool": "user__append", "input": {"text": "A"}},
            {"id": "M", "tool": "map", "input": {"over": [1, 2, 3], "do": body}},
            {"id": "B", "tool": "user__block", "input": {"text": "B"}},
            {"id": "C", "tool": "user__append", "input": {"text": "C"}},
        ],
    }
    (plans_dir / "p.json").write_text(json.dumps(plan))
    environ = {"HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "graphlib_plans", "plan"]
    process = subprocess.Popen(
        [*command, "run", "p", "-v"],
        cwd=tmp_path,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    opened = in_thread(lambda: open(hold, "w"))()  # returns when the tool of step B is inside its open
    process.kill()
    process.communicate(timeout=LIMIT_S)
    opened.close()
    hold.unlink()
    assert process.returncode == -signal.SIGKILL

    listed = json.loads(
        subprocess.run(
            [*command, "runs", "--json"], cwd=tmp_path, env=environ, capture_output=True, timeout=LIMIT_S
        ).stdout
    )
    assert [(run["status"], run["steps"]) for run in listed["runs"]] == [("interrupted", 5)]
    run = listed["runs"][0]["run"]
    done = subprocess.run(
        [*command, "run", "--resume", run, "--json"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    body = json.loads(done.stdout)
    assert (done.returncode, body["output"], body["steps_executed"], body["run"]) == (0, {"m": 3}, 7, run), done.stderr
    assert log.read_text().split("\n") == ["A", "item 1", "item 2", "item 3", "B", "B", "C", ""]
    again = subprocess.run(
        [*command, "run", "--resume", run], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert again.returncode == 1 and "ended well" in again.stderr
