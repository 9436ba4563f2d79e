"""The vendoring kit, run as its user runs it, on a scratch kit and a scratch project."""
import hashlib
import pathlib
import re
import shutil
import stat
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
COPY, MANIFEST = "mcp_relay.py", "mcp_relay.VENDORED.txt"


@pytest.fixture
def kit(tmp_path):
    """A kit of its own, so that a test can publish another version; no git history in it."""
    folder = tmp_path / "kit"
    (folder / "vendor").mkdir(parents=True)
    for name in (COPY, "LICENSE", "vendor/vendor.py"):
        shutil.copy(str(ROOT / name), str(folder / name))
    return folder


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "a project" / "tools"
    folder.mkdir(parents=True)
    return folder


def vendor(kit, *args):
    """Run the kit's script; return (exit code, the one sentence it printed)."""
    done = subprocess.run([sys.executable, "-I", "-S", str(kit / "vendor" / "vendor.py")] + [str(arg) for arg in args],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=60)
    return done.returncode, done.stdout.decode("utf-8")


def publish(kit, version):
    """Turn the scratch kit into another release."""
    path = kit / COPY
    changed, count = re.subn(rb'(?m)^__version__ = "[^"]+"', b'__version__ = "%s"' % version.encode(),
                             path.read_bytes())
    assert count == 1
    path.write_bytes(changed)


def field(project, name):
    return re.search(r"^%s: (.*)$" % name, (project / MANIFEST).read_text("utf-8"), re.MULTILINE).group(1)


def test_the_copy_is_byte_for_byte_and_runs(kit, project):
    assert vendor(kit, project)[0] == 0
    assert (project / COPY).read_bytes() == (kit / COPY).read_bytes()
    assert sorted(path.name for path in project.iterdir()) == [MANIFEST, COPY]
    said = subprocess.run([sys.executable, "-I", "-S", str(project / COPY), "--version"], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=60)
    assert said.returncode == 0, said
    assert field(project, "sha256") in (said.stdout + said.stderr).decode("utf-8")


def test_the_manifest_pins_version_digest_source_and_licence(kit, project):
    vendor(kit, project)
    digest = hashlib.sha256((kit / COPY).read_bytes()).hexdigest()
    version = re.search(r'^__version__ = "(.+)"', (kit / COPY).read_text("utf-8"), re.MULTILINE).group(1)
    assert field(project, "version") == version
    assert field(project, "sha256") == digest
    assert field(project, "source") == "mcp-relay " + version
    assert (project / MANIFEST).read_text("utf-8").endswith((kit / "LICENSE").read_text("utf-8"))
    assert str(kit) not in (project / MANIFEST).read_text("utf-8")


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize("dirty", [False, True])
def test_the_source_names_the_commit_only_when_it_is_the_truth(kit, project, dirty):
    def git(*args):
        return subprocess.run(["git", "-C", str(kit), "-c", "user.name=t", "-c", "user.email=t@localhost"] + list(args),
                              check=True, stdout=subprocess.PIPE).stdout.decode().strip()
    git("init", "-q")
    git("add", COPY)
    git("commit", "-q", "-m", "one")
    if dirty:
        publish(kit, "9.9.9")
    assert vendor(kit, project)[0] == 0
    assert (git("rev-parse", "HEAD") in field(project, "source")) is not dirty


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no mode bits")
def test_the_copy_keeps_the_mode_of_the_original(kit, project):
    (kit / COPY).chmod(0o755)
    vendor(kit, project)
    assert stat.S_IMODE((project / COPY).stat().st_mode) == 0o755
    assert stat.S_IMODE((project / MANIFEST).stat().st_mode) == 0o644


def edit(project):
    with open(str(project / COPY), "ab") as file:
        file.write(b"# a local change\n")


def turn_to_crlf(project):
    (project / COPY).write_bytes((project / COPY).read_bytes().replace(b"\n", b"\r\n"))


def damage_manifest(project):
    (project / MANIFEST).write_text("sha256: none\n", "utf-8")


def remove_copy(project):
    (project / COPY).unlink()


