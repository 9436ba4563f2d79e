"""What the tools of the plan server do: from the name and arguments of a call to the result it gets.

    Calls.answer ─▶ Library.current ─▶ authoring.Store, tools.Registry, execution.run, records
                    (read again when a file changed)

An outcome is always data: the body of a PlanError tells its kind. Only a tool that does not exist is an exception,
UnknownTool, because the protocol has an error of its own for it. Calls run on many threads at once.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from . import authoring, config, documents, drafting, execution, mcp_client, mcp_questions, mcp_surface, records
from . import schema, tools, wire, workspace
from .errors import BadArgument, Cancelled, ConfigError, DocumentError, PlanError, Refused, Suspended, ToolError
from .errors import UnknownPlan, shorten

#: How many runs graph_run_list shows when it is not told.
RUNS_SHOWN = 50
#: Attributes that hold an object or a list: a text that is JSON is taken for it, because models often write it so.
_STRUCTURED = frozenset("exemplars requires_servers input_schema output_schema solver output input after retry".split())


class UnknownTool(Exception):
    """No tool of this name; the sentence says which one may have been meant."""


@dataclass
class Call:
    """One tools/call, and what its client can do.

    emit: takes the events of the run (progress, log). ask: Question → Answer where the client is asked while the call
    is open, None otherwise. can_suspend: whether the client answers questions by calling again; state and responses
    are what it then brings along. All of this is as the client sent it, so none of it is checked yet.
    """

    name: str
    arguments: dict
    cancel: tools.CancelToken = field(default_factory=tools.CancelToken)
    emit: Callable = lambda event: None
    ask: Callable | None = None
    can_suspend: bool = False
    state: object = None
    responses: object = None


# The workspace of a long-lived program -----------------------------------------------------------------------------


class Library:
    """The plans, tools and configuration as the files say at each request.

    directory: the project (--dir), or None: then nothing depends on the working directory. It may be wrong, or its
    configuration broken: every use says why, until it is repaired. The servers' processes outlive changes.
    """

    def __init__(self, directory, environ):
        self.directory = directory
        self.environ = environ
        self.pool = mcp_client.Pool(wire, environ)
        # Protects _workspace and _stamp; held while files are read, so that a change is read once.
        self._lock = threading.Lock()
        self._workspace = None
        self._stamp = None

    def current(self):
        """Return the Workspace of the files as they are now. ConfigError."""
        with self._lock:
            loaded = self._load()
            stamp = loaded.fingerprint, _files_stamp(loaded.plan_dirs)
            if stamp != self._stamp:
                isolated = self.directory is None
                self._workspace = workspace.open_workspace(
                    self.directory, self.environ, isolated=isolated, pool=self.pool
                )
                self._stamp = stamp
            return self._workspace

    def _load(self):
        if self.directory is not None:
            check_directory(self.directory)
        return config.load(self.directory, self.environ, isolated=self.directory is None)

    def stamp(self):
        """Return a value that changes when a file does on which the plans or the configuration depend."""
        try:
            loaded = self._load()
        except PlanError as error:
            return error.message
        return loaded.fingerprint, _files_stamp(loaded.plan_dirs)

    def close(self):
        """End the servers' processes."""
        self.pool.close()


def check_directory(directory):
    """Make the project the working directory of tools. ConfigError when --dir names no directory that can be used."""
    try:
        os.chdir(directory)
    except OSError as error:
        reason = documents.reason_of(error)
        raise ConfigError(f"--dir {directory} cannot be used: {reason}; create it, or start the server with another"
                          " --dir") from None


def _files_stamp(directories):
    """Return a value that changes when a file of the directories is added, removed or written.

    The same as documents.fingerprint without looking at names; this one is asked at every request.
    """
    stamp = []
    for directory in directories:
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):  # removed meanwhile
                        stamp.append((entry.path, *documents.state_stamp(entry.stat())))
        except OSError as error:
            stamp.append((str(directory), error.errno))
    return tuple(sorted(stamp))


# Calls -------------------------------------------------------------------------------------------------------------


