"""Every problem of a plan: fragment of a document, pointer and code. One row per way to be wrong."""

import itertools
import json
import pathlib
import re

import pytest
from hypothesis import given, settings, strategies as st

from graphlib_plans import dependencies, documents, schema, validation
from graphlib_plans.documents import to_plan
from graphlib_plans.errors import InvalidPlan, Problem, UnknownPlan
from graphlib_plans.validation import static_problems

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "plan-format.md"


def step(identifier="a", tool="x__y", input=None, **more):
    return {"id": identifier, "tool": tool, "input": {} if input is None else input, **more}


def document(*steps, **more):
    return {"identifier": "p", "name": "P", "description": "", "steps": list(steps) or [step()], **more}


def codes(problems):
    return [(problem.pointer, problem.code) for problem in problems]


def control(tool, **arguments):
    arguments = {key.rstrip("_"): value for key, value in arguments.items()}
    return document(step("a"), step("c", tool, arguments))


GATE = {"value": "{{a.n}}", "op": "eq", "to": 1}
CALL = {"tool": "x__y", "input": {}}
OBJECT = {"type": "object", "properties": {"go": {"type": "boolean"}}}
ASK = {"prompt": "?", "output_schema": OBJECT}
AGENT = {"prompt": "?", "output_schema": {"type": "object"}}


def ask_schema(**rule):
    return control("ask", prompt="?", output_schema=rule)


def body(*steps):
    return control("decide", if_=GATE, then=list(steps))


