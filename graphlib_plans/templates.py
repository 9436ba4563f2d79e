"""The template language: {{references}} and sections inside the strings of a plan. Guide: docs/templates.md.

    {{E1.rows.0.name}}      a value; a string that is nothing but one tag keeps the value's type
    {{E1.note?}}            null where the path leads nowhere
    {{E1."odd.key"}}        a key with dots, of digits only, or called length
    {{#E1.rows}}…{{/E1.rows}}   once per item; {{^…}} when there is nothing; {{@index}} {{@first}} {{@last}} {{.}}
    {{{{                    two literal braces

There are no filters, no arithmetic and no calls. What is put in is never scanned again, so data may contain braces.
"""

import contextlib
import functools
import json
import re
from dataclasses import dataclass

from .errors import SHOWN_NAMES, BadPath, EmptyData, MissingStep, Problem, TemplateError, TemplateSyntax
from .errors import listed, shorten, type_name
from .errors import pointer as pointer_of

#: Deepest nesting of sections; rendering recurses once per level.
MAX_SECTIONS = 50
#: Longest template an error quotes, in characters.
SHOWN_TEMPLATE = 120

_LOOP_WORDS = ("@index", "@first", "@last")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_UNSUPPORTED = "><$!&="


class _Length:
    """The `.length` of a path, as opposed to a key of that name."""

    def __repr__(self):
        return "length"


LENGTH = _Length()


@dataclass(frozen=True, slots=True)
class Reference:
    """One tag of a template.

    root: its first name. path: the rest as keys (str), indexes (int) and LENGTH. pointer: the string it stands in.
    optional: the tag copes with a path that leads nowhere (`?`, or a section). maybe_item: it stands inside a section,
    where a field of the item comes before a root of the same name.
    """

    root: str
    path: tuple
    pointer: str = ""
    optional: bool = False
    maybe_item: bool = False

    def __str__(self):
        return ".".join([self.root, *map(str, self.path)])


@dataclass(frozen=True, slots=True)
class _Tag:
    """A parsed path. For @index, @first, @last and the dot `word` is set instead of `root`."""

    text: str
    root: str = ""
    path: tuple = ()
    optional: bool = False
    word: str = ""


@dataclass(frozen=True, slots=True)
class _Section:
    tag: _Tag
    inverted: bool
    #: Nodes of the body: str, _Tag or _Section.
    body: list


@dataclass(frozen=True, slots=True)
class _Frame:
    """One open section while rendering: its item, and where in its array that stands (None when there is no array)."""

    item: object
    index: int | None = None
    count: int = 0


# Rendering ---------------------------------------------------------------------------------------------------------


def render(value, scope):
    """Render every string inside a JSON value and return the result; keys stay as they are.

    A string that is exactly one tag becomes the value itself, of any type; what it refers to is shared, not copied.
    Every other string with tags becomes text. scope: mapping of first names to values.
    TemplateSyntax, MissingStep, BadPath, EmptyData.
    """
    if isinstance(value, str):
        return _render_string(value, scope) if "{{" in value else value
    if isinstance(value, dict):
        return {key: render(item, scope) for key, item in value.items()}
    if isinstance(value, list):
        return [render(item, scope) for item in value]
    return value


def render_text(text, scope):
    """Render one string to text, also when it is nothing but one tag. Errors as for render."""
    return "".join(_render_nodes(_parse(text), scope, (), text)) if "{{" in text else text


