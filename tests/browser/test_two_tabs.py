"""Two tabs and the command line see and change the same breakpoints, modes and holds."""

import subprocess
import sys

import pytest

import hubs
import support


@pytest.fixture
def tabs(hub, attach, open_page):
    """Two tabs on one relay that has shaken hands, and the relay."""
    relay = attach(hub).handshake()
    first = open_page(hub)
    second = open_page(hub)
    for tab in (first, second):
        tab.until("state.session?.run.run === '%s' && state.session.nodes.size > 3" % relay.run)
    return first, second, relay


def command(hub, *words):
    """Run a command of mcp_relay.py against the hub; it must succeed."""
    done = subprocess.run(
        [sys.executable, hub.relay_file, *words],
        env=hub.environment,
        timeout=support.LIMIT_S,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert done.returncode == 0, done
    return done.stdout.decode()


def test_a_breakpoint_set_by_one_click_appears_everywhere(tabs, hub):
    first, second, relay = tabs
    relay.send(hubs.call(1, "echo", {"text": "x"})).answered(b'"id": 1')
    card = first.card("tool:echo")
    card.wait_for()
    card.hover()
    card.locator("[data-point=before]").click()
    second.page.locator("#chips .chip", has_text="tool:echo").wait_for()
    assert second.card("tool:echo").locator("[data-point=before]").get_attribute("aria-pressed") == "true"
    assert "echo" in command(hub, "break", "list")
    relay.send(hubs.call(2, "echo", {"text": "y"}))
    first.until_held("echo")
    second.until_held("echo")
    second.page.click("#chips .chip button")
    first.until("!document.querySelector('#chips .chip')")
    first.act("Continue")
    second.until_free()
    second.until("document.querySelector('#notices').textContent.includes('released by another page')")


def test_break_after_holds_the_answer(tabs):
    first, second, relay = tabs
    relay.send(hubs.call(1, "echo", {"text": "x"})).answered(b'"id": 1')
    first.card("tool:echo").hover()
    first.card("tool:echo").locator("[data-point=after]").click()
    second.page.locator("#chips .chip", has_text="after").wait_for()
    relay.send(hubs.call(2, "echo", {"text": "y"}))
    second.until_held("echo")
    assert "the answer is held before it reaches the client" in second.page.inner_text("#holdbar")
    assert second.page.locator("#holdbar .acts button", has_text="Retry").count() == 1
    second.press("c")
    relay.answered(b'"id": 2')


def test_modes_and_general_breakpoints_follow_the_command_line(tabs, hub):
    first, second, _ = tabs
    command(hub, "mode", "step")
    for tab in (first, second):
        tab.until("document.querySelector('[data-mode=step]').getAttribute('aria-pressed') === 'true'")
    first.press("m")
    second.until("document.querySelector('[data-mode=run]').getAttribute('aria-pressed') === 'true'")
    second.page.click("#pauseall")
    first.until("document.querySelector('#pauseall').getAttribute('aria-pressed') === 'true'")
    first.press("p")
    second.until("document.querySelector('#pauseall').getAttribute('aria-pressed') === 'false'")
    first.page.click("#pauseerror")
    second.until("document.querySelector('#pauseerror').getAttribute('aria-pressed') === 'false'")
    assert hub.get("/api/breakpoints") == {"mode": "run", "breakpoints": []}
    command(hub, "break", "add", "--kind", "tool", "--name", "count", "--point", "after")
    for tab in (first, second):
        tab.page.locator("#chips .chip", has_text="tool:count").wait_for()


def test_the_slower_tab_is_told_who_was_faster(tabs, hub):
    first, second, relay = tabs
    hub.set_breakpoint(kind="tool", point="before")
    relay.send(hubs.call(1, "echo", {"text": "x"}))
    first.until_held("echo")
    second.until_held("echo")
    first.act("Abort")
    relay.answered(b"-32099")
    second.until_free()
    second.until("document.querySelector('#notices').textContent.includes('released by another page (abort)')")
    assert "another page" not in first.page.inner_text("#notices")
