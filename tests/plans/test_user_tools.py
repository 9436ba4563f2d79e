"""Tools written as files: what a file may say, what its four kinds do, and what a broken one does not do."""

import json
import os
import re
import sys
import threading

import pytest

from graphlib_plans import user_tools
from graphlib_plans.errors import Cancelled, ModelUnavailable, ToolError, ToolTimeout
from graphlib_plans.tools import CancelToken, Registry, quiet_context
from tests.plans.doubles import Model
from tests.plans.http_double import Service


def exec_tool(code="print('hi')", name="x", **keys):
    args = ["-c", code, *keys.pop("args", ())]
    return {"name": name, "description": "d", "kind": "exec", "command": sys.executable, "args": args, **keys}


def inputs(*names, **schemas):
    return {"type": "object", "properties": {**{name: {} for name in names}, **schemas}}


class Folder:
    """A directory of tool files, as a source behind a registry."""

    def __init__(self, path, environ=None):
        self.path = path
        self.environ = {**os.environ, **(environ or {})}
        self.source = user_tools.UserTools([path], self.environ)

    def write(self, document, name=None):
        name = name or f"{document['name']}.json"
        text = document if isinstance(document, str) else json.dumps(document)
        (self.path / name).write_text(text, encoding="utf-8")
        return self

    def call(self, tool="x", context=None, **arguments):
        return Registry([self.source]).call(f"user__{tool}", arguments, context or quiet_context())

    def names(self):
        return [tool.name for tool in self.source.known()]


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


# Files -------------------------------------------------------------------------------------------------------------


def test_every_form_is_read(folder):
    pytest.importorskip("yaml")
    folder.write(exec_tool(name="a"))
    folder.write('name = "b"\ndescription = "d"\nkind = "reshape"\nshape = { n = "{{input.n}}" }\n'
                 '[input_schema.properties]\nn = {}\n', "b.toml")
    folder.write("name: c\ndescription: d\nkind: reshape\nshape: [1]\n", "c.yaml")
    folder.write("not a tool", "readme.txt")
    assert folder.names() == ["user__a", "user__b", "user__c"] and folder.source.notes() == []
    assert folder.call("b", n=12345678901234567890) == {"n": 12345678901234567890} and folder.call("c") == [1]


def test_what_a_tool_says_of_itself(folder):
    folder.write(exec_tool(title="T", input_schema=inputs(n={"type": "integer"}), output_schema={"type": "object"}))
    folder.write({"name": "r", "description": "d", "kind": "reshape", "shape": 1})
    folder.write({"name": "g", "description": "d", "kind": "http", "url": "http://h/"})
    folder.write({"name": "p", "description": "d", "kind": "http", "url": "http://h/", "method": "POST"})
    folder.write(exec_tool(name="s", read_only=True))
    tools = {tool.name: tool for tool in folder.source.known()}
    made = tools["user__x"]
    assert (made.source, made.description, made.title, made.output_schema) == ("user", "d", "T", {"type": "object"})
    assert made.input_schema["properties"] == {"n": {"type": "integer"}} and made.checks_input
    flags = {name: tool.annotations.get("readOnlyHint") for name, tool in tools.items()}
    assert flags == {"user__x": None, "user__r": True, "user__g": True, "user__p": None, "user__s": True}


