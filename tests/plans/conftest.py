"""A small world for plans: tools that are Python functions, and runs of plan documents over them."""

import dataclasses
import io
import json
import os
import threading

import pytest

from graphlib_plans import cli, config, control, documents, execution, planner, tools
from graphlib_plans.errors import Problem

#: Seconds until a wait gives up; generous, because running into it is a failure.
LIMIT_S = 40


class Functions:
    """A tools.Source of Python functions; they get the arguments, and the context when they want two arguments."""

    prefix = label = "t"

    def __init__(self):
        self.made = {}
        #: False for a source that lists its tools only when it is asked to, as a server does.
        self.connected = True

    def add(self, name, function, read_only=False, schema=None, **fields):
        two = function.__code__.co_argcount == 2

        def call(arguments, context):
            return function(arguments, context) if two else function(arguments)

        rule = {"type": "object"} if schema is None else schema
        annotations = {"readOnlyHint": True} if read_only else {}
        self.made[name] = tools.Tool(f"t__{name}", "t", name, rule, call, annotations=annotations, **fields)

    def known(self):
        return list(self.made.values()) if self.connected else None

    def tools(self, context):
        self.connected = True
        return self.known()

    def missing(self, name):
        return Problem("", "tool_unknown", f"there is no tool {name!r}")

    def notes(self):
        return []

    def close(self):
        pass


class World:
    """Tools, plans and runs of one test.

    calls: (tool, arguments) in the order in which tools were called. events: what the last run emitted.
    """

    def __init__(self, directory):
        self.directory = directory
        self.functions = Functions()
        self.plans = {}
        self.models = None
        self.settings = config.Settings(directory)
        self.calls = []
        self.events = []
        self._lock = threading.Lock()
        self.tool("echo", lambda arguments: arguments, read_only=True)
        self.tool("write", lambda arguments: arguments)

    def tool(self, name, function, **fields):
        """Add the tool t__<name>; every call of it is noted."""

        def noting(arguments, context):
            with self._lock:
                self.calls.append((name, arguments))
            return function(arguments, context) if function.__code__.co_argcount == 2 else function(arguments)

        self.functions.add(name, noting, **fields)

    def plan(self, *steps, identifier="p", **fields):
        """Make a plan of step documents and add it to the catalog."""
        document = {"identifier": identifier, "name": identifier, "description": "", "steps": list(steps), **fields}
        made = documents.to_plan(documents.normalise(document))
        self.plans[identifier] = made
        return made

    def services(self, **changes):
        # Copies, because a catalog's own plans count as checked, and these were not.
        copies = {name: documents.Entry(dataclasses.replace(plan), None) for name, plan in sorted(self.plans.items())}
        catalog = documents.Catalog(copies)
        registry = tools.Registry(
            [self.functions, execution.PlanSource(catalog), planner.Planner()],
            {name: each.tool for name, each in control.CONTROLS.items()},
        )
        made = execution.Services(
            registry=registry,
            controls=control.CONTROLS,
            models=self.models,
            catalog=catalog,
            servers=frozenset({"t"}),
            pricing={},
            settings=self.settings,
            user={},
        )
        return dataclasses.replace(made, **changes)

    def run(self, *steps, arguments=None, plan=None, **options):
        """Run a plan, or one made of the steps and the options that are keys of plans; return the Outcome."""
        fields = {key: options.pop(key) for key in list(options) if key in documents.PLAN_KEYS and key != "concurrency"}
        plan = plan or self.plan(*steps, **fields)
        self.events = []
        return execution.run(plan, arguments or {}, self.services(), emit=self.events.append, **options)

    def told(self, *names):
        """Return (event, path) of the events with these names, in order."""
        return [(event["event"], event["path"]) for event in self.events if event["event"] in names]


def call(id, tool="t__echo", /, *, after=None, retry=None, timeout_s=None, on_error=None, **arguments):
    """Return a step document; what is not an option of steps is its input."""
    step = {"id": id, "tool": tool, "input": arguments}
    options = {"after": after, "retry": retry, "timeout_s": timeout_s, "on_error": on_error}
    return {**step, **{key: value for key, value in options.items() if value is not None}}


class Gate:
    """A place where tools wait until the test lets them go on, both sides bounded."""

    def __init__(self):
        self._arrived = threading.Semaphore(0)
        self._open = threading.Event()

    def wait(self):
        self._arrived.release()
        assert self._open.wait(LIMIT_S), "the test never opened the gate"

    def await_arrivals(self, number):
        for _ in range(number):
            assert self._arrived.acquire(timeout=LIMIT_S), "a tool never came to the gate"

    def open(self):
        self._open.set()


@pytest.fixture
def world(tmp_path):
    """A World with the tools t__echo (reads) and t__write (changes the world)."""
    return World(tmp_path)


@pytest.fixture
def step():
    """step(id, tool, **input) -> step document; after, retry, timeout_s and on_error are options of the step."""
    return call


@pytest.fixture
def gate():
    """A Gate."""
    return Gate()


@pytest.fixture
def in_thread():
    """in_thread(function) -> join: start it in a thread; join() returns its result or raises what it raised."""

    def start(function):
        box = []

        def work():
            try:
                box.append((function(), None))
            except BaseException as error:
                box.append((None, error))

        thread = threading.Thread(target=work, daemon=True)
        thread.start()

        def join():
            thread.join(LIMIT_S)
            assert box, "the thread did not end"
            result, error = box[0]
            if error is not None:
                raise error
            return result

        return join

    return start


class Result:
    """How a command ended: its exit code, and the text of stdout and stderr."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture
def environ(tmp_path):
    """An environment whose home is empty."""
    return {"HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"]}


@pytest.fixture
def graph(environ, tmp_path, monkeypatch):
    """graph(*arguments, stdin="", **variables) -> Result of one command, run in an empty project."""
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)

    def run(*arguments, stdin="", **variables):
        out, err = io.StringIO(), io.StringIO()
        code = cli.main(
            list(arguments), stdin=io.StringIO(stdin), stdout=out, stderr=err, environ={**environ, **variables}
        )
        assert "Traceback" not in out.getvalue() + err.getvalue()
        return Result(code, out.getvalue(), err.getvalue())

    return run


@pytest.fixture
def project(graph, tmp_path):
    """write(kind, name, document) puts a plan or tool file into the project; strings are written as they are."""

    def write(kind, name, content):
        path = tmp_path / "project/.graph" / kind / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    return write