RIGHT = {
    "a tool step": document(),
    "references to earlier steps": document(step("a"), step("b", input={"x": ["{{a.q}}", {"y": "{{input.z}}"}]})),
    "exit": control("exit", when=GATE, status="error", message="{{a.m}}", output={"n": "{{a.n}}"}),
    "exit without a gate": control("exit", status="success"),
    "decide": control("decide", if_=GATE, then=CALL, else_=[step("l"), step("m", input={"x": "{{l}} {{a}}"})]),
    "decide with a model": control("decide", infer="Is {{a}}?", model="{{a.model}}", then={"tool": "exit", "input": {
        "status": "success"}}),
    "filter": control("filter", over="{{a.rows}}", where={"value": "{{item.x}}", "op": "not_empty"}, concurrency=2),
    "filter with a model": control("filter", over="{{a.rows}}", infer="{{item}} {{index}}"),
    "map": control("map", over="{{a.rows}}", concurrency=4, do={"tool": "x__y", "input": {"n": "{{item}} {{index}}"}}),
    "reduce": control("reduce", over="{{a.rows}}", initial={"t": "{{a.t}}"}, do=[
        step("l", input={"n": "{{accumulator.t}}{{item}}"}), step("m", input={"n": "{{l}}"})]),
    "filter in a map": control("map", over="{{a}}", do={"tool": "filter", "input": {
        "over": "{{item.rows}}", "where": {"value": "{{item}}", "op": "empty"}}}),
    "ask and agent in a body": body(step("q", "ask", ASK), step("g", "agent", AGENT)),
    "plan_and_execute": document(step("a", "plan_and_execute", {"query": "x"})),
    "agent": control("agent", **AGENT, tools=["x__*"], max_iterations=1, model="m", system_prompt="{{a}}"),
    "agent, schema by properties": control("agent", prompt="", output_schema={"properties": {"a": {}}}),
    "ask with a default": control("ask", **ASK, when_unanswered="default", default={"go": False}),
    "ask with a default that is rendered": control("ask", **ASK, when_unanswered="default", default={"go": "{{a.go}}"}),
    "ask with an enum": ask_schema(properties={"n": {"enum": ["x", "y"]}}),
    "item fields": document(step("a"), step("b", input={"t": "{{#a.rows}}{{name}}{{author.name}}{{/a.rows}}"})),
    "the later name of an item's field": document(step("a", input={"t": "{{#input.x}}{{b}}{{/input.x}}"}), step("b")),
    "optional paths": document(step("a"), step("b", "map", {"over": [], "do": CALL}), output={"x": "{{b.nope?}}"}),
    "the finish": document(output={"a": [{"b": "{{a.x}}"}]}),
    "a solver": document(solver={"query_to_answer": "{{#a.rows}}{{t}}{{/a.rows}}", "data": {"x": ["{{a}}"]}}),
    "input as declared": document(step("a", input={"x": "{{input.n.deep}}"}), input_schema={"properties": {"n": {}}}),
    "open input": document(step("a", input={"x": "{{input.z}}"}), input_schema={
        "properties": {"n": {}}, "additionalProperties": True}),
    "input of alternatives": document(step("a", input={"x": "{{input.z}}"}), input_schema={
        "anyOf": [{"properties": {"n": {}}}, {"properties": {"z": {}}}]}),
    "input of any kind": document(step("a", input={"x": "{{input.z}}"}), input_schema={"type": "object"}),
    "what a step uses on failure": document(step("a"), step("b", on_error={"n": "{{a.n}}"})),
    "what failed and went on": document(step("a", "ask", ASK, on_error="continue"), output={"e": "{{a.error}}"}),
    "results of control steps": document(
        step("a", "ask", ASK), step("b", "agent", {"prompt": "", "output_schema": OBJECT}),
        output={"x": "{{a.answer.go}} {{a.reason}} {{b.output.go}} {{b.tools_called.0.tool}}"}),
    "the longest identifier": document(identifier="x" * 58),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_nothing_is_wrong_with(name):
    assert static_problems(RIGHT[name]) == []


C = "/steps/1/input"

WRONG = [
    # the document
    (document(identifier=""), "/identifier", "identifier_invalid"),
    (document(identifier="a b"), "/identifier", "identifier_invalid"),
    (document(identifier="é"), "/identifier", "identifier_invalid"),
    (document(identifier="a\n"), "/identifier", "identifier_invalid"),
    (document(identifier="x" * 59), "/identifier", "identifier_invalid"),
    (document(steps=[]), "/steps", "no_steps"),
    (document(nope=1), "/nope", "unknown_key"),
    (document(name=3), "/name", "wrong_type"),
    (document(step(reasoning=3)), "/steps/0/reasoning", "wrong_type"),
    ({**document(), "version": 7}, "/version", "version_unsupported"),
    (document(input_schema={"type": "objekt"}), "/input_schema/type", "input_schema_invalid"),
    (document(input_schema={"$ref": "#/$defs/x"}), "/input_schema/$ref", "input_schema_invalid"),
    (document(output_schema={"required": 1}), "/output_schema/required", "output_schema_invalid"),
    (document(solver={}, output={}), "/solver", "finish_conflict"),
    # steps
    (document(step("1a")), "/steps/0/id", "step_id_invalid"),
    (document(step("")), "/steps/0/id", "step_id_invalid"),
    (document(step("a-b")), "/steps/0/id", "step_id_invalid"),
    (document(step("input")), "/steps/0/id", "step_id_reserved"),
    (document(step("length")), "/steps/0/id", "step_id_reserved"),
    (document(step("a"), step("a")), "/steps/1/id", "step_id_duplicate"),
    (document(step(tool="workbench__x")), "/steps/0/tool", "tool_workbench"),
    (document(step(tool="search")), "/steps/0/tool", "tool_bare"),
    (document(step(tool="")), "/steps/0/tool", "tool_bare"),
    (document(step(tool="x__")), "/steps/0/tool", "tool_bare"),
    (document(step(tool="__x")), "/steps/0/tool", "tool_bare"),
    (document(step(tool="plan__p")), "/steps/0/tool", "plan_cycle"),
    (document(step(after=["b"])), "/steps/0/after/0", "after_unknown"),
    (document(step(after=["a"])), "/steps/0/after/0", "after_self"),
    (document(step("a", after=["b"]), step("b", input={"x": "{{a}}"})), "/steps/0", "order_cycle"),
    # templates
    (document(step(input={"x": ["{{"]})), "/steps/0/input/x/0", "template_parse"),
    (document(step(), output={"x": {"y": "{{a"}}), "/output/x/y", "template_parse"),
    (document(step(), solver={"data": {"x": {"y": "{{}}"}}}), "/solver/data/x/y", "template_parse"),
    (document(step(), solver={"query_to_answer": "{{/x}}"}), "/solver/query_to_answer", "template_parse"),
    (document(step(input={"x": "{{nope}}"})), "/steps/0/input/x", "reference_unknown"),
    (document(step(input={"x": "{{nope?}}"})), "/steps/0/input/x", "reference_unknown"),
    (document(step(input={"x": "{{#nope}}{{/nope}}"})), "/steps/0/input/x", "reference_unknown"),
    (document(step(input={"x": "{{a}}"})), "/steps/0/input/x", "reference_unknown"),
    (document(step(input={"x": "{{b}}"}), step("b")), "/steps/0/input/x", "reference_unknown"),
    (document(step(input={"x": "{{item}}"})), "/steps/0/input/x", "reference_unknown"),
    (document(step(on_error={"x": "{{b}}"})), "/steps/0/on_error/x", "reference_unknown"),
    (document(step(), output={"x": [{"y": "{{b}}"}]}), "/output/x/0/y", "reference_unknown"),
    (document(step(), solver={"data": {"x": {"y": "{{b}}"}}}), "/solver/data/x/y", "reference_unknown"),
    (document(step(), solver={"query_to_answer": "{{b}}"}), "/solver/query_to_answer", "reference_unknown"),
    (document(*body(step("l"))["steps"], step("z", input={"x": "{{l}}"})), "/steps/2/input/x", "reference_unknown"),
    (control("decide", if_=GATE, then=[step("l")], else_={"tool": "x__y", "input": {"x": "{{l}}"}}),
     C + "/else/input/x", "reference_unknown"),
    (document(step(input={"x": "{{input.m}}"}), input_schema={"properties": {"n": {}}}), "/steps/0/input/x",
     "input_unknown"),
    (document(step(input={"x": "{{input.m?}}"}), input_schema={"properties": {}}), "/steps/0/input/x", "input_unknown"),
    (document(output={"x": "{{input.m}}"}, input_schema={"properties": {"n": {}}}), "/output/x", "input_unknown"),
    (document(step("m", "map", {"over": [], "do": CALL}), output={"x": "{{m.result}}"}), "/output/x", "path_unknown"),
    (document(step("m", "map", {"over": [], "do": CALL}), output={"x": "{{m.results.x}}"}), "/output/x",
     "path_unknown"),
    (document(step("q", "ask", {**ASK, "output_schema": {**OBJECT, "additionalProperties": False}}),
              output={"x": "{{q.answer.no}}"}), "/output/x", "path_unknown"),
    # gates
    (control("exit", status="error", when=GATE, infer="?"), C, "gate_both"),
    (control("decide", if_=GATE, infer="?", then=CALL), C, "gate_both"),
    (control("decide", then=CALL), C, "gate_missing"),
    (control("filter", over=[], where=GATE, infer="?"), C, "gate_both"),
    (control("filter", over=[]), C, "gate_missing"),
    (control("exit", status="error", when={"value": 1}), C + "/when/op", "gate_shape"),
    (control("exit", status="error", when={"op": "empty"}), C + "/when/value", "gate_shape"),
    (control("exit", status="error", when={"value": 1, "op": "like"}), C + "/when/op", "gate_shape"),
    (control("exit", status="error", when={**GATE, "too": 1}), C + "/when/too", "gate_shape"),
    (control("exit", status="error", when="{{a.ok}}"), C + "/when", "gate_shape"),
    (control("decide", if_={"value": "{{a}}", "op": "gt", "to": "5"}, then=CALL), C + "/if/to", "gate_shape"),
    (control("decide", if_={"value": "{{a}}", "op": "gt"}, then=CALL), C + "/if", "gate_shape"),
    (control("filter", over=[], where={"value": "x", "op": "lte", "to": 1}), C + "/where/value", "gate_shape"),
    # inputs of control steps
    (control("exit"), C + "/status", "exit_input"),
    (control("exit", status="ok"), C + "/status", "exit_input"),
    (control("exit", status="error", mesage="x"), C + "/mesage", "exit_input"),
    (control("exit", status="error", output=[]), C + "/output", "exit_input"),
    (control("decide", if_=GATE), C + "/then", "decide_input"),
    (control("decide", if_=GATE, then=CALL, otherwise=CALL), C + "/otherwise", "decide_input"),
    (control("decide", infer=3, then=CALL), C + "/infer", "decide_input"),
    (control("filter", where={"value": "{{item}}", "op": "empty"}), C + "/over", "filter_input"),
    (control("filter", over=[], infer="?", concurrency="{{a}}"), C + "/concurrency", "filter_input"),
    (control("filter", over=[], infer="?", concurrency=0), C + "/concurrency", "concurrency_zero"),
    (control("map", over=[]), C + "/do", "map_input"),
    (control("map", do=CALL), C + "/over", "map_input"),
    (control("map", over=[], do=CALL, concurrency="2"), C + "/concurrency", "map_input"),
    (control("map", over=[], do=CALL, concurrency=0), C + "/concurrency", "concurrency_zero"),
    (control("reduce", over=[], do=CALL, concurrency=2), C + "/concurrency", "reduce_input"),
    (control("reduce", over=[]), C + "/do", "reduce_input"),
    (control("agent", prompt="?"), C + "/output_schema", "agent_input"),
    (control("agent", **{**AGENT, "prompt": 3}), C + "/prompt", "agent_input"),
    (control("agent", **AGENT, maxiter=3), C + "/maxiter", "agent_input"),
    (control("agent", **AGENT, tools="x__*"), C + "/tools", "agent_input"),
    (control("agent", **AGENT, tools=[]), C + "/tools", "agent_tools_empty"),
    (control("agent", **AGENT, max_iterations=0), C + "/max_iterations", "agent_iterations"),
    (control("agent", prompt="", output_schema={"type": "text"}), C + "/output_schema/type", "agent_schema_invalid"),
    (control("agent", prompt="", output_schema={"type": "array"}), C + "/output_schema", "agent_schema_not_object"),
    (control("agent", prompt="", output_schema={}), C + "/output_schema", "agent_schema_not_object"),
    (control("ask", prompt="?"), C + "/output_schema", "ask_input"),
    (control("ask", **ASK, when_unanswered="skip"), C + "/when_unanswered", "ask_input"),
    (control("ask", **ASK, timeout=3), C + "/timeout", "ask_input"),
    (ask_schema(type="objekt"), C + "/output_schema/type", "ask_schema_invalid"),
    (ask_schema(type="array"), C + "/output_schema", "ask_schema_not_object"),
    (ask_schema(type="object"), C + "/output_schema", "ask_schema_no_properties"),
    (ask_schema(properties={}), C + "/output_schema", "ask_schema_no_properties"),
    (ask_schema(properties={"a/b": {"type": "object"}}), C + "/output_schema/properties/a~1b",
     "ask_schema_not_primitive"),
    (ask_schema(properties={"n": {"type": ["string", "null"]}}), C + "/output_schema/properties/n",
     "ask_schema_not_primitive"),
    (ask_schema(properties={"n": {}}), C + "/output_schema/properties/n", "ask_schema_untyped"),
    (ask_schema(properties={"n": True}), C + "/output_schema/properties/n", "ask_schema_untyped"),
    (control("ask", **ASK, when_unanswered="default"), C, "ask_default_missing"),
    (control("ask", **ASK, default={"go": True}), C + "/default", "ask_default_dead"),
    (control("ask", **ASK, when_unanswered="default", default={"go": "yes"}), C + "/default/go",
     "ask_default_mismatch"),
    (control("ask", **ASK, when_unanswered="default", default=[]), C + "/default", "ask_default_mismatch"),
    # bodies
    (control("map", over=[], do="x__y"), C + "/do", "body_shape"),
    (control("map", over=[], do=[]), C + "/do", "body_shape"),
    (control("map", over=[], do={"tool": "x__y"}), C + "/do", "body_shape"),
    (control("map", over=[], do={**CALL, "id": "b"}), C + "/do/id", "body_shape"),
    (control("map", over=[], do=[CALL]), C + "/do/0", "body_shape"),
    (control("map", over=[], do=["x"]), C + "/do/0", "body_shape"),
    (body(step("l", after=["a"])), C + "/then/0/after", "body_shape"),
    (body(step("a")), C + "/then/0/id", "body_id_collision"),
    (document(*body(step("z"))["steps"], step("z")), C + "/then/0/id", "body_id_collision"),
    (body(step("l"), step("l")), C + "/then/1/id", "body_id_duplicate"),
    (body(step("item")), C + "/then/0/id", "body_id_invalid"),
    (body(step("1")), C + "/then/0/id", "body_id_invalid"),
    (body(step("l", "map", {"over": [], "do": CALL})), C + "/then/0/tool", "body_nested_control"),
    (control("map", over=[], do={"tool": "decide", "input": {"if": GATE, "then": CALL}}), C + "/do/tool",
     "body_nested_control"),
    (control("map", over=[], do={"tool": "exit", "input": {"status": "error"}}), C + "/do/tool", "exit_in_iteration"),
    (control("reduce", over=[], do=[step("l", "exit", {"status": "error"})]), C + "/do/0/tool", "exit_in_iteration"),
    (body(step("l", "search")), C + "/then/0/tool", "tool_bare_in_body"),
    (body(step("l", "workbench__x")), C + "/then/0/tool", "tool_workbench"),
    (body(step("l", "exit", {})), C + "/then/0/input/status", "exit_input"),
    (control("map", over="{{item.x}}", do=CALL), C + "/over", "pseudo_root_early"),
    (control("map", over="{{accumulator}}", do=CALL), C + "/over", "pseudo_root_early"),
    (control("reduce", over="{{index}}", do=CALL), C + "/over", "pseudo_root_early"),
    (control("reduce", over=[], initial=["{{item}}"], do=CALL), C + "/initial/0", "pseudo_root_early"),
    (control("filter", over="{{item}}", infer="?"), C + "/over", "pseudo_root_early"),
    (control("filter", over=[], infer="?", model="{{item}}"), C + "/model", "pseudo_root_early"),
    (control("map", over=[], do={"tool": "x__y", "input": {"x": "{{accumulator}}"}}), C + "/do/input/x",
     "accumulator_in_map"),
]  # fmt: skip


@pytest.mark.parametrize("wrong, place, code", WRONG, ids=[f"{n}-{row[2]}" for n, row in enumerate(WRONG)])
def test_it_is_wrong(wrong, place, code):
    assert codes(static_problems(wrong)) == [(place, code)]
    assert all(problem.text for problem in static_problems(wrong))


def test_every_problem_is_reported_at_once():
    search = step("a", "search", {"x": "{{b}}{{c}}", "y": "{{"})
    many = document(step("1"), search, step("q", "ask", {}), nope=1, output={"x": "{{z}}"})
    assert codes(static_problems(many)) == [
        ("/nope", "unknown_key"),
        ("/steps/0/id", "step_id_invalid"),
        ("/steps/1/tool", "tool_bare"),
        ("/steps/1/input/y", "template_parse"),
        ("/steps/1/input/x", "reference_unknown"),
        ("/steps/1/input/x", "reference_unknown"),
        ("/steps/2/input/prompt", "ask_input"),
        ("/steps/2/input/output_schema", "ask_input"),
        ("/output/x", "reference_unknown"),
    ]


@pytest.mark.parametrize(
    "wrong, text",
    [
        (document(step("fetch"), step("b", input={"x": "{{fetsh.url}}"})),
         "step 'b' refers to 'fetsh', which is neither input nor an earlier step (did you mean 'fetch'?)"),
        (document(step("a", input={"x": "{{b}}"}), step("b")), "that step comes later, or is this one: move it up"),
        (document(step(tool="exitt")), "did you mean 'exit'?"),
        (control("exit", status="error", mesage=""),
         "step 'c': mesage is not a known property (did you mean 'message'?)"),
        (document(step(input={"x": "{{input.citty}}"}), input_schema={"properties": {"city": {}}}),
         "did you mean 'city'?"),
        (control("exit", status="error", when={"op": "empty"}), "when of step 'c': value is required"),
        (control("map", over=[], do=[step("l", "nope")]), "step 'c', do, step 'l' calls 'nope', which has no source"),
    ],
)  # fmt: skip
def test_sentences_name_the_step_the_thing_and_the_remedy(wrong, text):
    assert text in str(static_problems(wrong)[0])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["", "a", "{{a}}", "map", "exit", "{{"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            "id tool input do then if when over value op steps output_schema properties type after retry output solver"
            " default tools".split()
        ),
        inner,
        max_size=5,
    ),
    max_leaves=15,
)


