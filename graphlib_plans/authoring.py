"""Editing plans: pure changes of a document, the guard in front of every write, and the store that writes.

A change takes a document and returns (changed document, summary); the document that went in is never touched. The
guard compares the problems before and after and refuses what would introduce one. `Store` does the reading and
writing, one edit at a time for all threads and processes that use the same directory.
"""

import contextlib
import os
from collections import Counter
from pathlib import Path

from . import documents, templates
from .errors import BadArgument, ConfigError, DocumentError, Refused, UnknownPlan
from .errors import did_you_mean, shorten, type_name
from .paths import IDENTIFIER, IDENTIFIER_MAX, FileLock, make_private_dir, write_private
from .validation import static_problems

#: What `set` can set, and the part of it that `unset` can remove again.
ATTRIBUTES = (
    "name", "description", "identifier", "exemplars", "requires_servers", "input_schema", "output_schema", "parallel",
    "concurrency", "solver", "output",
)  # fmt: skip
UNSETTABLE = tuple(key for key in ATTRIBUTES if key not in documents.PLAN_REQUIRED)
#: What `step update` can set, and the part of it that `step unset` can remove again.
STEP_ATTRIBUTES = ("tool", "input", "reasoning", "after", "retry", "timeout_s", "on_error")
STEP_UNSETTABLE = tuple(key for key in STEP_ATTRIBUTES if key not in documents.STEP_REQUIRED)
#: Name of the lock file in a plans directory. It stays there; a dot file is no plan.
LOCK_NAME = ".plans.lock"


# Changes: document → (document, summary) ----------------------------------------------------------------------------


def scaffold(identifier, name=None, description=""):
    """Return the document of a plan without steps. BadArgument for what is no identifier, name or description."""
    _check_identifier(identifier)
    document = {"identifier": identifier, "name": identifier if name is None else name, "description": description}
    for key in ("name", "description"):
        _check_value(documents.PLAN_KEYS, key, document[key])
    return {**document, "steps": []}


def set_attribute(document, attribute, value):
    """Set one attribute of a plan; setting solver removes output and the other way round. BadArgument."""
    if attribute not in ATTRIBUTES:
        known = did_you_mean(attribute, ATTRIBUTES)
        raise BadArgument(f"a plan has no attribute {shorten(str(attribute), 80)!r}; {known}")
    if attribute == "identifier":
        _check_identifier(value)
    _check_value(documents.PLAN_KEYS, attribute, value)
    changed = documents.normalise({**document, attribute: value})
    other = {"solver": "output", "output": "solver"}.get(attribute)
    cleared = {"cleared": other} if other in changed else {}
    changed.pop(other, None)
    return changed, {**_summary(changed), **cleared}


def unset_attribute(document, attribute):
    """Remove one attribute of a plan. BadArgument; Refused when the plan does not end in the way that is unset."""
    if attribute not in UNSETTABLE:
        raise BadArgument(f"{shorten(str(attribute), 80)!r} cannot be unset; what can: {', '.join(UNSETTABLE)}")
    other = {"solver": "output", "output": "solver"}.get(attribute)
    if other and attribute not in document:
        ends = f"ends with its {other}" if other in document else "is silent"
        raise Refused(f"the plan has no {attribute} to unset, it {ends}; nothing was changed")
    changed = {key: value for key, value in document.items() if key != attribute}
    return changed, _summary(changed)


def add_step(document, id, tool, input, reasoning=None, before=None, after=None):
    """Add a step at the end, or before or after another one. BadArgument, Refused."""
    if before is not None and after is not None:
        raise Refused("a step can be added before or after another one, not both; nothing was changed")
    step = {"id": id, "tool": tool, "input": input}
    if reasoning is not None:
        step["reasoning"] = reasoning
    for key, value in step.items():
        _check_value(documents.STEP_KEYS, key, value)
    steps = _steps(document)
    index = len(steps)
    if before is not None or after is not None:
        index = _index(steps, before if after is None else after) + (after is not None)
    steps.insert(index, documents.normalise_call(step))
    return {**document, "steps": steps}, {"id": id, "index": index, "steps": len(steps)}


def update_step(document, id, attribute, value):
    """Set one attribute of a step; an input replaces the whole input. BadArgument, Refused."""
    if attribute not in STEP_ATTRIBUTES:
        known = did_you_mean(attribute, STEP_ATTRIBUTES)
        raise BadArgument(f"a step has no attribute {shorten(str(attribute), 80)!r} that can be updated; {known}")
    if attribute == "reasoning" and value == "":
        raise BadArgument("the reasoning is empty; to remove it, unset it")
    _check_value(documents.STEP_KEYS, attribute, value)
    return _with_step(document, id, lambda step: documents.normalise_call({**step, attribute: value})), {"id": id}


