"""Every problem of a plan, all of them at once, each with a pointer and a stable code (docs/plan-format.md).

static_problems needs nothing but the document and is what guards edits. catalog_check asks the tool registry whether
what the plan names exists here, follows `plan__*` steps, and compares inputs and paths with declared schemas.
"""

import re

from . import dependencies, documents, schema, templates
from .errors import Problem, UnknownPlan, did_you_mean, listed, nearest, pointer, shorten, type_name
from .paths import IDENTIFIER, IDENTIFIER_MAX

#: How two sides of a gate may be compared.
GATE_OPS = ("eq", "ne", "gt", "lt", "gte", "lte", "empty", "not_empty", "contains")
ORDER_OPS = ("gt", "lt", "gte", "lte")
#: Roots that exist only inside the bodies of an iteration.
ITEM_ROOTS = ("item", "index")
FOLD_ROOTS = ("item", "index", "accumulator")
#: Longest chain of plans that call each other, the first one included; a run refuses the call that goes beyond.
DEPTH_LIMIT = 8
#: Suggestions are searched for so many unknown references of a plan; each search looks at every step's name.
SUGGESTIONS = 25

_STEP_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z", re.ASCII)

# What control steps take -------------------------------------------------------------------------------------------

_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 1}
_SCHEMA = {"type": "object", "description": "JSON Schema of the answer"}

GATE_SCHEMA = {
    "type": "object",
    "description": "A comparison: value op to. empty and not_empty look at value alone.",
    "required": ["value", "op"],
    "additionalProperties": False,
    "properties": {
        "value": {"description": "left side, usually one {{reference}}"},
        "op": {"enum": list(GATE_OPS)},
        "to": {"description": "right side; null when it is left out"},
    },
}

_CALL_PROPERTIES = {
    "tool": {**_TEXT, "description": "name of a tool"},
    "input": {"type": "object"},
    "reasoning": _TEXT,
    "retry": {
        "type": "object",
        "additionalProperties": False,
        "properties": {"attempts": _COUNT, "backoff_s": {"type": "number", "minimum": 0}},
    },
    "timeout_s": {"type": "number", "exclusiveMinimum": 0},
    "on_error": {"description": '"fail", "continue", or the result to use instead'},
}


def _body_schema(holds):
    call = {
        "type": "object",
        "required": list(documents.CALL_REQUIRED),
        "additionalProperties": False,
        "properties": _CALL_PROPERTIES,
    }
    step = {**call, "required": list(documents.STEP_REQUIRED), "properties": {"id": _TEXT, **_CALL_PROPERTIES}}
    return {
        "description": f"One call without an id, or a list of steps run in order. May hold {holds}.",
        "anyOf": [call, {"type": "array", "minItems": 1, "items": step}],
    }


_BODY_HOLDS = "tools, plan__*, agent, ask and filter"
_INFER = {**_TEXT, "description": "yes/no question a model answers instead of a comparison"}
_MODEL = {**_TEXT, "description": "model role or named model"}
_OVER = {"description": "the array to go through, usually one {{reference}}"}


def _inputs(required, **properties):
    return {"type": "object", "required": required, "additionalProperties": False, "properties": properties}


#: Input schema of each control step, in the spelling of plan files. `tools show` serves these.
CONTROL_SCHEMAS = {
    "agent": _inputs(
        ["prompt", "output_schema"],
        prompt=_TEXT,
        output_schema=_SCHEMA,
        tools={
            "type": "array",
            "minItems": 1,
            "items": _TEXT,
            "description": "tool names or patterns with *; all tools when left out",
        },
        max_iterations=_COUNT,
        model=_MODEL,
        system_prompt=_TEXT,
    ),
    "ask": _inputs(
        ["prompt", "output_schema"],
        prompt=_TEXT,
        output_schema={**_SCHEMA, "description": "flat object: every property is a string, number, boolean or enum"},
        when_unanswered={"enum": ["fail", "default"]},
        default={"description": "the answer to use when when_unanswered is default"},
    ),
    "exit": _inputs(
        ["status"],
        status={"enum": ["success", "error"]},
        message=_TEXT,
        output={"type": "object"},
        when=GATE_SCHEMA,
        infer=_INFER,
        model=_MODEL,
    ),
    "decide": _inputs(
        ["then"],
        **{
            "if": GATE_SCHEMA,
            "infer": _INFER,
            "model": _MODEL,
            "then": _body_schema(_BODY_HOLDS + ", and exit"),
            "else": _body_schema(_BODY_HOLDS + ", and exit"),
        },
    ),
    "filter": _inputs(["over"], over=_OVER, where=GATE_SCHEMA, infer=_INFER, model=_MODEL, concurrency=_COUNT),
    "map": _inputs(["over", "do"], over=_OVER, do=_body_schema(_BODY_HOLDS), concurrency=_COUNT),
    "reduce": _inputs(
        ["over", "do"], over=_OVER, do=_body_schema(_BODY_HOLDS), initial={"description": "null when left out"}
    ),
}
#: Which key of which control step holds its comparison, and whether one of it and `infer` is needed.
_GATES = {"exit": ("when", False), "decide": ("if", True), "filter": ("where", True)}
#: Which keys of a control step's input are templates, rendered before anything of its bodies or items exists.
_RENDERED_FIRST = {
    "agent": ("prompt", "system_prompt"),
    "ask": ("prompt", "default"),
    "exit": ("when", "infer", "model", "message", "output"),
    "decide": ("if", "infer", "model"),
    "filter": ("over", "model"),
    "map": ("over",),
    "reduce": ("over", "initial"),
}
#: Problems of control inputs that have a name of their own: (step, key, keyword) → code.
_INPUT_CODES = {
    ("map", "concurrency", "minimum"): "concurrency_zero",
    ("filter", "concurrency", "minimum"): "concurrency_zero",
    ("agent", "max_iterations", "minimum"): "agent_iterations",
    ("agent", "tools", "minItems"): "agent_tools_empty",
}


