"""The tools that are always there: builtin__reshape and builtin__infer, and the pack of git tools.

Rules of the house: every key of a result is always there, "nothing found" is a value and a wrong reference an error,
and an array comes with its count. The git tools run the git command line and only read.
"""

import os
import re

from . import processes
from .errors import ConfigError, ModelUnavailable, Problem, ToolError, did_you_mean, shorten
from .tools import Tool

#: Packs a configuration may add, besides data and llm, which are always on.
PACKS = ("git",)
ALWAYS_ON = ("llm", "data")

#: Seconds one git command may take: a log over a large history takes a few.
GIT_S = 60.0
#: Bytes of git's output that are kept where the caller does not say.
GIT_BYTES = 32 * 1024 * 1024
DIFF_BYTES = 200_000
FILE_BYTES = 200_000


class Builtins:
    """The builtin tools (tools.Source). packs: names from the configuration. models: models.Models or None.

    ConfigError for a pack there is none of.
    """

    prefix = label = "builtin"

    def __init__(self, packs, models):
        for pack in packs:
            if pack not in (*PACKS, *ALWAYS_ON):
                hint = did_you_mean(pack, (*PACKS, *ALWAYS_ON))
                raise ConfigError(f"[tools] packs: there is no pack {shorten(str(pack), 80)!r}; {hint}")
        self._models = models
        self._tools = [_infer_tool(models), _RESHAPE, *(_GIT_TOOLS if "git" in packs else ())]

    def known(self):
        """Return the tools of the enabled packs."""
        return self._tools

    def tools(self, context):
        """Return the tools of the enabled packs."""
        return self._tools

    def missing(self, name):
        """Return why there is no such tool: its pack is off, or no pack has it."""
        if any(tool.name == name for tool in _GIT_TOOLS):
            return Problem("", "builtin_unknown", f"{name!r} is in the pack git, which is off",
                           'add "git" to packs under [tools]')
        text = f"there is no builtin tool {shorten(name, 80)!r}"
        return Problem("", "builtin_unknown", text, did_you_mean(name, [tool.name for tool in self._tools]))

    def notes(self):
        """Return nothing: builtins do not break."""
        return []

    def close(self):
        """Do nothing: what a call starts ends with the call."""


def _tool(name, description, properties, required, call, output, read_only=True):
    """Return a builtin Tool; output: properties of its result, all of them always there."""
    input_schema = {"type": "object", "properties": properties, "additionalProperties": False}
    output_schema = output and {"type": "object", "properties": output, "required": list(output)}
    return Tool(
        name=f"builtin__{name}", source="builtin", description=description,
        input_schema={**input_schema, "required": required} if required else input_schema,
        output_schema=output_schema, annotations={"readOnlyHint": read_only}, call=call)


# data, llm ---------------------------------------------------------------------------------------------------------

_RESHAPE = _tool(
    "reshape",
    "Return `shape` as it is. Its templates have been rendered before, so it builds any value from earlier results.",
    {"shape": {"description": "The value to return."}},
    ["shape"],
    lambda arguments, context: arguments["shape"],
    None,
)


def _infer_tool(models):
    named = sorted(models.names()) if models is not None else []
    properties = {
        "instruction": {"type": "string", "description": "What the model is to do, with the data it needs."},
        "output_schema": {"type": "object", "description": "JSON Schema of the object to return."},
        "model": {"type": "string", "description": "Role or name of the model; chat when absent."},
    }
    if named:
        properties["model"]["enum"] = named
    return _tool(
        "infer",
        "Ask a model once: text, or an object when output_schema is given. Costs inference.",
        properties,
        ["instruction"],
        lambda arguments, context: _infer(arguments, context, models),
        None,
    )


def _infer(arguments, context, models):
    models = context.models or models
    if models is None:
        raise ModelUnavailable("no model is configured; add [providers.<name>] and [models.default]")
    model, instruction = arguments.get("model", "chat"), arguments["instruction"]
    if "output_schema" in arguments:
        wanted = arguments["output_schema"]
        return models.structured(model, system="", prompt=instruction, schema=wanted, context=context)
    messages = [{"role": "user", "text": instruction}]
    return {"text": models.complete(model, system="", messages=messages, context=context).text}


# git ---------------------------------------------------------------------------------------------------------------

#: What keeps git from asking, paging, locking, and from running programs that a repository names.
_GIT = ["git", "--no-pager", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false",
        "-c", "i18n.logOutputEncoding=UTF-8", "-c", "log.showSignature=false"]
_GIT_ENVIRONMENT = {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}

