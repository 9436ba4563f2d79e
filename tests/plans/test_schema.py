"""JSON Schema: the official suite, then what it leaves open: sentences, robustness, defaults, plain listings."""

import json
import os
import pathlib

import pytest
from hypothesis import given, settings, strategies as st

from graphlib_plans import schema
from graphlib_plans.schema import Validator

SUITE = pathlib.Path(__file__).resolve().parents[2].parent / "shared" / "json-schema-test-suite"
DRAFT = SUITE / "draft2020-12"
NO_SUITE = f"the official JSON Schema test suite is not at {SUITE}"

#: Required cases that fail, and why: (file, group, test) → reason.
EXCEPTIONS = {
    (
        "vocabulary",
        "schema that uses custom metaschema with with no validation vocabulary",
        "no validation: invalid number, but it still validates",
    ): "a $schema that switches keywords off would have to be fetched, and nothing is ever fetched",
}


def suite_cases():
    cases = []
    for path in sorted(DRAFT.glob("*.json")):
        for group in json.loads(path.read_text(encoding="utf-8")):
            for test in group["tests"]:
                name = f"{path.stem}: {group['description']}: {test['description']}"
                cases.append(pytest.param(path.stem, group, test, id=name))
    return cases


def remotes():
    return {
        f"http://localhost:1234/{path.relative_to(SUITE / 'remotes').as_posix()}": json.loads(path.read_text("utf-8"))
        for path in (SUITE / "remotes").rglob("*.json")
    }


def test_the_official_suite_is_there():
    if not DRAFT.is_dir():
        if os.environ.get("CI") == "true":
            pytest.fail(NO_SUITE)
        pytest.skip(NO_SUITE)
    assert len(suite_cases()) > 1200


@pytest.fixture(scope="module")
def resources():
    return remotes()


@pytest.mark.parametrize("stem, group, test", suite_cases())
def test_official_case(stem, group, test, resources):
    verdict = not Validator(group["schema"], resources).problems(test["data"])
    if (stem, group["description"], test["description"]) in EXCEPTIONS:
        assert verdict != test["valid"], "this case passes; remove it from EXCEPTIONS"
    else:
        assert verdict == test["valid"]


GUESTS = {
    "type": "object",
    "required": ["guests"],
    "properties": {
        "guests": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["first", "seat"],
                "properties": {"first": {"type": "string", "minLength": 1}, "seat": {"type": "integer"}},
            },
        },
        "title": {"type": "string", "default": "Guest"},
        "size": {"enum": ["s", "m"]},
    },
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "value, expected",
    [
        ({"guests": []}, []),
        ({}, [("/guests", "schema_required", "guests is required")]),
        ([], [("", "schema_type", "the value must be an object, not an array")]),
        (
            {"guests": [{"first": "", "seat": "3"}, {"first": 1}], "size": "x", "titel": "T"},
            [
                ("/guests/0/first", "schema_minLength", "guests.0.first must have at least 1 character, and has 0"),
                ("/guests/0/seat", "schema_type", "guests.0.seat must be an integer, not a string"),
                ("/guests/1/seat", "schema_required", "guests.1.seat is required"),
                ("/guests/1/first", "schema_type", "guests.1.first must be a string, not an integer"),
                ("/size", "schema_enum", 'size must be one of "s", "m", not "x"'),
                ("/titel", "schema_additionalProperties", "titel is not a known property"),
            ],
        ),
        (
            {"guests": [{"first": "Ida", "seat": True}]},
            [("/guests/0/seat", "schema_type", "guests.0.seat must be an integer, not a boolean")],
        ),
        ({"guests": [{"first": "Ida", "seat": 3.0}]}, []),
    ],
)
def test_every_problem_is_reported_and_names_the_property(value, expected):
    found = schema.problems(value, GUESTS)
    assert [(problem.pointer, problem.code, problem.text) for problem in found] == expected


def test_a_misspelled_property_gets_a_suggestion():
    (problem,) = schema.problems({"guests": [], "titel": "x"}, GUESTS)
    assert str(problem) == "titel is not a known property (did you mean 'title'?)"


def test_alternatives_report_the_one_that_got_furthest():
    rule = {"anyOf": [{"type": "string"}, {"properties": {"a": {"type": "integer"}}, "type": "object"}]}
    (problem,) = schema.problems({"a": "x"}, rule)
    assert problem.text == "the value fits none of 2 alternatives: a must be an integer, not a string"


@pytest.mark.parametrize(
    "rule", [{"$ref": "#"}, {"allOf": [{"$ref": "#"}]}, {"anyOf": [{"$dynamicRef": "#"}, {"$ref": "#"}]}]
)
def test_a_schema_that_refers_to_itself_without_end_ends(rule):
    assert "without end" in schema.problems(1, rule)[0].text


