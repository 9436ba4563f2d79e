"""The builtin tools; the git tools against repositories made by git itself."""

import datetime
import os
import subprocess

import pytest

from graphlib_plans import builtins, schema
from graphlib_plans.errors import Cancelled, ConfigError, ModelUnavailable, ToolError
from graphlib_plans.tools import CancelToken, Registry, quiet_context
from tests.plans.doubles import Model


def call(name, models=None, context=None, packs=("git",), **arguments):
    registry = Registry([builtins.Builtins(packs, models)])
    return registry.call(f"builtin__{name}", arguments, context or quiet_context(models=models))


# Packs, reshape, infer ---------------------------------------------------------------------------------------------


def test_packs():
    always = [tool.name for tool in builtins.Builtins([], None).known()]
    assert always == ["builtin__infer", "builtin__reshape"]
    with_git = builtins.Builtins(["git", "data"], None)
    assert len(with_git.known()) == 7 and with_git.tools(None) == with_git.known() and with_git.notes() == []
    assert all(tool.read_only for tool in with_git.known())
    with pytest.raises(ConfigError, match="there is no pack 'gitt'; did you mean 'git'"):
        builtins.Builtins(["gitt"], None)


@pytest.mark.parametrize("name, text", [
    ("builtin__git_log", "in the pack git, which is off"),
    ("builtin__reshap", "there is no builtin tool 'builtin__reshap'"),
])
def test_a_tool_that_is_not_there(name, text):
    problem = builtins.Builtins([], None).missing(name)
    assert problem.code == "builtin_unknown" and text in problem.text and problem.hint


def test_reshape_returns_its_shape():
    shape = {"n": 12345678901234567890, "a": [None, "{{kept}}"]}
    assert call("reshape", shape=shape) is shape
    assert call("reshape", shape=None) is None
    with pytest.raises(ToolError, match="shape"):
        call("reshape", shpae=1)


def test_infer_gives_text_or_an_object():
    model, wanted = Model("chat", "fast"), {"type": "object"}
    assert call("infer", model, instruction="do") == {"text": "an answer"}
    assert call("infer", model, instruction="do", output_schema=wanted, model="fast") == {"n": 1}
    assert [name for name, _ in model.asked] == ["chat", "fast"]
    assert model.asked[1][1]["schema"] is wanted and model.asked[1][1]["prompt"] == "do"
    with pytest.raises(ToolError, match="model"):
        call("infer", model, instruction="do", model="slow")


def test_infer_offers_names_only_where_there_are_models():
    def offered(models):
        return builtins.Builtins([], models).known()[0].input_schema["properties"]["model"].get("enum")

    assert offered(Model("fast", "chat")) == ["chat", "fast"] and offered(None) is None
    with pytest.raises(ModelUnavailable):
        call("infer", instruction="do")


# git ---------------------------------------------------------------------------------------------------------------


class Repository:
    """A repository with commits whose author and date are fixed."""

    def __init__(self, path):
        self.path = path
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments):
        who = {f"GIT_{role}_{what}": value for role in ("AUTHOR", "COMMITTER")
               for what, value in (("NAME", "Zoë"), ("EMAIL", "z@example.org"), ("DATE", "2026-01-02T03:04:05Z"))}
        environ = {**os.environ, **who, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        done = subprocess.run(["git", *arguments], cwd=self.path, env=environ, capture_output=True, check=True)
        return done.stdout.decode().strip()

    def commit(self, message, **files):
        for name, content in files.items():
            path = self.path / name.replace("__", "/").replace("_dot_", ".")
            if content is None:
                path.unlink()
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)
        return self.git("rev-parse", "HEAD")

    def call(self, tool, **arguments):
        return call(f"git_{tool}", repository=str(self.path), **arguments)


@pytest.fixture
def repository(tmp_path):
    return Repository(tmp_path)


LINES = "".join(f"line {n}\n" for n in range(50))


