"""What a run leaves behind: what it used, which steps are finished, and its record as JSON lines.

A record is one private file per run, `<run>.jsonl`. Its first line says what was asked for, one line per finished step
follows as it finishes, the last one tells how the run ended. docs/plans.md has the table of lines.

    run     what is run: plan, document, arguments
    resume  the run was taken up again at this time
    step    a step ended: its address `key`, a `digest` of what it was given, its result or its error
    model   a model answered inside a step        answer  a person answered a question
    end     how the run ended, with the body its caller got
"""

import contextlib
import hashlib
import json
import os
import re
import secrets as random_bytes
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from .documents import read_json, reason_of, to_json
from .errors import BadArgument, DocumentError, nearest, shorten
from .paths import FileLock, make_private_dir

#: Version of the lines described above.
RECORD_FORMAT = 1
#: How many records a directory keeps; creating one more removes the oldest that is not running.
KEEP_RUNS = 500
# Held by the run that removes old records: runs that start beside it need not remove the same ones.
_tidying = threading.Lock()
#: What stands in a record where a secret of the configuration stood.
HIDDEN = "[hidden]"
#: How long reopening waits for the lock, in seconds: listings look at it for an instant.
REOPEN_WAIT_S = 1.0

_RUN = re.compile(r"[a-z0-9-]{1,64}\Z")
_RECORD_NAME = re.compile(r"[a-z0-9-]{1,64}\.jsonl\Z")
#: Keys of a line that address it; secrets are searched in everything else.
_ADDRESS = frozenset(
    "type format run plan key digest stack path tool at started elapsed_s attempts executed kind".split()
)


# Usage -------------------------------------------------------------------------------------------------------------

TOKENS = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


class UsageLedger:
    """What the model calls of one root run used, by place and by model. Any thread may add.

    pricing: model id → {"input", "output", "cache_write"?, "cache_read"?} in USD per million tokens. Where they are
    not given, writing to a cache costs 1.25 times the input price and reading a tenth of it.
    """

    def __init__(self, pricing=()):
        self._pricing = dict(pricing)
        # Protects _calls; held for one update or one copy.
        self._lock = threading.Lock()
        self._calls = {}

    def add(self, site, provider, model, tokens):
        """Count one call. site: step path or role. tokens: keys as in TOKENS; the three input figures are disjoint."""
        key = (site, provider, model)
        with self._lock:
            counted = self._calls.setdefault(key, dict.fromkeys(("calls", *TOKENS), 0))
            counted["calls"] += 1
            for name in TOKENS:
                counted[name] += int(tokens.get(name) or 0)

    def report(self):
        """Return totals with `by_step` and `by_model`, dearest first; None when no call was made.

        `cost_usd` is left out wherever no model involved has a price.
        """
        with self._lock:
            calls = {key: dict(counted) for key, counted in self._calls.items()}
        if not calls:
            return None
        for (_, _, model), counted in calls.items():
            counted["cost_usd"] = self._cost(model, counted)
        by_step = _grouped(calls, lambda key: {"path": key[0]})
        by_model = _grouped(calls, lambda key: {"provider": key[1], "model": key[2]})
        return {**_total(calls.values()), "by_step": by_step, "by_model": by_model}

    def summary(self):
        """Return one line: calls, tokens in and out, cost where known; "" when no call was made."""
        report = self.report()
        if report is None:
            return ""
        calls, cached = report["calls"], report["cache_read_input_tokens"]
        taken = report["input_tokens"] + report["cache_creation_input_tokens"] + cached
        line = f"{calls} call{'' if calls == 1 else 's'} · {_compact(taken)} in"
        line += f" / {_compact(report['output_tokens'])} out"
        line += f" ({_compact(cached)} cached)" if cached else ""
        return line + (f" · ${report['cost_usd']:.2f}" if "cost_usd" in report else "")

    def _cost(self, model, tokens):
        price = self._pricing.get(model)
        if price is None:
            return None
        rates = {
            "input_tokens": price["input"],
            "output_tokens": price["output"],
            "cache_creation_input_tokens": price.get("cache_write", price["input"] * 1.25),
            "cache_read_input_tokens": price.get("cache_read", price["input"] / 10),
        }
        return sum(tokens[name] * rate for name, rate in rates.items()) / 1e6


