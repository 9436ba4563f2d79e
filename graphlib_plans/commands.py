"""The verbs of the command line: functions of (shell, arguments) that return an exit code, None meaning 0.

The shell is cli's: streams, environment, and the workspace when it is needed. What a verb was asked for goes to stdout
through shell.put and put_json, everything for people to stderr through say and note. Errors are raised.

`plan run` runs on a thread of its own (`plan.run`), so that the main thread can turn Ctrl-C and SIGTERM into a cancel.
"""

import contextlib
import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path

from . import authoring, config, documents, drawing, execution, paths, records, terminal, tools
from .documents import read_json
from .errors import BadArgument, ConfigError, PlanError, Refused, ToolError, did_you_mean, shorten, type_name
from .parallel import result_of

#: What `set` takes as text or as several texts; every other attribute is JSON.
_TEXT_ATTRIBUTES = ("name", "description", "identifier", "tool", "reasoning")
_LIST_ATTRIBUTES = ("exemplars", "requires_servers", "after")


def sentence(entry):
    """Return an entry of a list in a body as one line: a problem with its place and hint, or a text."""
    if not isinstance(entry, dict):
        return str(entry)
    place = f"{entry['pointer']}: " if entry.get("pointer") else ""
    return f"{place}{entry['text']}" + (f" ({entry['hint']})" if entry.get("hint") else "")


def _count(number, word):
    return f"{number} {word}{'' if number == 1 else 's'}"


# Arguments ---------------------------------------------------------------------------------------------------------


def _json_argument(shell, text, what):
    """Return the JSON value an argument means: written inline, @FILE, or - for stdin; nothing is {}. BadArgument."""
    if text is None or not text.strip():
        return {}
    if text == "-":
        text, what = shell.stdin.read(), "stdin"
    elif text.startswith("@"):
        what = text[1:]
        try:
            text = Path(what).read_bytes()
        except OSError as error:
            raise BadArgument(f"{what} cannot be read: {documents.reason_of(error)}") from None
    try:
        return read_json(text, what)
    except PlanError as error:
        raise BadArgument(
            error.message, **{k: v for k, v in error.details.items() if k in ("line", "column")}
        ) from None


def _object_argument(shell, text, what):
    value = _json_argument(shell, text, what)
    if not isinstance(value, dict):
        raise BadArgument(f"{what} must be a JSON object, not {type_name(value)}")
    return value


def _input(shell, text, pairs, rule):
    """Return an input: a JSON object, with --input NAME=VALUE over it."""
    value = _object_argument(shell, text, "the input")
    for pair in pairs or ():
        name, separator, written = pair.partition("=")
        if not separator or not name:
            raise BadArgument(f"--input {pair!r} is not NAME=VALUE")
        value = {**value, name: _typed(written, name, rule)}
    return value


def _typed(text, name, rule):
    """Return the value of --input NAME=TEXT.

    A property whose schema takes strings alone gets the text as it is. Everything else is read as JSON where it is
    JSON; without a schema a number whose digits would change (1.10, 1e3) stays text.
    """
    properties = rule.get("properties") if isinstance(rule, dict) else None
    field = properties.get(name) if isinstance(properties, dict) else None
    if isinstance(field, dict) and _takes_text_alone(field):
        return text
    try:
        value = read_json(text)
    except PlanError:
        return text
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    is_declared = isinstance(field, dict) and ("type" in field or "enum" in field)
    return text if is_number and not is_declared and documents.to_json(value) != text else value


def _takes_text_alone(field):
    if isinstance(field.get("enum"), list):
        return all(isinstance(value, str) for value in field["enum"])
    return field.get("type") in ("string", ["string"])


# plan: looking -----------------------------------------------------------------------------------------------------