@settings(max_examples=200)
@given(
    st.dictionaries(st.sampled_from(list(documents.PLAN_KEYS)), json_values),
    st.sampled_from(documents.CONTROL_STEPS),
    json_values,
)
def test_a_document_of_any_shape_is_survived(odd, tool, arguments):
    for wrong in (odd, {**document(), **odd}, document(step("a", tool, arguments))):
        wrong = documents.normalise(wrong)
        assert isinstance(static_problems(wrong), list)
        assert isinstance(validation.validate_body(wrong, Registry(), None, (), None), dict)


# Against the tools that exist


class Tool:
    def __init__(self, input_schema=None, output_schema=None, checks_input=True):
        self.input_schema = input_schema or {}
        self.output_schema = output_schema
        self.checks_input = checks_input


class Registry:
    """Stands for tools.Registry: what is known without connecting to anything."""

    tools = {
        "builtin__sum": Tool({"properties": {"n": {"type": "integer"}, "m": {"default": 1}}, "required": ["n", "m"]}),
        "live__find": Tool(
            {"properties": {"q": {"type": "string"}}}, {"properties": {"hits": {"type": "array"}}}, checks_input=False
        ),
        "user__shut": Tool({}, {"type": "object", "properties": {"n": {}}, "additionalProperties": False}),
    }
    unlisted = ("later",)

    def check(self, name):
        source = name.partition("__")[0]
        if name in self.tools or source in self.unlisted or name in documents.BARE_TOOLS or name == "plan__sub":
            return None
        code = {"builtin": "builtin_unknown", "user": "user_tool_unknown", "live": "tool_unknown"}.get(source)
        return Problem("", code or "server_unconfigured", f"no tool {name!r}")

    def peek(self, name):
        return self.tools.get(name)

    def peek_match(self, pattern):
        if pattern.partition("__")[0] in self.unlisted:
            return None
        return [name for name in [*self.tools, "plan__sub"] if re.fullmatch(pattern.replace("*", ".*"), name)]

    def is_read_only(self, name, unknown=False):
        return unknown if name.startswith(self.unlisted) else name.startswith("builtin__")


