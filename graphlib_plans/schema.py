"""JSON Schema, draft 2020-12: every problem of a value at once, each naming the property.

`format` and `content*` are annotations and are not asserted. References are resolved inside the schema only, nothing is
ever fetched. A keyword of the wrong shape is ignored when values are checked (schemas come from peers) and reported by
schema_problems. Two keywords of older drafts are understood because many servers still send them: `items` as a list,
and `dependencies`. Measured against the official suite: tests/plans/test_schema.py lists what fails there and why.
"""

import functools
import json
import re
from urllib.parse import unquote, urldefrag, urljoin

from .errors import Problem, did_you_mean, shorten, type_name
from .errors import pointer as pointer_of

META_URI = "https://json-schema.org/draft/2020-12/schema"
#: Most compiled schemas that are kept; a plan run uses a handful.
CACHE_SIZE = 512
#: Most nodes inline_refs expands to, so that a few lines of nested references cannot fill the memory.
INLINE_LIMIT = 5_000
#: Deepest nesting inline_refs shows.
INLINE_DEPTH = 60
#: Longest excerpt of a value in a sentence, in characters.
SHOWN_VALUE = 60


def problems(value, schema):
    """Return every Problem of a value: pointer into the value, code "schema_" + keyword, text naming the property.

    schema: a JSON Schema (object or boolean). It is remembered by identity, so it must not be changed afterwards.
    Errors: none, whatever the schema is.
    """
    return compile(schema).problems(value)


def schema_problems(schema):
    """Return what keeps a value from being a JSON Schema, with pointers into it; [] for a schema."""
    if not isinstance(schema, (dict, bool)):
        return [Problem("", "schema_type", f"a schema is an object, not {type_name(schema)}")]
    found = compile(META).problems(schema)
    if not found and isinstance(schema, dict):
        found = compile(schema).own_problems()
    return found


def with_defaults(value, schema):
    """Return an object with the missing properties that have a default at the schema's top level.

    The object itself comes back when nothing is missing; it is never changed.
    """
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(value, dict) or not isinstance(properties, dict):
        return value
    missing = {
        key: entry["default"]
        for key, entry in properties.items()
        if key not in value and isinstance(entry, dict) and "default" in entry
    }
    return {**value, **missing} if missing else value


def check_arguments(arguments, schema):
    """Return (arguments with defaults, Problems) of a call, by the rule for plans, user tools and builtins.

    Nothing is converted: "3" is no integer. A name that is no property is a problem (a misspelled one would be lost
    in silence), unless the schema has no `properties` or says with `additionalProperties` or `patternProperties`
    what else may come.
    """
    arguments = with_defaults(arguments, schema)
    found = problems(arguments, schema)
    if isinstance(schema, dict) and isinstance(arguments, dict):
        found += _unknown_names(arguments, schema)
    return arguments, found


def _unknown_names(arguments, schema):
    known = known_names(schema)
    if known is None or "additionalProperties" in schema:  # false has been reported by the check itself
        return []
    return [_unknown((name,), "additionalProperties", known) for name in arguments if name not in known]


def known_names(schema):
    """Return the property names a schema's object may have, alternatives included; None when any name may come."""
    return compile(schema).names if isinstance(schema, dict) else None


def _known_names(schema):
    if schema.get("additionalProperties", False) is not False:
        return None
    listed = inline_refs(schema)
    open_keywords = ("patternProperties", "unevaluatedProperties", "if", "dependentSchemas", "dependencies")
    if any(keyword in schema for keyword in open_keywords) or not (listed["properties"] or "properties" in schema):
        return None
    return list(listed["properties"])


def compile(schema):
    """Return the Validator of a schema, from a cache where it is the very same object."""
    entry = _CACHE.get(id(schema))
    if entry is not None and entry.schema is schema:
        return entry
    if len(_CACHE) >= CACHE_SIZE:
        _CACHE.clear()
    entry = _CACHE[id(schema)] = Validator(schema)
    return entry


#: id of a schema → its Validator, which keeps the schema alive and so the id taken.
_CACHE = {}