def _grouped(calls, name_of):
    groups = {}
    for key, counted in calls.items():
        name = name_of(key)
        groups.setdefault(tuple(name.values()), (name, []))[1].append(counted)
    entries = [{**name, **_total(parts)} for name, parts in groups.values()]
    return sorted(entries, key=lambda entry: (-entry.get("cost_usd", 0), -sum(entry[each] for each in TOKENS)))


def _total(parts):
    parts = list(parts)
    total = {name: sum(part[name] for part in parts) for name in ("calls", *TOKENS)}
    costs = [part["cost_usd"] for part in parts if part["cost_usd"] is not None]
    return {**total, "cost_usd": round(sum(costs), 8)} if costs else total


def _compact(number):
    if number >= 1_000_000:
        return f"{number / 1_000_000:.1f}M"
    return f"{round(number / 1000)}k" if number >= 1000 else str(number)


# The journal -------------------------------------------------------------------------------------------------------


def digest(value):
    """Return a short hash of a JSON value; equal values give equal hashes, in every process."""
    return hashlib.blake2b(_sorted_json(value).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


_sorted_json = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode


class Journal:
    """The memory of one root run: what is finished is written down, and not done twice. Any thread may use it.

    record: where lines go, or None. finished: key → line of an earlier attempt, as reopen returns it.
    """

    def __init__(self, record=None, finished=None):
        self._record = record
        self._finished = finished or {}
        #: False when nothing is written or recalled, so that nobody computes digests for it.
        self.active = record is not None or bool(self._finished)

    def recall(self, key, digest):
        """Return the finished line of this key and digest, or None. Hidden secrets make a line useless."""
        line = self._finished.get(key)
        return line if line is not None and line.get("digest") == digest else None

    def remember(self, key, request, function):
        """Return function(), a JSON value; one on record for the same key and request is not computed again."""
        if not self.active:
            return function()
        seen = digest(request)
        line = self.recall(key, seen)
        if line is not None and "value" in line:
            return line["value"]
        value = function()
        self.note({"type": "model", "key": key, "digest": seen, "value": value})
        return value

    def note(self, line):
        """Write one line, where there is a record. Never raises: Record.trouble tells what was lost."""
        if self._record is not None:
            self._record.write(line)

    @property
    def trouble(self):
        """Why the record is not complete, as a sentence, or None."""
        return self._record.trouble if self._record is not None else None


def answer_line(key, prompt, schema, answer):
    """Return the line that answers the question with this key: a resumed run takes it instead of asking."""
    return {"type": "answer", "key": key, "digest": digest([prompt, schema]), "answer": answer}


# Records -----------------------------------------------------------------------------------------------------------


def new_run_id(now):
    """Return a name for a run: the time (UTC) and four random digits, so that names sort by age."""
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime(now)) + "-" + random_bytes.token_hex(2)


def create(directory, plan, arguments, *, secrets=(), now, keep=KEEP_RUNS):
    """Start the record of a run of `plan` and return it; its lock is held until it is closed.

    directory: made when it is missing (0700). secrets: texts that must never be written. now: epoch seconds. OSError.
    """
    directory = Path(directory)
    make_private_dir(directory)
    _remove_oldest(directory, keep - 1)
    while True:
        run = new_run_id(now)
        path = _path(directory, run)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        except FileExistsError:  # another run of this second drew the same digits
            continue
        lock = FileLock(path, timeout_s=REOPEN_WAIT_S)
        try:
            lock.acquire()
        except OSError:  # TimeoutError too; a file system without locks can keep no records
            os.close(descriptor)
            path.unlink()
            raise
        record = Record(path, descriptor, lock, secrets)
        record.write(
            {
                "type": "run",
                "format": RECORD_FORMAT,
                "run": run,
                "plan": plan.identifier,
                "document": plan.document,
                "arguments": arguments,
                "started": round(now, 3),
            }
        )
        return record