def unset_step(document, id, attribute):
    """Remove one attribute of a step. BadArgument, Refused."""
    if attribute not in STEP_UNSETTABLE:
        raise BadArgument(f"{shorten(str(attribute), 80)!r} cannot be unset; what can: {', '.join(STEP_UNSETTABLE)}")

    def without(step):
        return {key: value for key, value in step.items() if key != attribute}

    return _with_step(document, id, without), {"id": id}


def rename_step(document, id, new_id):
    """Give a step another id and rewrite what refers to it: later steps, `after`, the output, the solver. Refused."""
    _check_value(documents.STEP_KEYS, "id", new_id)
    steps = _steps(document)
    index = _index(steps, id)
    for position, step in enumerate(steps):
        if position == index:
            steps[position] = {**step, "id": new_id}
        elif isinstance(step, dict):
            steps[position] = _renamed(step, id, new_id, position > index)
    changed = {**document, "steps": steps}
    for key in ("output", "solver"):
        if key in document:
            changed[key] = templates.rename(document[key], id, new_id)
    return changed, {"id": new_id}


def _renamed(step, old, new, is_later):
    changes = {}
    if isinstance(step.get("after"), list) and old in step["after"]:
        changes["after"] = [new if name == old else name for name in step["after"]]
    if is_later:  # an earlier step cannot refer to it, so there the name is something else
        for key in ("input", "on_error"):
            renamed = templates.rename(step.get(key), old, new)
            if renamed != step.get(key):
                changes[key] = renamed
    return {**step, **changes} if changes else step


def remove_step(document, id):
    """Remove a step. Refused; the guard refuses it too when something still refers to the step."""
    steps = _steps(document)
    del steps[_index(steps, id)]
    return {**document, "steps": steps}, {"id": id, "steps": len(steps)}


def move_step(document, id, before=None, after=None):
    """Move a step before or after another one. BadArgument, Refused."""
    if (before is None) == (after is None):
        raise BadArgument("say either before or after which step to move it")
    steps = _steps(document)
    step = steps.pop(_index(steps, id))
    anchor = before if after is None else after
    if anchor == id:
        raise BadArgument(f"step {shorten(id, 80)!r} cannot be moved next to itself")
    index = _index(steps, anchor) + (after is not None)
    steps.insert(index, step)
    return {**document, "steps": steps}, {"id": id, "index": index, "steps": len(steps)}


def _summary(document):
    return {"identifier": document.get("identifier"), "name": document.get("name")}


def _check_identifier(identifier):
    if not isinstance(identifier, str) or not IDENTIFIER.match(identifier) or len(identifier) > IDENTIFIER_MAX:
        shown = repr(shorten(identifier, 80)) if isinstance(identifier, str) else type_name(identifier)
        rule = f"letters, digits, _ and -, at most {IDENTIFIER_MAX} of them"
        raise BadArgument(f"{shown} cannot be an identifier; it is made of {rule}")


def _check_value(keys, key, value):
    """Refuse a value of the wrong type, or one too deep or too large, as a file with it would be refused."""
    is_right, wanted = keys[key]
    try:
        documents.measure(value, key)
    except DocumentError as error:
        raise BadArgument(error.message) from None
    if not is_right(value):
        raise BadArgument(f"{key} must be {wanted}, not {type_name(value)}")


def _steps(document):
    """Return a copy of the list of steps. Refused when there is none to work on."""
    steps = document.get("steps")
    if not isinstance(steps, list):
        raise Refused("the plan's steps are no list; correct the file by hand, nothing was changed")
    return list(steps)


def _index(steps, id):
    """Return where the step with an id stands. Refused, with the ids there are."""
    ids = [step.get("id") if isinstance(step, dict) else None for step in steps]
    if id not in ids:
        available = [known for known in ids if isinstance(known, str)]
        hint = did_you_mean(id, available) if available else "the plan has no steps"
        raise Refused(f"there is no step {shorten(str(id), 80)!r}; {hint}", availableSteps=available)
    return ids.index(id)


def _with_step(document, id, change):
    steps = _steps(document)
    index = _index(steps, id)
    steps[index] = change(steps[index])
    return {**document, "steps": steps}


# The guard ---------------------------------------------------------------------------------------------------------


