"""The token, a hub that goes and comes back, and what must never stay on the screen."""

import json

import hubs


def test_the_token_leaves_the_address_bar_and_stays_in_session_storage(hub, open_page):
    viewer = open_page(hub).until("state.connection === 'live'")
    assert hub.token not in viewer.page.url and "token" not in viewer.page.url
    assert viewer.ask("() => Object.values(sessionStorage)") == [hub.token]
    assert hub.token not in json.dumps(viewer.ask("() => Object.values(localStorage)"))
    assert viewer.page.context.cookies() == []
    viewer.page.reload()
    viewer.until("state.connection === 'live'")


def test_without_a_token_one_sentence_says_how_to_get_the_address(hub, open_page):
    viewer = open_page(hub, fragment="")
    assert "in the address that \u201cserve\u201d prints" in viewer.page.inner_text("#gate")
    assert viewer.page.locator("main").is_hidden() and viewer.page.locator("header").is_hidden()
    viewer.page.fill("#gate input", "http://127.0.0.1:1/#token=" + hub.token)
    viewer.page.click("#gate button")
    viewer.until("state.connection === 'live'")


def test_a_wrong_token_is_told_apart_from_none(hub, open_page):
    viewer = open_page(hub, fragment="#token=wrong")
    viewer.until("!document.querySelector('#gate').hidden")
    assert "does not accept this token" in viewer.page.inner_text("#gate")
    viewer.page.evaluate("token => { location.hash = '#token=' + token; }", hub.token)
    viewer.until("state.connection === 'live'")


def test_the_empty_hub_says_how_to_begin(own_hub, open_page, page_hub, tmp_path):
    hub = own_hub(*page_hub)
    viewer = open_page(hub).until("state.connection === 'live'")
    assert "No session yet" in viewer.page.inner_text("#empty") and "demo" in viewer.page.inner_text("#empty")


def test_a_hub_that_goes_takes_its_holds_along_and_its_successor_is_found(
    own_hub, attach, open_page, page_hub, tmp_path
):
    hub = own_hub(*page_hub)
    relay = attach(hub).handshake()
    hub.set_breakpoint(kind="tool", name="echo", point="before")
    viewer = open_page(hub)
    relay.send(hubs.call(1, "echo", {"text": "x"}))
    viewer.until_held("echo")
    hub.destroy()
    viewer.until_free()
    viewer.until(
        "!document.querySelector('#banner').hidden && document.querySelector('#connection').textContent === 'lost'"
    )
    assert "is gone" in viewer.page.inner_text("#banner")
    relay.answered(b'"id": 1')
    successor = own_hub(*page_hub, port=hub.port)
    if successor.token != hub.token:
        viewer.until("!document.querySelector('#gate').hidden")
        viewer.page.evaluate("token => { location.hash = '#token=' + token; }", successor.token)
    viewer.until("state.connection === 'live' && document.querySelector('#banner').hidden")
    viewer.until("[...state.runs.values()].some(run => run.status === 'running')")
    assert viewer.page.locator("#holdbar").is_hidden()
    relay.send(hubs.call(2, "count")).answered(b'"id": 2')
    viewer.until("[...state.session.instances.values()].some(i => i.rpc === '2' && i.status === 'ok')")
    numbers = viewer.ask("() => state.session.rows.map(row => row.seq)")
    assert numbers == sorted(numbers)


def test_a_deleted_run_leaves_the_list(hub, attach, open_page):
    relay = attach(hub).handshake()
    relay.session.finish()
    viewer = open_page(hub)
    viewer.page.locator("#runs .run[data-run='%s']" % relay.run).click()
    viewer.until("state.session?.run.run === '%s'" % relay.run)
    viewer.page.on("dialog", lambda dialog: dialog.accept())
    viewer.page.click("#sessionmenu")
    viewer.page.click("text=Delete this run")
    viewer.until("!document.querySelector('#runs .run[data-run=\"%s\"]')" % relay.run)