class Validator:
    """A compiled schema. Safe to share between threads: the state of a check lives in the check.

    resources: URI → schema, what the schema may refer to besides itself and the meta-schema.
    """

    def __init__(self, schema, resources=None):
        self.schema = schema
        self._known = {META_URI: META, **(resources or {})}
        self._resources = {}  # URI → schema, of everything indexed
        self._anchors = {}  # (URI, anchor) → schema
        self._dynamic = {}  # (URI, dynamic anchor) → schema
        self._bases = {}  # id of a subschema → URI of the resource it belongs to
        self._nodes = {}  # id of a subschema → its checks
        self._parts = []  # (pointer, subschema)
        self.tracks_evaluated = False
        self._index(schema, "")

    @functools.cached_property
    def names(self):
        """The property names an object may have, None when any may come; see known_names."""
        return _known_names(self.schema)

    def problems(self, value):
        """Return every Problem of a value. Errors: none."""
        out = []
        check = _Check(self)
        try:
            check.apply(self.schema, value, (), out, _Seen() if self.tracks_evaluated else None)
        except RecursionError:
            out.append(Problem("", "schema_depth", "the value or its schema is nested too deeply to be checked"))
        return out

    def own_problems(self):
        """Return a Problem for each reference that leads nowhere and each pattern that cannot be used."""
        found = []
        for pointer, part in self._parts:
            for keyword in ("$ref", "$dynamicRef"):
                if isinstance(part.get(keyword), str) and self.resolve(part[keyword], self.base_of(part)) is None:
                    text = f"the reference {part[keyword]!r} leads to nothing in this schema"
                    found.append(Problem(f"{pointer}/{keyword}", f"schema_{keyword}", text))
            for keyword, patterns in (("pattern", [part.get("pattern")]), ("patternProperties", _keys(part))):
                for pattern in patterns:
                    if isinstance(pattern, str) and _regex(pattern) is None:
                        text = f"{pattern!r} is no regular expression that can be used here"
                        found.append(Problem(f"{pointer}/{keyword}", f"schema_{keyword}", text))
        return found

    def _index(self, schema, base):
        """Note the URI, the anchors and the references of a schema and of everything below it."""
        self._resources.setdefault(base, schema)
        waiting = [(schema, base, "")]
        while waiting:
            part, base, pointer = waiting.pop()
            if not isinstance(part, dict) or id(part) in self._bases:
                continue
            if isinstance(part.get("$id"), str):
                base = _join(base, part["$id"]).partition("#")[0]
                self._resources[base] = part
            self._bases[id(part)] = base
            for keyword, table in (("$anchor", self._anchors), ("$dynamicAnchor", self._dynamic)):
                if isinstance(part.get(keyword), str):
                    table[base, part[keyword]] = part
                    self._anchors[base, part[keyword]] = part
            self._parts.append((pointer, part))
            if "unevaluatedProperties" in part or "unevaluatedItems" in part:
                self.tracks_evaluated = True
            waiting += [(child, base, pointer + place) for place, child in _subschemas(part)]

    def base_of(self, schema):
        """Return the URI of the resource a subschema belongs to."""
        return self._bases.get(id(schema), "")

    def checks_of(self, schema):
        """Return the (function, argument) pairs that check a value against one subschema."""
        checks = self._nodes.get(id(schema))
        if checks is None:
            checks = self._nodes[id(schema)] = [
                (function, schema[keyword])
                for keyword, (is_shaped, function) in KEYWORDS.items()
                if keyword in schema and function is not None and is_shaped(schema[keyword])
            ]
        return checks

    def resolve(self, reference, base):
        """Return the subschema a reference leads to, or None."""
        uri, fragment = urldefrag(_join(base, reference))
        if uri not in self._resources:
            if uri not in self._known:
                return None
            self._index(self._known[uri], uri)
        if fragment and not fragment.startswith("/"):
            return self._anchors.get((uri, unquote(fragment)))
        return self._follow(self._resources[uri], fragment, uri)

    def _follow(self, part, fragment, base):
        """Walk a JSON pointer from a resource; a place that is no known subschema becomes one."""
        for token in fragment.split("/")[1:]:
            token = unquote(token).replace("~1", "/").replace("~0", "~")
            if isinstance(part, dict):
                base = self._bases.get(id(part), base)
                part = part.get(token)
            elif isinstance(part, list) and token.isdigit() and int(token) < len(part):
                part = part[int(token)]
            else:
                return None
        if isinstance(part, dict) and id(part) not in self._bases:
            self._index(part, base)
        return part if isinstance(part, (dict, bool)) else None

    def resolve_dynamic(self, reference, base, scope):
        """Return where a $dynamicRef leads: the outermost resource in scope that has the same dynamic anchor."""
        target = self.resolve(reference, base)
        anchor = reference.partition("#")[2]
        if isinstance(target, dict) and target.get("$dynamicAnchor") == anchor:
            for uri in scope:
                if (uri, anchor) in self._dynamic:
                    return self._dynamic[uri, anchor]
        return target


