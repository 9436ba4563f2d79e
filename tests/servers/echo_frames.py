"""Returns every frame as it came; with --log FILE, appends it there too. Other arguments are ignored."""

import os
import sys

log = open(sys.argv[sys.argv.index("--log") + 1], "ab", 0) if "--log" in sys.argv else None
for line in iter(sys.stdin.buffer.readline, b""):
    if log:
        log.write(line)
    while line:
        line = line[os.write(1, line):]
