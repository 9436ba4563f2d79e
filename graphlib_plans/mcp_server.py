"""`graph mcp serve`: plans and their authoring as MCP tools over stdin and stdout, in both eras of the protocol.

    fd 0 ─▶ mcp.read ─▶ Server.take ─▶ mcp.call.N ─▶ mcp_calls ─▶ Exchange.reply ─┐
                             │ ping, cancel, answers to questions                 ▼
                             └──────────────────────────────────────────▶ Outbox ─▶ mcp.write ─▶ fd 1

Up to 2025-11-25 a client opens with `initialize`; from 2026-07-28 every request says in its `_meta` which version it is
in and what its client can do. Which of the two is in force is decided message by message, by what arrives.

| thread | blocks on | woken by |
|---|---|---|
| main | a pipe that tells of ends | end of stdin, SIGTERM, SIGINT, SIGHUP, a client that is gone, mcp.finish |
| mcp.finish | calls that end, and what must be closed | their end, a limit |
| mcp.read | stdin; room in the outbox when the client does not read | bytes, end of file |
| mcp.write, mcp.log | their outbox | a line |
| mcp.call.N | a task; what the call waits for | a request, a cancel, an answer |
| mcp.watch | WATCH_S | the end |

Only the reading thread takes messages in, and it never waits for a call: ping, cancels and answers are always heard.
What the first answer does not need is imported after it, because hosts wait for that answer.
"""

import contextlib
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path

from . import config, documents, wire
from .errors import ConfigError, PlanError, shorten
from .mcp_streams import KEY, LEGACY_VERSIONS, MODERN_VERSIONS, OUT_BYTES, SERVER_INFO, Batch, Crew, Exchange, Outbox

#: The one version in which a line may hold several messages.
BATCH_VERSION = "2025-03-26"
#: The first version with elicitation.
ELICITATION_SINCE = "2025-06-18"

#: MCP 2026-07-28: an undeclared capability is needed; the version is not supported.
MISSING_CAPABILITY, UNSUPPORTED_VERSION = -32021, -32022
_CAPABILITIES = {"tools": {"listChanged": True}}

#: Set by a program of this kind for the MCP servers it starts (mcp_client): how many of them stand above us.
DEPTH_VARIABLE = "GRAPH_MCP_DEPTH"

#: Threads that answer calls, at most. An open question holds one, so this is generous; idle ones are used again.
THREADS_MAX = 256
#: Requests that may wait for a thread before more are refused.
WAITING_MAX = 1000
#: Subscriptions of one client.
LISTENS_MAX = 100
#: Bytes that may wait for a client which does not read before progress is left out; see mcp_streams.OUT_BYTES.
PROGRESS_BYTES = 1024 * 1024
LOG_BYTES = 256 * 1024
#: Seconds that lines for stderr are gathered: people do not notice, and a short call writes seven of them.
LOG_GATHER_S = 0.05
#: Seconds between two looks at the files while a client is connected.
WATCH_S = 1.0
#: Seconds that calls may go on after the end of stdin. A host that wants us gone earlier sends SIGTERM (2 s later).
EOF_GRACE_S = 10.0
#: Seconds that calls may take to end once they are cancelled, and that the last lines may take to be written.
STOP_GRACE_S = 1.0

INSTRUCTIONS = (
    "Plans are reviewed pipelines of tool calls. Each plan_<name> tool runs one: call it instead of improvising the"
    " same sequence, and follow its input schema. Results carry `kind`: ran, or what went wrong and with which step.\n"
    "The graph_* tools show and edit plans. To build one: graph_tools_list and graph_tools_show tell what a step can"
    " call; graph_plan_new makes a plan (or graph_plan_draft writes a first version, once); graph_plan_step_add,"
    " graph_plan_set and the other edits shape it, and a refused edit says what it would break; graph_plan_validate"
    " lists what is left. Then it is served as plan_<identifier>, in this session. Correct a plan with edits, never by"
    " drafting it again.\n"
    "A call that timed out may still have run: graph_run_list and graph_run_show tell."
)