class Calls:
    """Answers tools/call. on_edit: called after every successful edit. tell: takes a sentence for the log."""

    def __init__(self, library, on_edit, tell):
        self._library = library
        self._on_edit = on_edit
        self._tell = tell
        # Held for one edit: those of this server wait here in order, those of other processes at the file lock.
        self._editing = threading.Lock()
        # Protects the three below; held for an instant.
        self._lock = threading.Lock()
        self._running = {}  # run → CancelToken
        self._listed = set()  # identifiers of plans that were ever served, for clients that do not list again
        self._seal = None

    def tool_list(self):
        """Return the definitions for tools/list; those that are always there when the configuration is broken."""
        try:
            current = self._library.current()
        except PlanError:
            return mcp_surface.tool_list(None)
        with self._lock:
            self._listed.update(current.catalog.plans)
        return mcp_surface.tool_list(current)

    def answer(self, call):
        """Return the result of a call. UnknownTool."""
        is_plan = call.name.startswith(mcp_surface.PLAN_PREFIX)
        if not is_plan and call.name not in mcp_surface.STATIC:
            hint = documents.did_you_mean(call.name, mcp_surface.STATIC)
            raise UnknownTool(f"unknown tool {shorten(call.name, 80)!r}; {hint}")
        try:
            call.cancel.check()
            if is_plan:
                return self._plan(call)
            body, is_error = self._static(call)
        except Cancelled as stop:
            body, is_error = {"kind": "cancelled", "error": f"{call.name} was cancelled: {stop.reason}"}, True
        except PlanError as error:
            body, is_error = error.body(), True
        return mcp_surface.call_result(body, is_error)

    def _static(self, call):
        """Return (body, is_error) of a tool that is always there."""
        given = _checked(call)
        result = _TOOLS[call.name](self, call, given)
        body, is_error = result if isinstance(result, tuple) else (result, False)
        if call.name in mcp_surface.EDITS:
            self._on_edit()
        return body, is_error

    # Plans

    def _plan(self, call):
        _measure(call.arguments)
        current = self._library.current()
        identifier = call.name.removeprefix(mcp_surface.PLAN_PREFIX)
        try:
            plan = current.find_plan(identifier)
        except UnknownPlan as error:
            if self._is_explained(identifier, current.catalog):
                raise
            raise UnknownTool(f"unknown tool {shorten(call.name, 80)!r}: {error.message}") from None
        if call.state is not None:
            return self._resumed(current, plan, call)
        return self._run(current, plan, call, self._record(current, plan, call.arguments), None, {})

    def _is_explained(self, identifier, catalog):
        """Say whether the plan is known and cannot be used, rather than misspelled."""
        files = {Path(entry.path).stem for entry in catalog.skipped} | {entry.identifier for entry in catalog.skipped}
        hidden = {plan.identifier for plan in catalog.hidden}
        with self._lock:
            return identifier in files | hidden | self._listed

    def _record(self, current, plan, arguments):
        """Return the record of a run that starts, None when none is kept."""
        settings = current.config
        if settings.storage == "memory":
            return None
        try:
            return records.create(settings.runs_dir, plan, arguments, secrets=current.secrets(), now=time.time())
        except OSError as error:
            reason = documents.reason_of(error)
            self._tell(f"warning: no record of this run can be kept in {settings.runs_dir}: {reason}")
            return None

    def _run(self, current, plan, call, record, finished, answers):
        """Run a plan and return the result of its call. answers: key of a question → (its digest, Answer)."""
        with self._can_be_cancelled(record, call.cancel):
            outcome = execution.run(
                plan,
                call.arguments,
                current.services,
                cancel=call.cancel,
                ask=_asker(call, answers, can_resume=record is not None),
                emit=call.emit,
                record=record,
                finished=finished,
            )
        if outcome.kind == "suspended":
            return self._input_required(current, call, outcome)
        return mcp_surface.call_result(outcome.body(), outcome.kind != "ran")

    @contextlib.contextmanager
    def _can_be_cancelled(self, record, token):
        if record is None:
            yield
            return
        with self._lock:
            self._running[record.run] = token
        try:
            yield
        finally:
            with self._lock:
                self._running.pop(record.run, None)

    # Questions that end the call (2026-07-28)

    def _input_required(self, current, call, outcome):
        question = outcome.question
        state = {
            "run": outcome.run,
            "plan": outcome.plan,
            "arguments": records.digest(call.arguments),
            "key": question.key,
            "question": mcp_questions.question_digest(question),
            "prompt": question.prompt,
            "form": mcp_questions.form(question.schema),
            "until": round(time.time() + current.config.settings.ask_timeout_s, 3),
        }
        return self._asking(current, state)

    def _asking(self, current, state):
        # The key of the question addresses it within the run, so it is a good name for it.
        params = {"mode": "form", "message": state["prompt"], "requestedSchema": state["form"]}
        request = {"method": "elicitation/create", "params": params}
        return {
            "resultType": "input_required",
            "inputRequests": {state["key"]: request},
            "requestState": self._sealer(current).close(state),
        }

    def _sealer(self, current):
        with self._lock:
            if self._seal is None:
                self._seal = mcp_questions.Seal(mcp_questions.load_key(current.config.settings.data_dir))
            return self._seal

    def _resumed(self, current, plan, call):
        """Go on with the run that a request state tells of. An answer that comes too late is none."""
        if not isinstance(call.state, str):
            raise BadArgument("requestState must be a string; call the tool again without it")
        state = self._sealer(current).open(call.state)
        if (state["plan"], state["arguments"]) != (plan.identifier, records.digest(call.arguments)):
            raise BadArgument("requestState belongs to another call: send the same name and arguments as before")
        responses = call.responses if isinstance(call.responses, dict) else {}
        if time.time() > state["until"]:
            answer = tools.Answer("unavailable")
        elif state["key"] in responses:
            answer = mcp_questions.answer_of(responses[state["key"]])
        else:
            return self._asking(current, state)
        settings = current.config
        record, header, finished = records.reopen(
            settings.runs_dir, state["run"], secrets=current.secrets(), now=time.time()
        )
        if header["document"] != plan.document or state["key"] in finished:
            record.close()
            reason = "was answered already" if state["key"] in finished else "asks no longer: its plan was changed"
            raise Refused(f"run {state['run']} {reason}; call the tool again without requestState", run=state["run"])
        answers = {state["key"]: (state["question"], answer)}
        return self._run(current, plan, call, record, finished, answers)

    # Authoring

    def plan_list(self, call, given):
        return self._library.current().catalog.listing()

    def plan_show(self, call, given):
        document, path = self._library.current().store.open(given["target"])
        return {**document, "path": str(path)}

    def plan_validate(self, call, given):
        current = self._library.current()
        document, _ = current.store.open(given["target"])
        body = current.validate(document)
        if body["ok"]:
            return body
        count = len(body["problems"])
        error = (
            f"plan {given['target']!r} has {count} problem{'s' * (count > 1)}; the first: {body['problems'][0]['text']}"
        )
        return {"kind": "invalid_plan", "error": error, **body}, True

    def plan_new(self, call, given):
        with self._editing:
            store = self._library.current().store
            return store.new(given["identifier"], given.get("name"), given.get("description", ""))

    def plan_draft(self, call, given):
        current = self._library.current()
        return drafting.draft(current, given["goal"], given.get("from"), _context(current, call), self._editing)

    def plan_set(self, call, given):
        value = _structured(given["attribute"], given["value"])
        return self._edit(given, lambda document: authoring.set_attribute(document, given["attribute"], value))

    def plan_unset(self, call, given):
        return self._edit(given, lambda document: authoring.unset_attribute(document, given["attribute"]))

    def step_add(self, call, given):
        options = {key: given.get(key) for key in ("reasoning", "before", "after")}
        return self._edit(
            given,
            lambda document: authoring.add_step(document, given["id"], given["tool"], given["input"], **options),
        )

    def step_update(self, call, given):
        attribute, value = given["attribute"], _structured(given["attribute"], given["value"])
        return self._edit(given, lambda document: authoring.update_step(document, given["id"], attribute, value))

    def step_rename(self, call, given):
        return self._edit(given, lambda document: authoring.rename_step(document, given["id"], given["new_id"]))

    def step_rm(self, call, given):
        return self._edit(given, lambda document: authoring.remove_step(document, given["id"]))

    def _edit(self, given, change):
        with self._editing:
            return self._library.current().store.edit(given["target"], change)

    # Tools

    def tools_list(self, call, given):
        current = self._library.current()
        listed, notes = current.registry.listing(_context(current, call))
        counts = {}
        for tool in listed:
            counts[tool.source] = counts.get(tool.source, 0) + 1
        return {
            "tools": [tool.summary() for tool in listed],
            "count": len(listed),
            "sources": [{"source": source, "count": count} for source, count in counts.items()],
            "notes": notes,
        }

    def tools_show(self, call, given):
        current = self._library.current()
        found = current.registry.peek(given["name"]) or self._find(current, call, given["name"])
        return found.definition()

    def tools_test(self, call, given):
        current = self._library.current()
        name = self._find(current, call, given["name"]).name
        try:
            result = current.registry.call(name, given.get("input", {}), _context(current, call))
        except ToolError as error:
            return {"tool": name, "isError": True, "result": error.payload}
        return {"tool": name, "isError": False, "result": result}

    def _find(self, current, call, name):
        try:
            return current.registry.find(name, _context(current, call))
        except ToolError as error:
            raise BadArgument(error.message) from None

    # Runs

    def run_list(self, call, given):
        directory = self._library.current().config.runs_dir
        runs = [run for run in records.list_runs(directory) if given.get("plan") in (None, run.plan)]
        runs = [run.to_json() for run in sorted(runs, key=lambda run: run.started, reverse=True)]
        body = {"runs": runs[: given.get("limit", RUNS_SHOWN)], "count": len(runs)}
        return body if runs else {**body, "note": f"there are no runs on record in {directory}"}

    def run_show(self, call, given):
        return records.read_run(self._library.current().config.runs_dir, given["run"])

    def run_cancel(self, call, given):
        run = given["run"]
        with self._lock:
            token = self._running.get(run)
        if token is None:
            status = records.read_run(self._library.current().config.runs_dir, run)["status"]
            if status == "running":
                raise Refused(f"run {run} was started by another program; cancel it there", run=run, status=status)
            raise Refused(f"run {run} is not running, its status is {status}", run=run, status=status)
        token.cancel("by graph_run_cancel")
        return {"ok": True, "run": run, "note": "it is told to stop; graph_run_show tells when it has"}


