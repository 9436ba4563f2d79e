"""A local HTTP server whose answers a test writes as functions."""

import http.server
import json
import ssl
import threading

from tests.plans.doubles import LIMIT_S


class Request(http.server.BaseHTTPRequestHandler):
    """One request, as the test's function gets it: `method`, `path`, `headers`, `body`, and ways to answer."""

    protocol_version = "HTTP/1.1"

    def _handle(self):
        self.method = self.command
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        service = self.server.service
        service.requests.append(self)
        try:
            service.handle(self)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client is gone, which is what some tests are about

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_PATCH = _handle

    @property
    def json(self):
        return json.loads(self.body)

    def reply(self, status=200, body=b"", kind="application/json", **headers):
        """Answer with a whole body: bytes, text, or any other value as JSON."""
        if not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        data = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": len(data), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.method != "HEAD":
            self.wfile.write(data)

    def stream(self, kind="text/event-stream", **headers):
        """Begin a chunked answer; go on with write and end."""
        self.send_response(200)
        for name, value in {"Content-Type": kind, "Transfer-Encoding": "chunked", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def write(self, data):
        data = data.encode() if isinstance(data, str) else data
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def event(self, data, name=None):
        """Write one server-sent event; a value that is no text is written as JSON."""
        text = data if isinstance(data, str) else json.dumps(data)
        self.write((f"event: {name}\n" if name else "") + f"data: {text}\n\n")

    def end(self):
        self.wfile.write(b"0\r\n\r\n")

    def wait_until_gone(self):
        """Block until the client has closed the connection."""
        self.connection.settimeout(LIMIT_S)
        try:
            while self.connection.recv(65536):
                pass
        except (ConnectionResetError, ssl.SSLError):  # TLS calls a plain end of the connection an error
            pass
        self.close_connection = True

    def log_message(self, *parts):
        """Say nothing: tests look at the requests."""


class Service:
    """The server. handle: Request → None; it answers. requests: what came, in order. url: where it is.

    certificate: PEM file with key and certificate, for https.
    """

    def __init__(self, handle, certificate=None):
        self.handle = handle
        self.requests = []
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Request)
        self._server.service = self
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        if certificate:
            self.url = f"https://localhost:{self.port}"
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), name="test.http", daemon=True)
        self._thread.start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(LIMIT_S)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()
