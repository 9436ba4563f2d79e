"""The filter box, and the page without a mouse."""

import pytest

import hubs


@pytest.fixture
def session(hub, attach, open_page):
    """A tab on a short session with two tools, a failure, a ping and a request of the server."""
    hub.clear_breakpoints()
    relay = attach(hub, "--on-loop", "off").handshake()
    relay.send(
        hubs.call(1, "echo", {"text": "Needle One"})
        + hubs.call('"abc"', "echo", {"text": "two"})
        + hubs.call(3, "boom")
        + hubs.request(4, "ping")
        + hubs.call(5, "notify")
        + hubs.call(6, "say", {"text": "a stderr line"})
    ).answered(b'"id": 6')
    viewer = open_page(hub)
    viewer.until("[...state.session.instances.values()].some(i => i.rpc === '6' && i.status === 'ok')")
    viewer.until("state.session.stderr.length > 0")
    return viewer.painted(), relay


@pytest.mark.parametrize(
    "text, claim",
    [
        ("tool:echo", "rows.length === 4 && rows.every(row => row.instance.node.name === 'echo')"),
        ("tool:ECHO", "rows.length === 4"),
        ("name:boom", "rows.length === 2"),
        ("method:ping", "rows.length === 2"),
        ("-method:tools/call -kind:stderr", "rows.every(row => row.instance?.method !== 'tools/call')"),
        ("dir:server", "rows.every(row => row.direction === 'client->server')"),
        ("dir:client", "rows.every(row => row.direction === 'server->client')"),
        ("id:abc", "rows.length === 2"),
        ('id:"abc"', "rows.length === 2"),
        ("id:1", "rows.length === 2"),
        ("kind:notification", "rows.every(row => row.type === 'notification')"),
        ("kind:stderr", "rows.length >= 1 && rows.every(row => row.type === 'stderr')"),
        ("status:error", "rows.length === 2 && rows.every(row => row.instance.node.name === 'boom')"),
        ("dur:>=0 tool:echo", "rows.length === 4"),
        ("dur:>3600s", "rows.length === 0"),
        ("needle one", "rows.length === 2"),
        ('"Needle One"', "rows.length === 2"),
        ("tool:echo needle", "rows.length === 2"),
        ("stderr line", "rows.some(row => row.type === 'stderr')"),
        ("[.*", "rows.length === 0"),
    ],
)
def test_filter_tokens_and_free_text(session, text, claim):
    viewer, _ = session
    viewer.filter(text)
    assert viewer.ask(
        "() => { const rows = shownRows(); return rows.length > 0 && (%s) || rows.length === 0 && (%s); }"
        % (claim, claim)
    ), viewer.rows()


@pytest.mark.parametrize("text", ["dir:up", "dur:long"])
def test_a_token_with_a_bad_value_is_explained(session, text):
    viewer, _ = session
    viewer.filter(text)
    assert text.split(":")[0] + ": takes" in viewer.page.inner_text("#filternote")
    viewer.filter("")
    assert viewer.page.locator("#filternote").is_hidden()


def test_the_filter_applies_to_the_graph_too(session):
    viewer, _ = session
    viewer.filter("tool:boom")
    viewer.until("!document.querySelector('.card[data-node=\"tool:echo\"]')")
    assert viewer.card("tool:boom").is_visible() and viewer.card("mcp:session").is_visible()
    viewer.filter("")
    viewer.card("tool:echo").wait_for()


def test_errors_only(session):
    viewer, _ = session
    viewer.page.click("#errorsonly")
    viewer.until("state.visible?.length === 2 && state.visible.every(row => row.instance.node.name === 'boom')")
    viewer.press("x").until("state.visible === null")


def test_a_filter_keeps_up_with_a_live_session(session):
    viewer, relay = session
    viewer.filter("tool:count")
    assert viewer.page.locator("#nomatch").is_visible()
    relay.send(hubs.call(20, "count")).answered(b'"id": 20')
    viewer.until("state.visible?.length === 2").until("document.querySelector('#nomatch').hidden")