def text_of(value):
    """Return how a value appears inside text: null as nothing, arrays and objects as indented JSON with sorted keys."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True)
    return json.dumps(value)


def _render_string(text, scope):
    nodes = _parse(text)
    if len(nodes) == 1 and isinstance(nodes[0], _Tag):
        return _value_of(nodes[0], scope, (), text)
    return "".join(_render_nodes(nodes, scope, (), text))


def _render_nodes(nodes, scope, frames, template):
    """Return the pieces of text that a list of nodes gives."""
    pieces = []
    for node in nodes:
        if isinstance(node, str):
            pieces.append(node)
        elif isinstance(node, _Tag):
            pieces.append(text_of(_value_of(node, scope, frames, template)))
        else:
            pieces += _render_section(node, scope, frames, template)
    return pieces


def _render_section(section, scope, frames, template):
    try:
        value = _resolve(section.tag, scope, frames, template)
    except (BadPath, EmptyData):
        value = None
    if section.inverted:
        return _render_nodes(section.body, scope, frames, template) if _is_falsy(value) else []
    if _is_falsy(value):
        return []
    if isinstance(value, list):
        pieces = []
        for index, item in enumerate(value):
            frame = _Frame(item, index, len(value))
            pieces += _render_nodes(section.body, scope, (*frames, frame), template)
        return pieces
    return _render_nodes(section.body, scope, (*frames, _Frame(value)), template)


def _is_falsy(value):
    # Compared by identity and type: 0 and {} count as there.
    return value is None or value is False or (isinstance(value, (list, str)) and not value)


def _value_of(tag, scope, frames, template):
    if not tag.optional:
        return _resolve(tag, scope, frames, template)
    try:
        return _resolve(tag, scope, frames, template)
    except (BadPath, EmptyData):
        return None


def _resolve(tag, scope, frames, template):
    """Return what a tag refers to: a field of an open section's item, innermost first, else a root."""
    if tag.word:
        return _loop_value(tag, frames, template)
    for frame in reversed(frames):
        if isinstance(frame.item, dict) and tag.root in frame.item:
            try:
                return _walk(frame.item[tag.root], tag, template)
            except TemplateError:
                continue  # an outer item or a root may have the whole path
    if tag.root in scope:
        return _walk(scope[tag.root], tag, template)
    if frames:
        return None
    available = sorted(map(str, scope))
    message = f"{_quote(template)}: {tag.root!r} is not known here; known: {listed(available)}"
    raise MissingStep(message, template=template, path=tag.text, available=available[:SHOWN_NAMES])


def _loop_value(tag, frames, template):
    if tag.word == ".":
        return frames[-1].item if frames else _outside(tag, template)
    frame = next((frame for frame in reversed(frames) if frame.index is not None), None)
    if frame is None:
        return _outside(tag, template)
    return {"@index": frame.index, "@first": frame.index == 0, "@last": frame.index == frame.count - 1}[tag.word]


def _outside(tag, template):
    raise TemplateSyntax(f"{_quote(template)}: {tag.word!r} is used outside a section over an array", template=template)


def _walk(value, tag, template):
    """Follow the path of a tag from the value of its root."""
    for position, segment in enumerate(tag.path):
        if isinstance(value, dict) and isinstance(segment, str) and segment in value:
            value = value[segment]
        elif isinstance(value, list) and isinstance(segment, int) and segment < len(value):
            value = value[segment]
        elif segment is LENGTH and isinstance(value, (list, str)) and position == len(tag.path) - 1:
            value = len(value)
        else:
            raise _lost(value, tag, position, template)
    return value


def _lost(value, tag, position, template):
    """Return the error for a path that cannot be followed at `position`."""
    segment = tag.path[position]
    place = ".".join([tag.root, *map(str, tag.path[:position])])
    available = sorted(value)[:SHOWN_NAMES] if isinstance(value, dict) else []
    kind = BadPath
    if value is None:
        kind, reason = EmptyData, f"{place} is null, so it has no {segment}"
    elif segment is LENGTH and isinstance(value, (list, str)):
        reason = f"length must be the last part of the path, after {place}"
    elif segment is LENGTH:
        reason = f"{place} is {type_name(value)}, and only arrays and strings have a length"
        if isinstance(value, dict) and "length" in value:
            reason += f'; for the key of that name write {place}."length"'
    elif isinstance(value, dict):
        reason = f"{place} has no key {str(segment)!r}; it has {listed(sorted(value))}"
        if isinstance(segment, int) and str(segment) in value:
            reason = f'{place} is an object; for the key of that name write {place}."{segment}"'
    elif isinstance(value, list) and isinstance(segment, int):
        kind, reason = EmptyData, f"{place} has {len(value)} items, so it has no item {segment}"
    elif isinstance(value, list):
        reason = f"{place} is an array, so it has no key {segment!r}; write an index, or a section"
    else:
        reason = f"{place} is {type_name(value)}, so it has no {segment!r}"
    return kind(f"{_quote(template)}: {reason}", template=template, path=tag.text, available=available)


def _quote(template):
    return json.dumps(shorten(template, SHOWN_TEMPLATE), ensure_ascii=False)


# Parsing -----------------------------------------------------------------------------------------------------------