#: Which method answers which of the tools that are always there: (self, call, checked arguments) → body, or (body,
#: is_error).
_TOOLS = {
    "graph_plan_list": Calls.plan_list,
    "graph_plan_show": Calls.plan_show,
    "graph_plan_validate": Calls.plan_validate,
    "graph_plan_new": Calls.plan_new,
    "graph_plan_draft": Calls.plan_draft,
    "graph_plan_set": Calls.plan_set,
    "graph_plan_unset": Calls.plan_unset,
    "graph_plan_step_add": Calls.step_add,
    "graph_plan_step_update": Calls.step_update,
    "graph_plan_step_rename": Calls.step_rename,
    "graph_plan_step_rm": Calls.step_rm,
    "graph_tools_list": Calls.tools_list,
    "graph_tools_show": Calls.tools_show,
    "graph_tools_test": Calls.tools_test,
    "graph_run_list": Calls.run_list,
    "graph_run_show": Calls.run_show,
    "graph_run_cancel": Calls.run_cancel,
}


def _measure(arguments):
    try:
        documents.measure(arguments, "the arguments")
    except DocumentError as error:
        raise BadArgument(error.message) from None


def _checked(call):
    """Return the arguments of a tool that is always there, checked by its schema. BadArgument with every problem."""
    _measure(call.arguments)
    rule = mcp_surface.STATIC[call.name]["inputSchema"]
    given, found = schema.check_arguments(call.arguments, rule)
    if found:
        sentences = list(map(str, found))
        message = f"wrong arguments for {call.name}: {'; '.join(sentences)}"
        raise BadArgument(message, problems=sentences, inputSchema=rule)
    return given


def _structured(attribute, value):
    """Return a value of an attribute; JSON text of one that holds an object or a list is read."""
    if attribute in _STRUCTURED and isinstance(value, str):
        with contextlib.suppress(DocumentError):  # then it stays the text it is, and its type is refused
            return documents.read_json(value)
    return value


def _context(current, call):
    """Return the context of a call outside a plan's run."""
    return tools.quiet_context(
        cancel=call.cancel,
        emit=call.emit,
        ask=_asker(call, {}, can_resume=False),
        models=current.models,
        services=current.services,
        ledger=records.UsageLedger(current.config.pricing),
    )


def _asker(call, answers, can_resume):
    """Return the `ask` of a run. Whatever cannot be asked is unavailable, and the plan says what then happens."""

    def ask(question):
        digest, answer = answers.get(question.key, (None, None))
        if digest is not None and digest == mcp_questions.question_digest(question):
            return answer
        if mcp_questions.form(question.schema) is None:
            return tools.Answer("unavailable")
        if call.ask is not None:
            return call.ask(question)
        if call.can_suspend and can_resume:
            raise Suspended(question)
        return tools.Answer("unavailable")

    return ask