def test_the_log(repository):
    first = repository.commit("start", a="1")
    repository.git("checkout", "--quiet", "-b", "topic")
    second = repository.commit("Fix ü (#12)", a="2")
    third = repository.commit("touch b (#7) again", b="1")
    log = repository.call("log", base="main")
    assert log["count"] == log["total"] == 2 and log["truncated"] is False
    newest, older = log["commits"]
    assert (newest["sha"], newest["pr"], older["sha"], older["pr"]) == (third, None, second, 12)
    assert second.startswith(older.pop("short_sha"))
    date = datetime.datetime.fromisoformat(older.pop("date"))  # git writes +00:00 or Z, depending on its version
    assert date == datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)
    assert older == {"sha": second, "author": "Zoë", "pr": 12, "subject": "Fix ü (#12)"}
    cut = repository.call("log", max_commits=1)
    assert (cut["count"], cut["total"], cut["truncated"]) == (1, 3, True)
    assert [each["sha"] for each in repository.call("log", paths="a")["commits"]] == [second, first]
    assert repository.call("log", base="HEAD") == {"commits": [], "count": 0, "total": 0, "truncated": False}


def test_the_log_leaves_merges_out_unless_asked(repository):
    repository.commit("start", a="1")
    repository.git("checkout", "--quiet", "-b", "topic")
    repository.commit("one", b="1")
    repository.git("checkout", "--quiet", "main")
    repository.git("merge", "--quiet", "--no-ff", "--message", "merge", "topic")
    assert [each["subject"] for each in repository.call("log")["commits"]] == ["one", "start"]
    assert "merge" in [each["subject"] for each in repository.call("log", include_merges=True)["commits"]]


def test_changed_files(repository):
    repository.commit("start", same="x", changed=LINES, gone="x\n", moved=LINES * 2, binary=b"\0" * 100,
                      sub__deep="x\n")
    repository.git("checkout", "--quiet", "-b", "topic")
    (repository.path / "ümläut\tname").write_text("one\ntwo\n")
    repository.commit("work", changed=LINES + "more\n", gone=None, moved=None, moved_dot_txt=LINES * 2,
                      binary=b"\1" * 100, sub__deep="y\n")
    found = repository.call("changed_files", base="main")
    changes = {change["path"]: change for change in found["changes"]}
    assert found["count"] == len(changes) == 6 and found["files"] == list(changes)
    assert changes["changed"] == {"path": "changed", "status": "modified", "old_path": None, "additions": 1,
                                  "deletions": 0, "binary": False}
    assert (changes["gone"]["status"], changes["gone"]["deletions"]) == ("deleted", 1)
    assert (changes["moved.txt"]["status"], changes["moved.txt"]["old_path"]) == ("renamed", "moved")
    assert changes["binary"]["binary"] is True and changes["binary"]["additions"] == 0
    assert (changes["ümläut\tname"]["status"], changes["ümläut\tname"]["additions"]) == ("added", 2)
    assert repository.call("changed_files", base="main", prefix="sub/")["files"] == ["sub/deep"]
    assert repository.call("changed_files", base="HEAD") == {"files": [], "count": 0, "changes": []}


def test_the_diff(repository):
    repository.commit("start", a="one\n", b="one\n")
    repository.git("checkout", "--quiet", "-b", "topic")
    repository.commit("work", a="two ü\n", b="two\n")
    whole = repository.call("diff", base="main")["text"]
    assert "+two ü\n" in whole and "diff --git a/b b/b" in whole and whole.endswith("\n")
    assert "b/b" not in repository.call("diff", base="main", paths="a")["text"]
    assert "a/a" not in repository.call("diff", base="main", paths=".", exclude=["a"])["text"]
    assert repository.call("diff", base="HEAD") == {"text": ""}
    for limit in range(len(whole.encode()) - 12, len(whole.encode())):
        text, _, marker = repository.call("diff", base="main", max_bytes=limit)["text"].rpartition("\n")
        shown = len(text.encode())
        assert whole.startswith(text) and limit - 1 <= shown <= limit
        assert marker == f"[diff truncated: showing {shown} of {len(whole.encode())} bytes]"