def plan_list(shell, arguments):
    """List the plans, and what is skipped or hidden and why."""
    body = shell.workspace.catalog.listing()
    plans = body["plans"]
    if not plans:
        places = ", ".join(map(str, shell.workspace.config.plan_dirs)) or "no directory is configured"
        body["note"] = f"there are no plans here; looked in: {places}"
    if shell.wants_json:
        shell.put_json(body)
        return
    for plan in plans:
        shell.put(f"{plan['identifier']}\t{plan['name']}")
    if "note" in body:
        shell.note(body["note"])
    _warn_about_catalog(shell)


def _warn_about_catalog(shell):
    for entry in shell.workspace.catalog.skipped:
        shell.note(f"skipped: {entry.path}: {entry.reason}")
    for plan in shell.workspace.catalog.hidden:
        shell.note(f"hidden: {plan.identifier} needs MCP servers that are not configured: {', '.join(plan.missing)}")


def _open(shell, target):
    """Return (document, path) of a plan named by its identifier, or by the path of its file."""
    # A name with a separator or a suffix is a path; a bare name never is, whatever lies in the working directory.
    if os.sep in target or Path(target).suffix in documents.FORMATS:
        return documents.read_file(Path(target)), Path(target)
    return shell.workspace.store.open(target)


def plan_show(shell, arguments):
    """Show a plan's document, or draw its graph."""
    document, path = _open(shell, arguments.plan)
    if arguments.graph or arguments.svg:
        return _plan_draw(shell, arguments, document, path)
    if shell.wants_json:
        shell.put_json({**document, "path": str(path)})
    else:
        shell.put_json_text(documents.to_text(document).rstrip("\n"))


def _plan_draw(shell, arguments, document, path):
    plan = documents.to_plan(document, path)
    if not plan.steps:
        raise BadArgument(f"plan {plan.identifier!r} has no steps to draw")
    for message in execution.connect_servers(plan, _context(shell)):
        shell.note(f"drawn as if the tools of this server changed the world: {message}")
    is_read_only = execution.read_only_test(shell.workspace.services)
    if arguments.svg == "-":
        shell.put(drawing.as_svg(plan, is_read_only).rstrip("\n"))
    elif arguments.svg:
        Path(arguments.svg).write_text(drawing.as_svg(plan, is_read_only), encoding="utf-8")
        shell.note(f"wrote {arguments.svg}")
    if arguments.graph:
        shell.put(drawing.as_text(plan, is_read_only).rstrip("\n"))


def plan_validate(shell, arguments):
    """Tell every problem of a plan; 1 when there is one."""
    document, path = _open(shell, arguments.plan)
    body = shell.workspace.validate(document)
    if shell.wants_json:
        shell.put_json(body)
    elif body["ok"]:
        shell.note(f"{path}: {_count(body['steps'], 'step')}, no problems")
    else:
        shell.note(f"{path}: {_count(len(body['problems']), 'problem')}")
    if not shell.wants_json:
        for problem in body["problems"]:
            shell.note(f"  - {sentence(problem)}")
        for note in body["notes"]:
            shell.note(f"note: {note}")
    return 0 if body["ok"] else 1


# plan: running -----------------------------------------------------------------------------------------------------


def plan_run(shell, arguments):
    """Start a run, or take one up again."""
    if arguments.resume and (arguments.input or arguments.pairs):
        raise BadArgument("--resume takes the input from the record; leave the input out, or start a run of its own")
    if not arguments.resume and not arguments.plan:
        raise BadArgument("name the plan to run; `graph plan list` lists them")
    return _resume(shell, arguments) if arguments.resume else _start(shell, arguments)


def _start(shell, arguments):
    plan = shell.workspace.catalog.find_plan(arguments.plan)
    value = _input(shell, arguments.input, arguments.pairs, plan.input_schema)
    return _run(shell, arguments, plan, value, _record(shell, arguments, plan, value), None)


def _record(shell, arguments, plan, value):
    """Return the Record of a run that starts, None when none is kept."""
    settings = shell.workspace.config
    if arguments.no_record or settings.storage == "memory":
        return None
    try:
        return records.create(settings.runs_dir, plan, value, secrets=shell.workspace.secrets(), now=time.time())
    except OSError as error:
        reason = documents.reason_of(error)
        shell.note(f"warning: no record of this run can be kept in {settings.runs_dir}: {reason}")
        return None


