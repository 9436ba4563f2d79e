"""Every action on a held call, from the button of the page to what the client and the server really get."""

import json

import pytest

import hubs

ECHO = {"kind": "tool", "name": "echo", "point": "before"}


@pytest.fixture
def held(hub, attach, open_page):
    """held(frame, *breakpoints) -> (Viewer, Debugged) with that frame held and shown."""

    def hold(frame, *breakpoints, name, **options):
        for breakpoint_ in breakpoints:
            hub.set_breakpoint(**breakpoint_)
        relay = attach(hub, **options).handshake()
        viewer = open_page(hub)
        relay.send(frame)
        relay.hold()
        return viewer.until_held(name), relay

    return hold


def test_a_hold_is_impossible_to_miss(held):
    viewer, relay = held(hubs.call(7, "echo", {"text": "hi"}), ECHO, name="echo")
    bar = viewer.page.inner_text("#holdbar")
    assert "is held before it reaches the server" in bar and "a breakpoint holds it" in bar and "1:00" in bar
    viewer.until("document.title.startsWith('\u25ae\u25ae 1 held')")
    viewer.until("document.querySelector('#favicon').href.includes('%23e09a00')")
    viewer.until("document.querySelector('#live').textContent.includes('echo is held')")
    viewer.until("document.querySelector('.card.held .state').textContent.includes('held')")
    labels = viewer.page.locator(".card.held .acts button").all_inner_texts()
    assert [label.split("\n")[0] for label in labels] == [
        "Continue",
        "Step",
        "Inject\u2026",
        "Edit arguments\u2026",
        "Abort",
    ]
    assert b'"method":"tools/call"' not in relay.seen()
    viewer.act("Continue").until_free()
    viewer.until("!document.title.includes('held')")


def test_continue(held):
    viewer, relay = held(hubs.call(7, "echo", {"text": "hi"}), ECHO, name="echo")
    viewer.act("Continue").until_free()
    relay.answered(b'"id": 7')
    assert relay.answer_to(7)["result"]["content"][0]["text"] == "hi"
    viewer.until("[...state.session.instances.values()].some(i => i.node.name === 'echo' && i.status === 'ok')")


def test_the_card_and_the_keys_act_as_well(held):
    viewer, relay = held(hubs.call(7, "echo", {"text": "a"}) + hubs.call(8, "echo", {"text": "b"}), ECHO, name="echo")
    viewer.card("tool:echo").locator("button", has_text="Continue").click()
    relay.answered(b'"id": 7')
    viewer.until("[...state.holds.values()].some(hold => hold.id === '8')").press("c").until_free()
    relay.answered(b'"id": 8')


def test_step_lets_one_go_and_holds_the_next(held, hub):
    viewer, relay = held(hubs.call(7, "echo", {"text": "a"}) + hubs.call(8, "count"), ECHO, name="echo")
    viewer.act("Step").until_held("count")
    assert hub.get("/api/breakpoints")["mode"] == "step"
    assert "step mode" in viewer.page.inner_text("#holdbar")
    viewer.until("document.querySelector('[data-mode=step]').getAttribute('aria-pressed') === 'true'")
    viewer.press("c").until_free()
    relay.answered(b'"id": 8')


def test_inject_before_the_server_sees_it(held):
    viewer, relay = held(hubs.call('"x"', "echo", {"text": "hi"}), ECHO, name="echo")
    viewer.press("i").edit('{"big": 9007199254740993, "price": 1.50}')
    viewer.until("document.querySelector('#editorverdict').textContent.includes('structuredContent')")
    viewer.page.click("#editorsend")
    viewer.until_free()
    relay.answered(b'"x"')
    assert b"9007199254740993" in relay.session.out and b'"price":1.50' in relay.session.out
    assert b'"method":"tools/call"' not in relay.seen()
    viewer.until("document.querySelector('#side').textContent.includes('injected')")


def test_inject_starts_from_what_was_recorded(held):
    viewer, relay = held(hubs.call(7, "softfail", {"why": "disk"}), name="softfail")
    viewer.press("i")
    text = viewer.page.input_value("#editortext")
    assert json.loads(text)["isError"] is True and "softfail failed: disk" in text
    viewer.edit("{\n  nope\n}")
    verdict = viewer.page.inner_text("#editorverdict")
    assert "Line 2, column 3" in verdict and viewer.page.is_disabled("#editorsend")
    viewer.edit('"repaired"')
    assert "text block holding your text" in viewer.page.inner_text("#editorverdict")
    viewer.page.press("#editortext", "Control+Enter")
    viewer.until_free()
    relay.answered(b"repaired")
    assert relay.answer_to(7)["result"]["content"] == [{"type": "text", "text": "repaired"}]