BROKEN = [
    ("{", "not well formed"),
    ("[]", "holds an array"),
    ({"description": "d", "kind": "exec", "command": "c"}, "the tool has no 'name'"),
    ({"name": "x", "kind": "exec", "command": "c"}, "the tool has no 'description'"),
    ({"name": "x", "description": "d", "kind": "shell"}, "kind of the tool must be exec or prompt or reshape or http"),
    ({"name": "x", "description": "d", "kind": ["exec"]}, "kind of the tool must be"),
    ({"name": "x", "description": "d", "kind": "exec"}, "the tool has no 'command'"),
    ({"name": "x", "description": "d", "kind": "http"}, "the tool has no 'url'"),
    ({"name": "x", "description": "d", "kind": "prompt"}, "the tool has no 'prompt'"),
    ({"name": "x", "description": "d", "kind": "reshape"}, "either a shape or caller_shape"),
    ({"name": "x", "description": "d", "kind": "reshape", "shape": 1, "caller_shape": True}, "either a shape or"),
    (exec_tool(arg=["x"]), r"unknown key 'arg' \(did you mean 'args'"),
    (exec_tool(url="http://h/"), "unknown key 'url'"),
    (exec_tool(args=["x"], timeout_s=0), "timeout_s of the tool must be a number of seconds above 0"),
    (exec_tool(args=["x"], timeout_s=True), "timeout_s of the tool"),
    (exec_tool(name="bad name"), "must be 1 to 58 letters"),
    (exec_tool(name="x" * 59), "must be 1 to 58 letters"),
    (exec_tool(input_schema={"type": "objekt"}), "input_schema is no JSON Schema"),
    (exec_tool(output_schema={"properties": []}), "output_schema is no JSON Schema"),
    (exec_tool(args=["{{input.x"]), "template"),
    (exec_tool(args=["{{E1.x}}"]), "a tool knows only its input"),
    (exec_tool(args=["{{input.citty}}"], input_schema=inputs("city")), r"has no 'citty' \(did you mean 'city'"),
    (exec_tool(env={"A": "{{item}}"}), "a tool knows only its input"),
    (exec_tool(env={"A": 1}), "env of the tool must be an object of strings"),
    ({"name": "x", "description": "d", "kind": "http", "url": "http://h/", "body": ["{{nope}}"]}, "only its input"),
]


@pytest.mark.parametrize("document, sentence", BROKEN)
def test_a_broken_file_disables_its_tool_alone_and_says_why(folder, document, sentence):
    folder.write(document, "x.json").write(exec_tool(name="good"))
    assert folder.names() == ["user__good"]
    (note,) = folder.source.notes()
    assert re.search(sentence, note)
    name = document.get("name", "x") if isinstance(document, dict) else "x"
    with pytest.raises(ToolError, match=sentence):
        folder.call(name)
    assert "x.json" in folder.source.missing(f"user__{name}").text
    assert folder.call("good") == {"text": "hi"}


def test_an_unknown_tool_names_the_nearest(folder):
    folder.write(exec_tool(name="count"))
    problem = folder.source.missing("user__cuont")
    assert problem.code == "user_tool_unknown" and "did you mean 'user__count'" in problem.hint


def test_an_earlier_directory_wins_even_with_a_broken_file(tmp_path):
    for name in ("project", "global"):
        (tmp_path / name).mkdir()
        Folder(tmp_path / name).write({"name": "r", "description": "d", "kind": "reshape", "shape": name})
    Folder(tmp_path / "project").write('{"name": "b", "kind": 7}', "b.json")
    Folder(tmp_path / "global").write({"name": "b", "description": "d", "kind": "reshape", "shape": 1})
    source = user_tools.UserTools([tmp_path / "project", tmp_path / "missing", tmp_path / "global"], {})
    assert [tool.name for tool in source.known()] == ["user__r"] and len(source.notes()) == 1
    assert Registry([source]).call("user__r", {}, quiet_context()) == "project"


def test_a_name_twice_in_one_directory_is_told(folder):
    folder.write({"name": "r", "description": "d", "kind": "reshape", "shape": 1}, "a.json")
    folder.write({"name": "r", "description": "d", "kind": "reshape", "shape": 2}, "b.json")
    assert folder.call("r") == 1 and any("b.json" in note and "a.json" in note for note in folder.source.notes())


def test_a_changed_file_is_read_again(folder):
    folder.write({"name": "r", "description": "d", "kind": "reshape", "shape": 1})
    assert folder.call("r") == 1
    folder.write({"name": "r", "description": "d", "kind": "reshape", "shape": "another"})
    assert folder.call("r") == "another"
    (folder.path / "r.json").unlink()
    assert folder.names() == []


