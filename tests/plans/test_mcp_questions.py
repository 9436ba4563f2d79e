"""Forms, what answers mean, and states that only their maker can open."""

import os
import stat

import pytest

from graphlib_plans import mcp_questions
from graphlib_plans.errors import BadArgument
from graphlib_plans.tools import Answer


@pytest.mark.parametrize("capabilities, expected", [
    ({"elicitation": {}}, True),
    ({"elicitation": {"form": {}}}, True),
    ({"elicitation": {"form": {}, "url": {}}}, True),
    ({"elicitation": {"url": {}}}, False),
    ({"elicitation": True}, False),
    ({"elicitation": {"form": None}}, False),
    ({}, False),
    (None, False),
    ([], False),
])
def test_who_can_be_asked(capabilities, expected):
    assert mcp_questions.can_ask(capabilities) is expected


@pytest.mark.parametrize(
    "rule, expected",
    [
        (
            {"type": "string", "title": "T", "minLength": 1, "pattern": "x", "format": "email"},
            {"type": "string", "title": "T", "minLength": 1, "format": "email"},
        ),
        ({"type": "string", "format": "ipv4", "description": 5}, {"type": "string"}),
        (
            {"type": "integer", "minimum": 0, "exclusiveMaximum": 9, "default": 3},
            {"type": "integer", "minimum": 0, "default": 3},
        ),
        ({"type": "number", "maximum": 1.5, "default": True}, {"type": "number", "maximum": 1.5}),
        ({"type": "boolean", "default": False}, {"type": "boolean", "default": False}),
        ({"enum": ["a", "b"], "default": "a"}, {"type": "string", "enum": ["a", "b"], "default": "a"}),
        ({"enum": [1, 2]}, None),
        ({"enum": ["a", None]}, None),
        ({"type": "array"}, None),
    ],
)
def test_fields(rule, expected):
    form = mcp_questions.form({"properties": {"x": rule}, "required": ["x", "y"]})
    whole = {"type": "object", "properties": {"x": expected}, "required": ["x"]}
    assert form == (None if expected is None else whole)


@pytest.mark.parametrize("result, expected", [
    ({"action": "accept", "content": {"a": 1}}, Answer("answered", {"a": 1})),
    ({"action": "accept", "content": None}, Answer("unavailable")),
    ({"action": "decline", "content": {"a": 1}}, Answer("declined")),
    ({"action": "later"}, Answer("declined")),
    ({"action": None}, Answer("unavailable")),
    ("accept", Answer("unavailable")),
    (None, Answer("unavailable")),
])
def test_what_an_answer_means(result, expected):
    assert mcp_questions.answer_of(result) == expected


def test_a_state_opens_with_its_key_alone():
    seal = mcp_questions.Seal(b"k" * 32)
    state = {"run": "x", "prompt": "é \ud800"}
    text = seal.close(state)
    assert text.isascii() and seal.open(text) == state
    with pytest.raises(BadArgument):
        mcp_questions.Seal(b"l" * 32).open(text)
    for index in range(len(text)):
        other = "A" if text[index] != "A" else "B"
        with pytest.raises(BadArgument):
            seal.open(text[:index] + other + text[index + 1:])


def test_the_key_is_private_and_shared(tmp_path):
    data = tmp_path / "data"
    key = mcp_questions.load_key(data)
    assert len(key) == mcp_questions.KEY_BYTES and mcp_questions.load_key(data) == key
    assert stat.S_IMODE(os.stat(data / mcp_questions.KEY_FILE).st_mode) == 0o600
    (data / mcp_questions.KEY_FILE).write_bytes(b"short")
    assert len(mcp_questions.load_key(data)) == mcp_questions.KEY_BYTES


def test_a_key_that_cannot_be_kept_still_seals(tmp_path):
    (tmp_path / "file").write_text("")
    assert len(mcp_questions.load_key(tmp_path / "file")) == mcp_questions.KEY_BYTES
