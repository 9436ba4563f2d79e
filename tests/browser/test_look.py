"""Pictures of every state for people to look at, and contrast and names checked by axe-core (WCAG 2.2 AA)."""

import os
import pathlib
import re
import sys

import pytest

import hubs
import support

STATES = ["both", "graph", "table", "inspector", "inject", "edit", "help", "filter", "history", "loop"]


@pytest.fixture
def scene(hub, attach):
    """A session worth a picture, with a held call."""
    relay = attach(hub).handshake()
    hub.clear_breakpoints()
    relay.send(
        hubs.request(1, "tools/list")
        + hubs.call(2, "echo", {"text": "one"})
        + hubs.call(3, "count")
        + hubs.call(4, "boom", {"why": "no such table"})
        + hubs.call(5, "say", {"text": "warn: cache is cold"})
        + hubs.request(6, "resources/read", {"uri": "file:///repo/README.md"})
        + hubs.call(7, "softfail")
        + hubs.call(8, "noise")
        + hubs.request(9, "prompts/get", {"name": "triage"})
        + hubs.call(10, "slow")
    )
    relay.answered(b'"id": 9')
    hub.set_breakpoint(kind="tool", name="echo", point="before")
    hub.set_breakpoint(point="error")
    relay.send(hubs.call(20, "echo", raw_arguments='{"text":"two","parent":9007199254740993,"price":1.50}'))
    relay.hold()
    return relay


def show(viewer, state):
    """Bring the page into a state."""
    viewer.until_held("echo").until("state.session?.nodes.has('tool:slow') && state.selected.instance")
    if state in ("graph", "table"):
        viewer.press({"graph": "1", "table": "2"}[state])
    elif state == "inspector":
        viewer.card("tool:softfail").locator(".n").click()
        viewer.press("a")
    elif state in ("inject", "edit", "help"):
        viewer.press({"inject": "i", "edit": "e", "help": "?"}[state]).until("document.querySelector('dialog[open]')")
    elif state == "filter":
        viewer.filter("status:error")
    elif state == "history":
        viewer.press("o", "y")
    viewer.ask("() => new Promise(done => setTimeout(done, 250))")  # transitions end after 160 ms


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("state", STATES[:-1])
def test_wide(scene, hub, open_page, axe, scheme, state):
    viewer = open_page(hub, color_scheme=scheme)
    show(viewer, state)
    viewer.shot("%s-%s" % (state, scheme))
    assert axe(viewer) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name, width, height, scale", [("narrow", 700, 900, 1), ("zoomed-to-200", 720, 430, 2)])
def test_small(scene, hub, open_page, axe, scheme, name, width, height, scale):
    viewer = open_page(hub, color_scheme=scheme, viewport={"width": width, "height": height}, device_scale_factor=scale)
    show(viewer, "both")
    viewer.shot("%s-%s" % (name, scheme))
    assert axe(viewer) == []
    assert viewer.ask("() => document.documentElement.scrollWidth") <= width, "the page must not scroll sideways"
    viewer.press("c").until_free()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_locked_and_empty(own_hub, open_page, axe, page_hub, scheme):
    hub = own_hub(*page_hub)
    for name, fragment in (("locked", "#token=wrong"), ("empty", None)):
        viewer = open_page(hub, fragment=fragment, color_scheme=scheme)
        viewer.until("!document.querySelector('#gate').hidden || !document.querySelector('#empty').hidden")
        viewer.shot("%s-%s" % (name, scheme))
        assert axe(viewer) == []


def test_states_differ_by_more_than_colour(scene, hub, open_page):
    viewer = open_page(hub)
    show(viewer, "both")
    shown = viewer.ask("""() => [...document.querySelectorAll('.card .state')].map(state =>
        [state.querySelector('use').getAttribute('href'), state.textContent])""")
    assert all(href and word for href, word in shown) and len({href for href, _ in shown}) >= 4


@pytest.mark.skipif(not os.environ.get("MCP_RELAY_SHOTS"), reason="MCP_RELAY_SHOTS=1 writes the picture of the README")
def test_the_picture_of_the_readme(relay_file, tmp_path, open_page):
    """The demo with its held call, as `mcp_relay.py demo` shows it to everybody."""
    environment = support.quiet_environment(tmp_path / "home", 1)
    demo = support.Session([sys.executable, relay_file, "demo"], env=environment)
    try:
        demo.wait_until(lambda: b"#token=" in demo.out + demo.err, "the address of the demo")
        address = re.search(r"http://[^\s]+", (demo.out + demo.err).decode()).group(0)
        viewer = open_page(
            path=address.split("#")[0].rstrip("/"),
            fragment="",
            viewport={"width": 1440, "height": 860},
            device_scale_factor=1.5,
        )
        viewer.page.goto(address)
        viewer.until("state.selected.instance?.held && document.querySelector('#holdbar .age').textContent === '0:04'")
        # The command holds a path of the machine that took the picture.
        viewer.ask("() => { document.querySelector('#session code').hidden = true; }")
        viewer.painted()
        picture = pathlib.Path(support.ROOT) / "docs" / "page.png"
        picture.parent.mkdir(exist_ok=True)
        viewer.page.screenshot(path=str(picture))
        assert picture.stat().st_size > 20000
    finally:
        demo.destroy()
