"""The command line as a whole: usage, streams, exit codes, and that the documentation has all of it."""

import io
import json
import pathlib
import os
import re
import subprocess
import sys

import pytest

from graphlib_plans import __version__, cli, config, errors

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
LIMIT_S = 60


def reshape(id, shape, **fields):
    return {"id": id, "tool": "builtin__reshape", "input": {"shape": shape}, **fields}


def plan(*steps, identifier="p", **fields):
    return {"identifier": identifier, "name": "P", "description": "", "steps": list(steps), **fields}


# Usage -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["plan"],
        ["plan", "lst"],
        ["plan", "run", "x", "--concurrency", "0"],
        ["plan", "show"],
        ["--nope"],
        ["plan", "run", "x", "--timeout", "soon"],
        ["plan", "step", "move", "p", "E1"],
        ["plan", "step", "add", "p", "E1", "t__x", "{}", "--before", "a", "--after", "b"],
    ],
)
def test_wrong_usage_is_told_and_exits_2(graph, arguments):
    result = graph(*arguments)
    assert (result.code, result.out) == (2, "")
    assert "usage: graph" in result.err


def test_help_and_version(graph):
    assert graph("--version").out == f"graph {__version__}\n"
    for arguments in (["--help"], ["plan", "--help"], ["plan", "run", "--help"], ["plan", "step", "add", "--help"]):
        result = graph(*arguments)
        assert result.code == 0 and result.out.startswith("usage: graph")


def test_the_module_is_the_command(environ, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "graphlib_plans", "plan", "list"],
        cwd=tmp_path,
        timeout=LIMIT_S,
        capture_output=True,
        env={**environ, "PYTHONPATH": str(ROOT)},
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert "there are no plans here" in done.stderr


def test_dir_names_the_project(graph, tmp_path):
    assert graph("--dir", str(EXAMPLES), "plan", "list").out == graph("plan", "list", "--dir", str(EXAMPLES)).out != ""
    result = graph("--dir", "absent", "plan", "list")
    assert result.code == 1 and "no such directory" in result.err


# Streams -----------------------------------------------------------------------------------------------------------


def test_what_a_tool_returns_cannot_act_on_a_terminal(graph, project):
    project("plans", "p.json", plan(reshape("A", "\x1b[2J\u202e"), output={"a": "{{A}}"}))
    result = graph("plan", "run", "p")
    assert "\x1b" not in result.out and "\u202e" not in result.out
    assert result.json == {"a": "\x1b[2J\u202e"}


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_json_is_json_on_a_stream_that_cannot_write_everything(graph, project, environ, encoding):
    project("plans", "p.json", plan(reshape("A", "Grüße 漢字 \ud800"), output={"a": "{{A}}"}))
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding=encoding)
    cli.main(["plan", "run", "p", "-q"], stdin=io.StringIO(), stdout=out, stderr=io.StringIO(), environ=environ)
    out.flush()
    assert json.loads(raw.getvalue().decode(encoding)) == {"a": "Grüße 漢字 \ud800"}


@pytest.mark.skipif(os.name == "nt", reason="a pipe of POSIX")
def test_a_reader_that_has_enough_is_no_crash(environ, tmp_path):
    done = subprocess.run(
        f"{sys.executable} -m graphlib_plans tools list --json | head -c 10",
        shell=True,
        cwd=tmp_path,
        timeout=LIMIT_S,
        env={**environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert len(done.stdout) == 10 and "Traceback" not in done.stderr and "Exception" not in done.stderr


# The documentation -------------------------------------------------------------------------------------------------


def _verbs(parser, words=("graph",)):
    """Yield (words, parser) of every verb."""
    groups = [action for action in parser._actions if hasattr(action, "choices") and isinstance(action.choices, dict)]
    if not groups:
        yield " ".join(words), parser
    for group in groups:
        for name, each in group.choices.items():
            yield from _verbs(each, (*words, name))


VERBS = dict(_verbs(cli._parser()))
COMMANDS = (ROOT / "docs/graph-cli.md").read_text("utf-8")
GUIDE = (ROOT / "docs/plans.md").read_text("utf-8")


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_and_option_is_documented(verb):
    assert f"`{verb}" in COMMANDS
    for action in VERBS[verb]._actions:
        for option in action.option_strings:
            if len(option) > 2:
                assert f"`{option}" in COMMANDS or f"{option}`" in COMMANDS or f" {option} " in COMMANDS, option


def test_every_key_of_the_configuration_is_documented():
    keys = {key for keys in config._SECTION_KEYS.values() for key in keys}
    keys |= {key for keys in config._ENTRY_KEYS.values() for key in keys}
    keys |= set(config._SECTIONS) | set(config._MODEL_KEYS) | set(config._OVERRIDE_KEYS)
    missing = [key for key in keys if not re.search(rf"[`.\[]{key}[`.\]]", COMMANDS)]
    assert missing == []


def test_every_event_and_kind_is_documented():
    kinds = {
        each.kind for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.PlanError)
    }
    kinds |= {"ran", "exit_error", "cancelled", "suspended"}
    source = "".join(
        (ROOT / f"graphlib_plans/{name}.py").read_text("utf-8") for name in ("execution", "calls", "tools", "control")
    )
    events = set(re.findall(r'\.tell\(\s*"(\w+)"', source))
    assert len(events) > 10
    assert [name for name in sorted(kinds | events) if f"`{name}`" not in GUIDE] == []
