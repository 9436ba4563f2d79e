"""`python3 -m graphlib_plans`: the command line, once the interpreter is known to be new enough."""

import sys

if sys.version_info < (3, 11):
    sys.stderr.write("graph: needs Python 3.11 or newer (tomllib); this is %d.%d\n" % sys.version_info[:2])
    sys.exit(2)

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
