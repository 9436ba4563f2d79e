"""Each module of the package has a test file of its own, and each test file a module."""

import pathlib

import pytest

TESTS = pathlib.Path(__file__).resolve().parent
PACKAGE = TESTS.parents[1] / "graphlib_plans"
MODULES = sorted(path.stem for path in PACKAGE.glob("*.py") if not path.stem.startswith("__"))
#: Test files about the package as a whole, or about several modules at once.
WITHOUT_MODULE = set(
    "imports layout examples appendix end_to_end crash real_servers resume worked_semantics mcp_conversations"
    " mcp_robustness mcp_elicitation".split()
)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_has_its_tests(module):
    path = TESTS / f"test_{module}.py"
    assert path.is_file() and "def test_" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted(TESTS.glob("test_*.py")), ids=lambda path: path.stem)
def test_a_test_file_has_its_module(path):
    name = path.stem.removeprefix("test_")
    assert name in MODULES or name in WITHOUT_MODULE, f"{path.name} tests no module; name it in WITHOUT_MODULE"