PLANS = {
    "sub": document(step("a", "builtin__sum", {"n": 1}), identifier="sub", output={"total": "{{a}}"},
                    input_schema={"properties": {"day": {"type": "integer"}}}),
    "bad": document(step("a", "builtin__nope"), identifier="bad"),
    "loop": document(step("a", "plan__p"), identifier="loop"),
    "solves": document(step(tool="later__y"), identifier="solves", solver={}),
    "ends": document(step("a", "exit", {"status": "success"}), identifier="ends", output={"x": 1}),
    "shuts": document(step("a", "user__shut"), identifier="shuts", output={}),
    "turned": document(step("a", "user__shut", after=["b"]), step("b", "user__shut"), identifier="turned", output={}),
}  # fmt: skip


def find_plan(name):
    if name not in PLANS:
        raise UnknownPlan(f"there is no plan {name!r}")
    return to_plan(PLANS[name])


def catalog(wrong, models=("default", "fast")):
    return validation.catalog_check(wrong, Registry(), find_plan, {"live", "later"}, models)


CATALOG = [
    (document(step(tool="builtin__sum", input={"n": 1})), None, None),
    (document(step(tool="later__anything", input={"x": 1})), None, None),
    (document(step(tool="builtin__nope")), "/steps/0/tool", "builtin_unknown"),
    (document(step(tool="user__nope")), "/steps/0/tool", "user_tool_unknown"),
    (document(step(tool="live__nope")), "/steps/0/tool", "tool_unknown"),
    (document(step(tool="gone__x")), "/steps/0/tool", "server_unconfigured"),
    (document(step(tool="plan__nope")), "/steps/0/tool", "plan_unknown"),
    (document(step(tool="plan__bad")), "/steps/0", "builtin_unknown"),
    (document(step(tool="plan__loop")), "/steps/0", "plan_cycle"),
    (body(step("l", "builtin__nope")), C + "/then/0/tool", "builtin_unknown"),
    # inputs
    (document(step(tool="builtin__sum", input={"n": "1"})), "/steps/0/input/n", "input_mismatch"),
    (document(step(tool="builtin__sum", input={"n": "{{input.n}}"})), None, None),
    (document(step(tool="builtin__sum", input={})), "/steps/0/input/n", "input_mismatch"),
    (document(step(tool="builtin__sum", input={"n": 1, "o": "{{input.n}}"})), "/steps/0/input/o", "input_mismatch"),
    (document(step(tool="live__find", input={"q": 1})), "/steps/0/input/q", "input_mismatch"),
    (document(step(tool="live__find", input={"other": 1})), None, None),
    (document(step(tool="plan__sub", input={"day": "x"})), "/steps/0/input/day", "input_mismatch"),
    (document(step(tool="plan__sub", input={"dya": 1})), "/steps/0/input/dya", "input_mismatch"),
    # paths
    (document(step(tool="user__shut"), output={"x": "{{a.n}}"}), None, None),
    (document(step(tool="user__shut"), output={"x": "{{a.m}}"}), "/output/x", "path_unknown"),
    (document(step(tool="user__shut"), output={"x": "{{a.m?}}"}), None, None),
    (document(step(tool="user__shut", on_error="continue"), output={"x": "{{a.error}}"}), None, None),
    (document(step(tool="live__find"), output={"x": "{{a.other}}"}), None, None),
    (document(step(tool="live__find"), output={"x": "{{a.hits.first}}"}), "/output/x", "path_unknown"),
    (document(step(tool="plan__sub"), output={"x": "{{a.totl}}"}), "/output/x", "path_unknown"),
    (document(step(tool="plan__solves"), output={"x": "{{a.answer}}"}), None, None),
    (document(step(tool="plan__solves"), output={"x": "{{a.text}}"}), "/output/x", "path_unknown"),
    (document(step(tool="plan__ends"), output={"x": "{{a.status}}"}), None, None),
    # models and patterns
    (control("agent", **AGENT, model="fast"), None, None),
    (control("agent", **AGENT, model="fats"), C + "/model", "model_unknown"),
    (control("exit", status="error", infer="?", model="fats"), C + "/model", "model_unknown"),
    (control("exit", status="error", when=GATE, model="fats"), None, None),
    (control("decide", infer="?", model="{{a}}", then=CALL), None, None),
    (control("agent", **AGENT, tools=["builtin__*", "*", "*__find", "plan__sub", "later__x"]), None, None),
    (control("agent", **AGENT, tools=[""]), C + "/tools/0", "pattern_empty"),
    (control("agent", **AGENT, tools=["find"]), C + "/tools/0", "pattern_not_namespaced"),
    (control("agent", **AGENT, tools=["live__x*"]), C + "/tools/0", "pattern_no_match"),
    (control("agent", **AGENT, tools=["builtin__nope"]), C + "/tools/0", "pattern_no_match"),
    (control("agent", **AGENT, tools=["gone__*"]), C + "/tools/0", "pattern_server_unconfigured"),
]