def _result(**properties):
    return {"type": "object", "additionalProperties": False, "properties": properties}


#: What later steps can read of each control step; {} is anything.
CONTROL_RESULTS = {
    "exit": _result(passed={"type": "boolean"}, verdict={"type": "boolean"}, reason={}),
    "decide": _result(branch={}, verdict={"type": "boolean"}, reason={}, result={}),
    "filter": _result(
        items={"type": "array"}, count={"type": "integer"}, dropped={"type": "array"}, dropped_count={"type": "integer"}
    ),
    "map": _result(count={"type": "integer"}, results={"type": "array"}),
    "reduce": _result(count={"type": "integer"}, result={}),
    "agent": _result(
        output={}, iterations={"type": "integer"}, tools_called={"type": "array"}, final={"type": "boolean"}
    ),
    "ask": _result(answer={}, answered={"type": "boolean"}, reason={}),
}


# Static ------------------------------------------------------------------------------------------------------------


def static_problems(document):
    """Return every Problem that can be seen in a document alone, roughly in the order of the document."""
    check = _StaticCheck(document)
    check.run()
    return check.problems


class _StaticCheck:
    """One static check: the problems found so far and what is known about the steps."""

    def __init__(self, document):
        self.document = document
        self.problems = []
        self.ids = {step["id"] for _, step in documents.steps_of(document) if isinstance(step.get("id"), str)}
        #: Ids of the steps before the one that is being checked → what is known about their results.
        self.results = {}
        self.input_names = schema.known_names(document.get("input_schema"))
        self.suggestions = 0

    def add(self, place, code, text, hint=""):
        self.problems.append(Problem(place, code, text, hint))

    def run(self):
        shape = documents.shape_problems(self.document)
        self.problems += shape
        if any(problem.code == "version_unsupported" for problem in shape):
            return
        self.check_identifier()
        self.check_schemas()
        if self.document.get("steps") == []:
            self.add("/steps", "no_steps", "the plan has no steps", "add a step")
        for index, step in documents.steps_of(self.document):
            self.check_step(index, step)
        self.problems += dependencies.order_problems(self.document)
        self.check_finish()

    def check_identifier(self):
        identifier = self.document.get("identifier")
        if not isinstance(identifier, str):
            return
        shown = shorten(identifier, 80)
        if not IDENTIFIER.match(identifier):
            text = f"the identifier {shown!r} is not made of letters, digits, _ and - alone"
            self.add("/identifier", "identifier_invalid", text)
        elif len(identifier) > IDENTIFIER_MAX:
            text = f"the identifier {shown!r} has {len(identifier)} characters, and {IDENTIFIER_MAX} is the most"
            self.add("/identifier", "identifier_invalid", text, "tool names may have 64, plan_ and plan__ included")

    def check_schemas(self):
        for key in ("input_schema", "output_schema"):
            rule = self.document.get(key)
            if isinstance(rule, dict):
                for problem in schema.schema_problems(rule):
                    text = f"{key} is no JSON Schema: {problem.text}"
                    self.add(f"/{key}{problem.pointer}", f"{key}_invalid", text, problem.hint)

    # Steps

    def check_step(self, index, step):
        place, label = pointer("steps", index), documents.step_label(step, index)
        identifier = step.get("id")
        if isinstance(identifier, str):
            self.check_step_id(place, label, identifier)
        scope = _Scope(self.results)
        self.check_call(place, label, step, scope, inside=None)
        if isinstance(identifier, str):
            known = CONTROL_RESULTS.get(step.get("tool")) if isinstance(step.get("tool"), str) else None
            self.results[identifier] = _refined(known, step) if step.get("on_error", "fail") == "fail" else None

    def check_step_id(self, place, label, identifier):
        place += "/id"
        if not _STEP_ID.match(identifier):
            text = f"{label}: an id is made of letters, digits and _, and does not start with a digit"
            self.add(place, "step_id_invalid", text)
        elif identifier in documents.RESERVED_ROOTS:
            text = f"{label}: {identifier!r} means something else in templates"
            self.add(place, "step_id_reserved", text, f"reserved: {', '.join(documents.RESERVED_ROOTS)}")
        elif identifier in self.results:
            self.add(place, "step_id_duplicate", f"{label}: an earlier step has the same id")

    def check_call(self, place, label, call, scope, inside):
        """Check one step or body call. inside: the control step whose body it stands in, None at top level."""
        tool, arguments = call.get("tool"), call.get("input")
        if isinstance(tool, str):
            self.check_tool_name(place + "/tool", label, tool, inside)
        if "on_error" in call:
            self.check_templates(call["on_error"], place + "/on_error", label, scope)
        if not isinstance(arguments, dict):
            return
        place += "/input"
        if tool in documents.CONTROL_STEPS:
            self.check_control(place, label, tool, arguments, scope, inside)
        else:
            self.check_templates(arguments, place, label, scope)

    def check_tool_name(self, place, label, tool, inside):
        shown = shorten(tool, 80)
        server, separator, name = tool.partition("__")
        if server == "workbench" and separator:
            self.add(place, "tool_workbench", f"{label} calls {shown!r}, and workbench tools cannot be called by plans")
        elif tool in documents.BARE_TOOLS:
            if inside and tool in ("decide", "map", "reduce"):
                hint = "put it in a plan of its own and call plan__<identifier>"
                self.add(place, "body_nested_control", f"{label}: {tool} cannot stand inside a body", hint)
            elif inside in ("map", "reduce") and tool == "exit":
                text = f"{label}: exit cannot stand inside a {inside}"
                self.add(place, "exit_in_iteration", text, "filter the items first, and exit after it")
        elif not (server and separator and name):
            text = f"{label} calls {shown!r}, which has no source"
            close = nearest(tool, documents.BARE_TOOLS)
            hint = f"write <source>__<tool>, or one of {', '.join(documents.BARE_TOOLS)}"
            hint = f"did you mean {close!r}?" if close else hint
            self.add(place, "tool_bare_in_body" if inside else "tool_bare", text, hint)
        elif tool == f"plan__{self.document.get('identifier')}":
            self.add(place, "plan_cycle", f"{label} calls the plan it is part of")

    # Control steps

    def check_control(self, place, label, tool, arguments, scope, inside):
        self.check_control_input(place, label, tool, arguments)
        if tool in _GATES:
            self.check_gate(place, label, tool, arguments)
        early = {"map": FOLD_ROOTS, "reduce": FOLD_ROOTS, "filter": ITEM_ROOTS}.get(tool, ())
        for key in _RENDERED_FIRST[tool]:
            if key in arguments:
                self.check_templates(arguments[key], place + pointer(key), label, scope, early)
        if tool == "agent":
            self.check_agent(place, label, arguments)
        elif tool == "ask":
            self.check_ask(place, label, arguments)
        elif tool == "filter":
            for key in ("where", "infer"):
                if key in arguments:
                    self.check_templates(arguments[key], place + pointer(key), label, scope.having(ITEM_ROOTS))
        elif not inside:
            extra = {"map": ITEM_ROOTS, "reduce": FOLD_ROOTS}.get(tool, ())
            for key, body in documents.bodies(tool, arguments):
                self.check_body(place + pointer(key), f"{label}, {key}", tool, body, scope.having(extra))

    def check_control_input(self, place, label, tool, arguments):
        """Compare the input with the step's schema; gates, bodies and schemas are looked at on their own."""
        apart = {"when", "if", "where", "then", "else", "do"}
        for problem in schema.problems(arguments, CONTROL_SCHEMAS[tool]):
            key = problem.pointer.split("/")[1] if problem.pointer else ""
            keyword = problem.code.removeprefix("schema_")
            if key in apart and (keyword, problem.pointer) != ("required", f"/{key}"):
                continue
            code = _INPUT_CODES.get((tool, key, keyword), f"{tool}_input")
            self.add(place + problem.pointer, code, f"{label}: {problem.text}", problem.hint)

    def check_gate(self, place, label, tool, arguments):
        key, is_needed = _GATES[tool]
        if key in arguments and "infer" in arguments:
            self.add(place, "gate_both", f"{label} has both {key} and infer", "remove one of them")
        elif is_needed and key not in arguments and "infer" not in arguments:
            self.add(place, "gate_missing", f"{label} has neither {key} nor infer", "add one of them")
        if key not in arguments:
            return
        gate, place = arguments[key], place + pointer(key)
        for problem in schema.problems(gate, GATE_SCHEMA):
            text = f"{key} of {label}: {problem.text}"
            self.add(place + problem.pointer, "gate_shape", text, problem.hint)
        if isinstance(gate, dict) and gate.get("op") in ORDER_OPS:
            for side in ("value", "to"):
                operand = gate.get(side)
                if not schema.TYPES["number"](operand) and not templates.has_template(operand):
                    got = type_name(operand)
                    text = f"{key} of {label}: {gate['op']} compares numbers, and {side} is {got}"
                    self.add(f"{place}/{side}" if side in gate else place, "gate_shape", text)

    def check_agent(self, place, label, arguments):
        rule = arguments.get("output_schema")
        if not isinstance(rule, dict):
            return
        place += "/output_schema"
        found = schema.schema_problems(rule)
        for problem in found:
            text = f"{label}: output_schema is no JSON Schema: {problem.text}"
            self.add(place + problem.pointer, "agent_schema_invalid", text, problem.hint)
        is_object = rule.get("type") == "object" or ("type" not in rule and "properties" in rule)
        if not found and not is_object:
            self.add(place, "agent_schema_not_object", f'{label}: output_schema must have "type": "object"')

    def check_ask(self, place, label, arguments):
        rule = arguments.get("output_schema")
        is_usable = False
        if isinstance(rule, dict):
            found = ask_schema_problems(rule, place + "/output_schema")
            is_usable = not found
            self.problems += [Problem(one.pointer, one.code, f"{label}: {one.text}", one.hint) for one in found]
        takes_default = arguments.get("when_unanswered", "fail") == "default"
        if takes_default and "default" not in arguments:
            self.add(place, "ask_default_missing", f"{label}: when_unanswered is default, and there is no default")
        elif "default" in arguments and not takes_default:
            text = f"{label}: the default is never used"
            self.add(place + "/default", "ask_default_dead", text, 'set "when_unanswered": "default"')
        elif takes_default and is_usable and not templates.has_template(arguments["default"]):
            for problem in schema.problems(arguments["default"], {"type": "object", **rule}):
                text = f"{label}: the default does not fit output_schema: {problem.text}"
                self.add(f"{place}/default{problem.pointer}", "ask_default_mismatch", text)

    def check_body(self, place, label, tool, body, scope):
        found = documents.body_problems(body, place, label)
        self.problems += found
        steps = [(place, label, body)] if isinstance(body, dict) else []
        if isinstance(body, list):
            steps = [
                (place + pointer(index), f"{label}, {documents.step_label(step, index)}", step)
                for index, step in enumerate(body)
            ]
        local = set()
        for where, name, step in steps:
            if not isinstance(step, dict):
                continue
            if isinstance(body, list) and isinstance(step.get("id"), str):
                self.check_body_id(where + "/id", name, step["id"], local)
            self.check_call(where, name, step, scope.having(local), inside=tool)
            if isinstance(body, list) and isinstance(step.get("id"), str):
                local.add(step["id"])

    def check_body_id(self, place, label, identifier, local):
        if not _STEP_ID.match(identifier) or identifier in documents.RESERVED_ROOTS:
            self.add(place, "body_id_invalid", f"{label}: {shorten(identifier, 80)!r} cannot be an id")
        elif identifier in self.ids:
            text = f"{label}: a step of the plan has the same id"
            self.add(place, "body_id_collision", text, "references to it could mean either")
        elif identifier in local:
            self.add(place, "body_id_duplicate", f"{label}: an earlier step of the body has the same id")

    # Templates

    def check_templates(self, value, place, label, scope, early=()):
        """Check the templates in a value. early: roots that will exist later in the same step, but not yet here."""
        self.problems += [
            Problem(problem.pointer, problem.code, f"{label}: {problem.text}", problem.hint)
            for problem in templates.syntax_problems(value, place)
        ]
        for reference in templates.references(value, place):
            self.check_reference(reference, label, scope, early)

    def check_reference(self, reference, label, scope, early):
        root = reference.root
        if root in scope:
            if root == "input":
                self.check_input_name(reference, label)
            elif not reference.optional and not reference.maybe_item:
                self.check_path(reference, label, scope.result(root))
            return
        if reference.maybe_item:
            return
        if root in early:
            text = f"{label} uses {root!r} where there are no items yet"
            self.add(reference.pointer, "pseudo_root_early", text)
        elif root == "accumulator" and "item" in scope:
            self.add(reference.pointer, "accumulator_in_map", f"{label} uses 'accumulator', which only a reduce has")
        else:
            text = f"{label} refers to {shorten(root, 80)!r}, which is neither input nor an earlier step"
            self.add(reference.pointer, "reference_unknown", text, self.suggest(root, scope))

    def suggest(self, root, scope):
        if root in documents.RESERVED_ROOTS:
            return f"{root} exists only inside an iteration"
        if root in self.ids:
            return "that step comes later, or is this one: move it up"
        self.suggestions += 1
        return did_you_mean(root, scope) if self.suggestions <= SUGGESTIONS else ""

    def check_input_name(self, reference, label):
        if self.input_names is None or not reference.path or reference.path[0] in self.input_names:
            return
        if isinstance(reference.path[0], str):
            text = f"{label} refers to input.{shorten(reference.path[0], 80)}, which input_schema does not have"
            self.add(reference.pointer, "input_unknown", text, did_you_mean(reference.path[0], self.input_names))

    def check_path(self, reference, label, result):
        lost = path_beyond(result, reference.path)
        if lost and lost[1]:
            text = f"{label} refers to {reference}, but {lost[0]}"
            self.add(reference.pointer, "path_unknown", text)

    # The finish

    def check_finish(self):
        output, solver = self.document.get("output"), self.document.get("solver")
        if output is not None and solver is not None:
            text = "the plan has both solver and output, and can end in one way only"
            self.add("/solver", "finish_conflict", text, "remove one of them")
        scope = _Scope(self.results)
        if isinstance(output, dict):
            self.check_templates(output, "/output", "output", scope)
        if isinstance(solver, dict):
            for key in ("query_to_answer", "data"):
                if key in solver:
                    self.check_templates(solver[key], f"/solver/{key}", f"solver, {key}", scope)


