"""Questions of `ask` steps as MCP has them: the form, what an answer means, and the sealed state of a waiting run.

Up to 2025-11-25 the server sends `elicitation/create` while the call is open. From 2026-07-28 the call ends with what
is asked and a `requestState`; the client calls again with both, and the run goes on from its record. The state is
opaque to the client, and worthless to one who alters it, keeps it too long or uses it for another call.
"""

import base64
import binascii
import hashlib
import hmac
import json
import os
import secrets
from pathlib import Path

from . import documents, paths, records
from .errors import BadArgument, DocumentError, shorten
from .tools import Answer

#: File of the key that seals states, beside the run records: a restarted server must know its own states.
KEY_FILE = "request-state.key"
KEY_BYTES = 32
#: Longest state that is looked at, in characters; ours have 500 and what was asked.
STATE_MAX = 1_000_000
_VERSION = "v1"

#: What a field of a form may say besides its type (MCP 2025-06-18, client/elicitation), and the type of that.
_FIELD_KEYS = {
    "string": {"title": str, "description": str, "minLength": int, "maxLength": int, "format": str, "default": str},
    "number": {"title": str, "description": str, "minimum": (int, float), "maximum": (int, float),
               "default": (int, float)},
    "boolean": {"title": str, "description": str, "default": bool},
}  # fmt: skip
_FIELD_KEYS["integer"] = _FIELD_KEYS["number"]
_ENUM_KEYS = {"title": str, "description": str, "default": str, "enumNames": list}
_FORMATS = ("email", "uri", "date", "date-time")


# Forms and answers -------------------------------------------------------------------------------------------------


def can_ask(capabilities):
    """Say whether a client that declared these capabilities shows forms; {"url": {}} alone means that it does not."""
    elicitation = capabilities.get("elicitation") if isinstance(capabilities, dict) else None
    return isinstance(elicitation, dict) and (not elicitation or isinstance(elicitation.get("form"), dict))


def form(schema):
    """Return the requestedSchema of a question, or None when the protocol cannot express it (an enum of numbers).

    What a form cannot say (pattern, exclusiveMinimum) is left out; the engine checks the answer by the whole schema.
    """
    fields = {name: _field(rule) for name, rule in schema["properties"].items()}
    if None in fields.values():
        return None
    shown = {"type": "object", "properties": fields}
    required = [name for name in schema.get("required", ()) if name in fields]
    return {**shown, "required": required} if required else shown


def _field(rule):
    if "enum" in rule:
        values = rule["enum"]
        if not values or not all(isinstance(value, str) for value in values):
            return None
        return {"type": "string", "enum": values, **_kept(rule, _ENUM_KEYS)}
    kind = rule.get("type")
    return {"type": kind, **_kept(rule, _FIELD_KEYS[kind])} if kind in _FIELD_KEYS else None


def _kept(rule, keys):
    """Return the members of a field that a form may have, of the right type."""
    kept = {}
    for key, kind in keys.items():
        value = rule.get(key)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if isinstance(value, kind) and (kind in (str, bool, list) or is_number):
            kept[key] = value
    if kept.get("format", "date") not in _FORMATS:
        del kept["format"]
    return kept


def answer_of(result):
    """Return the Answer that an ElicitResult means. Whatever else a client sends there is no answer.

    A person who declines, cancels, or does something the protocol does not know yet, has said no.
    """
    action = result.get("action") if isinstance(result, dict) else None
    if not isinstance(action, str):
        return Answer("unavailable")
    if action != "accept":
        return Answer("declined")
    content = result.get("content")
    return Answer("answered", content) if isinstance(content, dict) else Answer("unavailable")


# Sealed states -----------------------------------------------------------------------------------------------------


def question_digest(question):
    """Return what tells a question from any other in the same place."""
    return records.digest([question.prompt, question.schema])


class Seal:
    """Makes and opens request states. key: secret bytes; see load_key."""

    def __init__(self, key):
        self._key = key

    def close(self, state):
        """Return a JSON object as an opaque text."""
        payload = base64.urlsafe_b64encode(json.dumps(state).encode()).decode()
        return f"{_VERSION}.{payload}.{self._mac(payload)}"

    def open(self, text):
        """Return the object of a text that this key has sealed. BadArgument for every other one."""
        version, _, rest = text[:STATE_MAX].partition(".")
        payload, _, mac = rest.partition(".")
        if version == _VERSION and hmac.compare_digest(self._mac(payload).encode(), mac.encode("utf-8", "replace")):
            try:
                return documents.read_json(base64.urlsafe_b64decode(payload), "requestState")
            except (DocumentError, binascii.Error):  # cannot be: we have sealed it
                pass
        raise BadArgument(
            f"requestState {shorten(text, 20)!r} was not made by this server, or was changed;"
            " call the tool again without it"
        )

    def _mac(self, payload):
        text = f"{_VERSION}.{payload}".encode("utf-8", "replace")
        return base64.urlsafe_b64encode(hmac.digest(self._key, text, hashlib.sha256)).decode().rstrip("=")


def load_key(data_dir):
    """Return the key of this user's servers, made when there is none yet; all of them use the same.

    Where it cannot be kept, the key lives as long as the process, and states do not outlast it.
    """
    path = Path(data_dir) / KEY_FILE
    try:
        paths.make_private_dir(data_dir)
        with paths.FileLock(f"{path}.lock"):
            if path.is_file() and path.stat().st_size == KEY_BYTES:
                return path.read_bytes()
            key = secrets.token_bytes(KEY_BYTES)
            paths.write_private(path, key)
            return key
    except (OSError, TimeoutError):
        return os.urandom(KEY_BYTES)