@pytest.mark.parametrize("wrong, place, code", CATALOG, ids=[f"{n}-{row[2]}" for n, row in enumerate(CATALOG)])
def test_on_this_machine(wrong, place, code):
    problems, notes = catalog(json.loads(json.dumps(wrong).replace("x__y", "later__y")))
    assert codes(problems) == ([(place, code)] if code else []) and notes == []


def test_a_missing_server_the_plan_declares_is_a_note():
    agent = step("g", "agent", {**AGENT, "tools": ["gone__*"]})
    wrong = document(step(tool="gone__x"), agent, requires_servers=["gone"])
    problems, notes = catalog(wrong)
    assert problems == []
    assert codes(notes) == [
        ("/steps/0/tool", "server_declared"),
        ("/steps/1/input/tools/0", "pattern_server_unconfigured"),
    ]


def test_problems_of_other_plans_are_told_once_with_their_name():
    wrong = document(step("a", "plan__bad"), step("b", "plan__bad"))
    (problem,) = catalog(wrong)[0]
    assert problem.text == "plan 'bad', /steps/0: no tool 'builtin__nope'"


def test_a_longer_cycle_names_the_plans():
    (problem,) = catalog(document(step(tool="plan__loop")))[0]
    assert problem.text.endswith("plans call each other: p → loop → p")