def test_the_input_is_checked_and_defaults_are_applied(folder):
    schema = inputs(city={"type": "string"}, days={"type": "integer", "default": 3})
    shape = {"city": "{{input.city}}", "days": "{{input.days}}"}
    folder.write({"name": "r", "description": "d", "kind": "reshape", "shape": shape, "input_schema": schema})
    assert folder.call("r", city="Bern") == {"city": "Bern", "days": 3}
    for wrong, sentence in (({"city": 7}, "city"), ({"citty": "x"}, "citty")):
        with pytest.raises(ToolError, match=sentence) as caught:
            folder.call("r", **wrong)
        assert set(caught.value.payload) == {"error", "problems", "inputSchema"}


# exec --------------------------------------------------------------------------------------------------------------


def test_arguments_are_rendered_and_no_shell_sees_them(folder):
    hostile = "$(touch pwned); `id` && \"x\" 'y' *"
    code = "import json, sys; print(json.dumps(sys.argv[1:]))"
    folder.write(exec_tool(code, args=["{{input.a}}", "n={{input.n}}", "{{input.list}}"], output="json",
                           input_schema=inputs("a", "n", "list")))
    assert folder.call(a=hostile, n=12345678901234567890, list=[1]) == [
        hostile, "n=12345678901234567890", "[\n  1\n]"]


@pytest.mark.parametrize("keys, code, result", [
    ({}, "print('  héllo \\n')", {"text": "héllo"}),
    ({"output": "text"}, "print('{}')", {"text": "{}"}),
    ({"output": "json"}, "print('[1, 2.5, null]')", [1, 2.5, None]),
    ({"output": "json"}, "print('12345678901234567890')", 12345678901234567890),
])
def test_the_output_of_a_program(folder, keys, code, result):
    assert folder.write(exec_tool(code, **keys)).call() == result


def test_output_that_is_no_json(folder):
    folder.write(exec_tool("print('oops')", output="json"))
    with pytest.raises(ToolError, match="the output of user__x is not well formed") as caught:
        folder.call()
    assert caught.value.payload["stdout"] == "oops\n"


def test_a_failing_program_tells_status_and_output(folder):
    folder.write(exec_tool("import sys; print('out'); print('boom', file=sys.stderr); sys.exit(2)"))
    with pytest.raises(ToolError, match="user__x exited with status 2: boom") as caught:
        folder.call()
    assert caught.value.payload == {"error": "user__x exited with status 2", "stderr": "boom\n", "stdout": "out\n"}
    assert caught.value.retryable


def test_environment_directory_and_stdin(tmp_path):
    folder = Folder(tmp_path, {"SECRET": "s3cret {{input.a}}", "PLACE": "here"})
    (tmp_path / "here").mkdir()
    code = ("import json, os, sys;"
            "print(json.dumps([os.environ['A'], os.environ['PATH'], os.getcwd(), sys.stdin.read()]))")
    folder.write(exec_tool(code, env={"A": "${SECRET}/{{input.a}}"}, cwd="${PLACE}", stdin="{{input.data}}",
                           output="json", input_schema=inputs("a", "data")))
    found = folder.call(a="${HOME} {{x}}", data={"k": [1]})
    # Neither the variable nor the argument is looked at again.
    assert found == ["s3cret {{input.a}}/${HOME} {{x}}", os.environ["PATH"], str(tmp_path / "here"), '{"k":[1]}']


def test_a_variable_that_is_not_set(folder):
    folder.write(exec_tool(env={"A": "${NO_SUCH_VARIABLE}"}))
    with pytest.raises(ToolError, match="needs the environment variable NO_SUCH_VARIABLE") as caught:
        folder.call()
    assert not caught.value.retryable