def serve(directory=None, *, environ=None):
    """Serve plans on the process's stdin and stdout until stdin ends, and return the exit code, 0.

    directory: the project whose .graph is used (--dir), or None; a wrong one is told to the client and never ends the
    server. The descriptors 0 and 1 are moved away, so that nothing else in the process can read or write them.
    """
    environ = os.environ if environ is None else environ
    incoming, outgoing = _take_stdio()
    log = Outbox(2, "mcp.log", LOG_GATHER_S)
    out = Outbox(outgoing, "mcp.write")
    server = Server(_absolute(directory), environ, out, log)
    ends, end = os.pipe()
    os.set_blocking(end, False)  # as set_wakeup_fd wants it; a pipe full of ends has told enough
    server.on_gone = lambda: _tell(end, _INPUT_ENDED)
    previous = _on_signals(end)
    threading.Thread(target=_read, args=(server, incoming, end), name="mcp.read", daemon=True).start()
    _wait_for_the_end(server, ends, end)
    out.close(STOP_GRACE_S)
    log.close(STOP_GRACE_S)
    previous()
    return 0


#: Bytes in the pipe that the main thread reads; every other one is the number of a signal.
_INPUT_ENDED, _FINISHED = 0, 255


def _wait_for_the_end(server, ends, end):
    """Wait for the end of stdin or a signal, then until the server has finished; a signal hurries it.

    The main thread waits in a read, because Python runs signal handlers there alone, and a signal that the system gives
    to another thread wakes the main one by nothing but the byte it puts into the pipe.
    """

    def finish():
        try:
            server.finish()
        finally:
            _tell(end, _FINISHED)

    finisher = None
    while (what := os.read(ends, 1)[0]) != _FINISHED:
        if what != _INPUT_ENDED:
            server.stop("the server was told to end")
        if finisher is None:
            finisher = threading.Thread(target=finish, name="mcp.finish", daemon=True)
            finisher.start()


def _tell(end, what):
    with contextlib.suppress(BlockingIOError):
        os.write(end, bytes([what]))


def _take_stdio():
    """Return (stream, descriptor) of the protocol; afterwards 0 reads nothing and 1 is stderr."""
    incoming = os.fdopen(os.dup(0), "rb", buffering=0)
    outgoing = os.dup(1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return incoming, outgoing


def _absolute(directory):
    try:
        return None if directory is None else Path(os.path.abspath(directory))
    except OSError:  # relative to a working directory that is gone
        return Path(directory)


def _on_signals(end):
    """Have the signals that end programs put their number into a pipe; return what takes that back."""
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    before = signal.set_wakeup_fd(end, warn_on_full_buffer=False)
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name)]
    handlers = {number: signal.signal(number, lambda *_: None) for number in numbers}

    def restore():
        signal.set_wakeup_fd(before)
        for number, handler in handlers.items():
            signal.signal(number, handler)

    return restore


def _read(server, incoming, end):
    """Hand every message to the server; runs on the thread mcp.read, and its end is the end of the program."""
    try:
        for message in wire.read_messages(incoming):
            server.take(message)
    except Exception as bug:  # the outermost frame of the thread: a silent end would look like a hung server
        server.tell(f"reading broke: {type(bug).__name__}: {bug}")
    server.at_end()
    _tell(end, _INPUT_ENDED)


# The server --------------------------------------------------------------------------------------------------------


