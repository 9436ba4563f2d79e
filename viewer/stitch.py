#!/usr/bin/env python3
"""Put viewer/viewer.html into mcp_relay.py, so that the one file carries its page.

    python3 viewer/stitch.py            write the page between the markers of mcp_relay.py
    python3 viewer/stitch.py --check    only say whether they agree; exit 1 when they do not

The page is edited as viewer.html (`mcp_relay.py serve --page viewer/viewer.html` serves it while you edit). Writing
twice changes nothing. A page that would not survive inside a raw string is refused, with the reason.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PAGE = os.path.join(HERE, "viewer.html")
RELAY = os.path.join(os.path.dirname(HERE), "mcp_relay.py")

BEGIN = "# >>> viewer/viewer.html, put here by: python3 viewer/stitch.py\n"
END = "# <<< viewer/viewer.html\n"
QUOTES = "'''"


class StitchError(ValueError):
    """The page or the relay file is not in a state to be stitched; the text says which and what to do."""


def literal(page):
    """The statement that holds `page` (str): `VIEWER_HTML = r'''…'''` and a newline.

    Raises StitchError for a page that a raw string of three single quotes cannot hold as it is.
    """
    for text, name in ((QUOTES, "three single quotes"), ("\r", "a carriage return"), (END.strip(), "the end marker")):
        if text in page:
            line = page[:page.index(text)].count("\n") + 1
            raise StitchError("viewer.html, line %d: %s cannot stand in the page; remove it" % (line, name))
    if page.endswith(("\\", "'", '"')):
        raise StitchError("viewer.html must not end with a backslash or a quote; end it with a line break")
    return "VIEWER_HTML = r" + QUOTES + page + QUOTES + "\n"


def stitched(source, page):
    """`source`, the text of mcp_relay.py, with `page` between its markers.

    Raises StitchError when each marker does not stand exactly once, in order, at the start of a line.
    """
    lines = ("\n" + source)
    if lines.count("\n" + BEGIN) != 1 or lines.count("\n" + END) != 1:
        raise StitchError("mcp_relay.py must hold each of these lines once:\n%s%s" % (BEGIN, END))
    before, rest = source.split(BEGIN)
    if END not in rest:
        raise StitchError("mcp_relay.py: the end marker stands before the begin marker")
    return before + BEGIN + literal(page) + END + rest.split(END)[1]


def read(path):
    """Text of a file, line ends as they are."""
    with open(path, encoding="utf-8", newline="") as file:
        return file.read()


def main(arguments):
    """Run the command; returns the exit code: 0 done or equal, 1 not equal or refused, 2 usage."""
    if arguments not in ([], ["--check"]):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    try:
        source = read(RELAY)
        result = stitched(source, read(PAGE))
    except (OSError, StitchError) as problem:
        print("stitch: %s" % problem, file=sys.stderr)
        return 1
    if result == source:
        return 0
    if arguments:
        print("mcp_relay.py does not hold viewer/viewer.html; run: python3 viewer/stitch.py", file=sys.stderr)
        return 1
    with open(RELAY, "w", encoding="utf-8", newline="") as file:
        file.write(result)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
