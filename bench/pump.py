"""The baseline of bench/relay.py: the least a stdio relay in Python can do, two threads and two descriptors each.

    python3 bench/pump.py COMMAND [ARG...]
"""
import os
import subprocess
import sys
import threading


def pump(source, target):
    while True:
        chunk = os.read(source, 65536)
        if not chunk:
            return os.close(target)
        view = memoryview(chunk)
        while view:
            view = view[os.write(target, view):]


child = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
to_child = os.dup(child.stdin.fileno())
child.stdin.close()
threading.Thread(target=pump, args=(0, to_child), daemon=True).start()
pump(child.stdout.fileno(), 1)
sys.exit(child.wait())
