"""What can go wrong, as data and as exceptions.

A `Problem` is a finding: it is returned, listed and compared, never raised. A `PlanError` is something the user is told
in one sentence. A `StopRun` ends a run and is no failure of a step, so retries, `on_error` and agents never catch it.

Every `PlanError` has a stable `kind` (the list is in docs/plans.md); texts may change, kinds do not. The functions in
between put names, values and places into sentences.
"""

from dataclasses import dataclass

#: How many names a sentence lists.
SHOWN_NAMES = 12


@dataclass(frozen=True)
class Problem:
    """One finding about a document, schema or value.

    pointer: RFC 6901 JSON pointer to the place; "" is the whole document.
    code: stable name, for example "reference_unknown"; the list is in docs/plan-format.md.
    text: one sentence that names the step and the thing. hint: what to do about it, or "".
    """

    pointer: str
    code: str
    text: str
    hint: str = ""

    def to_json(self):
        """Return the problem as a JSON object; `hint` is left out when there is none."""
        entry = {"pointer": self.pointer, "code": self.code, "text": self.text}
        return {**entry, "hint": self.hint} if self.hint else entry

    def __str__(self):
        return f"{self.text} ({self.hint})" if self.hint else self.text


# Words for sentences about problems --------------------------------------------------------------------------------


def pointer(*parts):
    """Return the RFC 6901 pointer of a place given by keys and indexes."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def shorten(text, limit):
    """Return a text cut to `limit` characters, an ellipsis included."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def nearest(name, known):
    """Return the known name most like `name`, or None."""
    import difflib  # only where something is wrong already

    return next(iter(difflib.get_close_matches(str(name), list(known), n=1)), None)


def did_you_mean(name, known):
    """Return a hint that names the nearest known name; without one it lists the known names, if there are any."""
    known = list(known)
    close = nearest(name, known)
    if close:
        return f"did you mean {close!r}?"
    return f"known: {listed(known)}" if known else ""


def listed(names):
    """Return names as they are listed in a sentence: the first SHOWN_NAMES, and how many more there are."""
    more = len(names) - SHOWN_NAMES
    return (", ".join(names[:SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")) or "nothing"


def type_name(value):
    """Return the JSON type of a value as a word with its article, for sentences."""
    for kind, word in _TYPE_WORDS:
        if isinstance(value, kind):
            return word
    return type(value).__name__


#: Order matters: bool is an int.
_TYPE_WORDS = (
    (type(None), "null"),
    (bool, "a boolean"),
    (int, "an integer"),
    (float, "a number"),
    (str, "a string"),
    ((list, tuple), "an array"),
    (dict, "an object"),
)


# Exceptions -------------------------------------------------------------------------------------------------------


class PlanError(Exception):
    """Something the user is told; never a bug. `details` are JSON values that join the body."""

    kind = "step_failed"

    def __init__(self, message, **details):
        super().__init__(message)
        self.message = message
        self.details = details

    def body(self):
        """Return the error as a JSON object: its kind, the sentence under `error`, and the details."""
        return {"kind": self.kind, "error": self.message, **self.details}


class BadArgument(PlanError):
    """A command or authoring call was given something it cannot use."""

    kind = "bad_argument"


class ConfigError(PlanError):
    """The configuration cannot be loaded, or an entry of it cannot be used."""

    kind = "config_error"


class UnknownPlan(PlanError):
    """No plan of that name can be used here; the sentence says why."""

    kind = "unknown_plan"


class ProblemsError(PlanError):
    """Base of the errors that carry a list of problems under `details["problems"]`."""

    @classmethod
    def of(cls, problems, message=None):
        """Make the error from Problems; the sentence defaults to the first one and how many there are."""
        if message is None:
            more = len(problems) - 1
            message = str(problems[0]) + (f" (and {more} more)" if more else "")
        return cls(message, problems=[problem.to_json() for problem in problems])


class InvalidPlan(ProblemsError):
    """A plan has problems that keep it from running."""

    kind = "invalid_plan"


class DocumentError(InvalidPlan):
    """A text is no document: it cannot be read or parsed. Details: `path`, `line` and `column` where known."""


class UnresolvedTools(ProblemsError):
    """A plan names tools, servers or models that do not exist here."""

    kind = "unresolved_tools"


class NeedsInput(PlanError):
    """The input of a plan is missing or wrong; details `problems` (sentences) and `inputSchema`."""

    kind = "needs_input"


class Refused(PlanError):
    """An edit was understood and not made; details say why (`problemsIntroduced`, `availableSteps`, …)."""

    kind = "refused"


class ModelUnavailable(PlanError):
    """No model can be used; details name the `variable` and configuration `path` that would help."""

    kind = "model_unavailable"


class TemplateError(PlanError):
    """A template cannot be rendered; details `template`, and `path`, `available` where they apply."""


class TemplateSyntax(TemplateError):
    """A template is not well formed."""


class MissingStep(TemplateError):
    """The first name of a reference is not in scope."""


class BadPath(TemplateError):
    """A reference walks to a key that is not there, or into something that has no keys or items."""


class EmptyData(TemplateError):
    """A reference ran out of data: an index past the end, or a walk through null."""

    kind = "empty_data"


class ToolError(PlanError):
    """A tool call failed.

    payload: the tool's own error value (JSON); {"error": message} when it gave none.
    retryable: False where trying again is pointless: bad input, unknown tool, a cycle of plans.
    """

    def __init__(self, message, payload=None, retryable=True, **details):
        super().__init__(message, **details)
        self.payload = {"error": message} if payload is None else payload
        self.retryable = retryable


class ToolTimeout(ToolError):
    """A tool call did not end before its deadline."""


class StopRun(Exception):
    """Ends the whole run. Not a PlanError, so that nothing which handles failing steps catches it."""


class Cancelled(StopRun):
    """The run was cancelled; `reason` says by what."""

    def __init__(self, reason="cancelled"):
        super().__init__(reason)
        self.reason = reason


class ExitFired(StopRun):
    """An exit step fired. `exit` has the keys status, message, reason, output, step, all present."""

    def __init__(self, exit):
        super().__init__(exit["message"])
        self.exit = exit


class Suspended(StopRun):
    """A host cannot ask now and resumes the run from its record later; `question` is what it must ask."""

    def __init__(self, question):
        super().__init__("waiting for an answer")
        self.question = question
