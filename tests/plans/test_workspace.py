"""One configuration put together: plans, tools, servers, models, and runs over all of them."""

import json
import time

import pytest

from graphlib_plans import authoring, execution, mcp_client, records, tools, wire
from graphlib_plans.errors import ConfigError, UnknownPlan
from graphlib_plans.workspace import open_workspace

PLAN = {
    "identifier": "double",
    "name": "Double",
    "description": "",
    "input_schema": {"properties": {"n": {"type": "integer"}}, "required": ["n"]},
    "steps": [
        {"id": "twice", "tool": "user__pair", "input": {"value": "{{input.n}}"}},
        {"id": "shaped", "tool": "builtin__reshape", "input": {"shape": {"all": "{{twice}}"}}},
    ],
    "output": {"all": "{{shaped.all}}"},
}
PAIR = {
    "name": "pair",
    "description": "The value twice",
    "kind": "reshape",
    "input_schema": {"type": "object", "properties": {"value": {}}, "required": ["value"]},
    "shape": ["{{input.value}}", "{{input.value}}"],
}
CONFIG = """
[mcp.files]
command = "no-such-program-anywhere"
[mcp.secret]
command = "x"
env = { TOKEN = "${NOT_SET_ANYWHERE}" }
"""


@pytest.fixture
def environ(tmp_path):
    return {"HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"}


@pytest.fixture
def project(tmp_path):
    directory = tmp_path / "project"
    for name, content in {
        "config.toml": CONFIG,
        "plans/double.json": json.dumps(PLAN),
        "plans/needs.json": json.dumps({**PLAN, "identifier": "needs", "requires_servers": ["gone"]}),
        "plans/broken.json": "{",
        "tools/pair.json": json.dumps(PAIR),
        "tools/broken.json": "{",
    }.items():
        path = directory / ".graph" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return directory


@pytest.fixture
def workspace(project, environ):
    opened = open_workspace(project, environ)
    yield opened
    opened.close()


def test_without_any_file_there_are_builtins_and_control_steps(environ):
    opened = open_workspace(None, environ)
    found, notes = opened.registry.listing(tools.quiet_context())
    names = [tool.name for tool in found]
    assert "builtin__reshape" in names and names[-7:] == ["agent", "ask", "exit", "decide", "filter", "map", "reduce"]
    assert notes == [] and not opened.catalog.plans and not opened.servers
    opened.close()


def test_everything_a_project_names_is_there(workspace):
    assert list(workspace.catalog.plans) == ["double"]
    assert [entry.identifier for entry in workspace.catalog.hidden] == ["needs"]
    assert len(workspace.catalog.skipped) == 1
    assert workspace.servers == {"files", "secret"}
    assert workspace.registry.peek("user__pair").read_only and workspace.registry.peek("plan__double")
    assert workspace.find_plan("double").name == "Double"
    with pytest.raises(UnknownPlan, match="gone"):
        workspace.find_plan("needs")


def test_a_plan_runs_on_its_services(workspace):
    outcome = execution.run(workspace.find_plan("double"), {"n": 2**70}, workspace.services)
    assert outcome.kind == "ran" and outcome.output == {"all": [2**70, 2**70]}, outcome
    assert execution.run(workspace.find_plan("double"), {}, workspace.services).kind == "needs_input"


def test_what_a_user_tool_keeps_secret_is_in_no_record(project, environ):
    tool = {"name": "leak", "description": "d", "kind": "exec", "command": "sh", "args": ["-c", "echo got $K"],
            "env": {"K": "${LEAKY_TOKEN}"}}
    (project / ".graph/tools/leak.json").write_text(json.dumps(tool))
    steps = [{"id": "a", "tool": "user__leak", "input": {}}]
    plan = {"identifier": "leak", "name": "L", "description": "", "steps": steps, "output": {"said": "{{a}}"}}
    (project / ".graph/plans/leak.json").write_text(json.dumps(plan))
    opened = open_workspace(project, {**environ, "LEAKY_TOKEN": "s3cr3t-of-mine"})
    assert "s3cr3t-of-mine" in opened.secrets()
    found = opened.find_plan("leak")
    record = records.create(project / "runs", found, {}, secrets=opened.secrets(), now=time.time())
    outcome = execution.run(found, {}, opened.services, record=record)
    opened.close()
    assert outcome.output == {"said": {"text": "got s3cr3t-of-mine"}}
    written = (project / "runs" / f"{record.run}.jsonl").read_text()
    assert "got [hidden]" in written and "s3cr3t" not in written


def test_validation_knows_the_tools_of_this_machine(workspace):
    document = json.loads(json.dumps(PLAN))
    document["steps"][0]["tool"] = "user__pear"
    document["steps"][1]["input"]["shpae"] = 1
    assert [problem.code for problem in workspace.problems(document)] == ["user_tool_unknown", "input_mismatch"]
    assert workspace.validate(PLAN) == {"plan": "double", "steps": 2, "ok": True, "problems": [], "notes": []}
    document["steps"][0]["tool"] = "user__broken"
    assert "cannot be used" in str(workspace.problems(document)[0])
    # A server is not connected to find out whether it has a tool.
    document["steps"] = [{"id": "a", "tool": "files__read", "input": {}}, {"id": "b", "tool": "gone__x", "input": {}}]
    document.update(output={"x": "{{a}}"}, requires_servers=["gone"])
    body = workspace.validate(document)
    assert body["ok"] and "gone" in body["notes"][0]


def test_isolated_means_that_no_project_is_read(project, environ, monkeypatch):
    monkeypatch.chdir(project)
    opened = open_workspace(None, environ, isolated=True)
    assert not opened.catalog.plans and not opened.servers and opened.registry.peek("user__pair") is None
    opened.close()


def test_a_changed_file_is_seen_by_the_next_workspace_alone(workspace, project, environ):
    workspace.store.edit("double", lambda found: authoring.set_attribute(found, "name", "Twice"))
    assert workspace.find_plan("double").name == "Double"
    again = open_workspace(project, environ)
    assert again.find_plan("double").name == "Twice"
    again.close()


def test_servers_live_on_in_a_pool_that_is_kept(project, environ):
    pool = mcp_client.Pool(wire, environ)
    first = open_workspace(project, environ, pool=pool)
    source = pool.source("files")
    second = open_workspace(project, environ, pool=pool)
    first.close()
    assert pool.source("files") is source and second.pool is pool
    config = project / ".graph" / "config.toml"
    config.write_text(CONFIG + '[tools]\npacks = ["nope"]\n[mcp.more]\ncommand = "x"\n')
    with pytest.raises(ConfigError, match="nope"):
        open_workspace(project, environ, pool=pool)
    assert pool.source("files") is source
    pool.close()


@pytest.mark.parametrize("text", ["[", "[nope]\n", "[mcp.x]\n", '[settings]\ndata_dir = "${NOT_SET_ANYWHERE}"\n'])
def test_a_broken_configuration_is_one_error(project, environ, text):
    (project / ".graph" / "config.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        open_workspace(project, environ)
    assert caught.value.message
