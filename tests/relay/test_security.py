"""Who may do what: the token, the loopback, Host and Origin, private files, bounded input, masked secrets."""

import ast
import base64
import hashlib
import http.client
import json
import os
import re
import select
import signal
import socket
import stat

import pytest

import support
from hubs import call

ROUTES = [("GET", "/api/runs"), ("GET", "/api/runs/x"), ("GET", "/api/runs/x/events"), ("DELETE", "/api/runs/x"),
          ("GET", "/api/holds"), ("GET", "/api/holds?wait=1"), ("GET", "/api/holds/x"), ("POST", "/api/holds/x"),
          ("GET", "/api/breakpoints"), ("POST", "/api/breakpoints"), ("DELETE", "/api/breakpoints/x"), ("PUT",
                                                                                                        "/api/mode"),
          ("GET", "/api/stream"), ("GET", "/api/runs/x/export?format=jsonl"), ("POST", "/api/attach")]


@pytest.mark.parametrize("authorization", [None, "", "Bearer", "Bearer ", "Bearer wrong", "Basic dTpw", "token x",
                                           "TOKEN", "Bearer TOKENx", "Bearer x TOKEN", "Bearer \xff"])
def test_every_route_needs_the_token(module_hub, authorization):
    hub = module_hub
    for method, path in ROUTES:
        headers = {"Content-Type": "application/json"}
        if authorization is not None:
            headers["Authorization"] = authorization.replace("TOKEN", hub.token)
        if path == "/api/attach":
            headers.update(Upgrade="mcp-relay/1", Connection="Upgrade")
        answer = hub.ask(method, path, b"{}" if method in ("POST", "PUT") else None, headers=headers)
        assert answer.status == 401 and answer.json["error"]["message"], (method, path)
        assert hub.token not in json.dumps(answer.json)


@pytest.mark.parametrize("path", ["/api/runs?token=TOKEN", "/api/runs?xtoken=TOKEN", "/api/runs#token=TOKEN"])
def test_a_token_in_the_address_is_not_read(hub, path):
    assert hub.ask("GET", path.replace("TOKEN", hub.token), headers={}).status == 401
    assert hub.ask("GET", "/api/runs", headers={"Cookie": "token=" + hub.token}).status == 401


HOSTS = [("127.0.0.1:PORT", True), ("localhost:PORT", True), ("127.0.0.1", True), ("[::1]:PORT", True), ("", False),
         ("evil.example", False), ("evil.example:PORT", False), ("127.0.0.1.evil.example", False),
         ("localhost.evil.example:PORT", False), ("10.0.0.1:PORT", False), ("0.0.0.0:PORT", False),
         ("127.0.0.1@evil.example", False), ("evil.example#127.0.0.1", False)]


@pytest.mark.parametrize("host, allowed", HOSTS)
def test_foreign_hosts_are_refused(module_hub, host, allowed):
    """DNS rebinding: a page of another site whose name points to 127.0.0.1 sends its own Host."""
    headers = module_hub.headers(Host=host.replace("PORT", str(module_hub.port)))
    for path in ("/", "/api/health", "/api/runs"):
        assert module_hub.ask("GET", path, headers=headers).status == (200 if allowed else 403), path


ORIGINS = [("http://127.0.0.1:PORT", True), ("http://localhost:PORT", True), ("http://evil.example", False), ("null",
                                                                                                              False),
           ("http://127.0.0.1:1", False), ("https://127.0.0.1:PORT", False), ("http://127.0.0.1", False), ("file://",
                                                                                                           False),
           ("http://127.0.0.1:PORT.evil.example", False), ("http://localhost.evil.example:PORT", False), ("", False)]


@pytest.mark.parametrize("origin, allowed", ORIGINS)
def test_foreign_origins_are_refused(module_hub, origin, allowed):
    headers = module_hub.headers(Origin=origin.replace("PORT", str(module_hub.port)),
                                 **{"Content-Type": "application/json"})
    for method, path in (("GET", "/api/runs"), ("PUT", "/api/mode"), ("GET", "/api/health"), ("GET", "/api/stream")):
        if allowed and path == "/api/stream":
            continue  # an endless answer; the other routes show that the origin passes
        answer = module_hub.ask(method, path, b'{"mode":"run"}' if method == "PUT" else None, headers=headers)
        assert (answer.status in (200, 204)) == allowed and (allowed or answer.status == 403), (method, path)


@pytest.mark.parametrize("method, path", ROUTES[:13] + [("GET", "/"), ("GET", "/api/health"), ("GET", "/nothing"),
                                                        ("OPTIONS", "/api/runs"), ("HEAD", "/")])
def test_every_response_carries_the_security_headers_and_none_of_cors(hub, method, path):
    if path == "/api/stream":
        answer_headers = hub.watch(path).response.headers
    else:
        answer_headers = hub.ask(method, path, b"{}" if method in ("POST", "PUT") else None, headers=hub.headers(
            Origin="http://127.0.0.1:%d" % hub.port, **{"Content-Type": "application/json"})).headers
    policy = answer_headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe-inline" not in policy and "unsafe-eval" not in policy and "*" not in policy
    assert answer_headers["X-Content-Type-Options"] == "nosniff" and answer_headers["Referrer-Policy"] == "no-referrer"
    assert not [name for name in answer_headers if name.lower().startswith("access-control-")]
    if path.startswith("/api"):
        assert "no-store" in answer_headers["Cache-Control"]