def remove_manifest(project):
    (project / MANIFEST).unlink()


@pytest.mark.parametrize("change, code, words", [
    (None, 0, "unmodified and current"),
    (edit, 3, "modified: its sha256 is"),
    (turn_to_crlf, 3, "line endings"),
    (damage_manifest, 3, "no version and sha256"),
    (remove_copy, 5, "no mcp_relay.py"),
    (remove_manifest, 5, "no mcp_relay.VENDORED.txt"),
])
def test_check(kit, project, change, code, words):
    vendor(kit, project)
    if change:
        change(project)
    before = {path.name: path.read_bytes() for path in project.iterdir()}
    seen, sentence = vendor(kit, "--check", project)
    assert (seen, words in sentence) == (code, True), sentence
    assert sentence.count("\n") == 1 and sentence.startswith("vendor.py: ")
    assert {path.name: path.read_bytes() for path in project.iterdir()} == before


@pytest.mark.parametrize("change, code", [(None, 4), (edit, 3)])
def test_check_against_another_release(kit, project, change, code):
    vendor(kit, project)
    publish(kit, "9.9.9")
    if change:
        change(project)
    seen, sentence = vendor(kit, "--check", project)
    assert seen == code, sentence
    if code == 4:
        assert "9.9.9" in sentence and field(project, "version") in sentence


def test_update_replaces_copy_and_manifest(kit, project):
    vendor(kit, project)
    publish(kit, "9.9.9")
    code, sentence = vendor(kit, "--update", project)
    assert code == 0 and "9.9.9" in sentence
    assert (project / COPY).read_bytes() == (kit / COPY).read_bytes()
    assert field(project, "version") == "9.9.9"
    assert vendor(kit, "--check", project)[0] == 0
    assert "nothing to do" in vendor(kit, "--update", project)[1]


def test_update_brings_a_lost_copy_back(kit, project):
    vendor(kit, project)
    remove_copy(project)
    assert vendor(kit, "--update", project)[0] == 0
    assert vendor(kit, "--check", project)[0] == 0


@pytest.mark.parametrize("change", [edit, damage_manifest])
def test_update_keeps_a_local_modification_until_forced(kit, project, change):
    vendor(kit, project)
    change(project)
    publish(kit, "9.9.9")
    before = {path.name: path.read_bytes() for path in project.iterdir()}
    assert vendor(kit, "--update", project)[0] == 3
    assert {path.name: path.read_bytes() for path in project.iterdir()} == before
    assert vendor(kit, "--update", "--force", project)[0] == 0
    assert vendor(kit, "--check", project)[0] == 0


def test_update_needs_a_copy(kit, project):
    assert vendor(kit, "--update", project)[0] == 5
    assert list(project.iterdir()) == []


def test_a_second_copy_points_to_update(kit, project):
    vendor(kit, project)
    code, sentence = vendor(kit, project)
    assert code == 1 and "--update" in sentence


def test_a_foreign_file_is_not_replaced_until_forced(kit, project):
    (project / COPY).write_text("mine\n", "utf-8")
    code, sentence = vendor(kit, project)
    assert code == 1 and "--force" in sentence
    assert (project / COPY).read_text("utf-8") == "mine\n"
    assert vendor(kit, "--force", project)[0] == 0
    assert vendor(kit, "--check", project)[0] == 0


@pytest.mark.parametrize("args, code", [
    ([], 2), (["--check"], 2), (["--check", "--update", "."], 2), (["--check", "--force", "."], 2),
    (["no-such-folder"], 1),
])
def test_bad_command_lines(kit, args, code):
    seen, sentence = vendor(kit, *args)
    assert seen == code and "Traceback" not in sentence


def test_the_kit_does_not_vendor_into_itself(kit):
    assert vendor(kit, "--force", kit)[0] == 1
    assert not (kit / MANIFEST).exists()


def test_an_incomplete_kit_says_so(kit, project):
    (kit / "LICENSE").unlink()
    code, sentence = vendor(kit, project)
    assert code == 1 and "LICENSE" in sentence and "Traceback" not in sentence
    assert list(project.iterdir()) == []