def _resume(shell, arguments):
    settings = shell.workspace.config
    record, header, finished = records.reopen(
        settings.runs_dir, arguments.resume, secrets=shell.workspace.secrets(), now=time.time()
    )
    try:
        if arguments.plan and arguments.plan != header["plan"]:
            raise BadArgument(f"run {record.run} is one of plan {header['plan']!r}, not of {arguments.plan!r}")
        plan = shell.workspace.catalog.find_plan(header["plan"])
    except PlanError:
        record.close()
        raise
    if plan.document != header["document"]:
        shell.note(f"plan {plan.identifier!r} has changed since; steps that are not the same any more run again")
    return _run(shell, arguments, plan, header["arguments"], record, finished)


def _run(shell, arguments, plan, value, record, finished):
    cancel = tools.CancelToken()
    shown = terminal.progress(shell.stderr, shell.environ, arguments.verbose > 0)
    emit = shown if not arguments.quiet else lambda event: None
    answer = _Stream(shell, plan)

    def run():
        return execution.run(
            plan,
            value,
            shell.workspace.services,
            cancel=cancel,
            ask=terminal.asker(shell.stdin, shell.stderr, shell.environ, shown, cancel),
            emit=lambda event: (answer(event), emit(event)),
            record=record,
            finished=finished,
            deadline=time.monotonic() + arguments.timeout if arguments.timeout else None,
            concurrency=arguments.concurrency,
        )

    try:
        outcome = _interruptible(run, cancel, shown.tell)
    finally:
        shown.close()
    return _tell(shell, outcome, answer)


def _interruptible(function, cancel, tell):
    """Return function(), run on a thread; the first of _STOPPING cancels it, a second ends the program at once."""
    box, done = [], threading.Event()

    def work():
        box.append(result_of(function))
        done.set()

    def stop(name):
        if cancel.cancelled:
            raise KeyboardInterrupt(name)
        cancel.cancel(f"stopped by {name}")
        tell("stopping; what is running is told to end (Ctrl-C again to leave at once)")

    with _stopping_signals(stop):
        threading.Thread(target=work, name="plan.run", daemon=True).start()
        # In short waits: a signal that comes just before one without limit would not be heard.
        while not done.wait(0.5):
            pass
    result, error = box[0]
    if error is not None:
        raise error
    return result


#: Signals that stop a run, and their names for people; SIGHUP is sent when a terminal is closed.
_STOPPING = {
    getattr(signal, name): spoken
    for name, spoken in (("SIGINT", "Ctrl-C"), ("SIGTERM", "SIGTERM"), ("SIGHUP", "SIGHUP"))
    if hasattr(signal, name)
}


@contextlib.contextmanager
def _stopping_signals(stop):
    """Have _STOPPING call stop(name) in the main thread; elsewhere Python allows no handler. Ignored ones stay so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.signal(number, lambda number, frame: stop(_STOPPING[number]))
        for number in _STOPPING
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


class _Stream:
    """Writes a solver's text to stdout while it comes, unless JSON is wanted."""

    def __init__(self, shell, plan):
        self.shell = shell
        self.is_on = plan.finish == "solver" and not shell.wants_json
        self.written = False

    def __call__(self, event):
        if self.is_on and event["event"] == "solver_delta" and event["text"]:
            text = event["text"]
            with contextlib.suppress(BrokenPipeError):  # the end of the command tells about it
                self.shell.stdout.write(tools.printable(text) if terminal.is_terminal(self.shell.stdout) else text)
                self.shell.stdout.flush()
                self.written = True