_REPOSITORY = {"type": "string", "default": ".", "description": "A folder of the repository."}
_REF = {"type": "string", "minLength": 1}
_PATHS = {
    "type": ["string", "array"], "items": {"type": "string"},
    "description": "Paths or patterns: an array, or text with spaces between them. Empty for all.",
}
_COUNT = {"type": "integer", "minimum": 1}


def _git(arguments, context, command, *, max_bytes=GIT_BYTES, drop_rest=False, fine=(0,)):
    """Run a git command in the repository of the call and return Finished. ToolError with what git said."""
    finished = processes.run(
        [*_GIT, *command], context, name=f"git {command[0]}", limit_s=GIT_S, environ={**os.environ, **_GIT_ENVIRONMENT},
        cwd=arguments.get("repository", "."), max_bytes=max_bytes, drop_rest=drop_rest)
    if finished.code not in fine:
        said = finished.err.decode("utf-8", "replace").strip()
        reason = said.splitlines()[0] if said else finished.ending
        raise ToolError(f"git {command[0]} failed: {shorten(reason, 500)}", {"error": reason, "stderr": said},
                        retryable=False)
    return finished


def _commit(arguments, context, ref):
    """Return the commit a reference names, so that no later command can take it for an option. ToolError."""
    command = ["rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}"]
    finished = _git(arguments, context, command, fine=(0, 1, 128))
    if finished.code != 0:
        said = finished.err.decode("utf-8", "replace").strip().splitlines()
        raise ToolError(f"git: {said[0]}" if said else f"git knows no commit {shorten(ref, 100)!r}", retryable=False)
    return finished.out.decode().strip()


def _paths(value):
    names = value.split() if isinstance(value, str) else list(value)
    return names if names != ["."] else []


def _cut(data, total, limit, what):
    """Return bytes as text; when there were more than limit, a last line says so."""
    if total <= limit:
        return data.decode("utf-8", "replace")
    kept = data[:limit]
    while kept and data[len(kept):len(kept) + 1] and data[len(kept)] & 0xC0 == 0x80:
        kept = kept[:-1]  # not inside a character
    return f"{kept.decode('utf-8', 'replace')}\n[{what} truncated: showing {len(kept)} of {total} bytes]"


def _git_diff(arguments, context):
    base, head = (_commit(arguments, context, arguments[key]) for key in ("base", "head"))
    limit = arguments["max_bytes"]
    excluded = [f":(exclude){path}" for path in _paths(arguments["exclude"])]
    included = _paths(arguments["paths"]) or ([":/"] if excluded else [])
    command = ["diff", "--no-ext-diff", "--no-textconv", "--no-color", f"{base}...{head}", "--", *included, *excluded]
    finished = _git(arguments, context, command, max_bytes=limit + 4, drop_rest=True)
    return {"text": _cut(finished.out, finished.out_total, limit, "diff")}


def _git_file(arguments, context):
    commit, limit = _commit(arguments, context, arguments["ref"]), arguments["max_bytes"]
    command = ["cat-file", "blob", f"{commit}:{arguments['path']}"]
    finished = _git(arguments, context, command, max_bytes=limit + 4, drop_rest=True)
    return {"text": _cut(finished.out, finished.out_total, limit, "file")}


_STATUS = {"A": "added", "M": "modified", "D": "deleted", "R": "renamed", "C": "copied", "T": "type_changed"}


def _git_changed_files(arguments, context):
    base, head = (_commit(arguments, context, arguments[key]) for key in ("base", "head"))
    command = ["diff", "--no-ext-diff", "--no-textconv", "--raw", "--numstat", "-z", "--find-renames", "--find-copies",
               f"{base}...{head}"]
    fields = _git(arguments, context, command).out.decode("utf-8", "replace").split("\0")
    changes = [change for change in _changes(iter(fields)) if change["path"].startswith(arguments["prefix"])]
    return {"files": [change["path"] for change in changes], "count": len(changes), "changes": changes}


def _changes(fields):
    """Return the changes of `git diff --raw --numstat -z`: first all raw entries, then all counts, by path."""
    changes, by_path = [], {}
    for field in fields:
        if field.startswith(":"):
            status = field.rpartition(" ")[2][:1]
            old_path = next(fields) if status in "RC" else None
            path = next(fields)
            changes.append({"path": path, "status": _STATUS.get(status, "modified"), "old_path": old_path,
                            "additions": 0, "deletions": 0, "binary": False})
            by_path[path] = changes[-1]
        elif field:
            added, deleted, path = field.split("\t", 2)
            if not path:  # a rename or copy: both paths follow
                path = (next(fields), next(fields))[1]
            binary = added == "-"
            by_path[path].update(additions=0 if binary else int(added), deletions=0 if binary else int(deleted),
                                 binary=binary)
    return changes