class _Scope:
    """The roots a template may use. Shares the dict of earlier steps, so that a plan is checked in linear time."""

    def __init__(self, results, extra=frozenset()):
        self._results = results
        self._extra = extra

    def having(self, names):
        return _Scope(self._results, self._extra | frozenset(names)) if names else self

    def result(self, root):
        return None if root in self._extra else self._results.get(root)

    def __contains__(self, root):
        return root == "input" or root in self._extra or root in self._results

    def __iter__(self):
        return iter(["input", *self._extra, *self._results])


def _refined(known, step):
    """Return a control step's result schema, with what its own output_schema adds."""
    arguments = step.get("input")
    rule = arguments.get("output_schema") if isinstance(arguments, dict) else None
    key = {"agent": "output", "ask": "answer"}.get(step.get("tool"))
    if known is None or key is None or not isinstance(rule, dict):
        return known
    return {**known, "properties": {**known["properties"], key: rule}}


def path_beyond(rule, path):
    """Say where a path leaves what a result schema declares.

    Returns None when it does not, or when the schema does not tell; else (sentence, is_certain). It is certain when
    nothing undeclared can be there.
    """
    for segment in path:
        if not isinstance(rule, dict) or any(key in rule for key in ("$ref", "anyOf", "oneOf", "allOf", "$dynamicRef")):
            return None
        kind = rule.get("type")
        if isinstance(segment, str):
            if kind in ("array", "string", "integer", "number", "boolean"):
                return f"that is {'an' if kind[0] in 'ai' else 'a'} {kind}, which has no key {segment!r}", True
            properties = rule.get("properties")
            if not isinstance(properties, dict):
                return None
            if segment not in properties:
                is_closed = rule.get("additionalProperties") is False
                text = f"the result has no {segment!r}; it has {listed(list(properties))}"
                return text, is_closed and "patternProperties" not in rule
            rule = properties[segment]
        elif segment is templates.LENGTH:
            return None
        else:
            rule = rule.get("items")
    return None