def _join(base, reference):
    # urljoin knows only some schemes, and urn: is not among them.
    if reference.startswith("#"):
        return base.partition("#")[0] + reference
    try:
        return urljoin(base, reference)
    except ValueError:  # for example an address with an odd bracket
        return reference


def _keys(part):
    patterns = part.get("patternProperties")
    return list(patterns) if isinstance(patterns, dict) else []


def _subschemas(schema):
    """Return (pointer, subschema) of everything directly below one schema object."""
    found = []
    for keyword, value in schema.items():
        place = pointer_of(keyword)
        if keyword in _HOLDS_SCHEMA and isinstance(value, (dict, bool)):
            found.append((place, value))
        if keyword in _HOLDS_SCHEMAS and isinstance(value, list):
            found += [(f"{place}/{index}", item) for index, item in enumerate(value)]
        if keyword in _HOLDS_MAP and isinstance(value, dict):
            found += [(place + pointer_of(key), item) for key, item in value.items()]
    return found


_HOLDS_SCHEMA = frozenset(
    "items additionalItems contains additionalProperties propertyNames if then else not unevaluatedItems"
    " unevaluatedProperties contentSchema".split()
)
_HOLDS_SCHEMAS = frozenset("allOf anyOf oneOf prefixItems items".split())
_HOLDS_MAP = frozenset("properties patternProperties dependentSchemas $defs definitions dependencies".split())


# One check ---------------------------------------------------------------------------------------------------------


class _Seen:
    """What has been evaluated of one object or array, for the unevaluated* keywords."""

    __slots__ = ("keys", "indexes")

    def __init__(self):
        self.keys = set()
        self.indexes = set()

    def add(self, other):
        self.keys |= other.keys
        self.indexes |= other.indexes


class _Check:
    """One check of one value: the open resources (for $dynamicRef) and the open references (against loops)."""

    def __init__(self, validator):
        self.validator = validator
        self.scope = []
        self.open = set()

    def apply(self, schema, value, place, out, seen):
        """Check a value against a subschema; problems are appended to `out`, what was evaluated is noted in `seen`."""
        if not isinstance(schema, dict):
            if schema is False:
                out.append(_problem(place, "false", "is not allowed"))
            return
        base = self.validator.base_of(schema)
        enters = not self.scope or self.scope[-1] != base
        if enters:
            self.scope.append(base)
        # A subschema sees what it and its own parts evaluated, never what its cousins did.
        own = None if seen is None else _Seen()
        for function, argument in self.validator.checks_of(schema):
            function(self, argument, schema, value, place, out, own)
        if seen is not None:
            seen.add(own)
        if enters:
            self.scope.pop()

    def try_out(self, schema, value, place, seen):
        """Return the problems of a value without reporting them; what was evaluated counts only when there are none."""
        out, inner = [], None if seen is None else _Seen()
        self.apply(schema, value, place, out, inner)
        if seen is not None and not out:
            seen.add(inner)
        return out

    def child(self, schema, value, place, out):
        """Check a member of the value; what is evaluated inside it does not concern the value."""
        self.apply(schema, value, place, out, _Seen() if self.validator.tracks_evaluated else None)

    def refer(self, target, reference, value, place, out, seen):
        if target is None:
            text = f"cannot be checked: the schema refers to {reference!r}, which is missing"
            out.append(_problem(place, "$ref", text))
            return
        key = id(target), place
        if key in self.open:
            out.append(_problem(place, "$ref", f"cannot be checked: the schema refers to {reference!r} without end"))
            return
        self.open.add(key)
        self.apply(target, value, place, out, seen)
        self.open.discard(key)