def test_what_no_record_may_hold(tmp_path):
    variables = {"TOKEN": "from-a-header", "PLAIN": "from-a-query", "API_KEY": "from-a-program", "MODE": "debugging",
                 "SHORT": "abc", "HOME": "/home/me", "MY_SECRET": "not-in-a-file"}
    folder = Folder(tmp_path, variables)
    headers = {"Authorization": "Bearer ${TOKEN}", "X-Key": "Basic written", "Accept": "application/json",
               "X-A": "{{input.a}}", "X-Short": "${SHORT}", "X-Home": "${HOME}", "X-None": "${NO_SUCH_VARIABLE}"}
    folder.write(http_tool("http://localhost", name="a", headers=headers, query={"q": "${PLAIN}"}))
    folder.write(exec_tool(name="b", env={"K": "${API_KEY}", "M": "${MODE}"}))
    assert folder.source.secrets() == {"from-a-header", "from-a-query", "from-a-program", "Basic written", "written"}
    (tmp_path / "a.json").unlink()
    assert folder.source.secrets() == {"from-a-program"}


def test_an_argument_that_is_missing(folder):
    folder.write(exec_tool(args=["{{input.a}}"], input_schema=inputs("a")))
    with pytest.raises(ToolError, match="user__x: .*input.a") as caught:
        folder.call()
    assert not caught.value.retryable
    folder.write(exec_tool("import sys; print(sys.argv[1:])", args=["{{input.a?}}"], input_schema=inputs("a")))
    assert folder.call() == {"text": "['']"}


@pytest.mark.parametrize("keys, error, sentence", [
    ({"timeout_s": 0.3}, ToolTimeout, "user__x did not end within 0.3 s"),
    ({"timeout_secs": 0.3}, ToolTimeout, "user__x did not end within 0.3 s"),
])
def test_a_program_that_takes_too_long(folder, keys, error, sentence):
    folder.write(exec_tool("import signal; signal.pause()", **keys))
    with pytest.raises(error, match=sentence):
        folder.call()


def test_a_program_that_writes_too_much(folder):
    folder.write(exec_tool("while True: print('y' * 100)", max_output_bytes=1000))
    with pytest.raises(ToolError, match="more than 1,000 bytes"):
        folder.call()


def test_a_program_that_is_not_there(folder):
    folder.write({**exec_tool(), "command": "no-such-program"})
    with pytest.raises(ToolError, match="user__x cannot be started: 'no-such-program': the command was not found"):
        folder.call()


def test_a_cancelled_program(folder):
    token = CancelToken()
    os.mkfifo(folder.path / "started")
    folder.write(exec_tool(f"open({str(folder.path / 'started')!r}, 'w').close(); import signal; signal.pause()"))

    def cancel():
        open(folder.path / "started").close()
        token.cancel("enough")

    threading.Thread(target=cancel).start()
    with pytest.raises(Cancelled, match="enough"):
        folder.call(context=quiet_context(cancel=token))


def test_a_result_that_breaks_its_output_schema(folder):
    folder.write(exec_tool("print('{\"n\": \"x\"}')", output="json", output_schema=inputs(n={"type": "integer"})))
    with pytest.raises(ToolError, match="does not keep to its output_schema: .*n") as caught:
        folder.call()
    assert caught.value.payload["result"] == {"n": "x"}


# prompt, reshape ---------------------------------------------------------------------------------------------------


def prompt_tool(**keys):
    return {"name": "x", "description": "d", "kind": "prompt", "prompt": "Sum up {{input.text}}",
            "input_schema": inputs("text"), **keys}


def test_a_prompt_without_schema_gives_text(folder):
    model = Model()
    folder.write(prompt_tool(system="Be {{input.text}}", model="fast"))
    context = quiet_context(models=model)
    assert folder.call(context=context, text="it") == {"text": "an answer"}
    name, asked = model.asked[0]
    assert (name, asked["system"], asked["messages"]) == ("fast", "Be it", [{"role": "user", "text": "Sum up it"}])
    assert asked["context"].models is model


def test_a_prompt_with_a_schema_gives_an_object(folder):
    model, wanted = Model(), {"type": "object", "properties": {"n": {"type": "integer"}}}
    folder.write(prompt_tool(output_schema=wanted))
    assert folder.call(context=quiet_context(models=model), text="it") == {"n": 1}
    assert (model.asked[0][0], model.asked[0][1]["schema"]) == ("chat", wanted)


