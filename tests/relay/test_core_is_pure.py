"""The core is sans-IO, and this is the proof: part one of the file names nothing that could do I/O or tell the time."""

import ast
import sys

import pytest

import support

IMPURE = {"os", "time", "threading", "queue", "select", "socket", "subprocess", "sys", "signal", "fcntl", "io",
          "pathlib",
          "tempfile", "shutil", "random", "secrets", "uuid", "datetime", "http", "urllib", "sqlite3", "logging",
          "socketserver",
          "platform", "ctypes", "msvcrt", "atexit", "open", "print", "input", "exec", "eval", "compile", "breakpoint",
          "__import__", "globals"}

with open(support.RELAY, encoding="utf-8") as source:
    TEXT = source.read()
TREE = ast.parse(TEXT)
LINES = TEXT.split("\n")


def banner(words):
    """Line number of the one comment line that holds words."""
    [found] = [number for number, line in enumerate(LINES, 1) if line.startswith("#") and words in line]
    return found


PART_ONE, PART_TWO = banner("PART ONE."), banner("PART TWO.")


def core():
    """Top-level statements of part one."""
    return [node for node in TREE.body if PART_ONE < node.lineno < PART_TWO]


def names_used(node):
    """(line, name) of every bare name and every imported module in a tree."""
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            yield each.lineno, each.id
        elif isinstance(each, ast.Import):
            for alias in each.names:
                yield each.lineno, alias.name.split(".")[0]
        elif isinstance(each, ast.ImportFrom):
            yield each.lineno, (each.module or "").split(".")[0]


def test_the_core_uses_nothing_impure():
    assert len(core()) > 60
    assert [(line, name) for node in core() for line, name in names_used(node) if name in IMPURE] == []


def test_the_core_calls_nothing_of_the_shell():
    """Every name that part one uses is a builtin, an imported module, or defined in part one or above it."""
    shell = {node.name for node in TREE.body if node.lineno > PART_TWO and hasattr(node, "name")}
    shell |= {target.id for node in TREE.body if node.lineno > PART_TWO and isinstance(node, ast.Assign)
              for target in node.targets if isinstance(target, ast.Name)}
    bound = {each.arg for node in core() for each in ast.walk(node) if isinstance(each, ast.arg)}
    bound |= {each.id for node in core() for each in ast.walk(node)
              if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    assert [(line, name) for node in core() for line, name in names_used(node) if name in shell - bound] == []


def test_impure_modules_are_never_imported_by_name():
    """`from time import monotonic` would hide an impure name from the proof above."""
    assert [node.lineno for node in ast.walk(TREE) if isinstance(node, ast.ImportFrom) and node.module in IMPURE] == []


def test_the_proof_finds_what_it_looks_for():
    for text in ("print(1)", "import os", "def f():\n    return time.time()", "x = open", "from threading import Lock"):
        assert [name for _, name in names_used(ast.parse(text)) if name in IMPURE]


def test_no_text_is_run_and_no_shell_is_started():
    """No eval, no exec, no os.system, no shell=True anywhere in the file."""
    for call in (node for node in ast.walk(TREE) if isinstance(node, ast.Call)):
        assert getattr(call.func, "id", "") not in ("eval", "exec", "compile", "__import__"), call.lineno
        assert getattr(call.func, "attr", "") not in ("system", "popen", "getoutput"), call.lineno
        shell = [keyword.value for keyword in call.keywords if keyword.arg == "shell"]
        assert all(isinstance(value, ast.Constant) and value.value is False for value in shell), call.lineno


@pytest.mark.skipif(sys.version_info < (3, 10), reason="this Python cannot list its standard library; 3.10 can")
def test_only_the_standard_library_is_imported():
    imported = {name for node in ast.walk(TREE) if isinstance(node, (ast.Import, ast.ImportFrom))
                for _, name in names_used(node)}
    assert imported - set(sys.stdlib_module_names) == set()


def test_start_up_imports_stay_lazy():
    """What only the hub and the commands need is imported inside functions: start-up time is a promise."""
    top = {name for node in TREE.body if isinstance(node, (ast.Import, ast.ImportFrom)) for _, name in names_used(node)}
    assert not top & {"http", "urllib", "sqlite3", "argparse", "socketserver", "html", "email", "logging", "asyncio",
                      "dataclasses", "typing", "inspect"}