def ask_schema_problems(rule, place):
    """Return what keeps a schema from being the answer of an `ask`: a flat object of primitives.

    Source: MCP 2025-06-18, client/elicitation: requestedSchema; checked for every host, so that it is found in review.
    """
    found = schema.schema_problems(rule)
    if found:
        return [
            Problem(place + one.pointer, "ask_schema_invalid", f"output_schema is no JSON Schema: {one.text}", one.hint)
            for one in found
        ]
    if rule.get("type", "object") != "object":
        return [Problem(place, "ask_schema_not_object", 'output_schema must have "type": "object"')]
    properties = rule.get("properties")
    if not properties:
        return [Problem(place, "ask_schema_no_properties", "output_schema must have at least one property")]
    problems = []
    for name, entry in properties.items():
        where = place + pointer("properties", name)
        if isinstance(entry, dict) and "enum" in entry:
            continue
        if not isinstance(entry, dict) or "type" not in entry:
            text = f"the property {name!r} of output_schema has neither a type nor an enum"
            problems.append(Problem(where, "ask_schema_untyped", text))
        elif entry["type"] not in ("string", "number", "integer", "boolean"):
            text = f"the property {name!r} of output_schema must be a string, number, integer or boolean"
            problems.append(Problem(where, "ask_schema_not_primitive", text, "a person answers field by field"))
    return problems