def guard(before, after, renamed=None):
    """Return the problems that are left after a change. Refused, with the problems it would introduce.

    before, after: the documents. renamed: (old id, new id) of a step that was renamed. A problem is the same before
    and after when it has the same code at the same place, where steps are told apart by what they are and not by their
    number; or, when it only moved inside its step, the same code and sentence.
    """
    old, left = static_problems(before), static_problems(after)
    names = _same_steps(before, after, renamed)
    at_place = Counter((_place(problem.pointer, names[0]), problem.code) for problem in old)
    introduced, kept = [], []
    for problem in left:
        key = _place(problem.pointer, names[1]), problem.code
        if at_place[key]:
            at_place[key] -= 1
            kept.append(problem)
        else:
            introduced.append(problem)
    # What is left of the old problems may have moved inside its step, for example in a body that was extended.
    moved = Counter()
    for problem in old:
        key = _place(problem.pointer, names[0]), problem.code
        if at_place[key]:
            at_place[key] -= 1
            moved[key[0][0], problem.code, problem.text] += 1
    for problem in list(introduced):
        key = _place(problem.pointer, names[1])[0], problem.code, problem.text
        if moved[key]:
            moved[key] -= 1
            introduced.remove(problem)
            kept.append(problem)
    if introduced:
        details = {"problemsIntroduced": [problem.to_json() for problem in introduced]}
        if kept:
            details["preExistingProblems"] = [problem.to_json() for problem in kept]
        raise Refused(f"the edit was refused and nothing was changed: {introduced[0]}", **details)
    return kept


def _same_steps(before, after, renamed):
    """Return ({index: name}, {index: name}) so that a step has one name in both documents."""
    old, new = documents.steps_of(before), documents.steps_of(after)
    old_names = {index: ("step", index) for index, _ in old}
    new_names = {}
    taken = set()
    # The very object first (two steps may share an id), then the id.
    objects = {id(step): index for index, step in old}
    for index, step in new:
        if id(step) in objects and objects[id(step)] not in taken:
            new_names[index] = old_names[objects[id(step)]]
            taken.add(objects[id(step)])
    for index, step in new:
        if index in new_names:
            continue
        wanted = step.get("id")
        if renamed and wanted == renamed[1]:
            wanted = renamed[0]
        match = next((one for one, other in old if one not in taken and other.get("id") == wanted), None)
        new_names[index] = ("new", index) if match is None else old_names[match]
        taken.add(match)
    return old_names, new_names


def _place(pointer, names):
    """Return (name of the step or None, the rest of the pointer)."""
    parts = pointer.split("/", 3)
    if len(parts) >= 3 and parts[1] == "steps" and parts[2].isdigit():
        return names.get(int(parts[2]), parts[2]), "/".join(parts[3:])
    return None, pointer


# The store ---------------------------------------------------------------------------------------------------------