def reopen(directory, run, *, secrets=(), now):
    """Take a run up again: return (record, header line, finished lines by key).

    BadArgument when there is no such run, when it is still running or has ended well, and when its input held a
    secret and was therefore not written.
    """
    path = _existing(directory, run)
    lock = FileLock(path, timeout_s=REOPEN_WAIT_S)
    try:
        lock.acquire()
    except TimeoutError:
        raise BadArgument(f"run {run} is still running; wait for it, or stop it first") from None
    try:
        lines, ends_whole = _read_lines(path)
        header = _header(lines, run)
        if lines[-1]["type"] == "end" and lines[-1].get("kind") == "ran":
            raise BadArgument(f"run {run} has ended well, so there is nothing to resume; start the plan again")
        if header.get("redacted"):
            raise BadArgument(f"run {run} cannot be resumed: its plan or input held a secret, which is never written")
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    except BaseException:
        lock.release()
        raise
    record = Record(path, descriptor, lock, secrets, resumed=True, whole=ends_whole)
    record.write({"type": "resume", "at": round(now, 3)})
    return record, header, _finished(lines)


def _finished(lines):
    """Return the lines that need not be done again, by key; the last line of a key counts."""
    finished = {}
    for line in lines:
        if "key" in line:
            finished.pop(line["key"], None)
            if not line.get("redacted") and any(name in line for name in ("result", "value", "answer")):
                finished[line["key"]] = line
    return finished


class Record:
    """The open record of a running run. Any thread may write; a line is with the system when write returns.

    descriptor: open for appending. lock: the file's lock, taken. Both belong to the record from here on.

    A write that fails ends the recording and never the run: `trouble` then says why.
    """

    def __init__(self, path, descriptor, lock, secrets=(), *, resumed=False, whole=True):
        self.path = path
        self.run = path.stem
        #: Why lines are missing, as a sentence, or None.
        self.trouble = None
        self._descriptor = descriptor
        self._file_lock = lock
        self._is_resumed = resumed
        self._hide = _Hider(secrets)
        # Protects _descriptor and trouble, and keeps lines from mixing; held while one line is written.
        self._lock = threading.Lock()
        if not whole:
            self._append(b"\n")  # ends the line a crash has torn

    def write(self, line):
        """Append one line. Never raises: see trouble."""
        try:
            data = (self._hide.encode(line) + "\n").encode("utf-8")
        except (ValueError, RecursionError) as error:
            self.trouble = f"a result cannot be written as JSON ({error}), so a resumed run repeats its step"
            return
        self._append(data)

    def _append(self, data):
        with self._lock:
            if self._descriptor is None:
                return
            try:
                while data:
                    data = data[os.write(self._descriptor, data) :]
            except OSError as error:
                self.trouble = f"the record {self.path} cannot be written ({reason_of(error)}); it ends here"
                self._close()

    def finish(self, body, now):
        """Write how the run ended and close the record. body: what the caller of the run gets."""
        self.write({"type": "end", "at": round(now, 3), "kind": body["kind"], "body": body})
        self.close()

    def discard(self):
        """Close the record; remove it when it is that of a run which never did anything."""
        if not self._is_resumed:
            with contextlib.suppress(OSError):  # it stays, as one of an interrupted run
                self.path.unlink()
        self.close()

    def close(self):
        """Close the file and give up the lock; a record without an end line is one of an interrupted run."""
        with self._lock:
            self._close()

    def _close(self):
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
            self._file_lock.release()