def input_problems(plan, arguments):
    """Return (arguments with defaults, sentences) of a plan's call; [] when the input is right."""
    if plan.input_schema is None:
        return arguments, []
    arguments, found = schema.check_arguments(arguments, plan.input_schema)
    return arguments, list(map(str, found))


# Against the tools that exist --------------------------------------------------------------------------------------


def catalog_check(document, registry, find_plan, servers, models):
    """Return (problems, notes) of a document on this machine, without connecting to anything.

    registry: what check, peek and peek_match are asked. find_plan: identifier → Plan, UnknownPlan; None to leave
    plans to the registry. servers: names of configured MCP servers. models: names `model` may have, None to not check.
    Notes are what the plan itself declares as missing (`requires_servers`); they do not make it invalid, but it
    cannot run here.
    """
    check = _CatalogCheck(registry, find_plan, servers, models)
    check.visit(document, ())
    return check.problems, check.notes


def problems_of(document, registry, find_plan, servers, models):
    """Return static problems, then those on this machine: what `validate` reports."""
    return static_problems(document) + catalog_check(document, registry, find_plan, servers, models)[0]


def validate_body(document, registry, find_plan, servers, models):
    """Return {"plan", "steps", "ok", "problems", "notes"} of a document; notes are sentences and never matter."""
    static = static_problems(document)
    problems, notes = catalog_check(document, registry, find_plan, servers, models)
    problems = static + problems
    if not static:
        notes = notes + advice(document, registry)
    return {
        "plan": document.get("identifier"),
        "steps": len(documents.steps_of(document)),
        "ok": not problems,
        "problems": [problem.to_json() for problem in problems],
        "notes": list(map(str, notes)),
    }