def test_the_page_loads_under_its_own_policy(hub):
    """Every inline script and style of the page is named by its hash."""
    answer = hub.ask("GET", "/", headers={})
    policy = answer.headers["Content-Security-Policy"]
    page = answer.body.decode("utf-8")
    for tag in ("script", "style"):
        blocks = re.findall(r"<%s(?![^>]*application/json)[^>]*>(.*?)</%s>" % (tag, tag), page, re.S)
        assert blocks
        for block in blocks:
            digest = base64.b64encode(hashlib.sha256(block.encode("utf-8")).digest()).decode()
            assert "'sha256-%s'" % digest in policy


def test_the_hub_listens_on_the_loopback_only(hub):
    with open("/proc/net/tcp") as table:
        listening = [line.split()[1] for line in table.readlines()[1:] if line.split()[3] == "0A"]
    mine = [address for address in listening if int(address.split(":")[1], 16) == hub.port]
    assert mine == ["0100007F:%04X" % hub.port]


def test_files_are_private(attach, hub):
    attach(hub).handshake()
    address = os.path.join(hub.home, "hub-%d.json" % hub.port)
    assert stat.S_IMODE(os.stat(hub.home).st_mode) == 0o700
    for path in [address] + [hub.db + suffix for suffix in ("", "-wal", "-shm")]:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600, path
    with open(address) as file:
        told = json.load(file)
    assert {"port", "pid", "url", "token", "version"} <= set(told)
    assert told["port"] == hub.port and told["pid"] == hub.session.pid
    assert told["token"] not in told["url"].split("#")[0]
    assert len(told["token"]) >= 32


def test_private_even_with_an_open_umask_and_an_existing_folder(own_hub, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o755)
    (tmp_path / "runs.db").touch()
    (tmp_path / "runs.db").chmod(0o666)
    before = os.umask(0)
    try:
        hub = own_hub()
    finally:
        os.umask(before)
    hub.get("/api/runs")
    assert stat.S_IMODE(os.stat(os.path.join(hub.home, "hub-%d.json" % hub.port)).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(hub.db).st_mode) == 0o600


def test_a_planted_link_is_not_followed(own_hub, tmp_path):
    """Somebody put a link where the address file belongs: its target must not receive the token."""
    home, target = tmp_path / "home", tmp_path / "target"
    home.mkdir(0o700)
    target.write_text("mine")
    holder, port = support.reserve_port()
    holder.close()
    (home / ("hub-%d.json" % port)).symlink_to(target)
    own_hub(port=port)
    assert target.read_text() == "mine"


def test_the_address_file_is_removed_on_exit(own_hub):
    hub = own_hub()
    path = os.path.join(hub.home, "hub-%d.json" % hub.port)
    assert os.path.exists(path)
    hub.session.signal(signal.SIGTERM)
    result = hub.session.wait()
    assert not os.path.exists(path) and b"Traceback" not in result.err


def test_each_start_has_a_token_of_its_own(own_hub, tmp_path):
    one, other = own_hub(folder=tmp_path / "a"), own_hub(folder=tmp_path / "b")
    assert one.token != other.token
    assert one.ask("GET", "/api/runs", headers={"Authorization": "Bearer " + other.token}).status == 401


@pytest.mark.parametrize("length, body", [(None, b"x" * (32 << 20)), (1 << 40, b"{}")], ids=["sent", "announced"])
def test_bodies_are_bounded(hub, length, body):
    """The answer may come before the body was read; what counts is that it is refused and the hub lives."""
    with socket.create_connection(("127.0.0.1", hub.port), timeout=support.LIMIT_S) as connection:
        connection.sendall(b"PUT /api/mode HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\n"
                           b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                           % (hub.token.encode(), length or len(body)))
        try:
            connection.sendall(body)
        except OSError:
            pass  # it stopped listening, which is one way to refuse
        try:
            answer = connection.recv(100)
        except OSError:
            answer = b""
    assert answer == b"" or re.match(rb"HTTP/1\.[01] 41[13] ", answer)
    assert hub.ask("GET", "/api/health").status == 200


def test_chunked_bodies_are_refused_not_misread(hub):
    with socket.create_connection(("127.0.0.1", hub.port), timeout=support.LIMIT_S) as connection:
        connection.sendall(b"PUT /api/mode HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\n"
                           b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
                           b"f\r\n{\"mode\":\"step\"}\r\n0\r\n\r\n" % hub.token.encode())
        assert re.match(rb"HTTP/1\.[01] 4\d\d ", connection.recv(1000))
    assert hub.get("/api/breakpoints")["mode"] == "run"


