#!/usr/bin/env python3
"""Copy mcp_relay.py into another project, and tell later whether the copy is unmodified and current.

    python3 vendor/vendor.py DEST             copy into the folder DEST, with a manifest beside the copy
    python3 vendor/vendor.py --check DEST     say whether the copy is unmodified, modified or outdated
    python3 vendor/vendor.py --update DEST    replace the copy; refuses when it was modified, unless --force

The manifest, mcp_relay.VENDORED.txt, holds the version, the SHA-256 of the copy, where it came from, and the
licence text, which has to travel with the code. vendor/README.md has the rules. Python 3.8 or newer, nothing else.
"""
import argparse
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILE = "mcp_relay.py"
MANIFEST = "mcp_relay.VENDORED.txt"
LICENCE_HEADING = "licence:"

# Exit codes; docs/vendoring.md lists them and they do not change.
OK = 0          # copied, updated, or unmodified and current
FAILED = 1      # something could not be read or written, or would have been overwritten
USAGE = 2       # argparse's own code for a bad command line
MODIFIED = 3    # the copy is not what the manifest says
OUTDATED = 4    # the copy is what the manifest says, and this kit holds another
NOT_THERE = 5   # DEST has no copy, or no manifest beside it


class VendorError(Exception):
    """A reason to stop. args: one sentence for the user, and the exit code."""


def sha256(data):
    """Return the SHA-256 of bytes as 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def read(path):
    """Return the bytes of a file; raises VendorError naming the file when it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise VendorError("cannot read %s: %s" % (path, error.strerror), FAILED)


def version_of(data):
    """Return the version literal inside the bytes of mcp_relay.py, without importing or running them."""
    match = re.search(rb'^__version__ = "([^"]+)"', data, re.MULTILINE)
    if not match:
        raise VendorError("%s has no line __version__ = \"...\"; this is not a whole kit" % (ROOT / FILE), FAILED)
    return match.group(1).decode("ascii")


def commit():
    """Return the commit that last changed mcp_relay.py, or None without git or with uncommitted changes."""
    def git(*args):
        return subprocess.run(("git", "-C", str(ROOT)) + args, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              stdin=subprocess.DEVNULL, check=True).stdout.decode("ascii", "replace").strip()
    try:
        if git("status", "--porcelain", "--", FILE):
            return None
        return git("log", "-1", "--format=%H", "--", FILE) or None
    except (OSError, subprocess.CalledProcessError):
        return None     # a kit from an archive has no history; version and digest still identify the copy


def kit():
    """Return (data, manifest text) of what this kit would copy."""
    data = read(ROOT / FILE)
    version = version_of(data)
    made_from = commit()
    source = "mcp-relay %s%s" % (version, ", commit " + made_from if made_from else "")
    licence = read(ROOT / "LICENSE").decode("utf-8")
    return data, (
        "%s in this folder is a copy made by vendor/vendor.py of mcp-relay. Do not edit it: change it there and\n"
        "update. `sha256sum %s` must print the digest below; so must `python3 %s --version`.\n\n"
        "version: %s\nsha256: %s\nsource: %s\n\n%s\n\n%s"
        % (FILE, FILE, FILE, version, sha256(data), source, LICENCE_HEADING, licence))


def read_manifest(dest):
    """Return {"version", "sha256", "source"} from DEST's manifest; raises VendorError when it is absent or broken."""
    path = dest / MANIFEST
    if not path.exists():
        raise VendorError("%s has no %s; copy with: vendor.py %s" % (dest, MANIFEST, dest), NOT_THERE)
    head = read(path).decode("utf-8", "replace").split("\n" + LICENCE_HEADING)[0]
    fields = dict(re.findall(r"^(version|sha256|source): *(.*?)\r?$", head, re.MULTILINE))
    if not re.fullmatch("[0-9a-f]{64}", fields.get("sha256", "")) or "version" not in fields:
        raise VendorError("%s has no version and sha256 lines any more; restore it, or write it again with: "
                          "vendor.py --update --force %s" % (path, dest), MODIFIED)
    return fields