def _tell(shell, outcome, answer):
    """Write how a run ended and return the exit code."""
    body = outcome.body()
    if shell.wants_json:
        shell.put_json(body)
    if outcome.kind in ("ran", "exit_error"):
        if not shell.wants_json:
            _tell_end(shell, outcome, answer)
        return outcome.exit_code
    shell.say(outcome.error)
    shell.note_lists(outcome.details, skip=outcome.error)
    if outcome.kind in ("step_failed", "empty_data", "cancelled", "model_unavailable") and outcome.run:
        done = f"{_count(outcome.steps_executed, 'step')} finished; "
        shell.note(f"{done}go on with: graph plan run --resume {outcome.run}")
    if shell.environ.get("GRAPH_EVENTS") == "github" and not shell.wants_json:
        shell.put(f"::error::{_github_escaped(outcome.error)}")
    return outcome.exit_code


def _tell_end(shell, outcome, answer):
    fired = outcome.exit
    if fired:
        shell.note(
            f"{'ended' if fired['status'] == 'success' else 'FAILED'} at step {fired['step']}: {fired['message']}"
        )
        if fired["output"] is not None:
            shell.put_json(fired["output"])
    elif outcome.answer is not None:
        shell.put("" if answer.written else outcome.answer)
    elif outcome.output is not None:
        shell.put_json(outcome.output)
    else:
        shell.note(f"plan {outcome.plan!r} is done, {_count(outcome.steps_executed, 'step')}")
    if fired and fired["status"] == "error" and shell.environ.get("GRAPH_EVENTS") == "github":
        shell.put(f"::error::{_github_escaped(fired['message'])}")


def _github_escaped(text):
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def plan_runs(shell, arguments):
    """List the runs on record."""
    runs = records.list_runs(shell.workspace.config.runs_dir)
    if arguments.plan:
        runs = [run for run in runs if run.plan == arguments.plan]
    body = {"runs": [run.to_json() for run in runs], "count": len(runs)}
    if not runs:
        body["note"] = f"there are no runs in {shell.workspace.config.runs_dir}"
    if shell.wants_json:
        shell.put_json(body)
        return
    for run in runs:
        line = f"{run.run}  {_clock(run.started)}  {run.status:<12} {_count(run.steps, 'step'):>9}  {run.plan}"
        shell.put(line + (f": {shorten(' '.join(run.error.split()), 100)}" if run.error else ""))
    if "note" in body:
        shell.note(body["note"])


def _clock(seconds):
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def plan_show_run(shell, arguments):
    """Show one run on record."""
    run = records.read_run(shell.workspace.config.runs_dir, arguments.run)
    if shell.wants_json:
        shell.put_json(run)
        return
    ended = f", ended {_clock(run['ended'])}" if run["ended"] else ""
    shell.put(f"run {run['run']} of plan {run['plan']}: {run['status']}, started {_clock(run['started'])}{ended}")
    shell.put(f"input: {documents.to_json(run['arguments'])}")
    for step in run["steps"]:
        place = " ▸ ".join([*step["stack"][1:], step["path"]])
        failed = step.get("error")
        ending = f"FAILED: {failed['message']}" if failed else documents.to_json(step.get("result"))
        shell.put(f"  {place} {step['tool']} {step['elapsed_s']:.1f} s  {shorten(ending, 160)}")
    outcome = run["outcome"] or {}
    if outcome.get("error"):
        shell.put(outcome["error"])
    for key in ("exit", "output"):
        if outcome.get(key) is not None:
            shell.put(f"{key}: {documents.to_json(outcome[key])}")
    if outcome.get("answer") and not outcome.get("exit"):
        shell.put(outcome["answer"])


# plan: editing -----------------------------------------------------------------------------------------------------


def _edited(shell, body):
    """Tell about an edit that was made."""
    if shell.wants_json:
        shell.put_json(body)
        return
    shell.note(f"saved {body['savedTo']}")
    if body.get("note"):
        shell.note(f"note: {body['note']}")
    shell.note_lists(body)


def _change(shell, arguments, change):
    _edited(shell, shell.workspace.store.edit(arguments.plan, change))


def plan_new(shell, arguments):
    """Create a plan without steps."""
    store = shell.workspace.store
    _edited(shell, store.new(arguments.identifier, arguments.name, arguments.description))