def test_a_recursive_schema_follows_the_value():
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}, "n": {"type": "integer"}}}
    (problem,) = schema.problems({"left": {"left": {"n": "x"}}}, tree)
    assert problem.pointer == "/left/left/n"


def test_a_reference_that_leads_nowhere_is_a_problem_and_nothing_is_fetched():
    rule = {"properties": {"a": {"$ref": "http://localhost:1/x"}, "b": {"$ref": "#/$defs/none"}}}
    assert [problem.pointer for problem in schema.problems({"a": 1, "b": 2, "c": 3}, rule)] == ["/a", "/b"]
    assert [problem.pointer for problem in schema.schema_problems(rule)] == ["/properties/b/$ref", "/properties/a/$ref"]


def nested(depth, wrap):
    value = {}
    for _ in range(depth):
        value = wrap(value)
    return value


def test_what_is_nested_too_deeply_is_said_and_survived():
    rule = {"$ref": "#/$defs/list", "$defs": {"list": {"type": "array", "items": {"$ref": "#/$defs/list"}}}}
    found = schema.problems(nested(3000, lambda inner: [inner]), rule)
    assert [problem.code for problem in found] == ["schema_depth"]
    deep = nested(3000, lambda inner: {"properties": {"a": inner}})
    assert schema.problems({"a": 1}, deep) == []
    assert schema.inline_refs(deep)["type"] == "object"


@pytest.mark.parametrize(
    "rule",
    [
        {"required": "x", "properties": [], "type": 5, "enum": 1, "items": 3, "minLength": "a", "allOf": {}},
        {"properties": {"a": 3}, "patternProperties": {"(": {}}, "multipleOf": 0, "additionalProperties": 7},
        {"pattern": "(", "type": ["string", "nope"], "maximum": True, "dependentRequired": {"a": 1}, "anyOf": []},
        {"$ref": 5, "$id": 7, "$anchor": [], "$defs": [], "not": 1, "if": 2, "then": 3},
    ],
)
@pytest.mark.parametrize("value", [{"a": 1}, "text", 3, [1], None])
def test_a_schema_of_wrong_shapes_never_raises(rule, value):
    assert isinstance(schema.problems(value, rule), list)
    assert schema.schema_problems(rule)


@pytest.mark.parametrize(
    "rule, pointer",
    [
        ({"type": "objct"}, "/type"),
        ({"properties": {"a": {"type": ["string", "nil"]}}}, "/properties/a/type"),
        ({"properties": {"a": 1}}, "/properties/a"),
        ({"required": "name"}, "/required"),
        ({"minLength": -1}, "/minLength"),
        ({"items": [{}]}, "/items"),
        ({"pattern": "("}, "/pattern"),
        ({"patternProperties": {"(": {}}}, "/patternProperties"),
    ],
)
def test_a_wrong_schema_is_reported_where_it_is_wrong(rule, pointer):
    assert [problem.pointer for problem in schema.schema_problems(rule)] == [pointer]


@pytest.mark.parametrize("rule", [True, False, {}, GUESTS, schema.META, {"x-mine": {"type": 3}}])
def test_a_right_schema_has_no_problems(rule):
    assert schema.schema_problems(rule) == []


def test_an_odd_address_is_survived():
    assert isinstance(schema.problems(1, {"$id": "http://[", "$ref": "http://[/x"}), list)


@pytest.mark.parametrize("rule", [None, 3, "x", []])
def test_what_is_no_schema_at_all_is_reported(rule):
    assert [problem.code for problem in schema.schema_problems(rule)] == ["schema_type"]


@pytest.mark.parametrize(
    "pattern, matching, other",
    [
        ("^a$", "a", "a\n"),
        (r"^\d+$", "12", "١٢"),
        (r"^[\w]+$", "ab_1", "é"),
        (r"^\p{L}+$", "é", "1"),
        (r"^(?<year>\d{4})$", "2026", "26"),
        (r"^a\/b$", "a/b", "a\\/b"),
        (r"^\u{1F600}$", "😀", "x"),
        (r"^[[]$", "[", "]"),
    ],
)
def test_patterns_mean_what_they_mean_in_javascript(pattern, matching, other):
    assert schema.problems(matching, {"pattern": pattern}) == []
    assert len(schema.problems(other, {"pattern": pattern})) == 1


def test_integers_of_any_size_are_compared_exactly():
    big = 2**70 + 1
    assert schema.problems(big, {"const": big, "multipleOf": 1, "minimum": big, "maximum": big}) == []
    assert schema.problems(big, {"const": float(big)}) != []
    assert schema.problems(0.0075, {"multipleOf": 0.0001}) == []


