"""The configuration: layers, keys, variables, what is deferred, what is secret."""

import os
import stat

import pytest

from graphlib_plans import config
from graphlib_plans.errors import ConfigError


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


@pytest.fixture
def project(tmp_path):
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


@pytest.fixture
def load(home, project):
    """load(global text, project text, isolated=False, **variables) -> Config. None leaves a file away."""

    def load_texts(global_text=None, project_text=None, isolated=False, without_project=False, **variables):
        for path, text in (
            (home / ".config/graph/config.toml", global_text),
            (project / ".graph/config.toml", project_text),
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            if text is not None:
                path.write_text(text, encoding="utf-8")
            elif path.exists():
                path.unlink()
        directory = None if isolated or without_project else project
        return config.load(directory, {"HOME": str(home), **variables}, isolated=isolated)

    return load_texts


# Layers ------------------------------------------------------------------------------------------------------------


def test_without_files_everything_has_its_default(load, home, project):
    loaded = load()
    assert loaded.settings == config.Settings(home / ".local/share/graph")
    assert loaded.plan_dirs == (project / ".graph/plans", home / ".config/graph/plans")
    assert loaded.tool_dirs == (project / ".graph/tools", home / ".config/graph/tools")
    assert (loaded.mcp, loaded.providers, loaded.models, loaded.packs, loaded.storage) == ({}, {}, {}, (), "file")
    assert loaded.runs_dir == home / ".local/share/graph/runs"
    assert [(layer.name, layer.exists) for layer in loaded.layers] == [("global", False), ("project", False)]


def test_tables_merge_and_arrays_and_scalars_replace(load, project):
    loaded = load(
        '[settings]\nconcurrency = 2\ntool_timeout_s = 5\n[plans]\npaths = ["/x"]\n'
        '[mcp.a]\ncommand = "a"\nargs = ["1", "2"]',
        '[settings]\nconcurrency = 9\n[plans]\npaths = ["./.graph/plans"]\n'
        '[mcp.a]\nargs = ["3"]\n[mcp.b]\nurl = "http://b"',
    )
    assert (loaded.settings.concurrency, loaded.settings.tool_timeout_s) == (9, 5)
    assert (loaded.mcp["a"].command, loaded.mcp["a"].args) == ("a", ("3",))
    assert loaded.mcp["b"].url == "http://b"
    assert loaded.plan_dirs == (project / ".graph/plans",)


def test_a_project_may_complete_a_global_entry(load):
    loaded = load('[providers.x]\ntype = "openai"', '[providers.x]\napi_key = "abc"')
    assert (loaded.providers["x"].type, loaded.providers["x"].api_key) == ("openai", "abc")


def test_xdg_moves_the_global_file_and_the_data(load, home, tmp_path):
    place = tmp_path / "xdg"
    (place / "graph").mkdir(parents=True)
    (place / "graph/config.toml").write_text("[settings]\nconcurrency = 7\n")
    loaded = load(XDG_CONFIG_HOME=str(place), XDG_DATA_HOME=str(tmp_path / "data"))
    assert loaded.settings.concurrency == 7
    assert loaded.settings.data_dir == tmp_path / "data/graph"
    assert loaded.plan_dirs[1] == place / "graph/plans"


@pytest.mark.parametrize("options", [{"isolated": True}, {"without_project": True}])
def test_without_a_project_nothing_depends_on_the_working_directory(load, home, options):
    text = '[plans]\npaths = ["./.graph/plans", "relative", "~/mine", "/abs"]'
    loaded = load(text, "[settings]\nconcurrency = 9", **options)
    assert loaded.plan_dirs == (home / "mine", loaded.plan_dirs[1]) and str(loaded.plan_dirs[1]) == "/abs"
    assert loaded.tool_dirs == (home / ".config/graph/tools",)
    assert loaded.settings.concurrency == 4
    assert [layer.name for layer in loaded.layers] == ["global"]


def test_relative_paths_of_a_file_start_beside_it(load, home, project):
    loaded = load('[settings]\ndata_dir = "data"', '[mcp.a]\ncommand = "a"\ncwd = "work"')
    assert loaded.settings.data_dir == home / ".config/graph/data"
    assert loaded.mcp["a"].cwd == str(project / "work")


# What is wrong -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("settings = [\n", ["config.toml", "is not TOML", "end of document"]),
        ("a = 1\nb = = 2\n", ["config.toml", "line 2", "column 5"]),
        ("[setings]", ["'setings'", "did you mean 'settings'?"]),
        ("[settings]\nconcurency = 2", ["'concurency'", "concurrency"]),
        ("[settings]\nconcurrency = 0", ["concurrency", "at least 1"]),
        ("[settings]\nconcurrency = true", ["concurrency"]),
        ('[settings]\nconcurrency = "4"', ["concurrency", "string"]),
        ("[settings]\nask_timeout_s = 0", ["ask_timeout_s", "above 0"]),
        ('[mcp.a]\ncomand = "x"', ["[mcp.a]", "'command'"]),
        ("[mcp.a]\nargs = []", ["[mcp.a]", "command or a url"]),
        ('[mcp.a]\ncommand = "x"\nurl = "http://y"', ["[mcp.a]", "command or a url"]),
        ('[mcp.user]\ncommand = "x"', ["[mcp.user]", "prefix"]),
        ('[mcp.a__b]\ncommand = "x"', ["[mcp.a__b]"]),
        ('[mcp."a b"]\ncommand = "x"', ["[mcp.a b]"]),
        ("mcp = 3", ["mcp", "table"]),
        ("[mcp]\na = 3", ["[mcp.a]", "table"]),
        ('[mcp.a]\ncommand = "x"\n[mcp.a.tool_overrides.t]\ndescripton = ""', ["tool_overrides.t", "description"]),
        ('[providers.x]\ntype = "openapi"', ["'openapi'", "openai"]),
        ("[providers.x]", ["[providers.x]", "type"]),
        ('[models.default]\nprovider = "x"\nmodel = "m"', ["[models.default]", "'x'"]),
        ('[models.defalt]\nprovider = "x"\nmodel = "m"', ["'defalt'", "default"]),
        ('[providers.x]\ntype = "openai"\n[models.default]\nprovider = "x"', ["[models.default]", "model"]),
        ('[providers.x]\ntype = "openai"\n[models.named.chat]\nprovider = "x"\nmodel = "m"', ["chat", "role"]),
        ('[pricing."m"]\ninput = 1', ["m", "output"]),
        ('[pricing."m"]\ninput = -1\noutput = 1', ["input"]),
        ('[storage]\nbackend = "disk"', ["'disk'", "memory"]),
        ("version = 2", ["version"]),
        ('[settings]\ndata_dir = "${NOPE}"', ["settings.data_dir", "NOPE"]),
        ('[settings]\ndata_dir = "${NOPE"', ["settings.data_dir", "never closed"]),
        ('[settings]\ndata_dir = "${NO PE}"', ["settings.data_dir", "${NO PE}"]),
        ('[settings]\nenv_file = "absent"', ["env_file", "absent"]),
        ("x = " + "[" * 5000, ["config.toml"]),
        ("x = " + "1" * 5000, ["config.toml"]),
    ],
)
def test_what_is_wrong_is_one_sentence(load, text, words):
    with pytest.raises(ConfigError) as caught:
        load(text)
    message = caught.value.message
    assert all(word in message for word in words), message
    assert "\n" not in message