def _problem(place, keyword, text):
    """Make a Problem; the text is completed with the name of the property."""
    return Problem(pointer_of(*place), f"schema_{keyword}", f"{_name(place)} {text}")


def _name(place):
    return ".".join(map(str, place)) if place else "the value"


_ARTICLES = {"null": "null", "integer": "an integer", "array": "an array", "object": "an object"}


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


TYPES = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _is_number(value) and (isinstance(value, int) or value.is_integer()),
    "number": _is_number,
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def _shown(value):
    return shorten(json.dumps(value, ensure_ascii=False), SHOWN_VALUE)


def identity(value):
    """Return a hashable that is equal for values JSON Schema calls equal: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, bool):
        return "boolean", value
    if isinstance(value, dict):
        return "object", frozenset((key, identity(item)) for key, item in value.items())
    if isinstance(value, list):
        return "array", tuple(map(identity, value))
    return value


# Keywords: f(check, argument, schema, value, place, out, seen) ------------------------------------------------------


def _ref(check, reference, schema, value, place, out, seen):
    target = check.validator.resolve(reference, check.validator.base_of(schema))
    check.refer(target, reference, value, place, out, seen)


def _dynamic_ref(check, reference, schema, value, place, out, seen):
    target = check.validator.resolve_dynamic(reference, check.validator.base_of(schema), check.scope)
    check.refer(target, reference, value, place, out, seen)


def _type(check, types, schema, value, place, out, seen):
    types = [types] if isinstance(types, str) else types
    if not any(TYPES[name](value) for name in types):
        wanted = " or ".join(_ARTICLES.get(name, f"a {name}") for name in types)
        out.append(_problem(place, "type", f"must be {wanted}, not {type_name(value)}"))


def _enum(check, values, schema, value, place, out, seen):
    if identity(value) not in [identity(item) for item in values]:
        out.append(_problem(place, "enum", f"must be one of {', '.join(map(_shown, values))}, not {_shown(value)}"))


def _const(check, wanted, schema, value, place, out, seen):
    if identity(value) != identity(wanted):
        out.append(_problem(place, "const", f"must be {_shown(wanted)}, not {_shown(value)}"))


def _all_of(check, schemas, schema, value, place, out, seen):
    for part in schemas:
        check.apply(part, value, place, out, seen)


def _any_of(check, schemas, schema, value, place, out, seen):
    attempts = [check.try_out(part, value, place, seen) for part in schemas]
    if all(attempts):
        out.append(_problem(place, "anyOf", f"fits none of {len(schemas)} alternatives: {_closest(attempts)}"))


def _one_of(check, schemas, schema, value, place, out, seen):
    attempts = [check.try_out(part, value, place, seen) for part in schemas]
    fitting = [index for index, attempt in enumerate(attempts) if not attempt]
    if not fitting:
        out.append(_problem(place, "oneOf", f"fits none of {len(schemas)} alternatives: {_closest(attempts)}"))
    elif len(fitting) > 1:
        which = " and ".join(str(index + 1) for index in fitting)
        out.append(_problem(place, "oneOf", f"fits the alternatives {which} at once, and must fit exactly one"))


def _closest(attempts):
    """Return the sentence of the alternative that got furthest: the deepest first problem, then the fewest."""
    best = max(attempts, key=lambda attempt: (attempt[0].pointer.count("/"), -len(attempt)))
    return best[0].text


def _not(check, part, schema, value, place, out, seen):
    if not check.try_out(part, value, place, None if seen is None else _Seen()):
        out.append(_problem(place, "not", f"must not be {_shown(value)}"))


def _if(check, condition, schema, value, place, out, seen):
    branch = "else" if check.try_out(condition, value, place, seen) else "then"
    if isinstance(schema.get(branch), (dict, bool)):
        check.apply(schema[branch], value, place, out, seen)


def _bound(keyword, is_wrong, words):
    def check_bound(check, limit, schema, value, place, out, seen):
        if _is_number(value) and is_wrong(value, limit):
            out.append(_problem(place, keyword, f"must be {words} {_shown(limit)}, not {_shown(value)}"))

    return check_bound


def _multiple_of(check, factor, schema, value, place, out, seen):
    if not _is_number(value) or factor <= 0:
        return
    from fractions import Fraction  # rarely needed, and slow to load

    # Through the decimal text, because 0.0075 is no multiple of 0.0001 in binary.
    if Fraction(str(value)) % Fraction(str(factor)):
        out.append(_problem(place, "multipleOf", f"must be a multiple of {_shown(factor)}, not {_shown(value)}"))


def _size(keyword, kind, is_wrong, words):
    def check_size(check, limit, schema, value, place, out, seen):
        if isinstance(value, kind) and is_wrong(len(value), limit):
            noun = {str: "character", list: "item", dict: "property"}[kind]
            nouns = noun if limit == 1 else {"property": "properties"}.get(noun, noun + "s")
            out.append(_problem(place, keyword, f"must have {words} {limit:g} {nouns}, and has {len(value)}"))

    return check_size


def _pattern(check, pattern, schema, value, place, out, seen):
    if isinstance(value, str) and not _matches(pattern, value):
        out.append(_problem(place, "pattern", f"must match the pattern {pattern!r}, and is {_shown(value)}"))


def _items(check, part, schema, value, place, out, seen):
    if not isinstance(value, list):
        return
    if isinstance(part, list):  # draft 2019-09 and older: what prefixItems is today
        _prefix_items(check, part, schema, value, place, out, seen)
        part, start = schema.get("additionalItems", True), len(part)
        if not isinstance(part, (dict, bool)) or "additionalItems" not in schema:
            return
    else:
        prefix = schema.get("prefixItems")
        start = len(prefix) if isinstance(prefix, list) else 0
    for index in range(start, len(value)):
        check.child(part, value[index], (*place, index), out)
    if seen is not None:
        seen.indexes.update(range(start, len(value)))


def _prefix_items(check, parts, schema, value, place, out, seen):
    if isinstance(value, list):
        for index, (part, item) in enumerate(zip(parts, value)):
            check.child(part, item, (*place, index), out)
        if seen is not None:
            seen.indexes.update(range(min(len(parts), len(value))))


def _contains(check, part, schema, value, place, out, seen):
    if not isinstance(value, list):
        return
    fitting = [
        index
        for index, item in enumerate(value)
        if not check.try_out(part, item, (*place, index), None if seen is None else _Seen())
    ]
    if seen is not None:
        seen.indexes.update(fitting)
    least, most = schema.get("minContains", 1), schema.get("maxContains")
    if _is_size(least) and len(fitting) < least:
        out.append(_problem(place, "contains", f"must have at least {least:g} fitting items, and has {len(fitting)}"))
    if _is_size(most) and len(fitting) > most:
        out.append(_problem(place, "maxContains", f"must have at most {most:g} fitting items, and has {len(fitting)}"))


def _unique_items(check, wanted, schema, value, place, out, seen):
    if not wanted or not isinstance(value, list):
        return
    first = {}
    for index, item in enumerate(value):
        earlier = first.setdefault(identity(item), index)
        if earlier != index:
            out.append(_problem(place, "uniqueItems", f"has the same item at {earlier} and {index}: {_shown(item)}"))
            return


def _required(check, names, schema, value, place, out, seen):
    if isinstance(value, dict):
        for name in names:
            if name not in value:
                out.append(_problem((*place, name), "required", "is required"))


def _properties(check, parts, schema, value, place, out, seen):
    if isinstance(value, dict):
        for name, part in parts.items():
            if name in value:
                check.child(part, value[name], (*place, name), out)
                if seen is not None:
                    seen.keys.add(name)


def _pattern_properties(check, parts, schema, value, place, out, seen):
    if isinstance(value, dict):
        for pattern, part in parts.items():
            for name in value:
                if _matches(pattern, name):
                    check.child(part, value[name], (*place, name), out)
                    if seen is not None:
                        seen.keys.add(name)


def _additional_properties(check, part, schema, value, place, out, seen):
    if not isinstance(value, dict):
        return
    named = schema.get("properties")
    named = named if isinstance(named, dict) else {}
    patterns = schema.get("patternProperties")
    patterns = patterns if isinstance(patterns, dict) else {}
    for name in value:
        if name in named or any(_matches(pattern, name) for pattern in patterns):
            continue
        if part is False:
            out.append(_unknown((*place, name), "additionalProperties", named))
        else:
            check.child(part, value[name], (*place, name), out)
        if seen is not None:
            seen.keys.add(name)


def _unknown(place, keyword, known):
    """Make the Problem of a property that is not allowed, with the nearest allowed name as its hint."""
    problem = _problem(place, keyword, "is not a known property")
    return Problem(problem.pointer, problem.code, problem.text, did_you_mean(place[-1], known))


def _property_names(check, part, schema, value, place, out, seen):
    if isinstance(value, dict):
        for name in value:
            found = check.try_out(part, name, (*place, name), None)
            if found:
                text = found[0].text.removeprefix(_name((*place, name))).strip()
                text = f"has a name that is not allowed: the name {text}"
                out.append(_problem((*place, name), "propertyNames", text))


def _dependent_required(check, table, schema, value, place, out, seen):
    if isinstance(value, dict):
        for name, needed in table.items():
            for other in needed if name in value and isinstance(needed, list) else ():
                if other not in value:
                    text = f"is required when {_name((*place, name))} is there"
                    out.append(_problem((*place, other), "dependentRequired", text))


def _dependent_schemas(check, table, schema, value, place, out, seen):
    if isinstance(value, dict):
        for name, part in table.items():
            if name in value:
                check.apply(part, value, place, out, seen)


def _dependencies(check, table, schema, value, place, out, seen):
    names = {name: entry for name, entry in table.items() if isinstance(entry, list)}
    _dependent_required(check, names, schema, value, place, out, seen)
    parts = {name: entry for name, entry in table.items() if isinstance(entry, (dict, bool))}
    _dependent_schemas(check, parts, schema, value, place, out, seen)


def _unevaluated_properties(check, part, schema, value, place, out, seen):
    if isinstance(value, dict):
        for name in value:
            if name in seen.keys:
                continue
            if part is False:
                out.append(_unknown((*place, name), "unevaluatedProperties", ()))
            else:
                check.child(part, value[name], (*place, name), out)
            seen.keys.add(name)


def _unevaluated_items(check, part, schema, value, place, out, seen):
    if isinstance(value, list):
        for index, item in enumerate(value):
            if index not in seen.indexes:
                check.child(part, item, (*place, index), out)
                seen.indexes.add(index)


# Shapes of the keywords' arguments


def _is_schema(value):
    return isinstance(value, (dict, bool))


def _is_schema_list(value):
    return isinstance(value, list) and bool(value) and all(map(_is_schema, value))


def _is_schema_map(value):
    return isinstance(value, dict) and all(map(_is_schema, value.values()))


def _is_size(value):
    return _is_number(value) and value >= 0


def _is_names(value):
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_types(value):
    return isinstance(value, str) and value in TYPES or _is_names(value) and set(value) <= set(TYPES)


def _is_text(value):
    return isinstance(value, str)


def _is_map(value):
    return isinstance(value, dict)


#: keyword → (shape its argument must have, the function that checks). In this order: the unevaluated* come last.
KEYWORDS = {
    "$ref": (_is_text, _ref),
    "$dynamicRef": (_is_text, _dynamic_ref),
    "type": (_is_types, _type),
    "enum": (lambda value: isinstance(value, list), _enum),
    "const": (lambda value: True, _const),
    "minimum": (_is_number, _bound("minimum", lambda value, limit: value < limit, "at least")),
    "maximum": (_is_number, _bound("maximum", lambda value, limit: value > limit, "at most")),
    "exclusiveMinimum": (_is_number, _bound("exclusiveMinimum", lambda value, limit: value <= limit, "above")),
    "exclusiveMaximum": (_is_number, _bound("exclusiveMaximum", lambda value, limit: value >= limit, "below")),
    "multipleOf": (_is_number, _multiple_of),
    "minLength": (_is_size, _size("minLength", str, lambda size, limit: size < limit, "at least")),
    "maxLength": (_is_size, _size("maxLength", str, lambda size, limit: size > limit, "at most")),
    "pattern": (_is_text, _pattern),
    "minItems": (_is_size, _size("minItems", list, lambda size, limit: size < limit, "at least")),
    "maxItems": (_is_size, _size("maxItems", list, lambda size, limit: size > limit, "at most")),
    "uniqueItems": (lambda value: isinstance(value, bool), _unique_items),
    "prefixItems": (_is_schema_list, _prefix_items),
    "items": (lambda value: _is_schema(value) or _is_schema_list(value), _items),
    "contains": (_is_schema, _contains),
    "minProperties": (_is_size, _size("minProperties", dict, lambda size, limit: size < limit, "at least")),
    "maxProperties": (_is_size, _size("maxProperties", dict, lambda size, limit: size > limit, "at most")),
    "required": (_is_names, _required),
    "properties": (_is_schema_map, _properties),
    "patternProperties": (_is_schema_map, _pattern_properties),
    "additionalProperties": (_is_schema, _additional_properties),
    "propertyNames": (_is_schema, _property_names),
    "dependentRequired": (_is_map, _dependent_required),
    "dependentSchemas": (_is_schema_map, _dependent_schemas),
    "dependencies": (_is_map, _dependencies),
    "allOf": (_is_schema_list, _all_of),
    "anyOf": (_is_schema_list, _any_of),
    "oneOf": (_is_schema_list, _one_of),
    "not": (_is_schema, _not),
    "if": (_is_schema, _if),
    "unevaluatedProperties": (_is_schema, _unevaluated_properties),
    "unevaluatedItems": (_is_schema, _unevaluated_items),
}


# Patterns ----------------------------------------------------------------------------------------------------------


def _matches(pattern, text):
    """Say whether a pattern is found in a text. A pattern Python cannot use matches everything."""
    compiled = _regex(pattern)
    return compiled is None or compiled.search(text) is not None


@functools.lru_cache(maxsize=512)
def _regex(pattern):
    """Return the compiled form of an ECMA-262 pattern, None when Python's `re` has no equivalent."""
    try:
        return re.compile(_to_python(pattern))
    except (re.error, OverflowError, RecursionError):
        return None