def _tags(text):
    """Yield (start, end, inner) of every tag; inner is None for four literal braces.

    A tag that is never closed is yielded last, with an end of -1.
    """
    position = text.find("{{")
    while position >= 0:
        if text.startswith("{{", position + 2):
            yield position, position + 4, None
            position = text.find("{{", position + 4)
            continue
        close = _tag_close(text, position + 2)
        if close < 0:
            yield position, -1, text[position + 2 :]
            return
        yield position, close + 2, text[position + 2 : close]
        position = text.find("{{", close + 2)


def _tag_close(text, position):
    """Return where the tag that starts at `position` meets its closing braces, or -1. Quoted keys may contain them."""
    close = text.find("}}", position)
    if close < 0 or text.find('"', position, close) < 0:
        return close
    starts_segment = True
    while position < len(text):
        if text.startswith("}}", position):
            return position
        quoted = _QUOTED.match(text, position) if starts_segment else None
        if quoted:
            position, starts_segment = quoted.end(), False
            continue
        character = text[position]
        starts_segment = character == "." or (starts_segment and (character.isspace() or character in "#^/"))
        position += 1
    return -1


@functools.lru_cache(maxsize=4096)
def _parse(text):
    """Return the nodes of a template. TemplateSyntax. Callers must not change the list: it is cached."""
    nodes, position = [], 0
    open_sections = []  # (tag, inverted, nodes around it)
    for start, end, inner in _tags(text):
        if start > position:
            nodes.append(text[position:start])
        position = end
        if inner is None:
            nodes.append("{{")
            continue
        if end < 0:
            raise _syntax(text, start, "'{{' is never closed; for two literal braces write '{{{{'")
        sigil, rest = _split(inner)
        if sigil == "/":
            nodes = _close_section(text, start, rest, open_sections, nodes)
            continue
        tag = _parse_path(text, start, rest, bool(open_sections))
        if not sigil:
            nodes.append(tag)
            continue
        if len(open_sections) >= MAX_SECTIONS:
            raise _syntax(text, start, f"sections are nested deeper than {MAX_SECTIONS} levels")
        open_sections.append((tag, sigil == "^", nodes))
        nodes = []
    if open_sections:
        raise _syntax(text, len(text), f"the section {{{{#{open_sections[-1][0].text}}}}} is never closed")
    if 0 <= position < len(text):
        nodes.append(text[position:])
    return nodes


def _close_section(text, start, name, open_sections, body):
    """Put a finished section among the nodes around it and return those."""
    if not open_sections:
        raise _syntax(text, start, f"{{{{/{name}}}}} closes a section that was never opened")
    tag, inverted, nodes = open_sections.pop()
    if tag.text != name:
        raise _syntax(text, start, f"{{{{/{name}}}}} closes the section {tag.text!r}; the names must be equal")
    nodes.append(_Section(tag, inverted, body))
    return nodes


def _split(inner):
    """Return (sigil, path text) of a tag; the sigil is "#", "^", "/" or ""."""
    inner = inner.strip()
    return (inner[0], inner[1:].strip()) if inner.startswith(("#", "^", "/")) else ("", inner)


def _parse_path(text, start, path, in_section):
    if not path:
        raise _syntax(text, start, "the tag is empty")
    if path[0] in _UNSUPPORTED:
        raise _syntax(text, start, f"tags that start with {path[0]!r} are not supported")
    if path == "." or path in _LOOP_WORDS:
        if not in_section:
            raise _syntax(text, start, f"{path!r} is used outside a section")
        return _Tag(path, word=path)
    segments, optional = _segments(text, start, path)
    if not isinstance(segments[0], str):
        raise _syntax(text, start, f"a reference starts with a name, not with {segments[0]!r}")
    return _Tag(path, segments[0], tuple(segments[1:]), optional)


def _segments(text, start, path):
    """Return (segments, is optional) of a path."""
    segments, position = [], 0
    while True:
        segment, position = _segment(text, start, path, position)
        segments.append(segment)
        rest = path[position:].lstrip()
        if rest in ("", "?"):
            return segments, rest == "?"
        if rest[0] != ".":
            raise _syntax(text, start, f"{path!r}: after a quoted key comes a dot or the end")
        position = len(path) - len(rest) + 1