class _CatalogCheck:
    """One check against the registry; follows plan__* steps, each plan once."""

    def __init__(self, registry, find_plan, servers, models):
        self.registry = registry
        self.find_plan = find_plan
        self.servers = servers
        self.models = models
        self.problems = []
        self.notes = []
        self.visited = set()
        #: Only what is known to write: a server that has not been asked yet may turn out to have tools that read.
        self.is_read_only = dependencies.read_only_test(registry, find_plan, unknown=True)
        #: Pointer of the call in the plan that was asked about from which everything is reached that is checked.
        self.entry = ""
        self.checked = {}  # tool name → (Problem or None, Tool or None), as the registry says

    def visit(self, document, chain):
        """Check one plan. chain: identifiers of the plans that led here."""
        identifier = str(document.get("identifier"))
        trail = (*chain, identifier)
        self.visited.add(identifier)
        required = document.get("requires_servers")
        declared = required if isinstance(required, list) else ()
        for place, tool, arguments in documents.calls(document):
            if not chain:
                self.entry = place
            report = _Report(self, trail, place, declared)
            if tool in documents.CONTROL_STEPS:
                self.check_model(report, tool, arguments)
                if tool == "agent":
                    self.check_patterns(report, arguments.get("tools"))
            elif tool.startswith("plan__") and self.find_plan:
                self.check_plan(report, tool, arguments, trail)
            else:
                self.check_tool(report, tool, arguments)
        self.check_paths(document, trail, declared)
        if not any(problem.code in ("plan_cycle", "plan_depth") for problem in self.problems):
            self.check_order(document, trail, declared)

    def check_tool(self, report, tool, arguments):
        if "__" not in tool and tool not in documents.BARE_TOOLS:
            return  # a static problem
        if tool not in self.checked:
            problem = self.registry.check(tool)
            self.checked[tool] = problem, None if problem else self.registry.peek(tool)
        problem, known = self.checked[tool]
        if problem is not None:
            report.missing(problem, tool.partition("__")[0], "/tool", "server_declared")
        elif known is not None:
            self.check_input(report, tool, arguments, known.input_schema, known.checks_input)

    def check_plan(self, report, tool, arguments, trail):
        identifier = tool.removeprefix("plan__")
        if identifier in trail:
            if len(trail) > 1 or identifier != trail[0]:  # a plan that calls itself is a static problem
                chain = " → ".join([*trail[trail.index(identifier) :], identifier])
                report.problem("/tool", "plan_cycle", f"plans call each other: {chain}")
            return
        if len(trail) >= DEPTH_LIMIT:
            chain = " → ".join([*trail, identifier])
            report.problem("/tool", "plan_depth", f"plans are nested deeper than {DEPTH_LIMIT}: {chain}")
            return
        try:
            plan = self.find_plan(identifier)
        except UnknownPlan as error:
            report.problem("/tool", "plan_unknown", error.message)
            return
        if plan.input_schema is not None:
            self.check_input(report, tool, arguments, plan.input_schema, True)
        if identifier not in self.visited:
            self.visit(plan.document, trail)

    def check_input(self, report, tool, arguments, rule, refuses_unknown):
        """Compare what is literal in an input with the tool's schema; a template may become anything."""
        if refuses_unknown:
            _, found = schema.check_arguments(arguments, rule)
        else:
            found = schema.problems(arguments, rule)
        for problem in found:
            certain = problem.code in ("schema_required", "schema_additionalProperties")
            if certain or not templates.has_template(_value_at(arguments, problem.pointer)):
                report.problem("/input" + problem.pointer, "input_mismatch", f"{tool}: {problem.text}", problem.hint)

    def check_model(self, report, tool, arguments):
        model = arguments.get("model")
        is_used = tool == "agent" or "infer" in arguments
        if self.models is None or not isinstance(model, str) or not is_used or templates.has_template(model):
            return
        if model not in self.models:
            text = f"there is no model {shorten(model, 80)!r}"
            hint = did_you_mean(model, sorted(self.models)) if self.models else "no models are configured"
            report.problem("/input/model", "model_unknown", text, hint)

    def check_patterns(self, report, patterns):
        for index, pattern in enumerate(patterns if isinstance(patterns, list) else ()):
            if isinstance(pattern, str):
                self.check_pattern(report, pattern, f"/input/tools/{index}")

    def check_pattern(self, report, pattern, place):
        source, separator, _ = pattern.partition("__")
        if not pattern.strip():
            report.problem(place, "pattern_empty", "an empty pattern matches no tool")
        elif set(pattern) == {"*"} or "*" in source:
            return  # may match anything
        elif not separator:
            text = f"the pattern {shorten(pattern, 80)!r} has no source"
            report.problem(place, "pattern_not_namespaced", text, "write <server>__<tool>, for example builtin__*")
        else:
            problem = self.registry.check(f"{source}__{pattern[len(source) + 2:]}") if "*" not in pattern else None
            is_server = source not in ("builtin", "user", "plan")
            if is_server and source not in self.servers:
                text = f"the pattern {shorten(pattern, 80)!r} names the MCP server {source!r}, which is not configured"
                unconfigured = Problem("", "pattern_server_unconfigured", text, f"add [mcp.{source}]")
                report.missing(unconfigured, source, place, "pattern_server_unconfigured")
            elif problem is not None or self.registry.peek_match(pattern) == []:
                text = f"the pattern {shorten(pattern, 80)!r} matches no tool"
                report.problem(place, "pattern_no_match", text, problem.hint if problem else "")

    def check_paths(self, document, trail, declared):
        """Compare paths with the output the tools declare; only what is certainly wrong is a problem."""
        for place, reference, tool, lost in _lost_paths(document, self.result_of):
            if lost[1]:
                report = _Report(self, trail, place, declared)
                report.problem("", "path_unknown", f"{reference} is no result of {tool}: {lost[0]}")

    def check_order(self, document, trail, declared):
        """Report an `after` that contradicts the file order, which steps that write keep."""
        if not any(step.get("after") for _, step in documents.steps_of(document)):
            return  # every other wait is for an earlier step
        if dependencies.order_problems(document):
            return  # static problems
        for problem in dependencies.order_problems(document, self.is_read_only):
            report = _Report(self, trail, problem.pointer, declared)
            report.problem("", problem.code, problem.text, problem.hint)

    def result_of(self, tool):
        """Return the result schema of a tool, a plan's output keys included, or None."""
        if tool.startswith("plan__") and self.find_plan:
            try:
                plan = self.find_plan(tool.removeprefix("plan__"))
            except UnknownPlan:
                return None
            return _plan_result(plan)
        known = self.registry.peek(tool)
        return known.output_schema if known is not None else None


