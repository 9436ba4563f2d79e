"""Names, results, errors and stderr of peers are text and nothing else, whatever they hold."""

import json

import pytest

import hubs

PAYLOADS = [
    "<img src=x onerror=window.pwned=1>",
    "<script>window.pwned=1</script>",
    "javascript:window.pwned=1",
    "\"><svg onload=window.pwned=1>",
    "</style><script>window.pwned=1</script>",
    "{{constructor}}${window.pwned=1}",
    "<!--recorded-run-->",
    "https://evil.example/",
    "a\u202eb\u0007\u200b",
    "__proto__",
    "constructor",
    "'\"`",
]


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_payload_in_every_field_stays_text(hub, attach, open_page, payload):
    relay = attach(hub, "--on-loop", "off").handshake()
    hub.clear_breakpoints()
    viewer = open_page(hub)
    text = json.dumps(payload, ensure_ascii=False)
    relay.send(hubs.request(1, "tools/call", raw_params='{"name":%s,"arguments":{%s:%s}}' % (text, text, text)))
    relay.send(hubs.call(2, "echo", {"text": payload}) + hubs.call(3, "boom", {"why": payload}))
    relay.send(hubs.call(4, "say", {"text": payload}) + hubs.call(5, "noise", {"lines": [payload]}))
    relay.send(hubs.request(6, "resources/read", {"uri": payload}) + hubs.request(text, payload + "/x"))
    relay.send(hubs.call(7, "echo", {"text": "end"})).answered(b'"id": 7')
    viewer.until("[...state.session.instances.values()].some(i => i.rpc === '7' && i.status === 'ok')")
    viewer.press("o").until("document.querySelectorAll('.card').length > 5")
    assert viewer.show_all("[...state.session.nodes.values()]", "selectNode", "aqwty") > 5
    hub.set_breakpoint(point="before")
    relay.send(hubs.request(8, "tools/call", raw_params='{"name":%s,"arguments":{}}' % text))
    viewer.until("state.holds.size === 1").press("i").until("document.querySelector('#editor').open").press("Escape")
    viewer.until("!document.querySelector('#editor').open").press("c").until_free()
    viewer.filter(payload.split()[0])
    assert viewer.ask("() => window.pwned") is None
    strangers = viewer.ask(
        """() => [...document.querySelectorAll('a, img, iframe, object, embed, video, audio, base, meta[http-equiv]')]
        .map(node => node.outerHTML)"""
    )
    assert strangers == [] and viewer.ask("() => document.scripts.length") == 1
    assert viewer.ask("() => Object.prototype.pwned") is None


def test_the_policy_allows_this_style_and_this_script_only(hub, open_page):
    policy = hub.ask("GET", "/").headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    viewer = open_page(hub).until("state.connection === 'live'")
    blocked = viewer.ask("""() => new Promise(done => {
        document.addEventListener('securitypolicyviolation', event => done(event.violatedDirective), {once: true});
        const script = document.createElement('script');
        script.textContent = 'window.pwned = 1';
        document.body.append(script);
        setTimeout(() => done('nothing was blocked'), 2000);
    })""")
    assert blocked.startswith("script-src") and viewer.ask("() => window.pwned") is None
    viewer.problems.clear()  # the violation was ours


@pytest.mark.parametrize(
    "arguments, sign",
    [
        ("[" * 900 + "]" * 900, "1 item"),
        ('{"k":' * 900 + "1" + "}" * 900, "1 key"),
        (json.dumps(list(range(20000))), "more"),
        (json.dumps({"key %d" % i: i for i in range(5000)}), "more"),
        (json.dumps("x" * 300000), "all 300\u202f000 characters"),
    ],
    ids=["deep list", "deep object", "long list", "wide object", "long text"],
)
def test_deep_and_huge_values_do_not_freeze_the_tab(hub, attach, open_page, arguments, sign):
    relay = attach(hub).handshake()
    viewer = open_page(hub)
    relay.send(hubs.call(1, "count", raw_arguments='{"value":%s}' % arguments)).answered(b'"id": 1')
    viewer.card("tool:count").locator(".n").click()
    viewer.press("q").until("document.querySelector('#detail .tree')?.innerText.includes(%s)" % json.dumps(sign))
    assert viewer.ask("() => document.querySelectorAll('#detail *').length") < 4000
    viewer.page.locator("#detail button", has_text="Open all").click()
    assert viewer.ask("() => document.querySelectorAll('#detail *').length") < 30000
    viewer.press("w").until("document.querySelector('#detail pre.text')")
    whole = viewer.page.locator("#detail button", has_text="Show all")
    if whole.count():
        whole.first.click()
    viewer.until("document.querySelector('#detail pre.text').textContent.length > 1500")


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":1,"result":NaN}',
        b'{"jsonrpc":"2.0","id":1,"result":"\xff\xfe"}',
        b'{"jsonrpc":"2.0","id":1,"result":{"text":"\\ud800"}}',
    ],
    ids=["NaN", "not UTF-8", "surrogate"],
)
def test_answers_that_are_no_good_json_are_shown_for_what_they_are(hub, attach, open_page, line):
    relay = attach(hub).handshake()
    viewer = open_page(hub)
    relay.send(hubs.call(50, "echo", {"text": "before"})).answered(b'"id": 50')
    relay.send(
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"noise","arguments":{"lines":["%s"]}}}\n'
        % line.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
    )
    relay.send(hubs.call(51, "echo", {"text": "after"})).answered(b'"id": 51')
    viewer.until("[...state.session.instances.values()].some(i => i.rpc === '51' && i.status === 'ok')")
    assert viewer.show_all("[...state.session.rows]", "selectRow", "aqw") > 5