def test_a_chain_of_plans_has_an_end():
    def find(name):
        following = f"plan__n{int(name[1:]) + 1}"
        return to_plan(document(step(tool=following), identifier=name))

    (problem,) = validation.catalog_check(document(step(tool="plan__n1")), Registry(), find, (), None)[0]
    assert (problem.pointer, problem.code) == ("/steps/0", "plan_depth")
    assert problem.text.endswith("p → n1 → n2 → n3 → n4 → n5 → n6 → n7 → n8")


def test_unknown_models_are_not_checked_without_a_list():
    assert catalog(control("agent", **AGENT, model="fats"), models=None)[0] == [
        Problem("/steps/0/tool", "server_unconfigured", "no tool 'x__y'")
    ]


def test_validate_lists_everything_and_advice_as_notes():
    made = document(
        step("a", "builtin__sum", {"n": 1}),
        step("b", "live__find", {"q": "x"}),
        step("d", "decide", {"if": GATE, "then": [step("l", "later__y")], "else": [step("l", "later__y")]}),
        output={"x": "{{b.other}}"},
    )
    made["steps"][2]["input"]["if"] = {"value": 1, "op": "eq", "to": 1}
    assert validation.validate_body(made, Registry(), find_plan, {"live", "later"}, None) == {
        "plan": "p",
        "steps": 3,
        "ok": True,
        "problems": [],
        "notes": [
            "step 'a' only reads, and nothing uses its result",
            "two bodies have a step 'l'; each sees only its own",
            "b.other is not in the output live__find declares: the result has no 'other'; it has hits",
        ],
    }
    wrong = validation.validate_body(document(step("1", "builtin__nope")), Registry(), find_plan, (), None)
    assert not wrong["ok"] and [one["code"] for one in wrong["problems"]] == ["step_id_invalid", "builtin_unknown"]
    found = validation.problems_of(document(step("1", "builtin__nope")), Registry(), find_plan, (), None)
    assert wrong["problems"] == [one.to_json() for one in found]