class Server:
    """What is between the streams. `take` is called by the reading thread alone; everything else by any thread.

    out, log: Outboxes for the client and for stderr.
    """

    def __init__(self, directory, environ, out, log):
        self.directory = directory
        self.environ = environ
        self.out = out
        self.log = log
        #: Called when the client is gone.
        self.on_gone = lambda: None
        out.on_gone = self._client_is_gone
        #: Of the last initialize; the newest there is before one.
        self.version = LEGACY_VERSIONS[-1]
        self.client_capabilities = {}
        self.refusal = _self_reference(environ)
        self._crew = Crew(THREADS_MAX, WAITING_MAX)
        # Protects everything below; held for an instant, never while something is sent, read or waited for.
        self._lock = threading.Lock()
        self._is_idle = threading.Condition(self._lock)
        self._exchanges = {}  # key of the id → Exchange
        self._listens = {}  # key of the id → Exchange of subscriptions/listen
        self._questions = {}  # our id → queue that gets the client's response
        self._question_count = 0
        self._is_initialized = False
        self._at_end = False
        self._stopping = None  # the reason
        self._announced = None  # text of the list of tools the client may know
        self._watch = None
        # Makes the part that is loaded after the first answer once.
        self._loading = threading.Lock()
        self._calls = None
        self._library = None
        self._end = threading.Event()

    # Arriving messages, on the reading thread

    def take(self, message):
        """Take one message in. Answers at once, or hands it to a thread."""
        self.out.wait_for_room(2 * OUT_BYTES)
        if message.kind == "batch" and not message.problem:
            self._take_batch(message)
        else:
            self._take_one(message, self.out.put)

    def _take_batch(self, message):
        if self.version != BATCH_VERSION or not self._is_initialized or not message.parts:
            text = f"a line holds one message, no array of them; only version {BATCH_VERSION} of MCP had those"
            text = "an empty array is no message" if not message.parts else text
            self.out.put(wire.error(b"null", wire.INVALID_REQUEST, text))
            return
        answered = [part for part in message.parts if part.kind not in ("notification", "response")]
        batch = Batch(len(answered), self.out.put)
        for part in message.parts:
            if part.method == "initialize" and part.kind == "request":
                batch.take(wire.error(part.id_text, wire.INVALID_REQUEST, "initialize must not be part of an array"))
            else:
                self._take_one(part, batch.take)

    def _take_one(self, message, send):
        if message.kind == "response":
            self._take_response(message)
        elif message.kind == "notification" and isinstance(message.value, dict) and "id" in message.value:
            send(wire.error(b"null", wire.INVALID_REQUEST, "an id must be a string or an integer"))
        elif message.kind == "notification":
            self._take_notification(message)
        elif message.problem:
            self.tell(f"unusable line: {message.problem}")
            send(wire.error(message.id_text, message.code or wire.INVALID_REQUEST, message.problem))
        else:
            self._take_request(message, send)

    def _take_request(self, message, send):
        params = message.value.get("params", {})
        exchange = Exchange(message, self._version_of(message), send, self.out.put)
        if not isinstance(params, dict):
            return exchange.error(wire.INVALID_PARAMS, "params must be an object")
        trouble = _meta_trouble(exchange) if exchange.is_modern else None
        if trouble:
            return exchange.error(*trouble)
        handler = (_MODERN if exchange.is_modern else _LEGACY).get(message.method)
        if handler is None:
            known = "; this server has tools only" if "/" in message.method else ""
            return exchange.error(wire.METHOD_NOT_FOUND, f"unknown method {shorten(message.method, 80)!r}{known}")
        if self.refusal and message.method != "ping":
            return exchange.error(wire.INVALID_REQUEST, self.refusal)
        with self._lock:
            is_used = message.id in self._exchanges or message.id in self._listens
            if not is_used and message.method in _ON_THREADS:
                self._exchanges[message.id] = exchange
        if is_used:
            return exchange.error(wire.INVALID_REQUEST, "a request with this id is still being answered")
        handler(self, exchange)

    def _version_of(self, message):
        """Return the version a request is in: it says so itself, or it is in that of the last initialize."""
        if message.method == "initialize":
            return self.version
        meta = message.params.get("_meta")
        is_modern = isinstance(meta, dict) and not _MODERN_KEYS.isdisjoint(meta)
        return MODERN_VERSIONS[-1] if is_modern or message.method in _MODERN_ONLY else self.version

    def _take_notification(self, message):
        if message.problem:
            self.tell(f"unusable notification: {message.problem}")
        elif message.method == "notifications/cancelled":
            self._take_cancel(message.params)
        # Any other one is news that nobody here needs; notifications are never answered.

    def _take_cancel(self, params):
        key = _id_key(params.get("requestId"))
        with self._lock:
            exchange = self._exchanges.get(key)
            listen = self._listens.pop(key, None)
        if listen is not None:
            listen.hush()
        if exchange is None or exchange.message.method == "initialize":  # too late, unknown, or must not be cancelled
            return
        reason = params.get("reason")
        reason = shorten(reason, 200) if isinstance(reason, str) and reason else "by the client"
        if exchange.is_modern or exchange.cancel is None:
            # From 2026-07-28 nothing more may be sent for it; before, that is asked of whatever has nothing to tell.
            exchange.hush()
        if exchange.cancel is not None:
            exchange.cancel.cancel(reason)

    def _take_response(self, message):
        with self._lock:
            waiting = self._questions.pop(message.id, None)
        if waiting is not None:
            waiting.put(message.value if not message.problem else {})

    # Methods: some answer at once, the others on a thread

    def ping(self, exchange):
        exchange.result({})

    def initialize(self, exchange):
        params = exchange.params
        wanted, capabilities = params.get("protocolVersion"), params.get("capabilities")
        if not isinstance(wanted, str) or not isinstance(capabilities, dict):
            return self._refuse(exchange, wire.INVALID_PARAMS, "initialize needs protocolVersion and capabilities")
        self.version = wanted if wanted in LEGACY_VERSIONS else LEGACY_VERSIONS[-1]
        self.client_capabilities = capabilities
        self._is_initialized = True
        version = self.version

        def answer():
            note = self.note()
            exchange.result(
                {
                    "protocolVersion": version,
                    "capabilities": _CAPABILITIES,
                    "serverInfo": {key: SERVER_INFO[key] for key in ("name", "version")},
                    "instructions": INSTRUCTIONS + note,
                }
            )
            self._after_hello(note)

        self._on_thread(exchange, answer)

    def discover(self, exchange):
        def answer():
            note = self.note()
            exchange.result(
                {
                    "supportedVersions": list(MODERN_VERSIONS),
                    "capabilities": _CAPABILITIES,
                    "instructions": INSTRUCTIONS + note,
                    **_NO_CACHE,
                }
            )
            self._after_hello(note)

        self._on_thread(exchange, answer)

    def tools_list(self, exchange):
        if exchange.params.get("cursor") is not None:
            return self._refuse(exchange, wire.INVALID_PARAMS, "unknown cursor: the list has one page")

        def answer():
            tools = self.calls().tool_list()
            with self._lock:
                self._announced = _text_of(tools)
            exchange.result({"tools": tools, **(_NO_CACHE if exchange.is_modern else {})})

        self._on_thread(exchange, answer)

    def tools_call(self, exchange):
        from . import tools

        name, arguments = exchange.params.get("name"), exchange.params.get("arguments")
        trouble = ""
        if not isinstance(name, str):
            trouble = "tools/call needs the name of a tool"
        elif arguments is not None and not isinstance(arguments, dict):
            trouble = f"arguments must be an object, not {documents.type_name(arguments)}"
        elif "requestState" in exchange.params and exchange.is_modern and not self._can_ask(exchange):
            text = "this call answers a question, so its client must declare the capability elicitation"
            needed = {"requiredCapabilities": {"elicitation": {"form": {}}}}
            return self._refuse(exchange, MISSING_CAPABILITY, text, needed)
        if trouble:
            return self._refuse(exchange, wire.INVALID_PARAMS, trouble)
        exchange.cancel = tools.CancelToken()
        if self._stopping is not None:
            exchange.cancel.cancel(self._stopping)
        self._on_thread(exchange, lambda: self._call(exchange, name, arguments or {}))

    def listen(self, exchange):
        wanted = exchange.params.get("notifications")
        if not isinstance(wanted, dict):
            return exchange.error(wire.INVALID_PARAMS, "subscriptions/listen needs notifications, an object")
        honoured = {"toolsListChanged": True} if wanted.get("toolsListChanged") is True else {}
        key = exchange.message.id
        with self._lock:
            is_full = len(self._listens) >= LISTENS_MAX
            if not is_full:
                self._listens[key] = exchange
        if is_full:
            return exchange.error(wire.INVALID_REQUEST, f"there are {LISTENS_MAX} subscriptions already; cancel one")
        meta = {KEY + "subscriptionId": exchange.message.value["id"]}
        params = {"notifications": honoured, "_meta": meta}
        exchange.notify(wire.encode(wire.request(None, "notifications/subscriptions/acknowledged", params)))
        self._crew.do(self._start_watching)

    def _on_thread(self, exchange, task):
        """Have the task done on a thread, which also ends the exchange."""

        def work():
            self.out.wait_for_room()
            try:
                task()
            except Exception as bug:  # the outermost frame: whatever broke, the client gets an answer
                self._log_bug(bug)
                exchange.error(wire.INTERNAL_ERROR, f"something broke inside: {type(bug).__name__}: {bug}")
            finally:
                self._forget(exchange)

        if not self._crew.do(work):
            self._forget(exchange)
            text = f"{WAITING_MAX} requests are waiting already; ask again later"
            if exchange.message.method == "tools/call":
                from . import mcp_surface

                exchange.result(mcp_surface.call_result({"kind": "refused", "error": text}, True))
            else:
                exchange.error(wire.INTERNAL_ERROR, text)

    def _refuse(self, exchange, code, text, data=None):
        self._forget(exchange)
        exchange.error(code, text, data)

    def _forget(self, exchange):
        with self._lock:
            if self._exchanges.get(exchange.message.id) is exchange:
                del self._exchanges[exchange.message.id]
            self._is_idle.notify_all()

    # What is told about the configuration

    def note(self):
        """Return what the calling model must know besides INSTRUCTIONS: why there are no plans; "" when all is well."""
        try:
            if self.directory is not None and not self.directory.is_dir():
                raise ConfigError(f"--dir {self.directory} cannot be used: there is no such directory")
            loaded = config.load(self.directory, self.environ, isolated=self.directory is None)
        except PlanError as error:
            return (
                f"\n\nNOTE: the configuration cannot be loaded: {error.message}. Every call returns this until it is"
                " repaired; tell the user. The files are read again at each call, so a corrected one needs no restart."
                " An environment variable belongs into the env block of this server's entry in the client's"
                " configuration (then the server must be started again), or into the file that env_file of [settings]"
                " names."
            )
        note = self._empty_note(loaded)
        return f"\n\nNOTE: {note}" if note else ""

    def _after_hello(self, note):
        """Tell a person what the model was told, and load what calls need."""
        if note:
            self.tell(note.strip())
        self._crew.do(self._start_watching)

    def _empty_note(self, loaded):
        """Return why no plan is served, "" when one is."""
        files, _ = documents.plan_files(loaded.plan_dirs)
        if any(_is_served(path, loaded.mcp) for path in files):
            return ""
        places = ", ".join(map(str, loaded.plan_dirs)) or "no directory, because none is configured"
        found = f"{len(files)} files, none of which can be used (graph_plan_list says why)" if files else "no plan"
        note = f"no plans are served: there is {found} in {places}."
        if self.directory is None:
            return note + (" Without --dir only the global configuration is loaded; to serve the plans of a project,"
                           " start the server with --dir <project>.")
        return note + f" The project is {self.directory} (--dir). graph_plan_new creates a plan there."

    # Calls

    def calls(self):
        """Return what answers calls; loaded on first use, because the handshake must not wait for it."""
        with self._loading:
            if self._calls is None:
                from . import mcp_calls

                self._library = mcp_calls.Library(self.directory, self.environ)
                self._calls = mcp_calls.Calls(self._library, self.announce_changes, self.tell)
            return self._calls

    def _call(self, exchange, name, arguments):
        from . import mcp_calls

        call = mcp_calls.Call(name, arguments, exchange.cancel, self._emitter(exchange, name))
        if self._can_ask(exchange):
            if exchange.is_modern:
                call.can_suspend = True
            else:
                call.ask = lambda question: self._ask(exchange, question)
        if exchange.is_modern:
            call.state = exchange.params.get("requestState")
            call.responses = exchange.params.get("inputResponses")
        started = time.monotonic()
        self.tell(f"{name} started")
        try:
            result = self.calls().answer(call)
        except mcp_calls.UnknownTool as error:
            self.tell(str(error))
            return exchange.error(wire.INVALID_PARAMS, str(error))
        except Exception as bug:
            self._log_bug(bug)
            result = _broken(bug)
        ending = result.get("resultType") or result["structuredContent"].get("kind", "ok")
        self.tell(f"{name} ended after {time.monotonic() - started:.1f} s: {ending}")
        exchange.result(result)

    def _can_ask(self, exchange):
        from . import mcp_questions

        if exchange.is_modern:
            return mcp_questions.can_ask(exchange.meta.get(KEY + "clientCapabilities"))
        return exchange.version >= ELICITATION_SINCE and mcp_questions.can_ask(self.client_capabilities)

    def _emitter(self, exchange, name):
        """Return what takes the events of a call: its progress when the client gave a token, and the log."""
        from . import mcp_surface

        token = exchange.meta.get("progressToken")
        wants_progress = isinstance(token, (str, int)) and not isinstance(token, bool)
        meter = mcp_surface.Meter()
        # Progress must rise in the order in which it is sent.
        lock = threading.Lock()

        def emit(event):
            self._log_event(name, event)
            if not wants_progress:
                return
            with lock:
                told = meter.read(event)
                if told is None or self.out.pending > PROGRESS_BYTES:
                    return
                progress, total, message = told
                params = {"progressToken": token, "progress": progress, "total": total, "message": message}
                params = {key: value for key, value in params.items() if value is not None}
                exchange.notify(wire.encode(wire.request(None, "notifications/progress", params)))

        return emit

    def _ask(self, exchange, question):
        """Put a question to the client while the call is open, and wait for its answer (up to 2025-11-25)."""
        from . import mcp_questions, tools

        answered = queue.SimpleQueue()
        with self._lock:
            if self._at_end:
                return tools.Answer("unavailable")
            self._question_count += 1
            identity = f"ask-{self._question_count}"
            self._questions[_id_key(identity)] = answered
        params = {"message": question.prompt, "requestedSchema": mcp_questions.form(question.schema)}
        exchange.notify(wire.encode(wire.request(identity, "elicitation/create", params)))
        limit_s = self._ask_limit_s(question)
        forget = exchange.cancel.on_cancel(lambda: answered.put(None))
        try:
            response = answered.get(timeout=limit_s)
        except queue.Empty:
            response = None
        finally:
            forget()
            with self._lock:
                is_open = self._questions.pop(_id_key(identity), None) is not None
        if is_open:  # nobody waits for it any more, so the client may take the form away
            reason = exchange.cancel.reason or f"no answer within {limit_s:g} s"
            params = {"requestId": identity, "reason": reason}
            self.out.put(wire.encode(wire.request(None, "notifications/cancelled", params)))
        exchange.cancel.check()
        if response is None or "result" not in response:
            return tools.Answer("unavailable")
        return mcp_questions.answer_of(response["result"])

    def _ask_limit_s(self, question):
        try:
            limit_s = self._library.current().config.settings.ask_timeout_s
        except PlanError:  # broken since the run began
            limit_s = config.Settings.ask_timeout_s
        if question.deadline is not None:
            limit_s = min(limit_s, max(0.0, question.deadline - time.monotonic()))
        return limit_s

    # Changes of the list of tools

    def announce_changes(self):
        """Tell clients when the list of tools is not the one they may know."""
        text = _text_of(self.calls().tool_list())
        with self._lock:
            is_changed, self._announced = text != self._announced, text
            listens = [each for each in self._listens.values() if each.params["notifications"].get("toolsListChanged")]
            is_legacy = self._is_initialized
        if not is_changed:
            return
        if is_legacy:
            self.out.put(wire.encode(wire.request(None, "notifications/tools/list_changed")))
        for exchange in listens:
            params = {"_meta": {KEY + "subscriptionId": exchange.message.value["id"]}}
            exchange.notify(wire.encode(wire.request(None, "notifications/tools/list_changed", params)))

    def _start_watching(self):
        """Load what calls need, and look at the files from now on."""
        try:
            text = _text_of(self.calls().tool_list())
        except Exception as bug:  # the outermost frame of this task; calls that come meet the same and tell it
            return self._log_bug(bug)
        with self._lock:
            self._announced = self._announced or text
            if self._watch is not None:
                return
            self._watch = threading.Thread(target=self._watch_files, name="mcp.watch", daemon=True)
        self._watch.start()

    def _watch_files(self):
        """Announce changes on disk; the standard library has no other way to hear of them than to look."""
        stamp = None  # the first look compares the list itself: a file may have changed since it was last made
        while not self._end.wait(WATCH_S):
            seen = self._library.stamp()
            if seen != stamp:
                stamp = seen
                try:
                    self.announce_changes()
                except Exception as bug:  # the outermost frame: the next change is looked at all the same
                    self._log_bug(bug)

    # The log

    def tell(self, text):
        """Write a sentence to stderr; what a host does not read there is left out."""
        from .tools import printable

        if self.log.pending < LOG_BYTES:
            self.log.put(f"graph: {printable(text)}\n".encode("utf-8", "backslashreplace"))

    def _log_event(self, name, event):
        kind, where = event["event"], event["path"]
        if kind == "tool_finished":
            ending = "failed" if event["is_error"] else "done"
            where = f"{where} " if where else ""
            self.tell(f"{name}: {where}{event['tool']} {ending} after {event['elapsed_s']:.1f} s")
        elif kind == "warning":
            self.tell(f"{name}: warning: {event['text']}")
        elif kind == "usage_summary":
            self.tell(f"{name}: {event['text']}")

    def _log_bug(self, bug):
        import traceback

        self.tell(f"something broke inside: {type(bug).__name__}: {bug}")
        if self.environ.get("GRAPH_LOG", "").lower() == "debug":
            self.tell("".join(traceback.format_exception(bug)))

    # The end

    def _client_is_gone(self):
        self.stop("the client is gone")
        self.on_gone()

    def at_end(self):
        """Take note that nothing more arrives: open questions get no answer."""
        with self._lock:
            self._at_end = True
            questions, self._questions = list(self._questions.values()), {}
        for waiting in questions:
            waiting.put(None)

    def stop(self, reason):
        """Cancel everything that is running; what is still to come is cancelled at its start."""
        with self._lock:
            self._stopping = self._stopping or reason
            tokens = [exchange.cancel for exchange in self._exchanges.values() if exchange.cancel is not None]
            self._is_idle.notify_all()
        for token in tokens:
            token.cancel(reason)

    def finish(self):
        """Let calls end, cancel those that do not, and end what was started."""
        with self._lock:
            self._is_idle.wait_for(lambda: not self._exchanges or self._stopping is not None, EOF_GRACE_S)
        self.stop("the client closed its end")
        with self._lock:
            self._is_idle.wait_for(lambda: not self._exchanges, STOP_GRACE_S)
            listens = list(self._listens.values())
        self._end.set()
        for exchange in listens:
            exchange.result({"_meta": {KEY + "subscriptionId": exchange.message.value["id"]}})
        if self._library is not None:
            self._library.close()


