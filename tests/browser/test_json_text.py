"""The page's own reader of JSON text: exact digits, doubled keys, strict, and not impressed by depth."""

import json

import pytest

from tests.browser.conftest import PAGE


@pytest.fixture(scope="module")
def script(chromium):
    """A tab with the page's functions in reach; opened from the file, it asks for a token and does nothing."""
    page = chromium.new_context().new_page()
    page.goto(PAGE.as_uri())
    yield page
    page.context.close()


VALID = [
    "0",
    "-0",
    "1.50",
    "1e400",
    "9007199254740993",
    "-12.5E-3",
    '""',
    '"a\\u00e9\\ud800\\n\\/"',
    "true",
    "null",
    "[]",
    "{}",
    " [ 1 , [ ] , { } ] ",
    '{"a":1,"a":2}',
    '{"":{"b":[true,false,null]}}',
    '"\U0001f642"',
    "1" * 5000,
    "[" * 20000 + "]" * 20000,
]
INVALID = [
    "",
    " ",
    "NaN",
    "-",
    "01",
    "1.",
    ".5",
    "+1",
    "1e",
    "tru",
    "truex",
    "'a'",
    '"a',
    '"\\x"',
    '"\\u12g4"',
    '"a\nb"',
    "[1,]",
    "[,1]",
    "[1 2]",
    "{a:1}",
    '{"a"}',
    '{"a":}',
    '{"a":1,}',
    "[1]]",
    "{]",
    "1 1",
    "// x",
    "\u00a01",
]


@pytest.mark.parametrize("text", VALID, ids=lambda text: text[:24] or "empty")
def test_valid_json_is_taken(script, text):
    assert script.evaluate("text => jsonProblem(text)", text) is None


@pytest.mark.parametrize("text", INVALID, ids=lambda text: text[:24] or "empty")
def test_anything_else_is_refused_with_a_place(script, text):
    problem = script.evaluate("text => jsonProblem(text)", text)
    assert problem["message"] and problem["line"] >= 1 and 1 <= problem["column"] <= len(text) + 1


def test_line_and_column_name_the_spot(script):
    problem = script.evaluate("text => jsonProblem(text)", '{\n  "a": 1,\n  "b": nope\n}')
    assert (problem["line"], problem["column"]) == (3, 8)


@pytest.mark.parametrize("text", [text for text in VALID if len(text) < 1000])
def test_pretty_and_compact_keep_every_token(script, text):
    pretty = script.evaluate("text => pretty(text)", text)
    assert script.evaluate("text => compact(text)", pretty) == script.evaluate("text => compact(text)", text)
    assert json.loads(pretty, object_pairs_hook=list, parse_float=str, parse_int=str) == json.loads(
        text, object_pairs_hook=list, parse_float=str, parse_int=str
    )


def test_pretty_looks_like_json_dumps(script):
    value = {"a": [1, {"b": None}, [], {}], "c": "x,y:{z}"}
    assert script.evaluate("text => pretty(text)", json.dumps(value)) == json.dumps(value, indent=2)


@pytest.mark.parametrize(
    "path, expected",
    [
        (["a", 0], "1.50"),
        (["b"], '{"x": 9007199254740993}'),
        (["b", "x"], "9007199254740993"),
        (["twice"], "2"),
        (["caf\u00e9"], "3"),
        (["a", 5], None),
        (["missing", "x"], None),
        (["a", 0, "deeper"], None),
    ],
)
def test_text_at_a_path_is_exact(script, path, expected):
    text = '{"a": [1.50], "b": {"x": 9007199254740993}, "twice":1, "twice":2, "caf\\u00e9": 3}'
    assert script.evaluate("([text, path]) => textAt(text, ...path)", [text, path]) == expected


@pytest.mark.parametrize(
    "text, shown",
    [
        ("plain", "plain"),
        ("a\u202eb", "a\\u202eb"),
        ("\x1b[31m", "\\u001b[31m"),
        ("tab\tline\n", "tab\tline\n"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("\U0001f642", "\U0001f642"),
        ("bom\ufeff", "bom\\ufeff"),
    ],
)
def test_characters_that_deceive_are_shown_as_escapes(script, text, shown):
    assert script.evaluate("text => seen(text)", text) == shown


def test_lone_surrogates_are_shown_as_escapes(script):
    assert script.evaluate(r"() => seen('a\ud800b\udc00') + cut('\ud83d\ude42x', 1)") == "a\\ud800b\\udc00\u2026"


@pytest.mark.parametrize(
    "ms, shown",
    [
        (0, "<0.1 ms"),
        (0.05, "<0.1 ms"),
        (1.25, "1.3 ms"),
        (9.96, "10 ms"),
        (212.4, "212 ms"),
        (999.6, "1.0 s"),
        (1900, "1.9 s"),
        (59949, "59.9 s"),
        (124000, "2 min 04 s"),
        (3723000, "1 h 02 min"),
    ],
)
def test_durations(script, ms, shown):
    assert script.evaluate("ms => duration(ms)", ms) == shown


@pytest.mark.parametrize(
    "before, after, changes",
    [
        ('{"a":1}', '{"a":1.0}', [["changed", "a"]]),
        ('{"a": 1}', '{ "a":1 }', []),
        ('{"a":1}', '{"b":1}', [["added", "b"], ["removed", "a"]]),
        ("{}", '{"a":9007199254740993}', [["added", "a"]]),
        ('{"a":{"x":[1, 2]}}', '{"a":{"x":[1,2]}}', []),
    ],
)
def test_changes_of_arguments_are_told_by_exact_text(script, before, after, changes):
    assert script.evaluate("([before, after]) => argumentChanges(before, after)", [before, after]) == changes


@pytest.mark.parametrize(
    "method, text, words",
    [
        ("tools/call", '"hi"', "text block holding your text"),
        ("tools/call", '{"a":1}', "structuredContent"),
        ("tools/call", "[1]", "holding your JSON"),
        ("tools/call", '{"content":[]}', "as it is"),
        ("tools/call", '{"structuredContent":{}}', "as it is"),
        ("tools/call", '{"jsonrpc":"2.0"}', "whole JSON-RPC frame"),
        ("resources/read", '"x"', "resource contents"),
        ("prompts/get", "1", "user message"),
        ("sampling/createMessage", '{"content":1}', "as it is"),
        ("ping", "{}", "unchanged"),
    ],
)
def test_the_editor_says_how_a_value_is_lifted(script, method, text, words):
    assert words in script.evaluate(
        "([method, text]) => liftWords({method, id: '1', point: 'before'}, text)", [method, text]
    )


def test_every_function_of_the_page_is_short(script):
    """Forty lines fit a screen; longer functions are two functions."""
    lengths = script.evaluate(
        """() => Object.getOwnPropertyNames(window).filter(name => typeof window[name] === 'function'
        && !/native code/.test(window[name])).map(name => [name, String(window[name]).split('\\n').length])"""
    )
    assert len(lengths) > 150 and [each for each in lengths if each[1] > 40] == []
