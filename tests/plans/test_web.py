"""HTTP requests that end when they are cancelled or late, and server-sent events however they are cut."""

import socket
import ssl
import threading
from pathlib import Path

import pytest

from graphlib_plans import web
from graphlib_plans.errors import Cancelled, ToolError, ToolTimeout
from graphlib_plans.tools import CancelToken
from tests.plans.http_double import LIMIT_S, Service


def send(service, method="GET", path="/", limit_s=LIMIT_S, cancel=None, **options):
    return web.send(method, service.url + path, cancel=cancel or CancelToken(), limit_s=limit_s, **options)


def test_a_request_arrives_and_its_answer_comes_back():
    with Service(lambda request: request.reply(201, {"got": request.body.decode()}, X_Note="a")) as service:
        with send(service, "POST", "/a b/ü?q=1 2", headers={"X-Mine": "yes"}, body="héllo".encode()) as response:
            assert (response.status, response.headers["x-note"], response.media_type) == (201, "a", "application/json")
            assert response.read(1000) == b'{"got": "h\\u00e9llo"}'
        (request,) = service.requests
        assert request.path == "/a%20b/%C3%BC?q=1%202" and request.headers["X-Mine"] == "yes"
        assert request.headers["User-Agent"].startswith("graphlib-plans/")


@pytest.mark.parametrize("url, sentence", [
    ("ftp://host/", "not an http or https URL"),
    ("/path", "not an http or https URL"),
    ("http://host:port/", "is not a URL"),
    ("http://[::1/", "is not a URL"),
    ("http://user:secret@host/", "Authorization header"),
])
def test_what_is_no_url_is_not_sent(url, sentence):
    with pytest.raises(ToolError, match=sentence) as caught:
        web.send("GET", url, cancel=CancelToken(), limit_s=1)
    assert not caught.value.retryable and "secret" not in caught.value.message


def test_a_header_that_would_be_two_is_refused():
    with Service(lambda request: request.reply()) as service:
        with pytest.raises(ToolError, match="cannot be sent"):
            send(service, headers={"X": "a\r\nEvil: yes"})
        assert service.requests == []


def test_a_refused_connection_is_a_network_error():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{holder.getsockname()[1]}/x?key=1"
        with pytest.raises(web.NetworkError, match="could not be reached: Connection refused"):
            web.send("GET", url, cancel=CancelToken(), limit_s=LIMIT_S)


def test_a_host_nobody_knows_is_a_network_error():
    with pytest.raises(web.NetworkError, match="its host name is not known"):
        web.send("GET", "http://no-such-host.invalid/", cancel=CancelToken(), limit_s=LIMIT_S)


@pytest.mark.parametrize("answer", [
    b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n",
])
def test_an_answer_cut_short_is_no_answer(answer):
    def handle(request):
        request.wfile.write(answer)
        request.close_connection = True

    with Service(handle) as service, send(service) as response:
        with pytest.raises(web.NetworkError, match="broke off: the connection was closed"):
            response.read(1000)


def test_what_is_no_http_is_a_network_error():
    def handle(request):
        request.wfile.write(b"SSH-2.0-OpenSSH\r\n")
        request.close_connection = True

    with Service(handle) as service, pytest.raises(web.NetworkError, match="is not HTTP"):
        send(service)


def test_a_body_larger_than_its_reader_takes():
    with Service(lambda request: request.reply(body=b"x" * 1001)) as service, send(service) as response:
        with pytest.raises(web.TooLarge, match="more than 1,000 bytes"):
            response.read(1000)


@pytest.mark.parametrize("begin", [False, True])
def test_a_late_answer_is_given_up_and_its_connection_closed(begin):
    gone = threading.Event()

    def handle(request):
        if begin:
            request.stream("text/plain")
            request.write("a")
        request.wait_until_gone()
        gone.set()

    with Service(handle) as service:
        with pytest.raises(ToolTimeout, match="did not answer completely within 0.2 s"):
            with send(service, limit_s=0.2) as response:
                response.read(1000)
        assert gone.wait(LIMIT_S)


@pytest.mark.parametrize("begin", [False, True])
def test_a_cancel_ends_the_request_and_closes_its_connection(begin):
    arrived, gone, token = threading.Event(), threading.Event(), CancelToken()

    def handle(request):
        if begin:
            request.stream("text/plain")
            request.write("a")
        arrived.set()
        request.wait_until_gone()
        gone.set()

    def cancel():
        arrived.wait(LIMIT_S)
        token.cancel("enough")

    with Service(handle) as service:
        threading.Thread(target=cancel).start()
        with pytest.raises(Cancelled, match="enough"):
            with send(service, cancel=token) as response:
                response.read(1000)
        assert gone.wait(LIMIT_S)


def test_a_cancelled_run_sends_nothing():
    token = CancelToken()
    token.cancel()
    with Service(lambda request: request.reply()) as service:
        with pytest.raises(Cancelled):
            send(service, cancel=token)
        assert service.requests == []