# Words of the two eras ---------------------------------------------------------------------------------------------

_LEGACY = {
    "initialize": Server.initialize,
    "ping": Server.ping,
    "tools/list": Server.tools_list,
    "tools/call": Server.tools_call,
}
_MODERN = {
    "server/discover": Server.discover,
    "subscriptions/listen": Server.listen,
    "tools/list": Server.tools_list,
    "tools/call": Server.tools_call,
}
_MODERN_ONLY = frozenset(_MODERN) - frozenset(_LEGACY)
_ON_THREADS = ("initialize", "server/discover", "tools/list", "tools/call")
#: Any of them in `_meta` makes a request a modern one.
_MODERN_KEYS = frozenset(KEY + name for name in ("protocolVersion", "clientCapabilities", "clientInfo"))
#: A list is as fresh as the files, so nobody may keep it.
_NO_CACHE = {"ttlMs": 0, "cacheScope": "private"}


def _meta_trouble(exchange):
    """Return (code, text, data) of what is wrong with a modern request's metadata, or None (MCP 2026-07-28)."""
    version = exchange.meta.get(KEY + "protocolVersion")
    if not isinstance(version, str):
        return wire.INVALID_PARAMS, f"_meta must say {KEY}protocolVersion"
    if version not in MODERN_VERSIONS:
        data = {"supported": list(MODERN_VERSIONS), "requested": version}
        return UNSUPPORTED_VERSION, f"unsupported protocol version {shorten(version, 40)!r}", data
    if not isinstance(exchange.meta.get(KEY + "clientCapabilities"), dict):
        return wire.INVALID_PARAMS, f"_meta must say {KEY}clientCapabilities"
    return None


def _id_key(identity):
    """Return what wire.Incoming.id is for this value of an id."""
    if isinstance(identity, str):
        return "string", identity
    if isinstance(identity, int) and not isinstance(identity, bool):
        return "number", str(identity)
    return None


def _is_served(path, servers):
    """Say whether a plan file is one whose plan can run here."""
    from .validation import static_problems

    try:
        document = documents.read_file(path)
    except PlanError:
        return False
    return not static_problems(document) and all(name in servers for name in document.get("requires_servers", ()))


def _text_of(tools):
    return wire.encode(tools)


def _broken(bug):
    from . import mcp_surface

    error = f"something broke inside: {type(bug).__name__}: {bug}"
    return mcp_surface.call_result({"kind": "step_failed", "error": error}, True)


def _self_reference(environ):
    """Return why a server that a program of this kind has started must not serve, or ""."""
    depth = environ.get(DEPTH_VARIABLE, "")
    if not depth or depth == "0":
        return ""
    return (
        f"this server was started by another graph ({DEPTH_VARIABLE}={shorten(depth, 10)}): its configuration names"
        " graph's own server under [mcp], which would start itself again and again; remove that entry"
    )