#: What differs from Python's syntax, outside and inside a character class. `$` is only the very end in ECMA-262, and
#: \d and \w are ASCII.
_OUTSIDE = {"\\d": "[0-9]", "\\D": "[^0-9]", "\\w": "[A-Za-z0-9_]", "\\W": "[^A-Za-z0-9_]", "$": r"\Z", "\\/": "/"}
_INSIDE = {"\\d": "0-9", "\\w": "A-Za-z0-9_", "\\/": "/", "[": "\\["}
_PROPERTIES = {"L": r"[^\W\d_]", "Letter": r"[^\W\d_]", "N": r"\d", "Nd": r"\d", "Number": r"\d"}
_TOKEN = re.compile(
    r"\\u\{[0-9A-Fa-f]+\}|\\p\{(?P<property>\w+)\}|\\c(?P<control>[A-Za-z])|\(\?<(?![=!])|\\.|.", re.DOTALL
)


def _to_python(pattern):
    pieces, in_class = [], False
    for match in _TOKEN.finditer(pattern):
        token = match[0]
        if match["property"] and not in_class:
            token = _PROPERTIES.get(match["property"], token)
        elif match["control"]:
            token = f"\\x{ord(match['control']) % 32:02x}"
        elif token.startswith("\\u{"):
            token = f"\\U{int(token[3:-1], 16):08x}"
        elif token == "(?<" and not in_class:
            token = "(?P<"
        else:
            token = (_INSIDE if in_class else _OUTSIDE).get(token, token)
        if match[0] == "[":
            in_class = True
        elif match[0] == "]":
            in_class = False
        pieces.append(token)
    return "".join(pieces)