def test_the_keys_move_and_inspect(session):
    viewer, _ = session
    viewer.press("2", "/")
    viewer.page.keyboard.type("tool:echo")
    viewer.until("state.applied === 'tool:echo'").press("Escape", "j")
    viewer.until("state.selected.row")
    first = viewer.ask("() => state.selected.row.n")
    viewer.press("j", "ArrowDown").until("state.selected.row.n > %d" % first)
    viewer.press("k", "ArrowUp").until("state.selected.row.n === %d" % first)
    viewer.press("Enter").until("document.activeElement.id === 'detail'")
    viewer.press("Escape").until("document.querySelector('#side').hidden && !state.selected.row")


def test_the_arrow_keys_walk_the_cards(session):
    viewer, _ = session
    viewer.press("1")
    viewer.card("mcp:session").locator(".n").focus()
    viewer.press("ArrowRight").until("document.activeElement.closest('.card')?.dataset.node.startsWith('tool:')")
    viewer.press("Enter").until("state.selected.node?.startsWith('tool:') && !document.querySelector('#side').hidden")
    viewer.press("ArrowLeft").until("document.activeElement.closest('.card')?.dataset.node.startsWith('mcp:')")


def test_breakpoints_from_the_keyboard(session, hub):
    viewer, _ = session
    viewer.card("tool:echo").locator(".n").click()
    viewer.press("b").until("state.breakpoints.some(b => b.name === 'echo' && b.point === 'before')")
    viewer.press("B").until("state.breakpoints.some(b => b.name === 'echo' && b.point === 'after')")
    viewer.press("b", "B").until("state.breakpoints.length === 0")


def test_focus_is_visible(session):
    viewer, _ = session
    viewer.press("Tab")
    for _ in range(6):
        viewer.press("Tab")
        assert viewer.ask("""() => { const style = getComputedStyle(document.activeElement);
            return style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2; }"""), viewer.ask(
            "() => document.activeElement.outerHTML.slice(0, 200)"
        )


def test_the_help_names_every_key_but_none_for_abort(session):
    viewer, _ = session
    viewer.press("?").until("document.querySelector('#help').open")
    text = viewer.page.inner_text("#help")
    assert "continue the held call" in text and "abort" not in text.split("Filter")[0].lower()
    viewer.press("Escape").until("!document.querySelector('#help').open")
    keys = viewer.ask("() => [Object.keys(COMMANDS), KEYS.map(([keys]) => keys).join(' ').toLowerCase()]")
    for key in keys[0]:
        if len(key) == 1 and key not in "=-":
            assert key.lower() in keys[1], key


def test_a_link_names_run_and_node_and_carries_no_token(session, hub, open_page):
    viewer, relay = session
    viewer.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    viewer.card("tool:boom").locator(".n").click()
    viewer.press("l")
    viewer.until("document.querySelector('#notices').textContent.includes('carries no token')")
    link = viewer.ask("() => navigator.clipboard.readText()")
    assert hub.token not in link and "run=" in link and "node=tool%3Aboom" in link
    other = open_page(hub, fragment="#token=" + hub.token + "&" + link.split("#")[1])
    other.until("state.session?.run.run === '%s' && state.selected.node === 'tool:boom'" % relay.run)
    other.page.locator("#side .title", has_text="boom").wait_for()


def test_the_theme_is_a_choice_that_stays(session):
    viewer, _ = session
    viewer.press("d", "d").until("document.documentElement.dataset.theme === 'dark'")
    dark = viewer.ask("() => getComputedStyle(document.body).backgroundColor")
    viewer.page.reload()
    viewer.until("document.documentElement.dataset.theme === 'dark'")
    assert viewer.ask("() => getComputedStyle(document.body).backgroundColor") == dark
