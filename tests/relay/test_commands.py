"""The commands of the hub, used like a person, a script and an agent would: output, --json, exit codes."""

import json
import os
import shlex
import signal
import subprocess
import sys

import pytest

import support
from hubs import call, request

OK, FAILED, USAGE, NO_HUB, NO_SUCH, NOT_ALLOWED, REFUSED, TAKEN, TIMED_OUT = range(9)


@pytest.fixture
def command(relay_file):
    """command(hub, *words, input=None) -> Result of one finished command."""

    def run(hub, *words, stdin=b""):
        argv = [sys.executable, "-I", "-S", relay_file, *map(str, words), "--port", str(hub.port), "--home", hub.home]
        done = subprocess.run(argv, input=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=support.LIMIT_S,
                              env=hub.environment)
        assert b"Traceback" not in done.stderr
        return support.Result(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def held(attach, hub):
    """(debugged, hold): tools/call #1 with hostile text in it is held."""
    hub.set_breakpoint(kind="tool")
    debugged = attach(hub)
    debugged.send(call(1, "echo", {"text": "a\u202eb\x1b[2J"}))
    return debugged, debugged.hold()


COMMANDS = [["runs"], ["show", "x"], ["holds"], ["wait", "--timeout", "1"], ["resume", "x"], ["break"], ["break",
                                                                                                         "list"],
            ["break", "add", "--name", "x"], ["break", "rm", "x"], ["mode", "step"]]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_without_a_hub(relay_file, nowhere, words):
    home, port = nowhere
    done = subprocess.run([sys.executable, "-I", "-S", relay_file, *words, "--port", str(port), "--home", str(home)],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=support.LIMIT_S, env={})
    assert (done.returncode, done.stdout) == (NO_HUB, b"")
    [line] = support.our_lines(done.stderr)
    assert str(port) in line and "serve" in line


BAD = [["runs", "--nope"], ["show"], ["resume"], ["resume", "x", "--action", "explode"], ["break", "explode"],
       ["break", "rm"],
       ["mode"], ["mode", "fast"], ["wait", "--timeout", "soon"], ["wait", "--timeout", "-1"],
       ["resume", "x", "--value", "{"], ["resume", "x", "--arguments", "[1"], ["resume", "x", "--value",
                                                                               "@/no/such/file"],
       ["break", "add", "--point", "sometimes"]]


@pytest.mark.parametrize("words", BAD, ids=" ".join)
def test_bad_usage_is_one_sentence(hub, command, words):
    result = command(hub, *words)
    assert result.code == USAGE and result.out == b"" and len(result.err.decode().strip().splitlines()) <= 2


def test_a_wrong_token_is_not_allowed(hub, command, tmp_path):
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    with open(os.path.join(hub.home, "hub-%d.json" % hub.port)) as file:
        address = dict(json.load(file), token="wrong")
    (home / ("hub-%d.json" % hub.port)).write_text(json.dumps(address))

    class Elsewhere:
        port, home, environment = hub.port, str(tmp_path / "home"), hub.environment

    assert command(Elsewhere, "runs").code == NOT_ALLOWED


# runs, show


def test_runs_and_show(attach, hub, command):
    debugged = attach(hub).handshake()
    debugged.send(call(1, "echo", {"text": "hello"})).answered(b"hello")
    debugged.finish()
    listed = command(hub, "runs")
    assert listed.code == OK and debugged.run.encode() in listed.out and debugged.tag.encode() in listed.out
    parsed = json.loads(command(hub, "runs", "--json").out)
    assert debugged.run in [run["run"] for run in parsed["runs"]]
    shown = command(hub, "show", debugged.run)
    assert shown.code == OK and b"tool:echo" in shown.out and b"initialize" in shown.out
    lines = [json.loads(line) for line in command(hub, "show", debugged.run, "--json").out.splitlines()]
    events = [line for line in lines if "seq" in line] or lines[0]["events"]
    assert events == hub.get("/api/runs/%s/events" % debugged.run)["events"]


def test_show_of_an_unknown_run(hub, command):
    result = command(hub, "show", "no-such-run")
    assert (result.code, result.out) == (NO_SUCH, b"") and support.our_lines(result.err)


def test_show_follows_a_run_to_its_end(attach, hub, relay_file):
    debugged = attach(hub).handshake()
    follower = support.Session([sys.executable, "-I", "-S", relay_file, "show", debugged.run, "--follow", "--port",
                                str(hub.port),
                                "--home", hub.home], env=hub.environment)
    try:
        follower.wait_out(b"initialize")
        debugged.send(call(1, "echo", {"text": "later"}))
        follower.wait_out(b"tool:echo")
        debugged.finish()
        assert follower.wait().code == OK
    finally:
        follower.destroy()


# holds, wait, resume


def test_holds(held, hub, command):
    debugged, hold = held
    result = command(hub, "holds")
    assert result.code == OK and hold["hold"].encode() in result.out and b"echo" in result.out
    assert json.loads(command(hub, "holds", "--json").out)["holds"] == [hold]
    debugged.release(hold)


def test_wait_prints_what_is_held_and_commands_to_paste(held, hub, command, relay_file):
    """The release command it prints, pasted as it is into a shell, works."""
    debugged, hold = held
    result = command(hub, "wait", "--run", debugged.run, "--timeout", "20")
    text = result.out.decode()
    assert result.code == OK and hold["hold"] in text and "echo" in text and "before" in text and "breakpoint" in text
    assert not support.dangerous(text)
    pasted = [line.strip() for line in text.splitlines() if "resume" in line and hold["hold"] in line]
    assert pasted and any("inject" in line for line in pasted) and any("abort" in line for line in pasted)
    line = next(line for line in pasted if "continue" in line or "--action" not in line)
    words = shlex.split(line)
    done = subprocess.run([sys.executable, relay_file, *words[words.index("resume"):]], env=hub.environment,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=support.LIMIT_S)
    assert done.returncode == OK, (line, done.stderr)
    debugged.answered(b'"id": 1}')


def test_wait_as_json(held, hub, command):
    debugged, hold = held
    told = json.loads(command(hub, "wait", "--json", "--timeout", "20").out)
    assert told["holds"][0]["hold"] == hold["hold"] if "holds" in told else told["hold"] == hold["hold"]
    debugged.release(hold)


def test_wait_is_woken_by_a_hold(attach, hub, relay_file):
    hub.set_breakpoint(kind="tool")
    debugged = attach(hub).handshake()
    waiting = support.Session([sys.executable, "-I", "-S", relay_file, "wait", "--run", debugged.run, "--timeout",
                               "100", "--port",
                               str(hub.port), "--home", hub.home], env=hub.environment)
    try:
        debugged.send(call(1, "echo"))
        result = waiting.wait()
        assert result.code == OK and b"echo" in result.out
    finally:
        waiting.destroy()
    debugged.release(debugged.hold())


def test_wait_times_out(attach, hub, command):
    debugged = attach(hub)
    result = command(hub, "wait", "--run", debugged.run, "--timeout", "0.2")
    assert result.code == TIMED_OUT and support.our_lines(result.err)
    assert json.loads(command(hub, "wait", "--run", debugged.run, "--timeout", "0.2",
                              "--json").out or b"{}") is not None


def test_wait_for_a_run_that_is_over_or_unknown(attach, hub, command):
    debugged = attach(hub)
    debugged.finish()
    assert command(hub, "wait", "--run", debugged.run, "--timeout", "50").code == NO_SUCH
    assert command(hub, "wait", "--run", "no-such-run", "--timeout", "50").code == NO_SUCH


@pytest.mark.parametrize("words, stdin, expected", [
    ([], b"", b"a"), (["--action", "continue"], b"", b"a"), (["--action", "abort"], b"", b"-32099"),
    (["--action", "inject", "--value", '"by hand"'], b"", b"by hand"), (["--action", "inject", "--value", "-"],
                                                                        b'"from stdin"', b"from stdin"),
    (["--action", "inject", "--value", "@FILE"], b"", b"9007199254740993"),
    (["--arguments", '{"text":"edited"}'], b"", b"edited"), (["--arguments", "-"], b'{"text":"piped"}', b"piped")],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "")
def test_resume(held, hub, command, tmp_path, words, stdin, expected):
    debugged, hold = held
    (tmp_path / "value.json").write_text('{"content":[],"structuredContent":{"n":9007199254740993}}')
    words = [word.replace("@FILE", "@%s" % (tmp_path / "value.json")) for word in words]
    result = command(hub, "resume", hold["hold"], *words, stdin=stdin)
    assert result.code == OK, result
    debugged.answered(expected)
    debugged.watch.wait_event("hold.released", lambda event: event["hold"] == hold["hold"])


def test_resume_of_what_is_not_held(held, hub, command):
    debugged, hold = held
    assert command(hub, "resume", "no-such-hold").code == NO_SUCH
    assert command(hub, "resume", hold["hold"], "--json").code == OK
    debugged.watch.wait_event("hold.released")
    late = command(hub, "resume", hold["hold"], "--action", "abort")
    assert late.code == TAKEN and support.our_lines(late.err)


def test_a_refused_resume_stays_held(held, hub, command):
    debugged, hold = held
    debugged.send(b"")
    refused = command(hub, "resume", hold["hold"], "--action", "abort", "--arguments", "{}")
    assert refused.code == REFUSED and support.our_lines(refused.err)
    assert hub.get("/api/holds/" + hold["hold"])["hold"] == hold["hold"]
    debugged.release(hold)


# break, mode


def test_breakpoints(hub, command):
    hub.clear_breakpoints()
    added = command(hub, "break", "add", "--kind", "tool", "--name", "x y", "--point", "after")
    assert added.code == OK
    [breakpoint_] = hub.get("/api/breakpoints")["breakpoints"]
    assert {key: breakpoint_[key] for key in ("kind", "name", "point")} == {"kind": "tool", "name": "x y",
                                                                            "point": "after"}
    for words in (["break"], ["break", "list"]):
        listed = command(hub, *words)
        assert listed.code == OK and b"x y" in listed.out and str(breakpoint_["id"]).encode() in listed.out
    assert json.loads(command(hub, "break", "list", "--json").out) == hub.get("/api/breakpoints")
    assert command(hub, "break", "rm", breakpoint_["id"]).code == OK
    assert command(hub, "break", "rm", breakpoint_["id"]).code == NO_SUCH
    assert command(hub, "break", "add").code == OK
    assert hub.get("/api/breakpoints")["breakpoints"][0]["point"] == "before"


def test_mode(hub, command):
    for mode in ("step", "run"):
        assert command(hub, "mode", mode).code == OK
        assert hub.get("/api/breakpoints")["mode"] == mode


def test_hostile_names_are_escaped_on_every_screen(attach, hub, command):
    debugged = attach(hub, server="echo_frames")
    debugged.send(request(1, "evil\\u001b[2J\\u202e\\ud800", {"x": 1}))
    debugged.send(call(2, "t\\u001b]0;x\\u0007"))
    debugged.answered(b"tools/call")
    debugged.finish()
    for words in (["runs"], ["show", debugged.run], ["holds"]):
        result = command(hub, *words)
        assert result.code == OK and not support.dangerous(result.out.decode("utf-8"))


def test_commands_work_in_the_c_locale(attach, hub, relay_file):
    debugged = attach(hub, server="echo_frames")
    debugged.send(call(1, "漢字"))
    debugged.answered(b"tools/call")
    done = subprocess.run([sys.executable, "-I", "-S", relay_file, "show", debugged.run, "--port", str(hub.port),
                           "--home", hub.home],
                          env={"LC_ALL": "C"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=support.LIMIT_S)
    assert done.returncode == OK and done.stderr == b""


def test_a_pipe_that_closes_early_is_no_traceback(attach, hub, relay_file):
    debugged = attach(hub)
    debugged.send(b"".join(call(n, "echo", {"n": n}) for n in range(300)))
    debugged.finished("tool:echo", 300)
    done = subprocess.run(["sh", "-c", '"$@" | head -n 1', "sh", sys.executable, "-I", "-S", relay_file, "show",
                           debugged.run, "--port",
                           str(hub.port), "--home", hub.home], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env=hub.environment, timeout=support.LIMIT_S)
    assert done.stdout.count(b"\n") == 1 and b"Traceback" not in done.stderr and b"BrokenPipe" not in done.stderr


# serve


def test_serve_on_a_taken_port_says_by_whom(hub, relay_file):
    done = subprocess.run([sys.executable, "-I", "-S", relay_file, "serve", "--port", str(hub.port), "--db",
                           ":memory:"],
                          env=hub.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=support.LIMIT_S)
    [line] = support.our_lines(done.stderr)
    assert done.returncode == FAILED and str(hub.port) in line and "debugger" in line
    assert hub.get("/api/runs")  # the first hub's address file still serves


def test_serve_on_a_port_of_something_else(relay_file, tmp_path):
    holder, port = support.reserve_port()
    holder.listen(1)
    done = subprocess.run([sys.executable, "-I", "-S", relay_file, "serve", "--port", str(port), "--db", ":memory:"],
                          env=support.quiet_environment(tmp_path, port), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=support.LIMIT_S)
    holder.close()
    assert done.returncode == FAILED and len(support.our_lines(done.stderr)) == 1


def test_serve_as_json_prints_one_line_without_a_token(own_hub):
    hub = own_hub("--json")
    told = json.loads(hub.session.out)
    assert told["port"] == hub.port and told["pid"] == hub.session.pid and told["url"]
    assert hub.token not in (hub.session.out + hub.session.err).decode()


@pytest.mark.parametrize("name, code", [("SIGTERM", 143), ("SIGINT", 130)])
def test_serve_ends_in_order(own_hub, name, code):
    hub = own_hub()
    hub.session.signal(getattr(signal, name))
    result = hub.session.wait()
    assert result.code in (0, code) and b"Traceback" not in result.err


PAUSE = [("on", [{"point": "error"}]), ("off", []), ("tool", [{"kind": "tool", "point": "error"}])]


@pytest.mark.parametrize("value, breakpoints", PAUSE)
def test_pause_on_error(own_hub, value, breakpoints):
    hub = own_hub("--pause-on-error", value)
    armed = hub.get("/api/breakpoints")["breakpoints"]
    assert [{key: each[key] for key in each if key != "id"} for each in armed] == breakpoints


@pytest.mark.parametrize("words", [["--pause-on-error", "sometimes"], ["--port", "x"], ["--unattended-after", "soon"],
                                   ["--page", "/no/such/page.html"], ["--nope"], ["extra"]], ids=" ".join)
def test_bad_options_of_serve(relay_file, tmp_path, words):
    holder, port = support.reserve_port()
    holder.close()
    done = subprocess.run([sys.executable, "-I", "-S", relay_file, "serve", "--db", ":memory:", *words],
                          env=support.quiet_environment(tmp_path, port), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=support.LIMIT_S)
    assert done.returncode in (FAILED, USAGE) and done.stdout == b"" and support.our_lines(done.stderr)


def test_a_page_of_ones_own(own_hub, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("<!doctype html><title>mine</title>")
    hub = own_hub("--page", str(page))
    assert b"<title>mine</title>" in hub.ask("GET", "/", headers={}).body
    page.write_text("<!doctype html><title>edited</title>")
    assert b"<title>edited</title>" in hub.ask("GET", "/", headers={}).body  # edit and reload


# --serve: the hub inside the relay


def test_a_relay_can_host_the_hub(start, tmp_path):
    holder, port = support.reserve_port()
    holder.close()
    environment = support.quiet_environment(tmp_path, port)
    session = start("--serve", "--port", port, "--home", tmp_path, server=support.server("raw", "--tag", "tag-host"),
                    env=environment)
    session.send(call(1, "echo", {"text": "hosted"})).wait_out(b"hosted")
    session.wait_err(b"127.0.0.1:%d" % port)
    assert session.out.count(b"\n") == 1  # nothing of ours on stdout
    second = start("--serve", "--port", port, "--home", tmp_path, server=support.server("raw", "--tag", "tag-guest"),
                   env=environment)  # the port is taken: it uses the hub that is there
    second.send(call(1, "echo", {"text": "guest"})).wait_out(b"guest")
    assert second.finish().code == 0
    assert session.finish().code == 0
    assert not os.path.exists(str(tmp_path / ("hub-%d.json" % port)))


# demo


@pytest.mark.slow
def test_demo_once_ends_by_itself(relay_file, tmp_path):
    done = subprocess.run([sys.executable, "-I", "-S", relay_file, "demo", "--once"], stdin=subprocess.DEVNULL,
                          env=support.quiet_environment(tmp_path, 1), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=120)
    assert done.returncode == 0 and b"Traceback" not in done.stderr + done.stdout
    assert b"http://127.0.0.1:" in done.stdout + done.stderr


def test_demo_serves_until_it_is_ended(relay_file, tmp_path):
    holder, port = support.reserve_port()
    holder.close()
    session = support.Session([sys.executable, "-I", "-S", relay_file, "demo", "--port", str(port)],
                              env=support.quiet_environment(tmp_path, port))
    try:
        session.wait_until(lambda: b"#token=" in session.out + session.err, "the address of the demo")
        session.signal(signal.SIGINT)
        result = session.wait()
        assert result.code in (0, 130) and b"Traceback" not in result.err
    finally:
        session.destroy()
