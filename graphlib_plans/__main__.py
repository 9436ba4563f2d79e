"""`python3 -m graphlib_plans` and the console script: the command line, once Python is known to be new enough."""

import sys

if sys.version_info < (3, 11):
    sys.stderr.write("graph: needs Python 3.11 or newer (tomllib); this is %d.%d\n" % sys.version_info[:2])
    sys.exit(2)


def main():
    """Run the command line and return its exit code.

    `mcp serve` takes a way of its own: hosts wait for its first answer, and the command line loads everything.
    """
    rest = sys.argv[3:]
    if sys.argv[1:3] == ["mcp", "serve"] and (not rest or rest[0] == "--dir" and len(rest) == 2):
        from .mcp_server import serve

        return serve(rest[1] if rest else None)
    from .cli import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
