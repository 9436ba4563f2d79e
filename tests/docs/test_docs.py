"""The documentation names everything a user can type, meet or read, and what it names exists.

The lists come from the code: the option table of mcp_relay.py and its string literals hold the flags, environment
variables, routes and event types. A new one without a word in docs/ fails here.
"""
import ast
import os
import pathlib
import re
import subprocess
import sys

import pytest

import mcp_relay
import support

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGES.md"] + list((ROOT / "docs").glob("*.md"))
               + list((ROOT / "vendor").glob("*.md")))
#: Where a user looks things up; vendoring.md has flags and exit codes of another program.
DOCS = "\n".join(path.read_text("utf-8") for path in PAGES if path.parent.name == "docs" and path.stem != "vendoring")


def literals(path):
    """Return every string literal of a Python file, docstrings left out, longest ones too."""
    tree = ast.parse(path.read_text("utf-8"))
    docstrings = {id(node.body[0].value) for node in ast.walk(tree)
                  if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
                  and node.body and isinstance(node.body[0], ast.Expr)}
    return [node.value for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings]


def found(pattern, texts):
    """Return the sorted set of all matches of a pattern in the texts."""
    return sorted({match for text in texts for match in re.findall(pattern, text)})


#: What the Python of mcp_relay.py says; the page in it has words of its own.
RELAY = [text for text in literals(ROOT / "mcp_relay.py") if "<!doctype html" not in text.lower()]
#: Not the comments of the page: <!--marker-->
FLAGS = found(r"(?<![\w!-])--[a-z][a-z-]*[a-z](?!-)", RELAY)
HIDING = ["%s_HIDE_%s" % (family, name.upper().replace("-", "_"))
          for family in ("MCP_RELAY", "GRAPHMIND") for name in mcp_relay.HIDE_NAMES]
VARIABLES = sorted(set(HIDING).union(*(option.env for option in mcp_relay.OPTIONS)))
ROUTES = ["%s %s" % (method, pattern) for method, pattern, *_ in mcp_relay.ROUTES] + ["GET /api/stream",
                                                                                      "POST /api/attach"]
EVENTS = found(r"^(?:run|node|hold)\.[a-z]+$", RELAY) + ["gap"]
#: demo-server is what demo starts for itself.
COMMANDS = sorted(set(mcp_relay.COMMANDS) - {"demo-server"}) + ["down"]
EXIT_CODES = [code for code in mcp_relay.Exit if code is not mcp_relay.Exit.SIGNAL]


def test_the_lists_are_not_empty():
    assert "--trace" in FLAGS and "MCP_RELAY_PORT" in VARIABLES


@pytest.mark.parametrize("flag", FLAGS)
def test_every_flag_is_documented(flag):
    assert re.search(r"`[^`\n]*%s\b(?!-)" % re.escape(flag), DOCS), "no page of docs/ has `%s`" % flag


@pytest.mark.parametrize("name", VARIABLES)
def test_every_environment_variable_is_documented(name):
    assert re.search(r"`%s`" % name, DOCS), "no page of docs/ has `%s`" % name


@pytest.mark.parametrize("route", ROUTES)
def test_every_route_is_documented(route):
    assert re.search(r"`?%s[`?\s]" % re.escape(route), DOCS), "no page of docs/ has `%s`" % route


@pytest.mark.parametrize("event", EVENTS)
def test_every_event_type_is_documented(event):
    assert "`%s`" % event in DOCS, "no page of docs/ has `%s`" % event


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_documented(command):
    assert re.search(r"`(?:mcp_relay.py )?%s\b" % command, DOCS), "no page of docs/ has `%s`" % command


@pytest.mark.parametrize("code", EXIT_CODES)
def test_every_exit_code_is_documented(code):
    assert re.search(r"^\| *`?%d`? *\|" % code, DOCS, re.MULTILINE), (
        "no table of docs/ has a row that begins with exit code %d (%s)" % (code, code.name))


def prose_and_code(page):
    """Return (text outside fenced blocks, [text of each fenced block])."""
    parts = re.split(r"^```.*$", page.read_text("utf-8"), flags=re.MULTILINE)
    return "\n".join(parts[0::2]), parts[1::2]


def anchors(page):
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.+?) *$", prose_and_code(page)[0], re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_resolve(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_and_code(page)[0]):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        assert linked.exists(), "%s links to %s, which is not there" % (page.name, target)
        assert not anchor or anchor in anchors(linked), "%s links to %s: no such heading" % (page.name, target)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_named_in_commands_exist(page):
    for block in prose_and_code(page)[1]:
        for name in re.findall(r"(?<![\w./-])python3 ((?:[\w.-]+/)*[\w-]+\.py)\b", block):
            assert (ROOT / name).exists() or name.startswith("tools/"), "%s runs %s, which is not there" % (
                page.name, name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_flags_named_for_the_relay_exist(page):
    for block in prose_and_code(page)[1]:
        for line in block.splitlines():
            if "mcp_relay.py" in line:
                ours = line.split("mcp_relay.py", 1)[1].split(" -- ")[0].split("down")[0]
                assert set(found(r"(?<![\w-])--[a-z][a-z-]+", [ours])) <= set(FLAGS), line


def readme_commands():
    """Return the two commands of the README's section "Try it"."""
    section = (ROOT / "README.md").read_text("utf-8").split("## Try it", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^```\n(.+)\n```$", section, re.MULTILINE)


def test_the_readme_begins_with_two_commands():
    assert len(readme_commands()) == 2


def test_the_first_command_of_the_readme_works(tmp_path):
    """The demo as a user starts it, but ending by itself."""
    words = readme_commands()[0].split()
    assert words[0] == "python3"
    done = subprocess.run([sys.executable] + words[1:] + ["--once"], cwd=str(ROOT), stdin=subprocess.DEVNULL,
                          env=dict(os.environ, MCP_RELAY_HOME=str(tmp_path)), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=support.LIMIT_S)
    said = (done.stdout + done.stderr).decode("utf-8", "replace")
    assert done.returncode == 0 and "Traceback" not in said, said
    assert re.search(r"http://127\.0\.0\.1:[0-9]+/#token=", said), said


def test_the_second_command_of_the_readme_is_what_ci_runs():
    assert readme_commands()[1] in (ROOT / ".ci" / "run").read_text("utf-8")


def test_the_changes_tell_of_this_version():
    version = re.search(r'^__version__ = "(.+)"', (ROOT / "mcp_relay.py").read_text("utf-8"), re.MULTILINE).group(1)
    assert "## %s " % version.split("+")[0] in (ROOT / "CHANGES.md").read_text("utf-8")