def test_waits_are_bounded_in_number(hub):
    """More long polls than the hub takes at once are told so; the API stays usable."""
    connections = []
    try:
        for _ in range(200):
            connection = http.client.HTTPConnection("127.0.0.1", hub.port, timeout=support.LIMIT_S)
            connection.request("GET", "/api/holds?wait=100", headers=hub.headers())
            connections.append(connection)
        readable, _, _ = select.select([connection.sock for connection in connections], [], [], support.LIMIT_S)
        assert readable
        refused = next(connection for connection in connections if connection.sock in readable)
        assert refused.getresponse().status == 429
        assert hub.ask("GET", "/api/health").status == 200 and hub.get("/api/runs")
    finally:
        for connection in connections:
            connection.close()


def test_nothing_of_the_token_in_logs(hub):
    hub.ask("GET", "/api/runs?token=" + hub.token)
    hub.ask("GET", "/?token=" + hub.token)
    said = (hub.session.out + hub.session.err).decode()
    assert hub.token not in said.replace("#token=" + hub.token, "")


def test_tokens_are_compared_in_constant_time():
    with open(support.RELAY, encoding="utf-8") as source:
        tree = ast.parse(source.read())
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert "compare_digest" in used


SECRETS = [
    (["--api-key", "sk-hush"], "sk-hush"), (["--api-key=sk-hush"], "sk-hush"), (["-e", "TOKEN=hush-1"], "hush-1"),
    (["GITHUB_TOKEN=hush-2"], "hush-2"), (["--password", "hush-3"], "hush-3"), (["https://user:hush4@host/x"], "hush4"),
    (["https://host/?token=hush5&x=1"], "hush5"), (["--header", "Authorization: Bearer hush6"], "hush6"),
    (["--client-secret", "hush7"], "hush7"), (["DB_PASSWORD=hush8"], "hush8"), (["--access-token", "hush9"], "hush9"),
    (["postgres://u:hush10@db/x"], "hush10")]


@pytest.mark.parametrize("arguments, secret", SECRETS, ids=[each[1] for each in SECRETS])
def test_secrets_in_the_command_line_are_masked_everywhere_but_for_the_server(attach, hub, arguments, secret):
    hub.clear_breakpoints()
    debugged = attach(hub, "--trace", server="echo_frames", arguments=arguments)
    debugged.send(call(1, "t")).answered(b"\n")
    result, events = debugged.finish()
    assert secret not in json.dumps(events)
    assert secret not in json.dumps(hub.get("/api/runs/" + debugged.run))
    assert secret.encode() not in result.err + hub.session.out + hub.session.err
    for path in ("/api/runs/%s/export?format=jsonl", "/api/runs/%s/export?format=html"):
        assert secret.encode() not in hub.ask("GET", path % debugged.run).body
    assert debugged.tag in json.dumps(events)  # the harmless argument is still there


@pytest.mark.parametrize("arguments, secret", SECRETS[:4])
def test_secrets_are_masked_in_failure_messages(run, arguments, secret):
    result = run(server=["no-such-mcp-server"] + arguments)
    assert secret.encode() not in result.err
    result = run("--mask", server=["no-such-mcp-server"] + arguments,
                 data=b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"x"}}\n')
    assert secret.encode() not in result.err + result.out


@pytest.mark.parametrize("harmless", [["--max_tokens", "5"], ["--tokenizer", "gpt"], ["--port", "80"], ["a=b"],
                                      ["https://host/path?page=2"]])
def test_harmless_arguments_stay_readable(attach, hub, harmless):
    debugged = attach(hub, server="echo_frames", arguments=harmless)
    session = debugged.watch.wait_event("node.started", lambda event: event["node"] == "mcp:session")
    assert " ".join(harmless) in " ".join(session["input"]["args"])


def test_no_route_starts_a_program(hub):
    """Bodies that name commands change nothing: only what the contract names is read."""
    marker = os.path.join(hub.home, "started")
    evil = {"command": "touch", "args": [marker], "cmd": "touch " + marker, "action": "continue", "mode": "run"}
    for method, path in ROUTES:
        if method in ("POST", "PUT") and path != "/api/attach":
            hub.ask(method, path, evil)
    assert not os.path.exists(marker)
    with open(support.RELAY, encoding="utf-8") as source:
        text = source.read()
    assert "shell=True" not in text and "os.system" not in text and "os.popen" not in text


def test_the_relay_opens_no_listening_socket(attach, hub):
    debugged = attach(hub)
    inodes = set()
    for descriptor in os.listdir("/proc/%d/fd" % debugged.session.pid):
        try:
            inodes.add(os.readlink("/proc/%d/fd/%s" % (debugged.session.pid, descriptor)))
        except OSError:
            pass  # it was closed between the two calls
    with open("/proc/net/tcp") as table:
        listening = {"socket:[%s]" % line.split()[9] for line in table.readlines()[1:] if line.split()[3] == "0A"}
    assert not inodes & listening


def test_the_browser_is_not_told_a_name_that_resolves_elsewhere(hub):
    said = hub.session.out + hub.session.err
    assert b"http://127.0.0.1:%d/#token=" % hub.port in said and b"localhost" not in said