def test_a_file_that_is_no_text(load, home):
    load("")
    (home / ".config/graph/config.toml").write_bytes(b"a = 1\n\xff\xfe")
    with pytest.raises(ConfigError, match="UTF-8 in line 2"):
        config.load(None, {"HOME": str(home)})


def test_a_directory_in_place_of_the_file(home):
    (home / ".config/graph/config.toml").mkdir(parents=True)
    with pytest.raises(ConfigError, match="cannot be read"):
        config.load(None, {"HOME": str(home)})


# Variables ---------------------------------------------------------------------------------------------------------

SERVER = '[mcp.a]\ncommand = "a"\nargs = ["--token", "${TOKEN}"]\n[mcp.b]\ncommand = "b"\n'


def test_variables_are_replaced_in_every_string(load):
    text = SERVER + '[user]\nname = "${WHO} and ${WHO}"\ncontext = "${EMPTY}"'
    loaded = load(text, TOKEN="abc", WHO="Ida", EMPTY="")
    assert loaded.mcp["a"].args == ("--token", "abc")
    assert loaded.user == {"name": "Ida and Ida", "context": ""}


def test_a_missing_variable_disables_only_the_entry_that_needs_it(load):
    loaded = load(SERVER + '[providers.x]\ntype = "anthropic"\napi_key = "${KEY}"')
    assert loaded.deferred == {
        "mcp.a": config.Deferred("mcp.a.args.1", "TOKEN"),
        "providers.x": config.Deferred("providers.x.api_key", "KEY"),
    }
    assert loaded.mcp["a"].args == ("--token", "${TOKEN}")
    loaded.usable("mcp.b")
    with pytest.raises(ConfigError) as caught:
        loaded.usable("providers.x")
    assert "KEY" in caught.value.message and "providers.x.api_key" in caught.value.message
    assert caught.value.details == {"variable": "KEY", "path": "providers.x.api_key"}


def test_a_layer_that_is_replaced_needs_no_variable(load):
    loaded = load('[user]\nname = "${NOPE}"', '[user]\nname = "Ida"')
    assert loaded.user == {"name": "Ida"}