@pytest.mark.parametrize("tool, arguments, parallel, is_refused", [
    ("user__shut", {}, False, True),
    ("user__shut", {}, True, False),
    ("builtin__sum", {"n": 1}, False, False),
    ("later__unlisted", {}, False, False),
    ("plan__shuts", {}, False, True),
    ("plan__sub", {}, False, False),
    ("agent", {**AGENT, "tools": ["user__*"]}, False, True),
    ("agent", {**AGENT, "tools": ["later__*"]}, False, False),
    ("map", {"over": [], "do": {"tool": "user__shut", "input": {}}}, False, True),
], ids="writes parallel reads unlisted writing-plan reading-plan writing-agent unlisted-agent writing-body".split())
def test_writing_steps_whose_after_contradicts_their_file_order(tool, arguments, parallel, is_refused):
    wrong = document(step("a", tool, arguments, after=["b"]), step("b", "user__shut"), parallel=parallel)
    assert validation.static_problems(wrong) == []
    found = validation.problems_of(wrong, Registry(), find_plan, {"later"}, None)
    assert codes(found) == ([("/steps/0", "order_cycle")] if is_refused else [])
    if is_refused:
        with pytest.raises(InvalidPlan) as caught:
            dependencies.sorter(to_plan(wrong), dependencies.read_only_test(Registry(), find_plan))
        assert caught.value.message == str(found[0])