def test_a_body_nobody_reads_ends_with_the_response():
    gone = threading.Event()

    def handle(request):
        request.stream("text/plain")
        try:
            while True:
                request.write(b"x" * 65536)
        finally:
            gone.set()

    with Service(handle) as service:
        with send(service):
            pass
        assert gone.wait(LIMIT_S)
    for thread in threading.enumerate():
        if thread.name.startswith("web."):
            thread.join(LIMIT_S)
            assert not thread.is_alive()


@pytest.mark.parametrize("kind, data, text", [
    ("text/plain; charset=latin-1", b"\xe4", "ä"),
    ('text/plain; charset="utf-8"', "ä".encode(), "ä"),
    ("text/plain; charset=nonsense", b"\xe4", "\ufffd"),
    ("text/plain", b"\xff", "\ufffd"),
])
def test_text_is_decoded_as_it_says(kind, data, text):
    with Service(lambda request: request.reply(body=data, kind=kind)) as service, send(service) as response:
        assert response.text(response.read(100)) == text


def test_a_proxy_of_the_environment_is_used_but_not_for_this_machine(monkeypatch):
    with Service(lambda request: request.reply(503)) as proxy, Service(lambda request: request.reply()) as service:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        with send(service) as response:
            assert response.status == 200
        with pytest.raises(web.NetworkError, match="Tunnel connection failed"):
            web.send("GET", "http://far.invalid/", cancel=CancelToken(), limit_s=LIMIT_S)


@pytest.mark.parametrize("old, new, hosts, allowed", [
    ("http://h/a", "http://h/b", (), True),
    ("http://h/a", "https://h/b", (), True),
    ("https://h/a", "http://h/b", (), False),
    ("https://h/a", "http://h/b", ("h",), False),
    ("http://h/a", "http://h:81/b", (), False),
    ("http://h:8080/a", "https://h/b", (), False),
    ("http://h/a", "http://sub.h/b", (), False),
    ("https://h/a", "https://o/b", ("o",), True),
    ("http://h/a", "file:///b", ("",), False),
    ("http://h/a", "http://h:x/b", (), False),
    ("http://h/a", "http://[", (), False),
])
def test_which_redirects_are_followed(old, new, hosts, allowed):
    if allowed:
        assert web.redirect(old, new, hosts) == new
    else:
        with pytest.raises(ToolError, match="redirects to"):
            web.redirect(old, new, hosts)


def test_a_relative_redirect():
    assert web.redirect("http://h/a/b?q", "../c") == "http://h/c"


# https -------------------------------------------------------------------------------------------------------------

CERTIFICATE = Path(__file__).parent / "servers" / "localhost.pem"


@pytest.fixture
def trusted(monkeypatch):
    monkeypatch.setattr(web, "_TRUST", [ssl.create_default_context(cafile=CERTIFICATE)])


def test_an_answer_over_https(trusted):
    with Service(lambda request: request.reply(body=b"x" * 500_000), CERTIFICATE) as service, send(service) as response:
        assert response.read(500_000) == b"x" * 500_000


def test_a_stranger_is_not_trusted_and_not_asked_again():
    with Service(lambda request: request.reply(), CERTIFICATE) as service:
        with pytest.raises(web.NetworkError, match="cannot be trusted: self.signed certificate") as caught:
            send(service)
        assert not caught.value.retryable and service.requests == []


def test_a_cancel_over_https(trusted):
    gone, token = threading.Event(), CancelToken()

    def handle(request):
        request.stream("text/plain")
        request.write("a")
        request.wait_until_gone()
        gone.set()

    with Service(handle, CERTIFICATE) as service, send(service, cancel=token) as response:
        chunks = response.chunks()
        assert next(chunks) == b"a"
        threading.Thread(target=token.cancel, args=("enough",)).start()
        with pytest.raises(Cancelled, match="enough"):
            next(chunks)
        assert gone.wait(LIMIT_S)


# Server-sent events ------------------------------------------------------------------------------------------------

STREAM = "event: greeting\r\ndata: hé\r\ndata:  llo\r\n\r\n: comment\n\ndata: one\n\nid: 7\rdata\r\rdata: lost".encode()
EVENTS = [web.Event("greeting", "hé\n llo"), web.Event("message", "one"), web.Event("message", "")]


def test_events_as_a_whole():
    assert list(web.events([b"\xef\xbb\xbf" + STREAM])) == EVENTS


@pytest.mark.parametrize("cut", range(1, len(STREAM)))
def test_events_cut_anywhere(cut):
    assert list(web.events([STREAM[:cut], STREAM[cut:]])) == EVENTS


def test_events_byte_by_byte():
    assert list(web.events(bytes([byte]) for byte in STREAM)) == EVENTS


def test_a_large_event_takes_linear_time():
    line = b"data: " + b"x" * 8_000_000 + b"\n\n"
    (event,) = web.events(line[start:start + 1000] for start in range(0, len(line), 1000))
    assert len(event.data) == 8_000_000


@pytest.mark.parametrize("piece", [b"data: " + b"x" * 1000, b"data: " + b"x" * 1000 + b"\n"])
def test_an_endless_event_ends(monkeypatch, piece):
    monkeypatch.setattr(web, "EVENT_BYTES", 10_000)
    with pytest.raises(web.TooLarge):
        list(web.events(piece for _ in range(100)))