def test_inject_a_whole_frame_as_an_error(held):
    viewer, relay = held(hubs.call(7, "echo", {"text": "hi"}), ECHO, name="echo")
    viewer.press("i")
    viewer.page.click("#editorstarts >> text=an error")
    assert "whole JSON-RPC frame" in viewer.page.inner_text("#editorverdict")
    viewer.page.click("#editorsend")
    relay.answered(b"injected failure")
    assert relay.answer_to(7)["error"]["code"] == -32000


def test_edit_shows_what_changed_and_keeps_digits(held):
    frame = hubs.call(7, "echo", raw_arguments='{"text":"hi", "big":9007199254740993,"price":1.50}')
    viewer, relay = held(frame, ECHO, name="echo")
    viewer.press("e")
    text = viewer.page.input_value("#editortext")
    assert '"big": 9007199254740993' in text and '"price": 1.50' in text
    assert "Nothing changed yet" in viewer.page.inner_text("#editorverdict") and viewer.page.is_disabled("#editorsend")
    viewer.edit(text.replace('"hi"', '"edited"'))
    assert "Changed text" in viewer.page.inner_text("#editorverdict")
    assert viewer.page.inner_text("#editorsend") == "Run with 1 change"
    viewer.page.click("#editorsend")
    relay.answered(b'"text":"edited"')
    assert b'{"text":"edited","big":9007199254740993,"price":1.50}' in relay.seen()
    viewer.until("document.querySelector('#side .tags').textContent.includes('edited')")
    viewer.press("q").until("document.querySelector('#detail').textContent.includes('Ran with these arguments')")


def test_a_refused_edit_is_told_in_place_and_the_call_stays_held(held):
    viewer, relay = held(
        hubs.request(1, "tools/list") + hubs.call(7, "divide", {"a": 1, "b": 2}),
        {"kind": "tool", "name": "divide", "point": "before"},
        name="divide",
    )
    viewer.press("e").edit('{"a": 1, "b": 0}').page.click("#editorsend")
    viewer.until(
        "/Refused, still held.*field .b. must be at least 1/.test(document.querySelector('#editorrefused').textContent)"
    )
    assert viewer.page.locator("#editor").is_visible() and viewer.page.locator("#holdbar").is_visible()
    viewer.edit('{"a": 1, "b": 4}').page.click("#editorsend")
    relay.answered(b"0.25")


def test_retry_with_an_edit_after_a_failure(held):
    viewer, relay = held(hubs.call(7, "softfail", {"why": "first"}), name="softfail")
    assert "pause on error" in viewer.page.inner_text(
        "#holdbar"
    ) and "softfail failed: first" in viewer.page.inner_text("#holdbar")
    viewer.press("e").edit('{"why": "second"}')
    assert viewer.page.inner_text("#editorsend") == "Retry with 1 change"
    viewer.page.click("#editorsend")
    viewer.until("[...state.holds.values()].some(hold => JSON.stringify(hold.frame).includes('second'))")
    viewer.act("Continue").until_free()
    relay.answered(b"softfail failed: second")
    assert b"first" not in relay.session.out
    viewer.until("document.querySelector('#side .tags').textContent.includes('1 retry')")


def test_retry_until_it_works(held):
    viewer, relay = held(hubs.call(7, "flaky", {"failures": 1}), name="flaky")
    viewer.press("r").until_free()
    relay.answered(b"attempt 2")
    assert b"attempt 1" not in relay.session.out
    viewer.until("state.session.rows.some(row => row.status === 'dropped')")


def test_abort_by_the_button_only(held):
    viewer, relay = held(hubs.call(7, "echo", {"text": "hi"}), ECHO, name="echo")
    for key in "abdfglmnopqtuvwxyz":
        if key not in "cdlmpx":  # known keys that change hub, link or colours; none of the rest may release
            viewer.press(key)
    assert viewer.page.locator("#holdbar").is_visible()
    viewer.act("Abort").until_free()
    relay.answered(b"-32099")
    assert b'"method":"tools/call"' not in relay.seen()
    viewer.until("document.querySelector('.card[data-node=\"tool:echo\"] .state').textContent.includes('aborted')")


def test_a_notification_is_replaced_by_another_object(held):
    viewer, relay = held(
        b'{"jsonrpc":"2.0","method":"notifications/odd","params":{"a":1}}\n',
        {"kind": "custom", "name": "notifications/odd", "point": "before"},
        name="notifications/odd",
    )
    assert viewer.page.locator("#holdbar .acts button").count() == 4  # no retry, no edit
    viewer.press("i").edit('"text"')
    assert "must be a JSON object" in viewer.page.inner_text("#editorverdict") and viewer.page.is_disabled(
        "#editorsend"
    )
    viewer.edit('{"jsonrpc":"2.0","method":"notifications/odd","params":{"b":9007199254740993}}').page.click(
        "#editorsend"
    )
    viewer.until_free()
    relay.send(hubs.request(9, "ping"))
    relay.answered(b'"id": 9')
    assert b'{"b":9007199254740993}' in relay.seen() and b'{"a":1}' not in relay.seen()