def check(dest):
    """Return (exit code, sentence) on the copy in dest compared with its manifest and with this kit."""
    manifest = read_manifest(dest)
    path = dest / FILE
    if not path.exists():
        raise VendorError("%s has a manifest but no %s; copy it again with: vendor.py --update %s"
                          % (dest, FILE, dest), NOT_THERE)
    copy, ours = read(path), read(ROOT / FILE)
    if sha256(copy) != manifest["sha256"]:
        if sha256(copy.replace(b"\r\n", b"\n")) == manifest["sha256"]:
            return MODIFIED, ("%s is modified: its line endings were turned into CR LF; "
                              "add the line \"%s -text\" to .gitattributes there" % (path, FILE))
        return MODIFIED, "%s is modified: its sha256 is %s and the manifest says %s" % (
            path, sha256(copy), manifest["sha256"])
    if copy != ours:
        return OUTDATED, "%s is unmodified but outdated: it is %s (sha256 %s...), this kit holds %s (sha256 %s...)" % (
            path, manifest["version"], manifest["sha256"][:12], version_of(ours), sha256(ours)[:12])
    return OK, "%s is unmodified and current: %s" % (path, manifest["version"])


def write(path, data, mode=0o644):
    """Replace a file in one step, so that nobody ever runs half a copy."""
    handle, temporary = tempfile.mkstemp(prefix=path.name + ".", dir=str(path.parent))
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, mode)
        os.replace(temporary, str(path))
    except OSError:
        os.unlink(temporary)
        raise


def install(dest):
    """Write the copy and its manifest into dest, an existing folder; return what to say.

    The copy goes first, so that a stop between the two shows as modified.
    """
    data, manifest = kit()
    try:
        write(dest / FILE, data)
        shutil.copymode(str(ROOT / FILE), str(dest / FILE))
        write(dest / MANIFEST, manifest.encode("utf-8"))
    except OSError as error:
        raise VendorError("cannot write into %s: %s" % (dest, error.strerror), FAILED)
    return "%s is now %s (sha256 %s)" % (dest / FILE, version_of(data), sha256(data))


def copy(dest, force):
    """Make the first copy; refuses to replace any file it did not write."""
    if not force and (dest / MANIFEST).exists():
        raise VendorError("%s already has a copy; use: vendor.py --update %s" % (dest, dest), FAILED)
    if not force and (dest / FILE).exists():
        raise VendorError("%s exists and has no %s; move it away, or replace it with --force"
                          % (dest / FILE, MANIFEST), FAILED)
    return OK, install(dest)


def update(dest, force):
    """Replace an unmodified copy with this kit's; a modified one only with force."""
    if not force:
        manifest = read_manifest(dest)
        if (dest / FILE).exists():
            code, sentence = check(dest)
            if code == MODIFIED:
                raise VendorError(sentence + "; nothing was changed; keep your change as a patch, or drop it "
                                  "with --force", MODIFIED)
            if code == OK:
                return OK, sentence + "; nothing to do"
        return OK, "%s (was %s)" % (install(dest), manifest["version"])
    return OK, install(dest)


def main(argv=None):
    """Run one command line; return the exit code, having printed one sentence."""
    parser = argparse.ArgumentParser(
        prog="vendor.py", description="Copy mcp_relay.py into another project, or check or update a copy.",
        epilog="exit codes: 0 done, or unmodified and current; 1 failed; 2 usage; 3 modified; 4 outdated; 5 not there")
    parser.add_argument("dest", metavar="DEST", type=pathlib.Path, help="an existing folder of the other project")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--check", action="store_true", help="change nothing; tell by sentence and exit code")
    action.add_argument("--update", action="store_true", help="replace the copy with this kit's")
    parser.add_argument("--force", action="store_true", help="replace a file even if it was modified or is foreign")
    options = parser.parse_args(argv)
    if options.check and options.force:
        parser.error("--check changes nothing, so --force has no meaning with it")
    try:
        if not options.dest.is_dir():
            raise VendorError("%s is not a folder; make it first" % options.dest, FAILED)
        if options.dest.resolve() == ROOT:
            raise VendorError("%s is the kit itself; name a folder of the other project" % options.dest, FAILED)
        if options.check:
            code, sentence = check(options.dest)
        elif options.update:
            code, sentence = update(options.dest, options.force)
        else:
            code, sentence = copy(options.dest, options.force)
    except VendorError as error:
        sentence, code = error.args
    print("vendor.py: " + sentence, file=sys.stderr if code else sys.stdout)
    return code


if __name__ == "__main__":
    sys.exit(main())