def plan_draft(shell, arguments):
    """Have the planner model write a plan for a goal."""
    from . import drafting  # loaded by this verb alone

    cancel = tools.CancelToken()
    shown = terminal.progress(shell.stderr, shell.environ, arguments.verbose > 0)
    context = _context(shell, cancel).with_(emit=shown)
    try:
        body = _interruptible(
            lambda: drafting.draft(shell.workspace, arguments.goal, arguments.start, context), cancel, shown.tell
        )
    finally:
        shown.close()
    _edited(shell, body)
    if context.ledger.summary():
        shell.note(context.ledger.summary())


def _attribute_value(shell, attribute, values):
    """Return the value that `set` or `step update` means by its words."""
    if attribute in _LIST_ATTRIBUTES:
        return list(values)
    if len(values) != 1:
        raise BadArgument(f"{attribute} takes exactly one value")
    return values[0] if attribute in _TEXT_ATTRIBUTES else _json_argument(shell, values[0], attribute)


def plan_set(shell, arguments):
    """Set an attribute of a plan."""
    attribute = arguments.attribute.replace("-", "_")
    value = _attribute_value(shell, attribute, arguments.values)
    _change(shell, arguments, lambda document: authoring.set_attribute(document, attribute, value))


def plan_unset(shell, arguments):
    """Remove an attribute of a plan."""
    attribute = arguments.attribute.replace("-", "_")
    _change(shell, arguments, lambda document: authoring.unset_attribute(document, attribute))


def step_add(shell, arguments):
    """Add a step."""
    value = _object_argument(shell, arguments.input, "the input")
    options = {"reasoning": arguments.reasoning, "before": arguments.before, "after": arguments.after}
    _change(
        shell, arguments, lambda document: authoring.add_step(document, arguments.id, arguments.tool, value, **options)
    )


def step_update(shell, arguments):
    """Set an attribute of a step."""
    attribute = arguments.attribute.replace("-", "_")
    value = _attribute_value(shell, attribute, arguments.values)
    _change(shell, arguments, lambda document: authoring.update_step(document, arguments.id, attribute, value))


def step_rename(shell, arguments):
    """Give a step another id."""
    _change(shell, arguments, lambda document: authoring.rename_step(document, arguments.id, arguments.new_id))


def step_unset(shell, arguments):
    """Remove an attribute of a step."""
    attribute = arguments.attribute.replace("-", "_")
    _change(shell, arguments, lambda document: authoring.unset_step(document, arguments.id, attribute))


def step_rm(shell, arguments):
    """Remove a step."""
    _change(shell, arguments, lambda document: authoring.remove_step(document, arguments.id))


def step_move(shell, arguments):
    """Move a step."""
    places = {"before": arguments.before, "after": arguments.after}
    _change(shell, arguments, lambda document: authoring.move_step(document, arguments.id, **places))


# tools -------------------------------------------------------------------------------------------------------------


def _context(shell, cancel=None):
    """Return the context of a call outside a run; warnings still reach the person."""

    def emit(event):
        if event["event"] == "warning":
            shell.note(f"warning: {event['text']}")

    services = shell.workspace.services
    cancel = cancel or tools.CancelToken()
    return tools.quiet_context(
        cancel=cancel,
        emit=emit,
        ask=terminal.asker(shell.stdin, shell.stderr, shell.environ, terminal.Progress(shell.stderr), cancel),
        models=services.models,
        services=services,
        ledger=records.UsageLedger(services.pricing),
    )


def tools_list(shell, arguments):
    """List every tool a step can name, by source."""
    listed, notes = shell.workspace.services.registry.listing(_context(shell))
    sources = {}
    for tool in listed:
        sources.setdefault(tool.source, []).append(tool)
    body = {
        "tools": [tool.summary() for tool in listed],
        "count": len(listed),
        "sources": [{"source": source, "count": len(found)} for source, found in sources.items()],
        "notes": notes,
    }
    if shell.wants_json:
        shell.put_json(body)
        return
    for source, found in sources.items():
        shell.put(f"{source} — {_count(len(found), 'tool')}")
        for tool in found:
            mark = " [read-only]" if tool.read_only else ""
            about = tool.description.strip().partition("\n")[0]
            shell.put(f"  {tool.name}{mark}  {shorten(about, 100)}")
    for note in notes:
        shell.note(f"note: {note}")


