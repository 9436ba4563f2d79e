"""The template language, mostly as tables: template, scope, result."""

import collections
import json
import pathlib

import pytest
from hypothesis import given, strategies as st

from graphlib_plans import templates
from graphlib_plans.errors import BadPath, EmptyData, MissingStep, TemplateError, TemplateSyntax
from graphlib_plans.templates import LENGTH, Reference, render, render_text

SCOPE = {
    "input": {"n": 3, "tags": ["a", "b"], "who": None, "big": 2**80, "half": 0.5, "yes": True},
    "E0": {
        "rows": [{"t": "x", "k": 1}, {"t": "y"}],
        "meta": {},
        "zero": 0,
        "empty": [],
        "odd": {"x.y": 1, "length": 2, "7": 3, "a}}b": 4, 'q"': 5, "first name": 6},
    },
}

VALUES = [
    ("{{input.n}}", 3),
    ("n={{input.n}}", "n=3"),
    ("{{ input.tags }}", ["a", "b"]),
    (" {{input.n}}", " 3"),
    ("{{input.n}} ", "3 "),
    ("{{input.tags.length}}", 2),
    ("{{E0.rows.0.t.length}}", 1),
    ("{{input.who}}", None),
    ("who: {{input.who}}", "who: "),
    ("{{input.big}}", 2**80),
    ("{{input.big}}!", f"{2**80}!"),
    ("{{input.half}} {{input.yes}}", "0.5 true"),
    ("{{E0.rows.1.t}}", "y"),
    ("{{E0.rows.1.k?}}", None),
    ("{{E0.rows.9.t?}}", None),
    ("{{input.who.name?}}", None),
    ("{{ input.nope ? }}", None),
    ("<{{input.nope?}}>", "<>"),
    ('{{E0.odd."x.y"}}', 1),
    ('{{E0.odd."length"}}', 2),
    ('{{E0.odd."7"}}', 3),
    ('{{E0.odd."a}}b"}}', 4),
    ('{{E0.odd."q\\""}}', 5),
    ("{{E0.odd.first name}}", 6),
    ('{{E0.odd."none"?}}', None),
    ('{{"E0".zero}}', 0),
    ("{{{{input.n}}", "{{input.n}}"),
    ("{{{{{{input.n}}}}", "{{3}}"),
    ("}} and } and {", "}} and } and {"),
    ("", ""),
    ("plain", "plain"),
    # sections
    ("{{#E0.rows}}{{@index}}{{t}}{{k}};{{/E0.rows}}", "0x1;1y;"),
    ("{{#E0.rows}}{{t}}{{^@last}},{{/@last}}{{/E0.rows}}", "x,y"),
    ("{{#E0.rows}}{{#@first}}>{{/@first}}{{t}}{{/E0.rows}}", ">xy"),
    ("{{#E0.zero}}yes{{/E0.zero}}", "yes"),
    ("{{#E0.meta}}yes{{/E0.meta}}", "yes"),
    ("{{#E0.empty}}yes{{/E0.empty}}", ""),
    ("{{^E0.empty}}none{{/E0.empty}}", "none"),
    ("{{^E0.missing}}none{{/E0.missing}}", "none"),
    ("{{#E0.missing.deep}}some{{/E0.missing.deep}}", ""),
    ("{{#input.who}}some{{/input.who}}", ""),
    ("{{# input.tags }}<{{.}}>{{/ input.tags}}", "<a><b>"),
    ("{{#E0.rows}}{{nope}}{{nope.deeper}}{{/E0.rows}}", ""),
    ("{{#E0.rows}}{{input.n}}{{/E0.rows}}", "33"),
    ("{{#E0}}{{#rows}}{{zero}}{{t}}{{/rows}}{{/E0}}", "0x0y"),
    ("{{#E0}}{{#input.tags}}{{#odd}}{{@index}}{{/odd}}{{/input.tags}}{{/E0}}", "01"),
    ("{{#E0.rows}}\n- {{t}}\n{{/E0.rows}}", "\n- x\n\n- y\n"),
]


@pytest.mark.parametrize("template, expected", VALUES)
def test_a_template_renders_to(template, expected):
    assert render(template, SCOPE) == expected
    assert type(render(template, SCOPE)) is type(expected)
    assert render_text(template, SCOPE) == templates.text_of(expected)


def test_objects_inside_text_are_indented_json_with_sorted_keys():
    expected = json.dumps(SCOPE["input"], indent=2, sort_keys=True)
    assert render("{{#E0.rows}}{{input}}{{/E0.rows}}", SCOPE) == expected * 2


def test_fields_of_the_item_come_before_roots():
    scope = {"rows": [{"input": "mine", "E1": {"a": 1}}, {}], "input": "root", "E1": {"a": 2, "b": 3}}
    assert render("{{#rows}}{{input}}/{{E1.a}}/{{E1.b}} {{/rows}}", scope) == "mine/1/3 root/2/3 "