def test_a_plan_that_is_called_is_checked_for_its_order_too():
    (problem,) = validation.problems_of(document(step("a", "plan__turned")), Registry(), find_plan, (), None)
    assert (problem.pointer, problem.code) == ("/steps/0", "order_cycle")
    assert problem.text.startswith("plan 'turned', /steps/0: steps wait for each other: a → b → a")


def test_input_gets_defaults_and_sentences():
    rule = {"properties": {"n": {"type": "integer"}, "t": {"default": "x"}}, "required": ["n"]}
    made = to_plan(document(input_schema=rule))
    assert validation.input_problems(made, {"n": 1}) == ({"n": 1, "t": "x"}, [])
    assert validation.input_problems(made, {"m": 1})[1] == ["n is required", "m is not a known property (known: n, t)"]
    assert validation.input_problems(made, {"n": "012"})[1] == ["n must be an integer, not a string"]
    assert validation.input_problems(to_plan(document()), {"any": 1}) == ({"any": 1}, [])


# The format's own tables


def test_control_schemas_are_schemas_that_accept_what_validation_accepts():
    assert tuple(validation.CONTROL_SCHEMAS) == documents.CONTROL_STEPS
    for tool, rule in validation.CONTROL_SCHEMAS.items():
        assert schema.schema_problems(rule) == []
    for made in RIGHT.values():
        for _, tool, arguments in documents.calls(made):
            if tool in validation.CONTROL_SCHEMAS:
                assert schema.problems(arguments, validation.CONTROL_SCHEMAS[tool]) == []


def test_every_code_is_in_the_documentation():
    listed = set(re.findall(r"^\| `([a-z_]+)` \|", DOCS.read_text(encoding="utf-8"), re.MULTILINE))
    produced = {row[2] for row in itertools.chain(WRONG, CATALOG)} - {None}
    assert produced <= listed, f"add these codes to docs/plan-format.md: {sorted(produced - listed)}"


def test_the_example_of_the_documentation_is_right():
    example = DOCS.read_text(encoding="utf-8").split("```json")[1].split("```")[0]
    assert static_problems(documents.read_document(example, "json")) == []


def test_the_documentation_names_every_key_of_the_format():
    text = DOCS.read_text(encoding="utf-8")
    tables = (documents.PLAN_KEYS, documents.STEP_KEYS, documents.RETRY_KEYS, documents.SOLVER_KEYS)
    keys = [key for table in tables for key in table]
    keys += [key for rule in validation.CONTROL_SCHEMAS.values() for key in rule["properties"]]
    keys += [*validation.GATE_OPS, *(key for rule in validation.CONTROL_RESULTS.values() for key in rule["properties"])]
    assert [key for key in keys if f"`{key}`" not in text] == []