def tools_show(shell, arguments):
    """Show what a tool takes and gives."""
    registry = shell.workspace.services.registry
    tool = registry.peek(arguments.name) or registry.find(arguments.name, _context(shell))
    definition = tool.definition()
    if shell.wants_json:
        shell.put_json(definition)
        return
    mark = " [read-only]" if tool.read_only else ""
    shell.put(f"{tool.name} — {tool.source}{mark}\n{tool.description}")
    for title, key in (("input", "inputSchema"), ("output", "outputSchema"), ("example of an output", "outputExample")):
        if definition[key] is not None:
            shell.put(f"{title}:")
            shell.put_json(definition[key])


def tools_test(shell, arguments):
    """Call one tool. A tool that fails is a result like any other, so the exit code stays 0."""
    registry, cancel = shell.workspace.services.registry, tools.CancelToken()
    context = _context(shell, cancel)
    tool = registry.find(arguments.name, context)
    value = _input(shell, arguments.input, arguments.pairs, tool.input_schema)

    def call():
        try:
            return registry.call(arguments.name, value, context), False
        except ToolError as error:
            return error.payload, True

    result, is_error = _interruptible(call, cancel, shell.note)
    if is_error and not shell.wants_json:
        shell.note(f"{arguments.name} failed")
    shell.put_json({"tool": arguments.name, "isError": is_error, "result": result} if shell.wants_json else result)
    if context.ledger.summary():
        shell.note(context.ledger.summary())


# mcp ---------------------------------------------------------------------------------------------------------------


def mcp_list(shell, arguments):
    """List the configured servers, without connecting."""
    servers = [
        {
            "name": server.name,
            "transport": "stdio" if server.command else "http",
            "target": " ".join([server.command, *server.args]) if server.command else server.url,
        }
        for server in _masked_servers(shell)
    ]
    body = {"servers": servers, "count": len(servers)}
    if not servers:
        body["note"] = "no MCP servers are configured; add [mcp.<name>] to the configuration"
    if shell.wants_json:
        shell.put_json(body)
        return
    for server in servers:
        shell.put(f"{server['name']}\t{server['transport']}\t{server['target']}")
    if "note" in body:
        shell.note(body["note"])


def _masked_servers(shell):
    """Return the configured servers without secrets in their commands and addresses."""
    tables = shell.workspace.config.masked().get("mcp", {})
    return [config.Server(name=name, **entry) for name, entry in tables.items()]


def _server_names(shell, name):
    configured = shell.workspace.config.mcp
    if name is not None and name not in configured:
        hint = did_you_mean(name, configured) or "none is configured"
        raise BadArgument(f"there is no MCP server {name!r}; {hint}")
    return [name] if name is not None else sorted(configured)


def mcp_tools(shell, arguments):
    """List the tools of one server or of all; 1 when one could not be reached."""
    registry, found, failures = shell.workspace.services.registry, [], []
    for name in _server_names(shell, arguments.server):
        source = next(source for source in registry.sources if source.prefix == name)
        try:
            found += source.tools(_context(shell))
        except ToolError as error:
            failures.append(f"{name}: {error.message}")
    if shell.wants_json:
        shell.put_json({"tools": [tool.summary() for tool in found], "count": len(found), "notes": failures})
    else:
        for tool in found:
            shell.put(f"{tool.name}\t{shorten(tool.description.strip().partition(chr(10))[0], 100)}")
    for failure in failures:
        shell.say(failure)
    return 1 if failures else 0