def test_a_request_of_the_server_is_held_before_the_client(held):
    viewer, relay = held(hubs.call(7, "sample"), {"kind": "llm", "point": "before"}, name="sampling")
    assert "before it reaches the client" in viewer.page.inner_text("#holdbar")
    assert "give up" not in viewer.page.inner_text("#holdbar")
    viewer.press("i").edit('"made up"')
    assert "assistant message" in viewer.page.inner_text("#editorverdict")
    viewer.page.click("#editorsend")
    relay.answered(b"the client said")
    assert "made up" in relay.answer_to(7)["result"]["content"][0]["text"]


def test_a_loop_hold_says_so_and_shows_the_calls(held):
    frames = b"".join(hubs.call(id_, "echo", {"text": "again"}) for id_ in (1, 2, 3))
    viewer, relay = held(frames, name="echo")
    assert "loop: called 3 times in a row with the same arguments" in viewer.page.inner_text("#holdbar")
    viewer.until("document.querySelectorAll('#detail .note.is-held button').length >= 2")
    viewer.act("Continue").until_free()
    relay.answered(b'"id": 3')


def test_a_hold_of_another_run_is_shown_and_can_be_visited(hub, attach, open_page):
    first = attach(hub).handshake()
    viewer = open_page(hub).until("state.session && state.session.nodes.size > 2")
    viewer.page.click("#runs .run[data-run='%s']" % first.run)
    second = attach(hub).handshake()
    hub.set_breakpoint(**ECHO)
    second.send(hubs.call(7, "echo", {"text": "there"}))
    viewer.until_held("echo")
    assert "in " in viewer.page.inner_text("#holdbar .why")
    viewer.press("h").until("state.session.run.run === %s && state.selected.instance?.held" % json.dumps(second.run))
    viewer.press("c").until_free()
    second.answered(b'"id": 7')


def test_a_key_counts_at_once_when_the_editor_has_closed(held):
    """The browser may leave the focus in the text of a dialog that has just closed."""
    viewer, relay = held(hubs.call(7, "echo", {"text": "hi"}), ECHO, name="echo")
    viewer.press("i").until("document.querySelector('#editor').open")
    viewer.page.evaluate("""() => {
        document.querySelector('#editor').close();
        document.querySelector('#editortext').dispatchEvent(new KeyboardEvent('keydown', {key: 'c', bubbles: true}));
    }""")
    viewer.until_free()
    relay.answered(b'"id": 7')


def test_two_holds_are_counted_and_turned(hub, attach, open_page):
    hub.set_breakpoint(kind="tool", point="before")
    relays = [attach(hub).handshake() for _ in range(2)]
    viewer = open_page(hub)
    for relay, tool in zip(relays, ("echo", "count")):
        relay.send(hubs.call(7, tool, {"text": "x"}))
        relay.hold()
    viewer.until("document.querySelector('#holdbar .turns')?.textContent.includes('of 2 held')")
    shown = viewer.page.inner_text("#holdbar .what button")
    viewer.page.click("#holdbar .turns button >> nth=1")
    viewer.until("document.querySelector('#holdbar .what button').textContent !== %s" % json.dumps(shown))
    viewer.act("Continue").until("state.holds.size === 1").press("c").until_free()
    for relay in relays:
        relay.answered(b'"id": 7')


def test_a_hold_that_ends_by_itself_says_who_ended_it(held, hub):
    viewer, relay = held(hubs.call(7, "echo", {"text": "hi"}), ECHO, name="echo")
    assert hub.release(relay.hold(), by="command").status == 200
    viewer.until_free()
    viewer.until(
        "document.querySelector('#notices').textContent.includes('was released by the command line (continue)')"
    )


def test_an_open_editor_learns_that_its_call_was_taken(held, hub):
    viewer, relay = held(hubs.call(7, "echo", {"text": "hi"}), ECHO, name="echo")
    viewer.press("i").edit('"mine"')
    assert hub.release(relay.hold()).status == 200
    viewer.until("document.querySelector('#editorrefused').textContent.includes('Somebody else released this call')")
    assert viewer.page.is_disabled("#editorsend") and viewer.page.input_value("#editortext") == '"mine"'
    viewer.press("Escape").until("!document.querySelector('#editor').open")