class _Report:
    """Adds problems of one place, with the name of the plan when it is not the one that was asked about."""

    def __init__(self, check, trail, place, declared):
        self.check = check
        self.trail = trail
        self.place = place
        self.declared = declared

    def make(self, place, code, text, hint):
        if len(self.trail) > 1:
            # The pointer stays inside the plan that was asked about: at the step that leads to the other one.
            return Problem(self.check.entry, code, f"plan {self.trail[-1]!r}, {self.place}: {text}", hint)
        return Problem(self.place + place, code, text, hint)

    def problem(self, place, code, text, hint=""):
        self.check.problems.append(self.make(place, code, text, hint))

    def missing(self, problem, server, place, note_code):
        """Report something that is not there: a note when the plan itself says that it needs that server."""
        if problem.code in ("server_unconfigured", "pattern_server_unconfigured") and server in self.declared:
            self.check.notes.append(self.make(place, note_code, problem.text, problem.hint))
        else:
            self.problem(place, problem.code, problem.text, problem.hint)


def _value_at(value, place):
    """Return the part of a value a pointer names, None where there is none."""
    for token in place.split("/")[1:]:
        token = token.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value.get(token)
        elif isinstance(value, list) and token.isdigit() and int(token) < len(value):
            value = value[int(token)]
        else:
            return None
    return value