def test_an_env_file_is_read_and_the_environment_wins(load, home):
    (home / ".config/graph").mkdir(parents=True)
    (home / ".config/graph/env").write_text("# keys\nexport A=1\n\nB = 'two words'\nC=\"x=y\"\nD=from file\n")
    text = '[settings]\nenv_file = "env"\n[user]\nname = "${A}|${B}|${C}|${D}"'
    assert load(text, D="from environment").user["name"] == "1|two words|x=y|from environment"


@pytest.mark.parametrize("line", ["no equals sign", "1A=x", "A B=x"])
def test_a_bad_line_of_an_env_file_is_named(load, home, line):
    (home / ".config/graph").mkdir(parents=True)
    (home / ".config/graph/env").write_text(f"A=1\n{line}\n")
    with pytest.raises(ConfigError, match="line 2"):
        load('[settings]\nenv_file = "env"')


def test_storage_of_the_environment_wins(load):
    assert load('[storage]\nbackend = "file"', GRAPH_STORAGE="memory").storage == "memory"
    with pytest.raises(ConfigError, match="GRAPH_STORAGE"):
        load("", GRAPH_STORAGE="cloud")


# Secrets -----------------------------------------------------------------------------------------------------------

SECRETS = """
[providers.x]
type = "openai"
api_key = "literal-key"
base_url = "https://user:word@host/v1"
[mcp.a]
command = "a"
args = ["--token=${TOKEN}", "${HOME}/notes"]
env = { LEVEL = "debug", DATABASE = "postgres://u:p@h/d", API_TOKEN = "short" }
[mcp.b]
url = "https://b/mcp"
headers = { Authorization = "Bearer abcdef", Accept = "application/json" }
"""


def test_what_counts_as_a_secret(load, home):
    loaded = load(SECRETS, TOKEN="t0ken")
    assert loaded.secrets == {"literal-key", "t0ken", "postgres://u:p@h/d", "short", "Bearer abcdef", "abcdef"}


def test_secrets_are_masked(load, home):
    masked = load(SECRETS, TOKEN="t0ken").masked()
    assert masked["providers"]["x"] == {"type": "openai", "api_key": "***", "base_url": "https://***@host/v1"}
    assert masked["mcp"]["a"]["args"] == ["***", f"{home}/notes"]
    assert masked["mcp"]["a"]["env"] == {"LEVEL": "debug", "DATABASE": "***", "API_TOKEN": "***"}
    assert masked["mcp"]["b"]["headers"] == {"Authorization": "***", "Accept": "application/json"}


def test_what_waits_for_a_variable_shows_its_name(load):
    masked = load('[providers.x]\ntype = "openai"\napi_key = "${KEY}"').masked()
    assert masked["providers"]["x"]["api_key"] == "${KEY}"


# Fingerprints, templates -------------------------------------------------------------------------------------------


def test_the_fingerprint_changes_with_files_and_variables_in_use(load, home):
    text = '[user]\nname = "${WHO}"'
    first = load(text, WHO="a").fingerprint
    assert load(text, WHO="a", OTHER="x").fingerprint == first
    others = [load(text, WHO="b"), load(text + "\n", WHO="a"), load(text, "", WHO="a")]
    assert len({first, *(other.fingerprint for other in others)}) == 4


@pytest.mark.parametrize("is_global", [True, False])
def test_the_template_is_a_configuration_and_so_are_its_comments(load, is_global):
    text = config.template(is_global)
    assert load(text).masked() == {}
    lines = [line[2:] if line.startswith("# [") or " = " in line else line for line in text.splitlines()]
    uncommented = "\n".join(line for line in lines if not line.startswith("#"))
    loaded = load(uncommented.replace("env_file", "# env_file"), TRACKER_TOKEN="x", ANTHROPIC_API_KEY="y")
    assert set(loaded.mcp) == {"files", "tracker"} and "default" in loaded.models


def test_full_models_and_fallbacks(load):
    loaded = load(
        '[providers.x]\ntype = "openai"\ntimeout_s = 5\n'
        '[models.default]\nprovider = "x"\nmodel = "m"\nfallbacks = [{ provider = "x", model = "n" }]\n'
        '[models.named.fast]\nprovider = "x"\nmodel = "f"\ntemperature = 0.5\nmax_tokens = 10\n'
        '[pricing."m"]\ninput = 3\noutput = 15\n[tools]\npacks = ["git"]\n'
    )
    assert loaded.models["default"].fallbacks == (config.ModelChoice("x", "n"),)
    assert (loaded.models["fast"].temperature, loaded.models["fast"].max_tokens) == (0.5, 10)
    assert loaded.named_models == {"fast"} and loaded.providers["x"].timeout_s == 5
    assert loaded.pricing == {"m": {"input": 3, "output": 15}} and loaded.packs == ("git",)


def test_reading_writes_nothing(load, home):
    load()
    assert not (home / ".local").exists()
    assert stat.S_ISDIR(os.stat(home).st_mode)