def test_the_caller_may_choose_where_the_file_allows_it(folder):
    model, wanted = Model(), {"type": "object"}
    folder.write(prompt_tool(caller_model=True, caller_output_schema=True, model="fast"))
    context = quiet_context(models=model)
    folder.call(context=context, text="it", model="slow", output_schema=wanted)
    assert (model.asked[0][0], model.asked[0][1]["schema"]) == ("slow", wanted)
    folder.call(context=context, text="it")
    assert model.asked[1][0] == "fast"
    folder.write(prompt_tool(model="fast"))
    with pytest.raises(ToolError, match="model"):
        folder.call(context=context, text="it", model="slow")


def test_a_prompt_without_models(folder):
    with pytest.raises(ModelUnavailable):
        folder.write(prompt_tool()).call(text="it")


def test_a_reshape_keeps_types_and_a_caller_gives_its_own_shape(folder):
    shape = {"n": "{{input.n}}", "all": ["{{input.rows}}", "{{#input.rows}}{{k}};{{/input.rows}}"]}
    folder.write({"name": "r", "description": "d", "kind": "reshape", "shape": shape,
                  "input_schema": inputs("n", "rows")})
    rows = [{"k": 1}, {"k": 2}]
    assert folder.call("r", n=None, rows=rows) == {"n": None, "all": [rows, "1;2;"]}
    folder.write({"name": "c", "description": "d", "kind": "reshape", "caller_shape": True})
    assert folder.call("c", shape={"kept": "{{as.it.is}}"}) == {"kept": "{{as.it.is}}"}
    with pytest.raises(ToolError, match="shape"):
        folder.call("c")


# http --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def service():
    made = []

    def make(handle):
        made.append(Service(handle))
        return made[-1]

    yield make
    for each in made:
        each.close()


def http_tool(url, **keys):
    return {"name": "x", "description": "d", "kind": "http", "url": url,
            "input_schema": inputs("a", "b", "base"), **keys}


def test_a_request_with_everything(tmp_path, service):
    one = service(lambda request: request.reply(200, {"n": 12345678901234567890}))
    folder = Folder(tmp_path, {"TOKEN": "tok-123"})
    folder.write(http_tool(one.url + "/items/{{input.a}}", method="POST", query={"q": "{{input.b}}", "none": None,
                 "each": ["1", "{{input.a}}"]}, headers={"Authorization": "Bearer ${TOKEN}", "X-A": "{{input.b}}"},
                 body={"a": "{{input.a}}", "fixed": [1, "${TOKEN}"]}))
    assert folder.call(a="../ä b?c#d", b="x&y=z") == {"n": 12345678901234567890}
    (request,) = one.requests
    assert request.path == "/items/..%2F%C3%A4%20b%3Fc%23d?q=x%26y%3Dz&each=1&each=..%2F%C3%A4+b%3Fc%23d"
    assert request.headers["Authorization"] == "Bearer tok-123" and request.headers["X-A"] == "x&y=z"
    assert request.headers["Content-Type"] == "application/json"
    assert request.json == {"a": "../ä b?c#d", "fixed": [1, "${TOKEN}"]}


def test_a_tag_at_the_beginning_is_the_address(folder, service):
    one = service(lambda request: request.reply(200, "ok", kind="text/plain"))
    folder.write(http_tool("{{input.base}}/x/{{input.a}}"))
    assert folder.call(base=one.url + "/api", a="1/2") == {"text": "ok", "status": 200}
    assert one.requests[0].path == "/api/x/1%2F2"
    with pytest.raises(ToolError, match="not an http or https URL"):
        folder.call(base="file:///etc/passwd", a="")


@pytest.mark.parametrize("output, kind, body, result", [
    (None, "application/json; charset=utf-8", "[1]", [1]),
    (None, "application/problem+json", '{"a": 1}', {"a": 1}),
    (None, "text/html; charset=latin-1", "ä".encode("latin-1"), {"text": "ä", "status": 200}),
    (None, "application/json", "", {}),
    ("text", "application/json", "[1]", {"text": "[1]", "status": 200}),
    ("json", "text/plain", "[1]", [1]),
])
def test_the_answer_to_a_request(folder, service, output, kind, body, result):
    one = service(lambda request: request.reply(200, body, kind=kind))
    folder.write(http_tool(one.url, **({"output": output} if output else {})))
    assert folder.call() == result


