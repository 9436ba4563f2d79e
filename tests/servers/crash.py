"""Fails to start: writes N numbered lines to stderr and exits before answering anything.

crash.py LINES CODE [--read] [--last TEXT] [--stdout FILE] [--signal N]
--read waits for the first line of stdin first; --stdout writes FILE to stdout before failing.
"""

import argparse
import os
import sys

parser = argparse.ArgumentParser()
parser.add_argument("lines", type=int)
parser.add_argument("code", type=int)
parser.add_argument("--read", action="store_true")
parser.add_argument("--last", default="")
parser.add_argument("--stdout")
parser.add_argument("--signal", type=int, default=0)
options = parser.parse_args()

if options.read:
    while b"\n" not in os.read(0, 1):
        pass
if options.stdout:
    with open(options.stdout, "rb") as source:
        os.write(1, source.read())
for number in range(1, options.lines + 1):
    sys.stderr.write("crash-server: line %d of %d\n" % (number, options.lines))
sys.stderr.write(options.last)
sys.stderr.flush()
if options.signal:
    os.kill(os.getpid(), options.signal)
sys.exit(options.code)