# Listing a schema --------------------------------------------------------------------------------------------------


def inline_refs(schema):
    """Return a schema as plain as the pickiest client wants it: an object type with properties, no references.

    Local references are replaced by what they refer to; what is inside itself, or beyond INLINE_LIMIT nodes or
    INLINE_DEPTH levels, by a schema that allows anything. The properties of alternatives at the top are merged. The
    result describes at least what `schema` allows; checking is done with the original.
    """
    if not isinstance(schema, dict):
        schema = {}
    plain = _Inliner(compile(schema)).expand(schema, ())
    parts = [part for keyword in ("allOf", "anyOf", "oneOf") for part in plain.pop(keyword, ())]
    parts = [part for part in parts if isinstance(part, dict)]
    merged = {"type": "object", "properties": {}}
    for part in [*parts, plain]:
        merged["properties"].update(part.get("properties", {}))
    if "required" in plain:
        merged["required"] = plain["required"]
    rest = {key: value for key, value in plain.items() if key not in ("type", "properties", "required")}
    return {**merged, **rest}


class _Inliner:
    """Replaces references; counts what it makes."""

    def __init__(self, validator):
        self.validator = validator
        self.left = INLINE_LIMIT

    def expand(self, part, inside):
        """Return a copy of a subschema without references. inside: ids of the subschemas around it."""
        if not isinstance(part, dict):
            return part if part is False else {}
        self.left -= 1
        if self.left < 0 or id(part) in inside or len(inside) >= INLINE_DEPTH:
            return {}
        inside = (*inside, id(part))
        target = self._target(part)
        expanded = self.expand(target, inside) if target is not None else {}
        result = dict(expanded) if isinstance(expanded, dict) else {}
        for keyword, value in part.items():
            if keyword in _DROPPED or keyword == "additionalProperties" and value in (True, {}):
                continue
            if keyword not in KEYWORDS or KEYWORDS[keyword][0](value):
                result[keyword] = self._value(keyword, value, inside)
        return result

    def _target(self, part):
        reference = part.get("$ref")
        return self.validator.resolve(reference, self.validator.base_of(part)) if isinstance(reference, str) else None

    def _value(self, keyword, value, inside):
        if keyword in _HOLDS_MAP and isinstance(value, dict):
            return {key: self.expand(item, inside) for key, item in value.items()}
        if keyword in _HOLDS_SCHEMAS and isinstance(value, list):
            return [self.expand(item, inside) for item in value]
        if keyword in _HOLDS_SCHEMA and isinstance(value, dict):
            return self.expand(value, inside)
        return value


