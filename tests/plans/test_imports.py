"""The rows of the package: a module imports only from rows above its own, and everything but Python from there."""

import ast
import pathlib
import sys

import pytest

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "graphlib_plans"

#: From the bottom to the top; design of the package, see its docstring.
ROWS = [
    "__init__",
    "errors paths",
    "documents templates schema processes web parallel",
    "dependencies records",
    "config tools validation",
    "calls",
    "execution control authoring drawing mcp_links",
    "wire mcp_client user_tools builtins models planner",
    "workspace",
    "drafting terminal mcp_surface mcp_questions mcp_streams",
    "mcp_calls",
    "mcp_server",
    "commands",
    "cli",
    "__main__",
]
ROW_OF = {name: number for number, names in enumerate(ROWS) for name in names.split()}
#: Not of Python: the relay's framing, and the reader of YAML plans, which may be absent.
OUTSIDE = {"wire": {"mcp_relay"}, "documents": {"yaml"}}

MODULES = sorted(PACKAGE.glob("*.py"))


def imports_of(path):
    """Return (modules of the package, top-level names of everything else) that a module imports, wherever it does."""
    inside, outside = set(), set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            outside |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            outside.add(node.module.partition(".")[0])
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 1, f"{path.name} imports from outside the package by a relative name"
            names = [node.module.partition(".")[0]] if node.module else [alias.name for alias in node.names]
            inside |= {name if name in ROW_OF else "__init__" for name in names}
    if "graphlib_plans" in outside:
        inside.add("__init__")
    return inside, outside - {"graphlib_plans"}


def test_there_are_modules():
    assert len(MODULES) > 5


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_module_imports_only_from_rows_above_its_own(path):
    assert path.stem in ROW_OF, f"{path.name} has no row; add it to ROWS and to the docstring of the package"
    inside, _ = imports_of(path)
    too_high = sorted(name for name in inside if ROW_OF[name] >= ROW_OF[path.stem])
    assert too_high == [], f"{path.stem} (row {ROW_OF[path.stem]}) must not import {too_high}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_nothing_but_python_is_needed(path):
    _, outside = imports_of(path)
    assert outside - sys.stdlib_module_names - OUTSIDE.get(path.stem, set()) == set()


def test_a_wrong_import_is_found(tmp_path):
    wrong = tmp_path / "schema.py"
    wrong.write_text("import numpy\n\ndef f():\n    from . import cli\n    from .tools import Tool\n")
    assert imports_of(wrong) == ({"cli", "tools"}, {"numpy"})