def test_a_file(repository):
    repository.commit("start", sub__a="héllo\n" * 100)
    commit = repository.commit("later", sub__a="bye\n")
    assert repository.call("file", path="sub/a") == {"text": "bye\n"}
    assert repository.call("file", ref=f"{commit}~1", path="sub/a") == {"text": "héllo\n" * 100}
    cut = repository.call("file", ref="HEAD~1", path="sub/a", max_bytes=8)["text"]
    assert cut == "héllo\n\n[file truncated: showing 7 of 700 bytes]" or cut.startswith("héllo\nh\n[file truncated")
    with pytest.raises(ToolError, match="git cat-file failed: .*nope"):
        repository.call("file", path="nope")


def test_grep(repository):
    repository.commit("start", sub__a="alpha beta\ngamma:delta\nalpha\n", b="x alpha\n", binary=b"alpha\0")
    found = repository.call("grep", pattern="^(alpha|x)")
    assert found["matches"] == [
        {"path": "b", "line": 1, "text": "x alpha"},
        {"path": "sub/a", "line": 1, "text": "alpha beta"},
        {"path": "sub/a", "line": 3, "text": "alpha"}]
    assert found["count"] == 3 and found["truncated"] is False
    cut = repository.call("grep", pattern="alpha", max_matches=1, paths=["sub"])
    assert (cut["count"], cut["truncated"], cut["matches"][0]["path"]) == (1, True, "sub/a")
    assert repository.call("grep", pattern="nothing") == {"matches": [], "count": 0, "truncated": False}
    assert repository.call("grep", pattern="-e") == {"matches": [], "count": 0, "truncated": False}
    with pytest.raises(ToolError, match="git grep failed"):
        repository.call("grep", pattern="(")


@pytest.mark.parametrize("ref", ["nope", "--output=pwned", "-h", "HEAD:a", "", "HEAD..HEAD", "\0"])
@pytest.mark.parametrize("tool, arguments", [
    ("log", {"head": None}), ("diff", {"base": None}), ("file", {"ref": None, "path": "a"}),
    ("grep", {"ref": None, "pattern": "x"}), ("changed_files", {"base": None})])
def test_a_reference_that_is_none_is_an_error_and_never_an_option(repository, tool, arguments, ref):
    repository.commit("start", a="1")
    arguments = {key: ref if value is None else value for key, value in arguments.items()}
    with pytest.raises(ToolError) as caught:
        repository.call(tool, **arguments)
    assert not caught.value.retryable
    assert sorted(os.listdir(repository.path)) == [".git", "a"]


def test_a_folder_that_is_no_repository(tmp_path):
    with pytest.raises(ToolError, match="not a git repository"):
        call("git_log", repository=str(tmp_path))
    with pytest.raises(ToolError, match="working directory .* does not exist"):
        call("git_log", repository=str(tmp_path / "missing"))


def test_programs_a_repository_names_are_not_run(repository):
    repository.commit("start", a="1\n", _dot_gitattributes="* diff=evil\n")
    repository.commit("later", a="2\n")
    program = repository.path / "evil"
    program.write_text(f"#!/bin/sh\ntouch {repository.path}/pwned\n")
    program.chmod(0o755)
    for key in ("diff.external", "diff.evil.command", "diff.evil.textconv", "core.fsmonitor", "core.pager"):
        repository.git("config", key, str(program))
    assert "+2" in repository.call("diff", base="HEAD~1")["text"]
    repository.call("changed_files", base="HEAD~1")
    repository.call("log")
    repository.call("grep", pattern="2")
    assert not (repository.path / "pwned").exists()


def test_a_cancelled_run_starts_no_git(repository):
    token = CancelToken()
    token.cancel()
    with pytest.raises(Cancelled):
        call("git_log", context=quiet_context(cancel=token), repository=str(repository.path))


def test_every_result_keeps_to_its_schema(repository):
    repository.commit("start", a="1\n")
    repository.commit("later", a="2\n")
    arguments = {"log": {}, "diff": {"base": "HEAD~1"}, "file": {"path": "a"}, "grep": {"pattern": "2"},
                 "changed_files": {"base": "HEAD~1"}}
    tools = {tool.name: tool for tool in builtins.Builtins(["git"], None).known()}
    for name, given in arguments.items():
        wanted = tools[f"builtin__git_{name}"].output_schema
        assert schema.schema_problems(wanted) == [] and schema.problems(repository.call(name, **given), wanted) == []
