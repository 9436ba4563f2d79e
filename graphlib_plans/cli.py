"""The command line `graph`: plans, tools, servers and configuration. Every verb is described in docs/graph-cli.md.

stdout carries what was asked for and nothing else; everything for people goes to stderr. Exit codes:
0 done, 1 failed or refused, 2 wrong usage, 3 the plan needs other input, 4 an exit step with status error fired.

Here are the shell every verb works in, and the parser, which is the table of verbs; the verbs are in commands.
"""

import argparse
import contextlib
import json
import logging
import os
import re
import sys
from pathlib import Path

from . import __version__, authoring, commands, documents, terminal, tools
from . import workspace as workspaces
from .documents import pretty_json
from .errors import BadArgument, NeedsInput, PlanError


def main(argv=None, *, stdin=None, stdout=None, stderr=None, environ=None):
    """Run one command and return its exit code. argv: the arguments without the program's name."""
    shell = _Shell(stdin or sys.stdin, stdout or sys.stdout, stderr or sys.stderr, environ or os.environ)
    with contextlib.redirect_stdout(shell.stdout), contextlib.redirect_stderr(shell.stderr):
        try:
            arguments = _parser().parse_args(argv)
        except SystemExit as stop:  # argparse has said what is wrong, or has shown the help
            return stop.code or 0
    return shell.run(arguments)


class _Shell:
    """The streams and the environment of one command, and the workspace when it needs one."""

    def __init__(self, stdin, stdout, stderr, environ):
        self.stdin, self.stdout, self.stderr, self.environ = stdin, stdout, stderr, environ
        self.arguments = None
        self._workspace = None
        for stream in (stdout, stderr):
            if hasattr(stream, "reconfigure"):  # text a terminal cannot show is escaped, never a crash
                stream.reconfigure(errors="backslashreplace")

    def run(self, arguments):
        """Run the command; turn every error into a sentence and an exit code."""
        self.arguments = arguments
        self.set_logging()
        try:
            return arguments.command(self, arguments) or 0
        except BrokenPipeError:
            # The reader (`head`) has what it wanted. Python would complain again when it flushes at the end.
            with contextlib.suppress(OSError, ValueError, AttributeError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), self.stdout.fileno())
            return 1
        except PlanError as error:
            return self.failed(error)
        except KeyboardInterrupt:
            self.say("interrupted")
            return 1
        except OSError as error:
            self.say(f"{error.filename or 'the system'}: {documents.reason_of(error)}")
            return 1
        except Exception as error:  # the outermost frame: a bug is told in one line, its traceback is in the log
            logging.getLogger(__name__).debug("the command broke", exc_info=True)
            self.say(f"something broke inside: {type(error).__name__}: {error} (GRAPH_LOG=debug shows more)")
            return 1
        finally:
            if self._workspace is not None:
                self._workspace.close()

    def set_logging(self):
        name = self.environ.get("GRAPH_LOG", "").upper()
        level = logging.DEBUG if self.arguments.verbose > 1 else getattr(logging, name, None)
        logging.basicConfig(stream=self.stderr, level=level if isinstance(level, int) else logging.CRITICAL, force=True)

    @property
    def project(self):
        """The directory whose .graph belongs to this command."""
        return Path(self.arguments.dir) if self.arguments.dir else Path.cwd()

    @property
    def workspace(self):
        """Everything configured here, opened on first use. ConfigError."""
        if self._workspace is None:
            if not self.project.is_dir():
                raise BadArgument(f"--dir {self.arguments.dir}: there is no such directory")
            self._workspace = workspaces.open_workspace(self.project, self.environ)
        return self._workspace

    @property
    def wants_json(self):
        return getattr(self.arguments, "json", False)

    # Output

    def say(self, text):
        """Tell a person what became of the command, on stderr."""
        self.note(f"graph: {text}")

    def note(self, text):
        """Tell a person something on stderr; as an event where a program reads the events of runs there."""
        if self.environ.get("GRAPH_EVENTS") == "jsonl":
            line = json.dumps({"event": "message", "text": text})
        else:
            line = tools.printable(text)
        with contextlib.suppress(BrokenPipeError):
            self.stderr.write(line + "\n")
            self.stderr.flush()

    def put(self, text):
        """Write a line of the deliverable to stdout; escaped when a terminal reads it."""
        self.stdout.write((tools.printable(text) if terminal.is_terminal(self.stdout) else text) + "\n")
        self.stdout.flush()

    def put_json(self, value):
        """Write a value as JSON to stdout."""
        self.put_json_text(pretty_json(value))

    def put_json_text(self, text):
        """Write JSON to stdout. What could act on a terminal, or what stdout cannot write, is escaped as JSON does."""
        text = _NOT_ASCII.sub(lambda match: match[0] if match[0].isprintable() else json.dumps(match[0])[1:-1], text)
        try:
            text.encode(getattr(self.stdout, "encoding", None) or "utf-8")
        except UnicodeEncodeError:
            text = _NOT_ASCII.sub(lambda match: json.dumps(match[0])[1:-1], text)
        self.put(text)

    def failed(self, error):
        """Tell about an error and return its exit code."""
        self.say(error.message)
        self.note_lists(error.details, skip=error.message)
        if self.wants_json:
            self.put_json(error.body())
        return 3 if isinstance(error, NeedsInput) else 1

    def note_lists(self, details, skip=""):
        """Write the lists of a body as lines for people."""
        for key, title in _LISTS:
            entries = details.get(key) or []
            lines = [f"  - {commands.sentence(entry)}" for entry in entries]
            is_said = key.startswith("problems") and all(_text(entry) in skip for entry in entries)
            if entries and not is_said:
                self.note("\n".join([title, *lines]))
        if isinstance(details.get("inputSchema"), dict):
            self.note(f"the input it takes:\n{pretty_json(details['inputSchema'])}")