_DROPPED = frozenset(
    "$ref $dynamicRef $defs definitions $schema $id $anchor $dynamicAnchor $comment $vocabulary".split()
)


# The meta-schema ---------------------------------------------------------------------------------------------------


def _meta():
    """Return the meta-schema of draft 2020-12 as one document; the published one is the same in eight."""
    part = {"$dynamicRef": "#meta"}
    size = {"type": "integer", "minimum": 0}
    parts = {"type": "array", "minItems": 1, "items": part}
    part_map = {"type": "object", "additionalProperties": part}
    text, flag, number = {"type": "string"}, {"type": "boolean"}, {"type": "number"}
    names = {"type": "array", "items": text, "uniqueItems": True}
    anchor = {"type": "string", "pattern": "^[A-Za-z_][-A-Za-z0-9._]*$"}
    simple = {"enum": list(TYPES)}
    properties = {
        "$id": {"type": "string", "pattern": "^[^#]*#?$"},
        "$schema": text,
        "$ref": text,
        "$anchor": anchor,
        "$dynamicRef": text,
        "$dynamicAnchor": anchor,
        "$vocabulary": {"type": "object", "additionalProperties": flag},
        "$comment": text,
        "type": {"anyOf": [simple, {"type": "array", "items": simple, "minItems": 1, "uniqueItems": True}]},
        "enum": {"type": "array"},
        "multipleOf": {"type": "number", "exclusiveMinimum": 0},
        "dependentRequired": {"type": "object", "additionalProperties": names},
        "required": names,
        "uniqueItems": flag,
        "title": text,
        "description": text,
        "deprecated": flag,
        "readOnly": flag,
        "writeOnly": flag,
        "examples": {"type": "array"},
        "format": text,
        "contentEncoding": text,
        "contentMediaType": text,
        "pattern": text,
    }
    properties |= dict.fromkeys(("maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"), number)
    properties |= dict.fromkeys(
        "maxLength minLength maxItems minItems maxContains minContains maxProperties minProperties".split(), size
    )
    properties |= dict.fromkeys(sorted(_HOLDS_SCHEMA - {"additionalItems"}), part)
    properties |= dict.fromkeys(sorted(_HOLDS_SCHEMAS - {"items"}), parts)
    properties |= dict.fromkeys(sorted(_HOLDS_MAP - {"dependencies"}), part_map)
    return {"$schema": META_URI, "$id": META_URI, "$dynamicAnchor": "meta", "type": ["object", "boolean"],
            "properties": properties}


META = _meta()
