"""viewer/stitch.py: the page goes into mcp_relay.py unchanged, and what cannot go in is refused with the reason."""

import importlib.util
import subprocess
import sys

import pytest

import mcp_relay
import support
from tests.browser.conftest import PAGE

STITCH = PAGE.with_name("stitch.py")
_spec = importlib.util.spec_from_file_location("stitch", str(STITCH))
stitch = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(stitch)

SOURCE = "before = 1\n" + stitch.BEGIN + "VIEWER_HTML = r'''old'''\n" + stitch.END + "after = 2\n"


def test_the_relay_holds_the_page():
    """The stitched copy and the source are the same text; the message of a failure is the command to run."""
    assert mcp_relay.VIEWER_HTML == PAGE.read_text(encoding="utf-8"), "run: python3 viewer/stitch.py"


def test_check_agrees_with_the_equality():
    done = subprocess.run([sys.executable, str(STITCH), "--check"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("page", ["<p>a\\b %s {x} \"quoted\" 'single'</p>\n", "é 漢 \U0001f642\n", "\n", "''\n"])
def test_a_page_comes_out_as_it_went_in(page):
    once = stitch.stitched(SOURCE, page)
    names = {}
    exec(once, names)
    assert names["VIEWER_HTML"] == page and (names["before"], names["after"]) == (1, 2)
    assert stitch.stitched(once, page) == once


@pytest.mark.parametrize(
    "page, reason",
    [
        ("x\n'''\n", "line 2: three single quotes"),
        ("a\r\nb\n", "line 1: a carriage return"),
        ("a\n" + stitch.END, "line 2: the end marker"),
        ("ends\\", "must not end"),
        ("ends'", "must not end"),
        ('ends"', "must not end"),
    ],
)
def test_what_a_raw_string_cannot_hold_is_refused(page, reason):
    with pytest.raises(stitch.StitchError, match=reason):
        stitch.stitched(SOURCE, page)


@pytest.mark.parametrize(
    "source",
    [
        "nothing\n",
        stitch.BEGIN + stitch.END + stitch.BEGIN + stitch.END,
        stitch.END + stitch.BEGIN,
        "x = 1  " + stitch.BEGIN + stitch.END,
    ],
)
def test_a_source_without_its_markers_is_refused(source):
    with pytest.raises(stitch.StitchError):
        stitch.stitched(source, "page\n")


def test_unknown_argument_is_a_usage_error():
    done = subprocess.run([sys.executable, str(STITCH), "--chekc"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.returncode == 2 and b"--check" in done.stderr and b"Traceback" not in done.stderr


def test_the_page_is_one_file_without_build_or_network():
    """One style, one script, no attribute that the policy forbids, nothing fetched from anywhere."""
    text = PAGE.read_text(encoding="utf-8")
    assert text.count("<style>") == text.count("<script>") == 1
    for word in (
        "<style ",
        "<script ",
        " style=",
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "//cdn",
        "https://",
    ):
        assert word not in text, word
    assert text.count("<!--recorded-run-->") == text.count("<!--csp-meta-->") == 1
    assert support.dangerous(text) == []