def _segment(text, start, path, position):
    """Return (segment, position behind it). Spaces around a segment do not count, those inside it do."""
    position += len(path[position:]) - len(path[position:].lstrip())
    quoted = _QUOTED.match(path, position)
    if quoted:
        try:
            return json.loads(quoted[0], strict=False), quoted.end()
        except ValueError:
            raise _syntax(text, start, f"{quoted[0]} is not a well-formed quoted key") from None
    end = path.find(".", position)
    end = len(path) if end < 0 else end
    name = path[position:end].rstrip()
    if end == len(path) and name.endswith("?"):
        name = name[:-1].rstrip()
        end = len(path) - 1
    if not name:
        raise _syntax(text, start, f"{path!r} has a stray dot")
    if name.startswith("@"):
        raise _syntax(text, start, f"{name!r} cannot be part of a path")
    if any(character in name for character in '{}"?'):
        raise _syntax(text, start, f"the key {name!r} has to be quoted: {json.dumps(name, ensure_ascii=False)}")
    if name == "length":
        return LENGTH, end
    if name.isascii() and name.isdigit():
        # More digits than any array has items; int() itself refuses above 4,300.
        return int(name[:18]), end
    return name, end


def _syntax(text, position, reason):
    message = f"{_quote(text)}: {reason} (character {position + 1})"
    return TemplateSyntax(message, template=text)


# Looking at templates without rendering them -----------------------------------------------------------------------


def has_template(value):
    """Say whether any string inside a JSON value has a tag."""
    return bool(_tagged(value, (), []))


def references(value, pointer=""):
    """Return the References of every string inside a JSON value, in the order in which they stand there.

    pointer: where the value stands. Strings that do not parse give none: syntax_problems tells about those.
    """
    found = []
    for place, text in _tagged(value, (), []):
        with contextlib.suppress(TemplateSyntax):
            _collect(_parse(text), pointer + pointer_of(*place), False, found)
    return found


def _collect(nodes, pointer, in_section, found):
    for node in nodes:
        if isinstance(node, str):
            continue
        section = isinstance(node, _Section)
        tag = node.tag if section else node
        if not tag.word:
            found.append(Reference(tag.root, tag.path, pointer, tag.optional or section, in_section))
        if section:
            # The body of an inverted section has no item.
            _collect(node.body, pointer, in_section or not node.inverted, found)


def roots(value):
    """Return the first names a value's templates refer to, each once, in order; names that may be item fields too."""
    return list(dict.fromkeys(reference.root for reference in references(value)))


def syntax_problems(value, pointer=""):
    """Return one Problem (template_parse) per string inside a JSON value that is no well-formed template."""
    problems = []
    for place, text in _tagged(value, (), []):
        try:
            _parse(text)
        except TemplateSyntax as error:
            where = pointer + pointer_of(*place)
            problems.append(Problem(where, "template_parse", f"the template {error.message}"))
    return problems


def _tagged(value, place, found):
    """Add (place, text) of every string inside a JSON value that has a tag to `found`, and return it.

    place: the keys and indexes that lead to the value; a pointer is made of them only where one is asked for. Keys are
    no templates.
    """
    if isinstance(value, str):
        if "{{" in value:
            found.append((place, value))
    elif isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            _tagged(item, (*place, key), found)
    return found


def rename(value, old, new):
    """Return a JSON value whose templates refer to `new` where they referred to the root `old`.

    Only a whole first name matches. Inside a section a tag of that one name alone is taken for a field of the item
    and stays. A tag that changes loses the spaces inside its braces; everything else stays byte for byte.
    """
    if isinstance(value, str):
        return _rename_text(value, old, new) if "{{" in value else value
    if isinstance(value, dict):
        return {key: rename(item, old, new) for key, item in value.items()}
    if isinstance(value, list):
        return [rename(item, old, new) for item in value]
    return value


def _rename_text(text, old, new):
    pieces, position, depth = [], 0, 0
    for start, end, inner in _tags(text):
        if end < 0:
            break
        if inner is None:
            continue
        sigil, path = _split(inner)
        depth -= sigil == "/"  # a closing tag counts at the depth of its opening one
        root, rest = _first_name(path)
        if root == old and (depth <= 0 or rest.startswith(".")):
            pieces += [text[position:start], "{{", sigil, new, rest, "}}"]
            position = end
        depth += sigil in ("#", "^")
    return "".join([*pieces, text[position:]])


def _first_name(path):
    """Return (first name, what follows it) of a path's text."""
    quoted = _QUOTED.match(path)
    if quoted:
        try:
            return json.loads(quoted[0], strict=False), path[quoted.end() :].lstrip()
        except ValueError:
            return "", path
    name = re.match(r"[^.?]*", path)[0]
    return name.strip(), path[len(name) :]
