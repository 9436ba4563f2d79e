"""The session as a graph, as a table and as both, and the inspector: what they show of a real session."""

import pytest

import hubs


@pytest.fixture
def session(hub, attach, open_page):
    """A tab on a session with calls that succeed, fail, take noise and stderr, and a failure under protocol."""
    hub.clear_breakpoints()
    relay = attach(hub).handshake()
    relay.send(
        hubs.request(1, "tools/list")
        + hubs.call(2, "echo", {"text": "one"})
        + hubs.call(3, "echo", {"text": "two"})
        + hubs.call(4, "boom", {"why": "on purpose"})
        + hubs.call(5, "softfail")
        + hubs.call(6, "say", {"text": "warn: disk"})
        + hubs.call(7, "noise", {"lines": ["debug: not JSON-RPC"]})
        + hubs.request(8, "no/such")
        + hubs.request(9, "resources/read", {"uri": "file:///repo/README.md"})
        + hubs.call(9007199254740993, "echo", raw_arguments='{"text":"x","n":9007199254740993,"p":1.50,"p":2}')
    )
    relay.answered(b"9007199254740993")
    viewer = open_page(hub)
    viewer.until("[...state.session.instances.values()].some(i => i.rpc === '9007199254740993' && i.status === 'ok')")
    viewer.until("state.session.stderr.length > 0")
    return viewer.painted(), relay


def test_the_graph_is_the_tree_of_the_seed(session):
    viewer, _ = session
    cards = viewer.ask("() => [...document.querySelectorAll('#plane .card')].map(card => card.dataset.node)")
    assert cards[0] == "mcp:session" and "mcp:protocol" in cards
    assert {"tool:echo", "tool:boom", "tool:softfail", "resource:file:///repo/README.md"} <= set(cards)
    assert not any(card.startswith("mcp:initialize") for card in cards)
    echo = viewer.card("tool:echo").inner_text()
    assert "3" in echo and "ok" in echo
    assert "error -32603" in viewer.card("tool:boom").inner_text()
    assert "isError" in viewer.card("tool:softfail").inner_text()
    assert "failed" in viewer.card("mcp:protocol").get_attribute("class")
    viewer.press("o").until("[...document.querySelectorAll('.card')].some(card => card.dataset.node === 'mcp:no/such')")
    assert "failed" in viewer.card("mcp:no/such").get_attribute("class")
    viewer.press("o").until(
        "![...document.querySelectorAll('.card')].some(card => card.dataset.node === 'mcp:no/such')"
    )


@pytest.mark.parametrize("width", [700, 1000, 1440])
def test_edges_are_orthogonal_and_never_cross_a_card(session, width):
    viewer, _ = session
    viewer.page.set_viewport_size({"width": width, "height": 860})
    viewer.press("1", "o").until("document.querySelectorAll('.card').length > 8")
    crossings = viewer.ask("""() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => {
        const inside = (p, c) => p.x > c.x + 1 && p.x < c.x + c.w - 1 && p.y > c.y + 1 && p.y < c.y + c.h - 1;
        const found = [];
        for (const path of document.querySelectorAll('#plane path')) {
            for (let at = 0; at <= path.getTotalLength(); at += 2) {
                const point = path.getPointAtLength(at);
                for (const {place, node} of cards.values()) if (inside(point, place)) found.push([at, node.id]);
            }
        }
        done([document.querySelectorAll('#plane path').length, found]);
    })))""")
    assert crossings[0] > 8 and crossings[1] == []


def test_the_table_lists_frames_with_request_and_answer_linked(session):
    viewer, _ = session
    viewer.press("2")
    viewer.filter("id:2")
    request, answer = viewer.rows()
    assert request[2:5] == ["\u2192 server", "2", "tools/call"] and "echo" in request[5] and "one" in request[5]
    assert answer[2:5] == ["\u2190 client", "2", "\u21b3 tools/call"] and answer[5] == "one"
    assert (
        request[6] == "ok"
        and float(request[7].replace("\u202f", "")) > 0
        and int(request[9]) == len(hubs.call(2, "echo", {"text": "one"})) - 1
    )
    viewer.page.locator("#rows .row.request:visible").click()
    viewer.until("document.querySelector('#rows .row.answer.linked')")
    viewer.filter("")
    text = "\n".join(
        " ".join(row) for row in viewer.ask("() => state.session.rows.map(row => [row.type, snippet(row)])")
    )
    assert "stderr warn: disk" in text and "noise debug: not JSON-RPC" in text


def test_one_key_each_for_graph_table_and_both(session):
    viewer, _ = session
    for key, graph, table in (("1", True, False), ("2", False, True), ("3", True, True)):
        viewer.press(key)
        assert (viewer.page.locator("#graph").is_visible(), viewer.page.locator("#tablebox").is_visible()) == (
            graph,
            table,
        )