class Store:
    """Plan files that can be edited. directories: the configured ones; created plans go into the first.

    Every edit holds a lock file of its directory, so edits from other threads and processes wait. An editor does not
    know the lock: a file that changed while it was being edited is left as it is, and the edit is refused.
    """

    def __init__(self, directories):
        self.directories = [Path(directory) for directory in directories]

    def open(self, identifier):
        """Return (document, path) of a plan, hidden and invalid ones included. UnknownPlan, DocumentError."""
        path = documents.find_file(self.directories, identifier)
        return documents.read_file(path), path

    def new(self, identifier, name=None, description=""):
        """Create a plan without steps and return what to tell: ok, identifier, savedTo, problems, note."""
        document = scaffold(identifier, name, description)
        path = self.create(document)
        body = {"ok": True, "identifier": identifier, "savedTo": str(path)}
        body["problems"] = [problem.to_json() for problem in static_problems(document)]
        if not description:
            body["note"] = "the plan has no description; callers choose a plan by it"
        return body

    def create(self, document):
        """Write a document as a file of its own and return its path. BadArgument when there is such a plan already."""
        _check_identifier(document.get("identifier"))
        directory = self._destination()
        with _locked(directory):
            path = self._free_path(directory, document["identifier"])
            _write(path, document, None)
        return path

    def edit(self, identifier, change):
        """Change a plan and return what to tell.

        change: document → (document, summary). Returns {"ok": true, …summary, "savedTo"}, with preExistingProblems
        and note where there is something to say, and renamedFrom after a change of identifier. UnknownPlan,
        DocumentError, BadArgument, Refused; nothing is written then.
        """
        directory = documents.find_file(self.directories, identifier).parent
        with _locked(directory):
            path = documents.find_file(self.directories, identifier)
            content = _read(path)
            before = documents.read_document(content, documents.FORMATS[path.suffix], path)
            after, summary = change(before)
            kept = guard(before, after, _renamed_step(before, after))
            if after.get("identifier") != before.get("identifier"):
                saved, notes = self._save_renamed(before, after, path), [self._rename_note(before, path)]
                summary = {**summary, "renamedFrom": str(path)}
            else:
                saved, notes = self._save(after, path, content)
        body = {"ok": True, **summary, "savedTo": str(saved)}
        if kept:
            body["preExistingProblems"] = [problem.to_json() for problem in kept]
            notes.append(f"the plan has {len(kept)} problem{'s' if len(kept) > 1 else ''} left")
        if notes:
            body["note"] = "; ".join(notes)
        return body

    def _save(self, document, path, content):
        """Write a changed document and return (path, notes). A hand-written file is left alone."""
        if path.suffix == ".json":
            if _read(path) != content:
                raise Refused(f"{path} was changed by somebody else in the meantime; nothing was written, try again")
            _write(path, document, None)
            return path, []
        identifier = document.get("identifier")
        if not isinstance(identifier, str) or not IDENTIFIER.match(identifier):
            raise Refused(f"{path} has an identifier that cannot be a file name; correct it by hand")
        target = path.parent / f"{identifier}.json"
        if os.path.lexists(target):
            raise Refused(f"{target} is in the way: it is no readable plan of this name; correct or remove it by hand")
        _write(target, document, path.stat().st_mode & 0o777)
        return target, [f"{path.name} is written by hand and stays as it is; {target.name} is used in its place"]

    def _save_renamed(self, before, after, path):
        directory = self._destination()
        with _locked(directory) if directory != path.parent else contextlib.nullcontext():
            target = self._free_path(directory, after["identifier"])
            _write(target, after, None)
        return target

    def _rename_note(self, before, path):
        old = before.get("identifier")
        callers = self._callers(old)
        calls = f"; still calling plan__{old}: {', '.join(callers)}" if callers else ""
        return f"the plan {old!r} stays in {path}; remove that file when nothing uses it{calls}"

    def _callers(self, identifier):
        """Return the identifiers of plans that call a plan."""
        callers = []
        for path in documents.plan_files(self.directories)[0]:
            with contextlib.suppress(DocumentError):  # a broken file calls nothing
                document = documents.read_file(path)
                if any(tool == f"plan__{identifier}" for _, tool, _ in documents.calls(document)):
                    callers.append(str(document.get("identifier")))
        return sorted(set(callers))

    def _destination(self):
        """Return the directory for created plans. ConfigError when there is none, or it cannot be made."""
        if not self.directories:
            raise ConfigError("no plans directory is configured; add one to paths in [plans]")
        try:
            make_private_dir(self.directories[0])
        except OSError as error:
            reason = documents.reason_of(error)
            raise ConfigError(f"the plans directory {self.directories[0]} cannot be made: {reason}") from None
        return self.directories[0]

    def _free_path(self, directory, identifier):
        """Return the path for a created plan. BadArgument when its directory has such a plan or file already."""
        path = directory / f"{identifier}.json"
        with contextlib.suppress(UnknownPlan):
            found = documents.find_file([directory], identifier)
            raise BadArgument(f"there is a plan {identifier!r} already: {found}")
        if os.path.lexists(path):
            raise BadArgument(f"the file {path} is there already")
        return path


def _renamed_step(before, after):
    """Return (old id, new id) when a change gave one step another id, else None."""
    old = {step.get("id") for _, step in documents.steps_of(before) if isinstance(step.get("id"), str)}
    new = {step.get("id") for _, step in documents.steps_of(after) if isinstance(step.get("id"), str)}
    gone, come = old - new, new - old
    same_count = len(documents.steps_of(before)) == len(documents.steps_of(after))
    return (gone.pop(), come.pop()) if same_count and len(gone) == len(come) == 1 else None


@contextlib.contextmanager
def _locked(directory):
    try:
        lock = FileLock(directory / LOCK_NAME)
        lock.acquire()
    except TimeoutError as error:
        raise Refused(f"{error}; nothing was changed") from None
    except OSError as error:
        reason = documents.reason_of(error)
        raise Refused(f"the plans directory {directory} cannot be written: {reason}; nothing was changed") from None
    try:
        yield
    finally:
        lock.release()


def _read(path):
    try:
        return path.read_bytes()
    except OSError as error:
        raise DocumentError(f"{path} cannot be read: {documents.reason_of(error)}", path=str(path)) from None


def _write(path, document, mode):
    try:
        text = documents.to_text(document)
    except ValueError as error:
        raise BadArgument(f"the plan cannot be written as JSON: {error}") from None
    try:
        write_private(path, text.encode(), mode=mode)
    except OSError as error:
        raise Refused(f"{path} cannot be written: {documents.reason_of(error)}; nothing was changed") from None