def test_an_answer_that_should_be_json(folder, service):
    one = service(lambda request: request.reply(200, "<html>", kind="text/html"))
    folder.write(http_tool(one.url, output="json"))
    with pytest.raises(ToolError, match="not well formed") as caught:
        folder.call()
    assert caught.value.payload["body"] == "<html>" and caught.value.payload["status"] == 200


@pytest.mark.parametrize(
    "status, retryable", [(400, False), (404, False), (408, True), (429, True), (500, True), (503, True)])
def test_a_status_that_is_an_error(folder, service, status, retryable):
    one = service(lambda request: request.reply(status, "because", kind="text/plain"))
    folder.write(http_tool(one.url + "/p?key=hidden"))
    with pytest.raises(ToolError, match=f"/p answered with HTTP status {status}") as caught:
        folder.call()
    assert caught.value.retryable is retryable and "hidden" not in caught.value.message
    assert caught.value.payload["status"] == status and caught.value.payload["body"] == "because"


@pytest.mark.parametrize("keys, sentence", [
    ({"timeout_s": 0.2}, "did not answer completely within"),
    ({"max_output_bytes": 10}, "more than 10 bytes"),
])
def test_limits_of_a_request(folder, service, keys, sentence):
    def reply(request):
        request.stream("text/plain")
        request.write("x" * 11)
        request.wait_until_gone()

    folder.write(http_tool(service(reply).url, **keys))
    with pytest.raises(ToolError, match=sentence):
        folder.call()


def redirect(target, status=302):
    return lambda request: request.reply(status, "", Location=target) if request.path == "/start" else request.reply(
        200, {"method": request.method, "body": request.body.decode(), "path": request.path,
              "auth": request.headers.get("Authorization"), "type": request.headers.get("Content-Type")})


@pytest.mark.parametrize("status, method, body", [(301, "GET", ""), (302, "GET", ""), (303, "GET", ""),
                                                  (307, "POST", '"x"'), (308, "POST", '"x"')])
def test_a_redirect_on_the_same_host_is_followed(folder, service, status, method, body):
    one = service(redirect("/end", status))
    folder.write(http_tool(one.url + "/start", method="POST", body=["x"], headers={"Authorization": "a"}))
    found = folder.call()
    assert (found["method"], found["path"], found["auth"]) == (method, "/end", "a")
    assert (found["body"], found["type"]) == (('["x"]', "application/json") if body else ("", None))


def test_a_redirect_to_another_host_is_refused_unless_allowed(folder, service):
    other = service(redirect("/"))
    one = service(redirect(f"http://localhost:{other.port}/end"))
    tool = http_tool(one.url + "/start", headers={"Authorization": "a", "X-Api-Key": "k"})
    folder.write(tool)
    sentence = r"/start redirects to 'http://localhost:\d+/end', which is another host; redirect_hosts allows"
    with pytest.raises(ToolError, match=sentence):
        folder.call()
    assert other.requests == []
    folder.write({**tool, "redirect_hosts": ["localhost"]})
    assert folder.call()["auth"] is None and "X-Api-Key" not in other.requests[0].headers


@pytest.mark.parametrize(
    "target", ["file:///etc/passwd", "http://127.0.0.1:1/", "ftp://127.0.0.1/", "//other/", "http://["])
def test_a_redirect_elsewhere_is_refused(folder, service, target):
    folder.write(http_tool(service(redirect(target)).url + "/start"))
    with pytest.raises(ToolError, match="user__x: .*/start redirects to"):
        folder.call()


def test_redirects_without_end(folder, service):
    folder.write(http_tool(service(redirect("/start")).url + "/start"))
    with pytest.raises(ToolError, match="redirected more than 5 times"):
        folder.call()