_PULL_REQUEST = re.compile(r"\(#(\d+)\)\s*\Z")


def _git_log(arguments, context):
    head = _commit(arguments, context, arguments["head"])
    span = f"{_commit(arguments, context, arguments['base'])}..{head}" if arguments["base"] else head
    merges = [] if arguments["include_merges"] else ["--no-merges"]
    rest = [*merges, span, "--", *_paths(arguments["paths"])]
    form = "--format=%H%x1f%h%x1f%an%x1f%aI%x1f%s"
    count = ["-n", str(arguments["max_commits"])]
    entries = _git(arguments, context, ["log", "-z", "--date-order", "--no-color", form, *count, *rest]).out
    total = int(_git(arguments, context, ["rev-list", "--count", *rest]).out)
    commits = [_log_entry(entry) for entry in entries.decode("utf-8", "replace").split("\0") if entry]
    return {"commits": commits, "count": len(commits), "total": total, "truncated": len(commits) < total}


def _log_entry(entry):
    sha, short_sha, author, date, subject = entry.split("\x1f", 4)
    found = _PULL_REQUEST.search(subject)
    return {"sha": sha, "short_sha": short_sha, "author": author, "date": date, "subject": subject,
            "pr": int(found[1]) if found else None}


def _git_grep(arguments, context):
    commit, most = _commit(arguments, context, arguments["ref"]), arguments["max_matches"]
    command = ["grep", "-n", "-I", "-E", "-z", "--full-name", "--no-color", "-e", arguments["pattern"], commit, "--",
               *_paths(arguments["paths"])]
    out = _git(arguments, context, command, fine=(0, 1), drop_rest=True).out
    lines = out.split(b"\n")[:-1]
    matches = [_match(line.decode("utf-8", "replace"), len(commit) + 1) for line in lines[:most]]
    return {"matches": matches, "count": len(matches), "truncated": len(lines) > most}


def _match(line, start):
    path, number, text = line[start:].split("\0", 2)
    return {"path": path, "line": int(number), "text": text}


_TEXT_RESULT = {"text": {"type": "string"}}
_ARRAY, _NUMBER, _FLAG = {"type": "array"}, {"type": "integer"}, {"type": "boolean"}

_GIT_TOOLS = [
    _tool(
        "git_log", "List the commits of a branch that another one does not have, newest first (base..head).",
        {"base": {"type": "string", "default": "", "description": "Empty for the whole history of head."},
         "head": {**_REF, "default": "HEAD"}, "paths": {**_PATHS, "default": ""},
         "max_commits": {**_COUNT, "default": 200}, "include_merges": {"type": "boolean", "default": False},
         "repository": _REPOSITORY},
        [], _git_log, {"commits": _ARRAY, "count": _NUMBER, "total": _NUMBER, "truncated": _FLAG}),
    _tool(
        "git_diff", "Return the diff of what head changed since it left base (base...head).",
        {"base": _REF, "head": {**_REF, "default": "HEAD"}, "paths": {**_PATHS, "default": ""},
         "exclude": {**_PATHS, "default": ""}, "max_bytes": {**_COUNT, "default": DIFF_BYTES},
         "repository": _REPOSITORY},
        ["base"], _git_diff, _TEXT_RESULT),
    _tool(
        "git_file", "Return a file as it is in a commit.",
        {"ref": {**_REF, "default": "HEAD"}, "path": {"type": "string", "minLength": 1},
         "max_bytes": {**_COUNT, "default": FILE_BYTES}, "repository": _REPOSITORY},
        ["path"], _git_file, _TEXT_RESULT),
    _tool(
        "git_grep", "Find lines that match a POSIX extended regular expression in the files of a commit.",
        {"pattern": {"type": "string", "minLength": 1}, "ref": {**_REF, "default": "HEAD"},
         "paths": {**_PATHS, "default": ""}, "max_matches": {**_COUNT, "default": 200}, "repository": _REPOSITORY},
        ["pattern"], _git_grep, {"matches": _ARRAY, "count": _NUMBER, "truncated": _FLAG}),
    _tool(
        "git_changed_files", "List the files that head changed since it left base, with status and line counts.",
        {"base": _REF, "head": {**_REF, "default": "HEAD"}, "prefix": {"type": "string", "default": ""},
         "repository": _REPOSITORY},
        ["base"], _git_changed_files, {"files": _ARRAY, "count": _NUMBER, "changes": _ARRAY}),
]
