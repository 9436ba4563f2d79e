"""Fixtures of the browser tests: Chromium from Debian, driven by Playwright, against real hubs, relays and servers."""

import os
import pathlib
import shutil

import pytest

import hubs
import support

HERE = pathlib.Path(__file__).resolve().parent
PAGE = pathlib.Path(support.ROOT) / "viewer" / "viewer.html"
SHOTS = HERE / "shots"
AXE = HERE / "node_modules" / "axe-core" / "axe.min.js"
SWITCHES = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    "--disable-sync",
    "--disable-component-update",
    "--disable-quic",
]

#: Console errors that only repeat what a test provokes on purpose: the status of an answer, a hub that is gone.
EXPECTED_ON_CONSOLE = ("Failed to load resource", "net::ERR_")


class Viewer:
    """One tab with the page in it.

    page: Playwright's page. problems: script errors, violations of the policy and requests to anywhere but the hub;
    they fail the test at its end.
    """

    def __init__(self, page, origin):
        self.page, self.origin, self.problems = page, origin, []
        page.set_default_timeout(support.LIMIT_S * 1000)
        page.on("pageerror", lambda error: self.problems.append("script error: %s" % error))
        page.on("console", self._console)
        page.on("request", self._request)

    def _console(self, message):
        if message.type == "error" and not any(each in message.text for each in EXPECTED_ON_CONSOLE):
            self.problems.append("console: " + message.text)

    def _request(self, request):
        if not request.url.startswith((self.origin, "data:", "blob:")):
            self.problems.append("request to " + request.url)

    def until(self, claim):
        """Block until the JavaScript expression `claim` is true in the page (an error counts as not yet)."""
        # The page's policy forbids eval, which Playwright's own wait_for_function uses.
        happened = self.page.evaluate("""() => new Promise(done => {
            const holds = () => { try { return %s; } catch { return false; } };
            const end = performance.now() + %d;
            (function check() {
                if (holds()) done(true); else if (performance.now() > end) done(false); else setTimeout(check, 15);
            })();
        })""" % (claim, support.LIMIT_S * 1000))
        if not happened:
            pytest.fail("never true in the page: %s\nthe page says:\n%s" % (claim, self.page.inner_text("body")))
        return self

    def ask(self, expression, argument=None):
        """Value of a JavaScript expression (or function of one argument) in the page."""
        return self.page.evaluate(expression, argument)

    def press(self, *keys):
        """Press keys, one after the other, on what has the focus."""
        for key in keys:
            self.page.keyboard.press(key)
        return self

    def until_held(self, name):
        """Block until the bar says that `name` is held."""
        self.page.locator("#holdbar .what", has_text=name).wait_for()
        return self

    def until_free(self):
        """Block until nothing is held."""
        return self.until("document.querySelector('#holdbar').hidden")

    def act(self, label):
        """Press a button of the hold bar."""
        self.page.locator("#holdbar .acts button", has_text=label).click()
        return self

    def card(self, node):
        """The card of a node."""
        return self.page.locator('#plane .card[data-node="%s"]' % node)

    def rows(self):
        """Texts of the cells of the rows in sight, top to bottom."""
        return self.ask("""() => [...document.querySelectorAll('#rows .row:not([hidden])')]
            .sort((a, b) => parseInt(a.style.top) - parseInt(b.style.top))
            .map(row => [...row.children].map(cell => cell.textContent))""")

    def filter(self, text):
        """Type into the filter box and wait until it is applied."""
        self.page.fill("#filter", text)
        return self.until("document.querySelector('#filter').value === state.applied").painted()

    def painted(self):
        """Block until what changed so far is on the screen: painting happens in the next animation frame."""
        self.ask("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return self

    def show_all(self, things, select, keys):
        """Select each thing and press each key on it, so that all was painted once; return how many there were.

        things, select: JavaScript of a list and of a function. It runs inside the page: from here each step would
        take several frames.
        """
        return self.ask("""async () => {
            const all = %s;
            for (const each of all) {
                %s(each);
                for (const key of '%s') {
                    document.body.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));
                    await new Promise(requestAnimationFrame);  // in the order of asking: the change is painted
                }
            }
            return all.length;
        }""" % (things, select, keys))

    def edit(self, text):
        """Replace the text of the open editor."""
        self.page.fill("#editortext", text)
        return self

    def shot(self, name):
        """Keep a picture for people to look at."""
        SHOTS.mkdir(exist_ok=True)
        self.page.screenshot(path=str(SHOTS / (name + ".png")))


@pytest.fixture(scope="session")
def chromium():
    """Chromium, started once."""
    # The first is the same browser without windows; the tests take half of the time with it.
    names = ("chromium-headless-shell", "chromium", "chromium-browser")
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    support.need(path, "no Chromium on PATH; install Debian's package chromium-headless-shell or chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        support.need(False, "playwright is not installed; pip install '.[browser]'")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=SWITCHES)
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium):
    """open_page(hub, fragment=None, **options) -> Viewer of a tab of its own, or of a tab in the same context.

    hub: a Hub; its token is in the fragment unless `fragment` says otherwise. context: a Viewer whose browser
    context to share. path: address to open instead of the hub's. Options go to Playwright's new_context.
    """
    viewers, contexts = [], []

    def open_tab(hub=None, fragment=None, path=None, context=None, **options):
        origin = "http://127.0.0.1:%d" % hub.port if hub else path.split("#")[0]
        options.setdefault("viewport", {"width": 1440, "height": 860})
        if context is None:
            contexts.append(chromium.new_context(**options))
        viewers.append(Viewer((context.page.context if context else contexts[-1]).new_page(), origin))
        target = path or origin + "/" + ("#token=" + hub.token if fragment is None else fragment)
        viewers[-1].page.goto(target)
        return viewers[-1]

    yield open_tab
    problems = [problem for viewer in viewers for problem in viewer.problems]
    for context in contexts:
        context.close()
    assert not problems, problems


@pytest.fixture(scope="session")
def page_hub(tmp_path_factory):
    """Arguments that make a hub serve the page's source, not the stitched copy."""
    return "--page", str(PAGE)


@pytest.fixture(scope="module")
def module_hub(relay_file, tmp_path_factory, page_hub):
    """One hub per module, serving viewer/viewer.html; overrides the fixture of tests/conftest.py."""
    shared = hubs.Hub(relay_file, tmp_path_factory.mktemp("hub"), *page_hub)
    yield shared
    shared.destroy()


@pytest.fixture
def axe():
    """axe(viewer) -> violations of WCAG A and AA that axe-core finds, as readable lines."""
    support.need(AXE.exists(), "axe-core is not installed; run npm ci in tests/browser")
    source = AXE.read_text(encoding="utf-8")

    def check(viewer):
        viewer.page.evaluate(source + ";0")
        found = viewer.ask(
            """async () => (await axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']}))
            .violations.map(rule => [rule.id, rule.nodes.map(node => [node.target.join(' '), node.failureSummary])])"""
        )
        return ["%s: %s" % (rule, node) for rule, nodes in found for node in nodes]

    return check