ERRORS = [
    ("{{input.who.name}}", EmptyData, "who is null"),
    ("{{input.who.length}}", EmptyData, "who is null"),
    ("{{input.nope}}", BadPath, "it has big, half, n, tags, who, yes"),
    ("{{E0.rows.5.t}}", EmptyData, "2 items"),
    ("{{E0.empty.0}}", EmptyData, "0 items"),
    ("{{E0.rows.t}}", BadPath, "is an array"),
    ("{{E0.meta.length}}", BadPath, "only arrays and strings"),
    ("{{E0.odd.length}}", BadPath, 'E0.odd."length"'),
    ("{{E0.odd.7}}", BadPath, 'E0.odd."7"'),
    ("{{input.n.x}}", BadPath, "is an integer"),
    ("{{input.half.x}}", BadPath, "is a number"),
    ("{{input.yes.x}}", BadPath, "is a boolean"),
    ("{{input.n.length}}", BadPath, "only arrays and strings"),
    ("{{input.tags.length.x}}", BadPath, "length must be the last"),
    ("{{E9}}", MissingStep, "known: E0, input"),
    ("{{E9?}}", MissingStep, "'E9' is not known"),
    ("{{^E9.x}}none{{/E9.x}}", MissingStep, "'E9' is not known"),
    ("{{#E9}}{{/E9}}", MissingStep, "'E9' is not known"),
    ("{{#E0.meta}}{{@index}}{{/E0.meta}}", TemplateSyntax, "outside a section over an array"),
    ("{{> x}}", TemplateSyntax, "not supported"),
    ("{{! c}}", TemplateSyntax, "not supported"),
    ("{{< x}}", TemplateSyntax, "not supported"),
    ("{{$ x}}", TemplateSyntax, "not supported"),
    ("{{}}", TemplateSyntax, "empty"),
    ("{{  }}", TemplateSyntax, "empty"),
    ("{{#}}x{{/}}", TemplateSyntax, "empty"),
    ("{{x", TemplateSyntax, "never closed"),
    ("{{", TemplateSyntax, "never closed"),
    ("{{E0.}}", TemplateSyntax, "stray dot"),
    ("{{.E0}}", TemplateSyntax, "stray dot"),
    ("{{E0..x}}", TemplateSyntax, "stray dot"),
    ("{{?}}", TemplateSyntax, "stray dot"),
    ("{{E0.@index}}", TemplateSyntax, "cannot be part"),
    ("{{@index}}", TemplateSyntax, "outside a section"),
    ("{{.}}", TemplateSyntax, "outside a section"),
    ("{{@nope}}", TemplateSyntax, "cannot be part"),
    ("{{0.x}}", TemplateSyntax, "starts with a name"),
    ("{{length}}", TemplateSyntax, "starts with a name"),
    ("{{#E0}}", TemplateSyntax, "never closed"),
    ("{{/E0}}", TemplateSyntax, "never opened"),
    ("{{#E0}}{{/E1}}", TemplateSyntax, "must be equal"),
    ("{{#E0}}{{#E1}}{{/E0}}{{/E1}}", TemplateSyntax, "must be equal"),
    ('{{E0.a"b}}', TemplateSyntax, "has to be quoted"),
    ('{{E0."a"b}}', TemplateSyntax, "after a quoted key"),
    ('{{E0."\\q"}}', TemplateSyntax, "not a well-formed"),
    ("{{{E0}}}", TemplateSyntax, "has to be quoted"),
    ("{{#E0}}" * 60, TemplateSyntax, "deeper than 50"),
]


@pytest.mark.parametrize("template, kind, part", ERRORS)
def test_a_template_fails_with(template, kind, part):
    with pytest.raises(TemplateError) as caught:
        render(template, SCOPE)
    assert type(caught.value) is kind
    assert part in caught.value.message
    assert caught.value.body()["template"] == template


def test_an_error_lists_at_most_twelve_keys():
    with pytest.raises(BadPath) as caught:
        render("{{a.x}}", {"a": {f"k{n:02}": 0 for n in range(30)}})
    assert caught.value.details["available"] == [f"k{n:02}" for n in range(12)]
    assert "and 18 more" in caught.value.message


def test_only_empty_data_has_a_kind_of_its_own():
    assert EmptyData("").kind == "empty_data"
    assert {kind("").kind for kind in (BadPath, MissingStep, TemplateSyntax)} == {"step_failed"}


def test_values_are_rendered_at_every_depth_and_keys_are_not():
    value = {"{{input.n}}": [{"a": "{{input.n}}"}, ["{{input.tags}}", 1, None, True, 2.5]]}
    assert render(value, SCOPE) == {"{{input.n}}": [{"a": 3}, [["a", "b"], 1, None, True, 2.5]]}
    assert value["{{input.n}}"][0] == {"a": "{{input.n}}"}


def test_what_is_put_in_is_not_scanned_again():
    assert render("{{a}}", {"a": "{{b}}"}) == "{{b}}"
    assert render("<{{a}}>", {"a": "{{b}} }}"}) == "<{{b}} }}>"