def mcp_test(shell, arguments):
    """Connect to a server and say how it went; 1 when it did not."""
    name = _server_names(shell, arguments.server)[0]
    status = shell.workspace.pool.status(name, _context(shell))
    if shell.wants_json:
        shell.put_json(status)
    elif status["ok"]:
        shell.note(f"{name}: {_count(status['tools'], 'tool')} in {status['elapsedMs']} ms")
    else:
        shell.say(f"{name}: {status['error']}")
    return 0 if status["ok"] else 1


def mcp_serve(shell, arguments):
    """Serve plans and their authoring to an MCP client until stdin ends; the working directory is no project."""
    from . import mcp_server  # loaded by this verb alone

    return mcp_server.serve(arguments.dir, environ=shell.environ)


# config ------------------------------------------------------------------------------------------------------------


def config_show(shell, arguments):
    """Show the merged configuration, secrets hidden."""
    loaded = config.load(shell.project, shell.environ)
    if shell.wants_json:
        shell.put_json(loaded.masked())
        return
    if not loaded.tables:
        shell.note("the configuration is empty: every key has its default")
        return
    for line in _toml_lines(loaded.masked(), ()):
        shell.put(line)


def _toml_lines(table, address):
    """Yield a table as TOML, for reading; plain values first, as TOML wants it."""
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    if address and (plain or not table):
        yield f"[{'.'.join(map(_toml_key, address))}]"
    for key, value in plain.items():
        yield f"{_toml_key(key)} = {_toml_value(value)}"
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _toml_lines(value, (*address, key))


def _toml_key(key):
    return key if paths.IDENTIFIER.match(key) else json.dumps(key)


def _toml_value(value):
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_toml_key(key)} = {_toml_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    return json.dumps(value) if isinstance(value, (str, bool)) else str(value)


def config_path(shell, arguments):
    """Show which files are read."""
    project = paths.project_config(shell.project)
    layers = [("global", paths.global_config(shell.environ)), ("project", project)]
    entries = [{"layer": name, "path": str(path), "exists": path.is_file()} for name, path in layers]
    if shell.wants_json:
        shell.put_json({"layers": entries})
        return
    for entry in entries:
        shell.put(f"{entry['layer']}\t{entry['path']}" + ("" if entry["exists"] else "\t(not there)"))


def config_init(shell, arguments):
    """Write a configuration file to start from."""
    path = paths.global_config(shell.environ) if arguments.global_ else paths.project_config(shell.project)
    if path.exists() and not arguments.force:
        raise Refused(f"{path} is there already; --force replaces it")
    paths.make_private_dir(path.parent)
    paths.write_private(path, config.template(arguments.global_).encode())
    shell.note(f"wrote {path}")


def config_check(shell, arguments):
    """Load everything the configuration names and tell what does not work; nothing is connected to."""
    problems, notes = [], []
    try:
        loaded = shell.workspace.config
    except ConfigError as error:
        problems.append(error.message)
    else:
        for section in loaded.deferred:
            try:
                loaded.usable(section)
            except PlanError as error:
                problems.append(error.message)
        catalog = shell.workspace.catalog
        problems += [f"{entry.path}: {entry.reason}" for entry in catalog.skipped]
        for source in shell.workspace.services.registry.sources:
            problems += source.notes()
        problems += [
            f"[mcp.{server.name}]: the command {server.command!r} is not found"
            for server in loaded.mcp.values()
            if server.command and not shutil.which(server.command, path=shell.environ.get("PATH"))
        ]
        notes += [f"plan {plan.identifier} is hidden, it needs {', '.join(plan.missing)}" for plan in catalog.hidden]
        notes += [f"{directory} does not exist" for directory in loaded.plan_dirs if not directory.is_dir()]
        notes += [f"{layer.path} is not there" for layer in loaded.layers if not layer.exists]
    if shell.wants_json:
        shell.put_json({"ok": not problems, "problems": problems, "notes": notes})
    else:
        for line in [*problems, *(f"note: {note}" for note in notes)]:
            shell.note(line)
        shell.note(_count(len(problems), "problem") if problems else "the configuration is fine")
    return 1 if problems else 0