#: Lists in bodies, and what stands above them.
_LISTS = (
    ("problemsIntroduced", "it would introduce:"),
    ("preExistingProblems", "problems that are there already:"),
    ("problems", "problems:"),
    ("availableSteps", "steps of the plan:"),
)


def _text(entry):
    return entry["text"] if isinstance(entry, dict) else str(entry)


_NOT_ASCII = re.compile(r"[^\n -~]")


# The parser --------------------------------------------------------------------------------------------------------


def _parser():
    parser = argparse.ArgumentParser(
        prog="graph", description="Run and edit plans: reviewed pipelines of tool calls.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"graph {__version__}")
    _add_common(parser, None, 0)
    groups = parser.add_subparsers(metavar="GROUP", required=True)
    _add_plan(_group(groups, "plan", "list, run and edit plans"))
    _add_tools(_group(groups, "tools", "what a step can call"))
    _add_mcp(_group(groups, "mcp", "MCP servers"))
    _add_config(_group(groups, "config", "the configuration"))
    return parser


def _add_common(parser, directory, verbosity):
    """Add the options that may stand before the group or behind the verb."""
    about = "project directory, whose .graph is used (default: the working directory)"
    parser.add_argument("--dir", default=directory, help=about)
    about = "tell more; twice: log what happens inside"
    parser.add_argument("-v", "--verbose", action="count", default=verbosity, help=about)


def _group(groups, name, about):
    return groups.add_parser(name, help=about, description=about, allow_abbrev=False).add_subparsers(
        metavar="VERB", required=True
    )


def _verb(group, name, command, about, *positionals, json=True):
    """Add a verb. positionals: names, with their help; a name that ends with "?" may be left out."""
    verb = group.add_parser(name, help=about, description=about, allow_abbrev=False)
    for positional, text in positionals:
        optional = {"nargs": "?"} if positional.endswith("?") else {}
        verb.add_argument(positional.rstrip("?"), help=text, **optional)
    _add_common(verb, argparse.SUPPRESS, argparse.SUPPRESS)
    if json:
        verb.add_argument("--json", action="store_true", help="write JSON to stdout")
    verb.set_defaults(command=command)
    return verb


_PLAN = ("plan", "identifier of the plan")
_PLAN_OR_FILE = ("plan", "identifier of the plan, or the path of a file")
_ID = ("id", "id of the step")
_INPUT = ("input?", "JSON object, @FILE, or - for stdin")


def _add_plan(plan):
    _verb(plan, "list", commands.plan_list, "list the plans")
    show = _verb(plan, "show", commands.plan_show, "show a plan, or its dependency graph", _PLAN_OR_FILE)
    show.add_argument("--graph", action="store_true", help="draw what waits for what")
    show.add_argument("--svg", metavar="FILE", help="write the drawing as a picture; - is stdout")
    _verb(plan, "validate", commands.plan_validate, "list everything that is wrong with a plan", _PLAN_OR_FILE)
    run = _verb(plan, "run", commands.plan_run, "run a plan", ("plan?", "identifier of the plan"), _INPUT)
    run.add_argument("--input", dest="pairs", metavar="NAME=VALUE", action="append", help="one value of the input")
    run.add_argument("--resume", metavar="RUN", help="go on with a run that did not end well")
    run.add_argument(
        "--concurrency", type=_positive(int), metavar="N", help="steps and items at the same time, at most"
    )
    run.add_argument("--timeout", type=_positive(float), metavar="SECONDS", help="limit of the whole run")
    run.add_argument("--no-record", action="store_true", help="keep no record of this run")
    run.add_argument("-q", "--quiet", action="store_true", help="no progress on stderr")
    _verb(plan, "runs", commands.plan_runs, "list the runs on record", ("plan?", "runs of this plan alone"))
    _verb(plan, "show-run", commands.plan_show_run, "show a run on record", ("run", "name of the run"))
    new = _verb(
        plan, "new", commands.plan_new, "create a plan without steps", ("identifier", "letters, digits, _ and -")
    )
    new.add_argument("--name", help="what people call it (default: the identifier)")
    new.add_argument("--description", default="", help="what it does; callers choose a plan by it")
    draft = _verb(plan, "draft", commands.plan_draft, "have a model write a plan", ("goal", "what the plan must do"))
    draft.add_argument("--from", dest="start", metavar="PLAN", help="start from this plan, and replace its steps")
    attributes = ", ".join(authoring.ATTRIBUTES)
    setting = _verb(plan, "set", commands.plan_set, "set an attribute of a plan", _PLAN, ("attribute", attributes))
    setting.add_argument("values", nargs="+", metavar="value", help="text, texts, or JSON (inline, @FILE or -)")
    _verb(
        plan, "unset", commands.plan_unset, "remove an attribute", _PLAN, ("attribute", ", ".join(authoring.UNSETTABLE))
    )
    _add_step(_group(plan, "step", "edit the steps of a plan"))


def _add_step(step):
    add = _verb(step, "add", commands.step_add, "add a step", _PLAN, _ID, ("tool", "name of the tool"), _INPUT)
    add.add_argument("--reasoning", help="why the step is there")
    _add_anchors(add, required=False)
    words = ", ".join(authoring.STEP_ATTRIBUTES)
    update = _verb(step, "update", commands.step_update, "set an attribute of a step", _PLAN, _ID, ("attribute", words))
    update.add_argument("values", nargs="+", metavar="value", help="text, texts, or JSON (inline, @FILE or -)")
    new_id = ("new_id", "its id from now on; references are rewritten")
    _verb(step, "rename", commands.step_rename, "give a step another id", _PLAN, _ID, new_id)
    attributes = ", ".join(authoring.STEP_UNSETTABLE)
    _verb(step, "unset", commands.step_unset, "remove an attribute of a step", _PLAN, _ID, ("attribute", attributes))
    _verb(step, "rm", commands.step_rm, "remove a step", _PLAN, _ID)
    _add_anchors(_verb(step, "move", commands.step_move, "move a step", _PLAN, _ID), required=True)


def _add_anchors(verb, required):
    anchors = verb.add_mutually_exclusive_group(required=required)
    anchors.add_argument("--before", metavar="ID", help="place it before this step")
    anchors.add_argument("--after", metavar="ID", help="place it after this step")


def _positive(kind):
    def convert(text):
        try:
            value = kind(text)
        except ValueError:
            value = 0
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
        return value

    return convert


def _add_tools(group):
    name = ("name", "full name of the tool, for example builtin__reshape")
    _verb(group, "list", commands.tools_list, "list every tool a step can call; connects to the MCP servers")
    _verb(group, "show", commands.tools_show, "show what a tool takes and gives", name)
    test = _verb(group, "test", commands.tools_test, "call one tool", name, _INPUT)
    test.add_argument("--input", dest="pairs", metavar="NAME=VALUE", action="append", help="one value of the input")


def _add_mcp(group):
    _verb(group, "list", commands.mcp_list, "list the configured servers, without connecting")
    _verb(
        group, "tools", commands.mcp_tools, "list the tools of one server or of all", ("server?", "name of the server")
    )
    _verb(group, "test", commands.mcp_test, "connect to a server and say how it went", ("server", "name of the server"))
    about = "serve plans and their authoring over stdio to an MCP client, until stdin ends; --dir names the project"
    _verb(group, "serve", commands.mcp_serve, about, json=False)


def _add_config(group):
    _verb(group, "show", commands.config_show, "show the merged configuration, secrets hidden")
    _verb(group, "path", commands.config_path, "show which files are read")
    _verb(group, "check", commands.config_check, "tell everything that does not work, without connecting")
    init = _verb(group, "init", commands.config_init, "write a configuration file to start from", json=False)
    init.add_argument("--global", dest="global_", action="store_true", help="the global file, not the project's")
    init.add_argument("--force", action="store_true", help="replace a file that is there")