def test_the_inspector_shows_exact_digits_and_doubled_keys(session):
    viewer, _ = session
    viewer.filter("id:9007199254740993")
    viewer.page.locator("#rows .row.request:visible").click()
    viewer.press("q").until("document.querySelector('#detail').textContent.includes('9007199254740993')")
    tree = viewer.page.inner_text("#detail")
    assert "9007199254740993" in tree and "1.50" in tree and tree.count('"p"') == 2 and "doubled key" in tree
    viewer.press("w").until("document.querySelectorAll('#detail pre.text').length === 2")
    wire = viewer.page.locator("#detail pre.text").first.inner_text()
    assert (
        wire == '{"jsonrpc":"2.0","id":9007199254740993,"method":"tools/call","params":'
        '{"name":"echo","arguments":{"text":"x","n":9007199254740993,"p":1.50,"p":2}}}'
    )
    viewer.press("a").until("document.querySelector('#detail .tree')")
    assert "1.50" in viewer.page.inner_text("#detail") and "caf\u00e9" in viewer.page.inner_text("#detail")
    facts = viewer.page.inner_text("#facts")
    assert "total" in facts and "held" in facts and "9007199254740993" in facts


def test_copying_the_wire_text_is_exact(session):
    viewer, _ = session
    viewer.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    viewer.filter("id:9007199254740993")
    viewer.page.locator("#rows .row.answer:visible").click()
    viewer.press("w")
    viewer.page.locator("#detail button", has_text="Copy").last.click()
    viewer.until("document.querySelector('#notices').textContent.includes('Copied frame')")
    assert '"price": 1.50' in viewer.ask("() => navigator.clipboard.readText()")


def test_instances_are_listed_newest_first(session):
    viewer, _ = session
    viewer.card("tool:echo").locator(".n").click()
    viewer.press("y").until("document.querySelectorAll('.instances button').length === 3")
    listed = viewer.page.locator(".instances button").all_inner_texts()
    assert "9007199254740993" in listed[0] and "two" in listed[1] and "one" in listed[2]
    viewer.page.locator(".instances button").last.click()
    viewer.until("document.querySelector('#side .tags').textContent.includes('call 1 of 3')")


def test_stderr_stands_beside_the_call_it_was_about(session):
    viewer, _ = session
    viewer.card("tool:say").locator(".n").click()
    viewer.press("t").until("document.querySelector('#detail .lines')")
    assert "warn: disk" in viewer.page.inner_text("#detail")


def test_an_error_shows_its_name_and_message(session):
    viewer, _ = session
    viewer.card("tool:boom").locator(".n").click()
    viewer.press("a")
    viewer.until(
        "document.querySelector('#facts').textContent.includes('JsonRpcError(-32603): boom failed: on purpose')"
    )
    viewer.until("document.querySelector('#detail').textContent.includes('boom failed: on purpose')")


def test_a_running_call_has_a_live_timer_and_ends_in_place(session):
    viewer, relay = session
    relay.send(hubs.call(20, "slow"))
    viewer.until("document.querySelector('.card[data-node=\"tool:slow\"] .state')?.textContent === 'running'")
    before = viewer.card("tool:slow").locator(".took").inner_text()
    viewer.until("document.querySelector('.card[data-node=\"tool:slow\"] .took').textContent !== '%s'" % before)
    relay.send(b'{"jsonrpc":"2.0","method":"notifications/go"}\n').answered(b"slow but done")
    viewer.until("document.querySelector('.card[data-node=\"tool:slow\"] .state').textContent === 'ok'")


def test_time_held_is_told_apart_from_time_run(session, hub):
    viewer, relay = session
    hub.set_breakpoint(kind="tool", name="count", point="before")
    relay.send(hubs.call(30, "count"))
    viewer.until_held("count").until("document.querySelector('#rows .row.held .bars i.is-held')")
    viewer.press("c").until_free()
    relay.answered(b'"id": 30')
    viewer.until("state.session.nodes.get('tool:count').last.heldMs > 0")
    assert (
        viewer.ask("() => stretches(state.session.nodes.get('tool:count').last, 1e9).map(part => part.held)").count(
            True
        )
        == 1
    )
    viewer.page.evaluate("() => selectNode(state.session.nodes.get('tool:count'))")
    viewer.until("/held\\s*\\d/.test(document.querySelector('#facts').innerText)")


def test_the_time_axis_zooms_and_goes_back(session):
    viewer, _ = session
    whole = viewer.ask("() => axisSpan()")
    viewer.press("+", "+")
    zoomed = viewer.ask("() => axisSpan()")
    assert zoomed["to"] - zoomed["from"] < (whole["to"] - whole["from"]) / 3
    viewer.press("0")
    assert viewer.ask("() => state.axis") is None
    box = viewer.page.locator("#overview canvas").bounding_box()
    viewer.page.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + 10)
    viewer.page.mouse.down()
    viewer.page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 10, steps=4)
    viewer.page.mouse.up()
    viewer.until("state.axis && state.axis.from > 0")


def test_a_session_that_ended_says_how(session):
    viewer, relay = session
    relay.session.finish()
    viewer.until("document.querySelector('.card[data-node=\"mcp:session\"] .state').textContent === 'exit 0'")
    viewer.until("state.session.rows.at(-1).type === 'end'")
    viewer.page.locator("#runs h2", has_text="Earlier").wait_for()


def test_a_server_that_dies_early_is_told_in_the_list_and_on_its_card(hub, start, open_page):
    import support

    start(
        "--port",
        hub.port,
        "--home",
        hub.home,
        env=support.quiet_environment(hub.home, hub.port),
        server=support.server("crash", 3, 2),
    ).finish()
    viewer = open_page(hub)
    viewer.page.locator("#runs .run", has_text="died before answering").first.click()
    viewer.card("mcp:session").locator(".n").click()
    viewer.press("a").until("document.querySelector('#detail').textContent.includes('McpServerExitedEarly')")