def _plan_result(plan):
    """Return the schema of what `plan__<identifier>` returns, None when an exit may make it anything."""
    if any(tool == "exit" for _, tool, _ in documents.calls(plan.document)):
        return None
    if plan.finish == "output":
        declared = (plan.output_schema or {}).get("properties")
        declared = declared if isinstance(declared, dict) else {}
        return _result(**{key: declared.get(key, {}) for key in plan.output})
    if plan.finish == "solver":
        return _result(answer={"type": "string"})
    return _result(ok={"type": "boolean"}, steps_executed={"type": "integer"})


def _lost_paths(document, result_of):
    """Yield (pointer, Reference, tool, where it gets lost) of paths that leave what a tool step declares."""
    tools = {
        step["id"]: step["tool"]
        for _, step in documents.steps_of(document)
        if isinstance(step.get("id"), str)
        and isinstance(step.get("tool"), str)
        and step["tool"] not in documents.CONTROL_STEPS
        and step.get("on_error", "fail") == "fail"
    }
    results = {}
    for key in ("steps", "output", "solver"):
        for reference in templates.references(document.get(key), pointer(key)):
            tool = tools.get(reference.root)
            if tool is None or reference.optional or reference.maybe_item:
                continue
            if tool not in results:
                results[tool] = result_of(tool)
            lost = path_beyond(results[tool], reference.path)
            if lost:
                yield reference.pointer, reference, tool, lost


def advice(document, registry):
    """Return what looks like a mistake and need not be one: unused steps, reused body ids, undeclared paths.

    The document must be without static problems.
    """
    return _unused_steps(document, registry) + _reused_ids(document) + _undeclared_paths(document, registry)


def _unused_steps(document, registry):
    used = set(templates.roots([document.get(key) for key in ("steps", "output", "solver")]))
    solver = document.get("solver")
    if isinstance(solver, dict) and not solver.get("data"):
        return []  # the solver reads every result
    found = []
    for index, step in documents.steps_of(document):
        tool, arguments = step.get("tool"), step.get("input")
        if step.get("id") in used or not isinstance(tool, str) or tool in ("exit", "ask", "agent"):
            continue
        if dependencies.reads_only(tool, arguments, registry.is_read_only):
            text = f"{documents.step_label(step, index)} only reads, and nothing uses its result"
            found.append(Problem(pointer("steps", index), "step_unused", text))
    return found


def _reused_ids(document):
    seen, found = {}, []
    for place, tool, arguments in documents.calls(document):
        for key, body in documents.bodies(tool, arguments):
            for step in body if isinstance(body, list) else ():
                identifier = step.get("id") if isinstance(step, dict) else None
                if not isinstance(identifier, str):
                    continue
                where = f"{place}/input/{key}"
                if seen.setdefault(identifier, where) != where:
                    text = f"two bodies have a step {shorten(identifier, 80)!r}; each sees only its own"
                    found.append(Problem(where, "body_id_reused", text))
    return found


def _undeclared_paths(document, registry):
    def result_of(tool):
        known = None if tool.startswith("plan__") else registry.peek(tool)
        return known.output_schema if known is not None else None

    return [
        Problem(place, "path_undeclared", f"{reference} is not in the output {tool} declares: {lost[0]}")
        for place, reference, tool, lost in _lost_paths(document, result_of)
        if not lost[1]
    ]