def test_a_scope_may_be_any_mapping():
    scope = collections.ChainMap({"item": 1}, {"input": {"item": 2}})
    assert render("{{item}}-{{input.item}}", scope) == "1-2"


def test_references_name_every_tag_with_its_place():
    sections = "{{#E2.rows}}{{name}}{{E3.x}}{{/E2.rows}}{{^E4?}}{{E5.length?}}{{/E4?}}"
    value = {"a": ["{{E1.rows.0.id}}", "x"], "b/c": sections}
    assert templates.references(value, "/steps/0/input") == [
        Reference("E1", ("rows", 0, "id"), "/steps/0/input/a/0"),
        Reference("E2", ("rows",), "/steps/0/input/b~1c", optional=True),
        Reference("name", (), "/steps/0/input/b~1c", maybe_item=True),
        Reference("E3", ("x",), "/steps/0/input/b~1c", maybe_item=True),
        Reference("E4", (), "/steps/0/input/b~1c", optional=True),
        Reference("E5", (LENGTH,), "/steps/0/input/b~1c", optional=True),
    ]
    assert templates.roots(value) == ["E1", "E2", "name", "E3", "E4", "E5"]


def test_syntax_problems_point_at_the_string():
    problems = templates.syntax_problems({"a": ["{{ok}}", "{{"], "b": "{{}}"}, "/steps/3/input")
    assert [(problem.pointer, problem.code) for problem in problems] == [
        ("/steps/3/input/a/1", "template_parse"),
        ("/steps/3/input/b", "template_parse"),
    ]
    assert templates.references("{{") == []


@pytest.mark.parametrize(
    "before, after",
    [
        ("{{E1}}", "{{new}}"),
        ("{{ E1.a.b }}", "{{new.a.b}}"),
        ("{{E1.a?}} {{E1?}}", "{{new.a?}} {{new?}}"),
        ("{{E10}} {{xE1}} {{E1x.E1}} {{a.E1}}", "{{E10}} {{xE1}} {{E1x.E1}} {{a.E1}}"),
        ('{{"E1"."a.b"}}', '{{new."a.b"}}'),
        ("{{#E1}}{{E1}}{{E1.x}}{{/E1}}", "{{#new}}{{E1}}{{new.x}}{{/new}}"),
        ("{{# E1.rows }}{{ a }}{{/ E1.rows }}", "{{#new.rows}}{{ a }}{{/new.rows}}"),
        ("{{^E1}}x{{/E1}}", "{{^new}}x{{/new}}"),
        ("{{#a}}{{#E1}}{{/E1}}{{/a}}{{E1}}", "{{#a}}{{#E1}}{{/E1}}{{/a}}{{new}}"),
        ("{{{{E1}} {{E1}}", "{{{{E1}} {{new}}"),
        ("{{E1}} {{E1", "{{new}} {{E1"),
        ("{{ other }} E1", "{{ other }} E1"),
    ],
)
def test_rename_changes_roots_and_nothing_else(before, after):
    assert templates.rename(before, "E1", "new") == after
    assert templates.rename({"E1": [before, 1]}, "E1", "new") == {"E1": [after, 1]}


names = st.text(st.characters(codec="utf-8"), min_size=1)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.text(alphabet='{}#^/."?@ aE1\\'))
def test_any_text_renders_or_says_why_not(text):
    try:
        render(text, {"a": [{"E1": 1}], "E1": {"a": "x"}})
    except TemplateError as error:
        assert error.message


@given(st.text(alphabet='{}#^/."? aE1\\'))
def test_renaming_keeps_the_meaning(text):
    scope = {"a": [{"b": 1}], "E1": {"a": "x"}}
    renamed = templates.rename(text, "E1", "zz")

    def outcome(template, scope):
        try:
            return render(template, scope)
        except TemplateError as error:
            return type(error)

    inside_sections = any(reference.maybe_item and not reference.path for reference in templates.references(text))
    if not inside_sections:
        assert outcome(renamed, {"a": scope["a"], "zz": scope["E1"]}) == outcome(text, scope)


@given(json_values)
def test_a_lone_tag_gives_the_very_value(value):
    assert render("{{a}}", {"a": value}) is value


@given(names, json_values)
def test_every_key_can_be_reached_quoted(key, value):
    template = "{{a.%s}}" % json.dumps(key, ensure_ascii=False)
    assert render(template, {"a": {key: value}}) == value


@given(st.text())
def test_doubled_braces_write_any_text(text):
    escaped = text.replace("{{", "{{{{")
    assert render_text(escaped, {}) == text


def test_the_example_of_the_guide_renders():
    guide = pathlib.Path(__file__).resolve().parents[2] / "docs" / "templates.md"
    example = guide.read_text(encoding="utf-8").split("```")[1].strip()
    scope = {"fetch": {"rows": [{"title": "one"}, {"title": "two"}]}}
    assert render(example, scope) == "0: one, 1: two"
    assert render(example, {"fetch": {"rows": []}}) == "nothing"
