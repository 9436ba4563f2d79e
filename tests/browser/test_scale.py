"""A hundred thousand frames in one run, and two hundred runs."""

import pytest

import hubs

CALLS = 50000


@pytest.fixture
def flood(hub, attach):
    """A relay that has carried CALLS pings and their answers while attached."""
    hub.clear_breakpoints()
    relay = attach(hub, "--on-loop", "off").handshake()
    for start in range(0, CALLS, 5000):
        relay.send(b"".join(hubs.request(i, "ping") for i in range(start + 1, start + 5001)))
        relay.session.wait_out(b'"id": %d}' % (start + 5000))
    relay.send(hubs.call(1000000, "echo", {"text": "the last"})).answered(b'"id": 1000000')
    return relay


@pytest.mark.slow
def test_a_hundred_thousand_frames(flood, hub, open_page):
    viewer = open_page(hub)
    viewer.until("state.session?.rows.length > 0 && document.querySelector('#rows .row:not([hidden])')")
    viewer.until("state.session.instances.size > 0 && [...state.session.instances.values()].at(-1).rpc === '1000000'")
    frames, dropped = viewer.ask("() => [state.session.frames, state.session.missing]")
    assert frames + dropped > 2 * CALLS
    assert viewer.ask("() => document.querySelectorAll('#rows .row').length") < 80
    assert viewer.ask("() => document.querySelectorAll('*').length") < 3000
    for share in (0, 0.3, 0.77, 1):
        viewer.page.evaluate(
            "share => { const box = document.querySelector('#table'); box.scrollTop = share * box.scrollHeight; }",
            share,
        )
        viewer.until("document.querySelectorAll('#rows .row:not([hidden])').length > 5")
        viewer.painted()
        assert all(row[0] for row in viewer.rows())
    viewer.filter("the last")
    assert len(viewer.rows()) == 2
    viewer.filter("id:25000")
    assert len(viewer.rows()) == 2
    viewer.shot("a-hundred-thousand-frames")


def test_old_wire_text_is_let_go_and_fetched_again(hub, attach, open_page):
    relay = attach(hub, "--on-loop", "off").handshake()
    relay.send(hubs.call(1, "echo", {"text": "early bird"})).answered(b'"id": 1')
    for i in range(2, 12):
        relay.send(hubs.call(i, "big", {"bytes": 400000})).answered(b'"id": %d' % i)
    viewer = open_page(hub)
    viewer.until("[...state.session.instances.values()].some(i => i.rpc === '11' && i.status === 'ok')")
    viewer.page.evaluate("""() => { const s = state.session; s.chars += MAX_CHARS; boundMemory(s); s.chars = 0;
        if (s.rows[0].frame !== undefined) throw new Error('nothing was let go'); }""")
    viewer.page.evaluate("() => selectNode(state.session.nodes.get('tool:echo'))")
    viewer.press("q").until("document.querySelector('#detail .tree')?.textContent.includes('early bird')")
    viewer.press("w").until("document.querySelectorAll('#detail pre.text').length === 2")


def test_rows_beyond_the_bound_are_forgotten_oldest_first(hub, attach, open_page):
    relay = attach(hub).handshake()
    viewer = open_page(hub).until("state.session?.rows.length >= 3")
    counted = viewer.ask("""() => {
        const s = state.session, at = s.at, before = s.rows.length;
        const event = {seq: s.seq, at, ts: 0};
        for (let i = 1; i <= MAX_ROWS + 100; i++) addRow(s, event, 'stderr', null, {text: 'line ' + i});
        return [s.rows.length, s.forgotten, s.rows[0].index, before];
    }""")
    assert counted[0] <= 200000 and counted[1] == counted[2] > 0
    viewer.until("document.querySelector('#rows .row:not([hidden])')")
    relay.send(hubs.call(1, "echo", {"text": "still alive"})).answered(b'"id": 1')
    viewer.until("state.session.rows.some(row => row.type === 'answer' && row.instance?.rpc === '1')")


@pytest.mark.slow
def test_two_hundred_runs(own_hub, attach, open_page, page_hub):
    hub = own_hub(*page_hub)
    for _ in range(10):
        relay = attach(hub).handshake()
        relay.session.finish()
    viewer = open_page(hub)
    viewer.until("state.runs.size >= 10")
    # The other hundred and ninety are copies: what is tested is the list, not the starting of processes.
    viewer.page.evaluate("""() => { const one = [...state.runs.values()][0];
        for (let i = 0; i < 190; i++) takeRun({...one, run: 'copy-' + i, started: one.started - i * 60000}); }""")
    viewer.until("document.querySelectorAll('#runs .run').length >= 200")
    kept = viewer.ask(
        """() => { const before = document.querySelector('[data-run="copy-100"]');
        takeRun({...state.runs.get('copy-5'), calls: 77});
        return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() =>
            done([before === document.querySelector('[data-run="copy-100"]'),
                document.querySelector('[data-run="copy-5"]').textContent])))); }"""
    )
    assert kept[0] and "77 calls" in kept[1]
    viewer.press("]")


def test_a_gap_is_visible(own_hub, start, open_page, page_hub, tmp_path):
    """A relay that ran long before its hub came has dropped the middle of its history."""
    import support

    holder, port = support.reserve_port()
    holder.close()
    home = str(tmp_path / "home")
    log = tmp_path / "log"
    session = start(
        "--port",
        port,
        "--home",
        home,
        "--on-loop",
        "off",
        env=support.quiet_environment(home, port),
        server=support.server("raw", "--log", log),
    )
    session.send(hubs.INITIALIZE + hubs.INITIALIZED)
    for begin in range(0, 6000, 3000):
        session.send(b"".join(hubs.request(i, "ping") for i in range(begin + 1, begin + 3001)))
        session.wait_out(b'"id": %d}' % (begin + 3000))
    hub = own_hub(*page_hub, port=port)
    viewer = open_page(hub)
    viewer.until("state.session?.gaps > 0")
    viewer.page.locator("#session .tag", has_text="missing").wait_for()
    viewer.filter("kind:gap")
    assert "missing here" in viewer.rows()[0][5]


def test_the_head_tells_of_a_gap_at_once(hub, attach, open_page):
    """Even if nothing else happens after it."""
    hub.clear_breakpoints()
    attach(hub).handshake()
    viewer = open_page(hub).until("state.session?.frames > 1").painted()
    viewer.ask("() => applyEvent(state.session, {seq: state.session.seq + 1, type: 'gap', dropped: 3})")
    viewer.painted()
    assert "3 events missing" in viewer.page.locator("#session").inner_text()