class _Hider:
    """Writes lines as JSON without the secrets it was given."""

    def __init__(self, secrets):
        secrets = sorted(filter(None, secrets), key=len, reverse=True)
        self._plain = _any_of(secrets)
        # Most lines hold no secret; searching their text finds that out faster than walking them.
        self._written = _any_of([json.dumps(secret, ensure_ascii=False)[1:-1] for secret in secrets])

    def encode(self, line):
        """Return the JSON text of a line; a line that lost a secret says "redacted"."""
        text = to_json(line)
        if self._written is None or not self._written.search(text):
            return text
        hidden = {key: value if key in _ADDRESS else self._without(value) for key, value in line.items()}
        return text if hidden == line else to_json({**hidden, "redacted": True})

    def _without(self, value):
        if isinstance(value, str):
            return self._plain.sub(HIDDEN, value)
        if isinstance(value, dict):
            return {self._plain.sub(HIDDEN, key): self._without(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._without(item) for item in value]
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return HIDDEN if self._plain.search(json.dumps(value)) else value
        return value


def _any_of(texts):
    return re.compile("|".join(map(re.escape, texts))) if texts else None


# Looking at records ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunSummary:
    """One run in a listing. status: "running", "interrupted", or how it ended. Times are epoch seconds."""

    run: str
    plan: str
    status: str
    started: float
    ended: float | None
    steps: int
    error: str | None

    def to_json(self):
        """Return the summary as a JSON object."""
        return asdict(self)


def list_runs(directory):
    """Return RunSummaries of the records in a directory, newest first; files that are no records are left out."""
    summaries = []
    for path in reversed(_record_files(directory)):
        try:
            summaries.append(_summary(path))
        except (BadArgument, OSError):  # not a record, or gone meanwhile
            continue
    return summaries


def read_run(directory, run):
    """Return one run: {"run","plan","status","started","ended","arguments","steps","outcome"}. BadArgument.

    steps: the step lines in the order in which they ended. outcome: the body its caller got, or None.
    """
    path = _existing(directory, run)
    lines, _ = _read_lines(path)
    header = _header(lines, run)
    end = lines[-1] if lines[-1]["type"] == "end" else {}
    steps = [{key: value for key, value in line.items() if key != "type"} for line in lines if line["type"] == "step"]
    return {
        "run": run,
        "plan": header["plan"],
        "status": _status(path, end),
        "started": header["started"],
        "ended": end.get("at"),
        "arguments": header["arguments"],
        "steps": steps,
        "outcome": end.get("body"),
    }


def _summary(path):
    """Return the summary of a record. Step lines, which may be large, are counted but not parsed."""
    head, last, finished = None, b"", set()
    with open(path, "rb") as stream:
        for line in stream:
            head = head or line
            if line.startswith(b'{"type":"step"'):
                finished.add(line[: line.find(b'"digest"')])
            last = line
    header = _header([_parse(head or b"")], path.stem)
    end = _parse(last)
    end = end if end and end["type"] == "end" else {}
    body = end.get("body") or {}
    steps = body.get("steps_executed", len(finished))
    status = _status(path, end)
    return RunSummary(path.stem, header["plan"], status, header["started"], end.get("at"), steps, body.get("error"))


def _status(path, end):
    lock = FileLock(path, timeout_s=0)
    try:
        lock.acquire()
    except (TimeoutError, OSError):
        return "running"
    lock.release()
    return end.get("kind", "interrupted")


def _record_names(directory):
    """Return the names of the record files of a directory, oldest first."""
    try:
        names = os.listdir(directory)
    except OSError:  # not there yet, or not for us: no runs
        return []
    return sorted(filter(_RECORD_NAME.match, names))


def _record_files(directory):
    """Return the record files of a directory, oldest first."""
    return [Path(directory) / name for name in _record_names(directory)]


def _remove_oldest(directory, keep):
    """Remove the oldest records that have ended until `keep` are left, unless another run is about it."""
    if not _tidying.acquire(blocking=False):
        return
    try:
        names = _record_names(directory)
        for path in [Path(directory) / name for name in names[: max(0, len(names) - keep)]]:
            with contextlib.suppress(OSError):  # another process removed it
                if _status(path, {}) != "running":
                    path.unlink()
    finally:
        _tidying.release()


def _path(directory, run):
    return Path(directory) / f"{run}.jsonl"


def _existing(directory, run):
    """Return the file of a run. The name is checked first, so that it can never lead out of the directory."""
    path = _path(directory, run)
    if not _RUN.match(run) or not path.is_file():
        close = nearest(run, [each.stem for each in _record_files(directory)])
        hint = f"did you mean {close!r}?" if close else f"the runs on record are in {directory}"
        raise BadArgument(f"there is no run {shorten(run, 80)!r}; {hint}")
    return path


def _read_lines(path):
    """Return (the lines of a record that can be read, whether the last one is whole)."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadArgument(f"the record {path} cannot be read: {reason_of(error)}") from None
    lines = [line for line in map(_parse, data.split(b"\n")) if line is not None]
    return lines, data.endswith(b"\n")


def _parse(text):
    """Return one line as an object with a type, or None for a line that is torn or no line of a record."""
    try:
        line = read_json(text)
    except DocumentError:
        return None
    return line if isinstance(line, dict) and isinstance(line.get("type"), str) else None


def _header(lines, run):
    header = lines[0] if lines else None
    if not header or header["type"] != "run" or header.get("format") != RECORD_FORMAT:
        raise BadArgument(f"the record of run {run} cannot be read: it does not start with a line of this version")
    return header
