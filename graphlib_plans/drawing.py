"""The dependency graph of a plan as a drawing: text for terminals, SVG for everything else. Pure.

Both show the steps in levels: what stands in one level could run at the same time, once the levels above are done.
A step waits for others because it uses their results ("data") or only to keep the order of the file ("order").
"""

import re
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

from . import dependencies, templates
from .errors import shorten

#: Longest label in a drawing, in characters.
LABEL_MAX = 32
#: Boxes beside each other in a picture; a wider level goes on in the next line.
BOXES_PER_LINE = 6
# Sizes of the picture in pixels. A character of the 12 px monospace font is 7.3 px wide.
CHARACTER, BOX_HEIGHT, GAP, LINE_GAP, MARGIN = 7.3, 44, 24, 52, 20


@dataclass(frozen=True)
class Node:
    """One box: a step, or the finish. after: (id, "data" or "order") of the boxes it waits for, in file order."""

    id: str
    label: str
    after: tuple


def graph(plan, is_read_only):
    """Return the levels of a plan as lists of Nodes; the finish, if there is one, is a level of its own."""
    order = dependencies.order(plan, is_read_only)
    steps = {step.id: step for step in plan.steps}

    def node(step):
        used = {*templates.roots([step.input, step.on_error]), *step.after}
        after = [(other, "data" if other in used else "order") for other in steps if other in order[step.id]]
        return Node(step.id, step.tool, tuple(after))

    levels = [[node(steps[name]) for name in names] for names in dependencies.levels(plan, is_read_only)]
    if plan.finish != "silent":
        last = _finish_node(plan, list(steps), levels)
        levels.append([last])
    return levels


def _finish_node(plan, names, levels):
    """Return the box of the finish: it uses what its templates name, a solver without data uses every result."""
    document = plan.output if plan.finish == "output" else plan.solver
    used = set(templates.roots(document))
    if plan.finish == "solver" and not plan.solver.get("data"):
        used = set(names)
    waited = {other for level in levels for node in level for other, _ in node.after}
    after = [(name, "data" if name in used else "order") for name in names if name in used or name not in waited]
    return Node(plan.finish, "finish", tuple(after))


# Text --------------------------------------------------------------------------------------------------------------


def as_text(plan, is_read_only):
    """Return the graph as lines: level, step, tool, and behind an arrow what the step waits for.

    What stands in parentheses is waited for only to keep the order of the file.
    """
    levels = graph(plan, is_read_only)
    width = max(len(shorten(node.id, LABEL_MAX)) for level in levels for node in level)
    label_width = max(len(shorten(node.label, LABEL_MAX)) for level in levels for node in level)
    lines = []
    for number, level in enumerate(levels, 1):
        for index, node in enumerate(level):
            rail = "──" if len(level) == 1 else "┌─" if index == 0 else "└─" if index == len(level) - 1 else "├─"
            head = str(number) if index == 0 else ""
            name, label = shorten(node.id, LABEL_MAX), shorten(node.label, LABEL_MAX)
            waits = [other if kind == "data" else f"({other})" for other, kind in node.after]
            tail = f"  ← {', '.join(waits)}" if waits else ""
            lines.append(f"{head:>3} {rail} {name:<{width}}  {label:<{label_width}}{tail}".rstrip())
    return "\n".join(lines) + "\n"


# Picture -----------------------------------------------------------------------------------------------------------

_STYLE = """
  svg { background: #ffffff; font: 12px ui-monospace, Menlo, Consolas, monospace; }
  rect { fill: #f4f6f8; stroke: #5b6770; } rect.finish { fill: #e6f2ea; stroke: #2f7d4f; }
  text { fill: #1c2226; } text.tool { fill: #5b6770; }
  path.edge { fill: none; stroke: #5b6770; stroke-width: 1.3; } path.order { stroke-dasharray: 4 4; opacity: .6; }
  marker path { fill: #5b6770; }
  @media (prefers-color-scheme: dark) {
    svg { background: #14181b; } rect { fill: #1f262b; stroke: #8b98a2; }
    rect.finish { fill: #1b2e23; stroke: #63b984; }
    text { fill: #e8edf0; } text.tool { fill: #9fabb4; } path.edge { stroke: #8b98a2; } marker path { fill: #8b98a2; }
  }"""


def as_svg(plan, is_read_only):
    """Return the graph as the text of an SVG file; solid arrows are data, dashed ones are order alone."""
    levels = graph(plan, is_read_only)
    labels = [text for level in levels for node in level for text in (node.id, node.label)]
    box_width = round(max(len(shorten(label, LABEL_MAX)) for label in labels) * CHARACTER) + 2 * 14
    lines = [
        level[start : start + BOXES_PER_LINE] for level in levels for start in range(0, len(level), BOXES_PER_LINE)
    ]
    width = 2 * MARGIN + max(len(line) * (box_width + GAP) - GAP for line in lines)
    height = 2 * MARGIN + len(lines) * (BOX_HEIGHT + LINE_GAP) - LINE_GAP
    places = _places(lines, box_width, width)
    nodes = [node for line in lines for node in line]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        f" role=\"img\" aria-label={_attribute('Dependency graph of plan ' + plan.identifier)}>",
        f"<title>{_text(plan.name)}</title>",
        f"<style>{_STYLE}\n</style>",
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z"/></marker></defs>',
        *(_edge(places[other], places[node.id], kind) for node in nodes for other, kind in node.after),
        *(_box(node, places[node.id], node in levels[-1] and plan.finish != "silent") for node in nodes),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _places(lines, box_width, width):
    """Return node id → (left, top, width of its box); every line of boxes is centred."""
    places = {}
    for row, line in enumerate(lines):
        left = (width - (len(line) * (box_width + GAP) - GAP)) / 2
        for column, node in enumerate(line):
            places[node.id] = left + column * (box_width + GAP), MARGIN + row * (BOX_HEIGHT + LINE_GAP), box_width
    return places


def _edge(start, end, kind):
    x1, y1 = start[0] + start[2] / 2, start[1] + BOX_HEIGHT
    x2, y2 = end[0] + end[2] / 2, end[1]
    bend = LINE_GAP / 2
    line = f"M{x1:g} {y1:g} C{x1:g} {y1 + bend:g} {x2:g} {y2 - bend:g} {x2:g} {y2:g}"
    return f'<path class="edge {kind}" d="{line}" marker-end="url(#arrow)"/>'


def _box(node, place, is_finish):
    left, top, width = place
    kind = ' class="finish"' if is_finish else ""
    middle = left + width / 2
    return (
        f"<g><title>{_text(f'{node.id}: {node.label}')}</title>"
        f'<rect{kind} x="{left:g}" y="{top}" width="{width}" height="{BOX_HEIGHT}" rx="6"/>'
        f'<text x="{middle:g}" y="{top + 18}" text-anchor="middle">{_text(shorten(node.id, LABEL_MAX))}</text>'
        f'<text class="tool" x="{middle:g}" y="{top + 34}" text-anchor="middle">'
        f"{_text(shorten(node.label, LABEL_MAX))}</text></g>"
    )


#: What XML 1.0 does not allow in a document, not even escaped.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _text(text):
    return escape(_FORBIDDEN.sub("?", text))


def _attribute(text):
    return quoteattr(_FORBIDDEN.sub("?", text))