def test_defaults_are_put_in_one_level_deep_and_nothing_is_changed():
    inner = {"properties": {"c": {"default": 2}}}
    rule = {"properties": {"a": {"default": 1}, "b": inner, "d": True, "e": {"default": None}}}
    value = {"b": {}}
    assert schema.with_defaults(value, rule) == {"b": {}, "a": 1, "e": None}
    assert value == {"b": {}}
    full = {"a": 0, "e": 0}
    assert schema.with_defaults(full, rule) is full
    for odd in (None, [], 3, "x"):
        assert schema.with_defaults(odd, rule) == odd
        assert schema.with_defaults({}, odd) == {}


@pytest.mark.parametrize(
    "rule, arguments, expected",
    [
        ({"properties": {"city": {}}}, {"citty": 1}, ["citty is not a known property (did you mean 'city'?)"]),
        ({"properties": {"city": {}}, "additionalProperties": False}, {"c": 1},
         ["c is not a known property (known: city)"]),
        ({"properties": {"city": {}}, "additionalProperties": True}, {"citty": 1}, []),
        ({"properties": {"city": {}}, "additionalProperties": {"type": "string"}}, {"citty": 1},
         ["citty must be a string, not an integer"]),
        ({"properties": {"city": {}}, "patternProperties": {"^x-": {}}}, {"x-1": 1}, []),
        ({"properties": {}}, {"a": 1}, ["a is not a known property"]),
        ({"type": "object"}, {"a": 1}, []),
        (True, {"a": 1}, []),
        ({"anyOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}, {"a": 1, "b": 2, "c": 3},
         ["c is not a known property (known: a, b)"]),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"properties": {"a": {"type": "string"}}}}}, {"a": "", "b": 1},
         ["b is not a known property (known: a)"]),
        ({"properties": {"n": {"type": "integer"}}}, {"n": "012"}, ["n must be an integer, not a string"]),
        ({"properties": {"n": {"type": "integer"}}}, {"n": 12.0}, []),
        ({"properties": {"n": {"type": "integer"}}}, {"n": True}, ["n must be an integer, not a boolean"]),
        ({"properties": {"n": {}}}, [], []),
    ],
)  # fmt: skip
def test_arguments_of_a_call(rule, arguments, expected):
    assert [str(problem) for problem in schema.check_arguments(arguments, rule)[1]] == expected


def test_arguments_get_their_defaults_before_they_are_checked():
    rule = {"properties": {"a": {"type": "integer", "default": 1}}, "required": ["a"]}
    assert schema.check_arguments({}, rule) == ({"a": 1}, [])


def test_a_listed_schema_has_no_references():
    rule = {
        "$schema": schema.META_URI,
        "properties": {"a": {"$ref": "#/$defs/n", "description": "mine"}, "t": {"$ref": "#/$defs/tree"}},
        "additionalProperties": {},
        "$defs": {
            "n": {"type": "integer", "description": "theirs"},
            "tree": {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}},
        },
    }
    assert schema.inline_refs(rule) == {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "description": "mine"},
            "t": {"type": "object", "properties": {"kids": {"type": "array", "items": {}}}},
        },
    }


@pytest.mark.parametrize("rule", [None, True, {}, {"type": "string"}, {"$ref": "#"}, {"properties": 3}])
def test_a_listed_schema_is_always_an_object_with_properties(rule):
    listed = schema.inline_refs(rule)
    assert listed["type"] == "object" and isinstance(listed["properties"], dict)


def test_alternatives_at_the_top_are_merged():
    first = {"properties": {"a": {"type": "string"}}, "required": ["a"]}
    rule = {"anyOf": [first, {"properties": {"b": {}}}], "required": ["c"]}
    merged = {"a": {"type": "string"}, "b": {}}
    assert schema.inline_refs(rule) == {"type": "object", "properties": merged, "required": ["c"]}


def test_references_that_multiply_are_cut_off():
    rule = {"$defs": {"d0": {"type": "string"}}, "properties": {"x": {"$ref": "#/$defs/d30"}}}
    for level in range(30):
        part = {"$ref": f"#/$defs/d{level}"}
        rule["$defs"][f"d{level + 1}"] = {"properties": {"a": part, "b": part, "c": part}}
    assert len(json.dumps(schema.inline_refs(rule))) < 1_000_000


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(json_values, json_values)
def test_identity_is_json_equality(one, other):
    assert schema.problems(one, {"const": one}) == []
    if json.dumps(one, sort_keys=True) != json.dumps(other, sort_keys=True):
        same = schema.identity(one) == schema.identity(other)
        assert same == (not schema.problems(one, {"enum": [other]}))


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from(list(schema.KEYWORDS)), json_values), json_values)
def test_any_schema_is_survived(rule, value):
    assert isinstance(schema.problems(value, rule), list)
    assert isinstance(schema.schema_problems(rule), list)
    assert schema.inline_refs(rule)["type"] == "object"
