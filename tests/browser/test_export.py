"""A run as JSON lines and as one page that needs no hub."""

import json
import subprocess
import sys

import pytest

import hubs
import support


@pytest.fixture
def recorded(hub, attach):
    """A finished run with a held, released call and a payload that would like to be markup."""
    hub.set_breakpoint(kind="tool", name="echo", point="before")
    relay = attach(hub).handshake()
    relay.send(hubs.call(1, "echo", {"text": "</script><script>window.pwned=1</script><!--"}))
    relay.release(relay.hold())
    relay.answered(b'"id": 1')
    relay.send(hubs.call(2, "count", raw_arguments='{"n":9007199254740993}')).answered(b'"id": 2')
    relay.session.finish()
    relay.watch.wait_event("run.finished")
    return relay


def check_page(viewer, relay):
    """The exported page shows the run, and offers nothing that needs a hub."""
    viewer.until("state.session?.rows.length > 5 && state.recorded")
    assert viewer.page.inner_text("#connection") == "recorded, read only"
    for selector in (
        "#pauseall",
        "#pauseerror",
        "#chips",
        "[data-mode=run]",
        "#sessionmenu",
        "#runs",
        "#holdbar",
        ".card .stop",
    ):
        assert viewer.page.locator(selector + ":visible").count() == 0, selector
    viewer.card("tool:count").locator(".n").click()
    viewer.press("q").until("document.querySelector('#detail').textContent.includes('9007199254740993')")
    viewer.press("b", "p", "m", "c", "l")
    viewer.filter("tool:echo")
    assert len(viewer.rows()) == 2
    assert viewer.ask("() => window.pwned") is None
    viewer.page.locator("#rows .row.request:visible").click()
    viewer.press("q").until("document.querySelector('#detail').textContent.includes('window.pwned=1')")


def test_export_as_one_page_from_the_page(recorded, hub, open_page, tmp_path):
    viewer = open_page(hub)
    viewer.page.locator("#runs .run[data-run='%s']" % recorded.run).click()
    viewer.until("state.session?.run.run === '%s'" % recorded.run)
    viewer.page.click("#sessionmenu")
    with viewer.page.expect_download() as download:
        viewer.page.click("text=Export as one page")
    path = tmp_path / "run.html"
    download.value.save_as(str(path))
    assert hub.token not in path.read_text(encoding="utf-8")
    check_page(open_page(path=path.as_uri()), recorded)


def test_export_by_the_command_is_the_same_page(recorded, hub, open_page, tmp_path):
    path = tmp_path / "run.html"
    done = subprocess.run(
        [sys.executable, hub.relay_file, "show", recorded.run, "--export", str(path)],
        env=hub.environment,
        timeout=support.LIMIT_S,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert done.returncode == 0, done
    check_page(open_page(path=path.as_uri()), recorded)


def test_export_as_json_lines(recorded, hub, open_page, tmp_path):
    viewer = open_page(hub)
    viewer.page.locator("#runs .run[data-run='%s']" % recorded.run).click()
    viewer.until("state.session?.run.run === '%s'" % recorded.run)
    viewer.page.click("#sessionmenu")
    with viewer.page.expect_download() as download:
        viewer.page.click("text=Export as JSON lines")
    path = tmp_path / "run.jsonl"
    download.value.save_as(str(path))
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert {"run.started", "hold.opened", "hold.released", "run.finished"} <= {line.get("type") for line in lines}


def test_a_link_into_an_exported_page_selects_the_node(recorded, hub, open_page, tmp_path):
    path = tmp_path / "run.html"
    path.write_bytes(hub.ask("GET", "/api/runs/%s/export?format=html" % recorded.run).body)
    viewer = open_page(path=path.as_uri() + "#node=tool:count")
    viewer.until("state.selected.node === 'tool:count'")
    viewer.page.locator("#side .title", has_text="count").wait_for()
