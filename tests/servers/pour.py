"""Pours bytes into every pipe at once, each from a thread of its own.

--stdout FILE     write FILE to stdout        --chunk N     in writes of N bytes (default 65536)
--times N         that many times             --stderr N    write N bytes of numbered lines to stderr
--sink FILE       store all of stdin in FILE  --say WORD    write WORD to stderr before anything else
--after-eof       write to stdout only when stdin has ended
--answer TEXT     write TEXT to stdout when all of that is written
"""

import argparse
import os
import threading

parser = argparse.ArgumentParser()
for name in ("--stdout", "--sink", "--say", "--answer"):
    parser.add_argument(name)
for name, default in (("--chunk", 65536), ("--times", 1), ("--stderr", 0)):
    parser.add_argument(name, type=int, default=default)
parser.add_argument("--after-eof", action="store_true")
options = parser.parse_args()


def write_all(descriptor, data):
    while data:
        data = data[os.write(descriptor, data):]


def pour_stdout():
    if not options.stdout:
        return
    with open(options.stdout, "rb") as source:
        data = memoryview(source.read())
    for _ in range(options.times):
        for start in range(0, len(data), options.chunk):
            write_all(1, data[start:start + options.chunk])


def pour_stderr():
    written = 0
    while written < options.stderr:
        block = b"".join(b"stderr line %012d\n" % (written // 25 + n) for n in range(2000))
        write_all(2, block[:options.stderr - written])
        written += len(block)


def drain_stdin():
    sink = open(options.sink or os.devnull, "wb")
    with sink:
        while True:
            chunk = os.read(0, 65536)
            if not chunk:
                return
            sink.write(chunk)


if options.say:
    write_all(2, (options.say + "\n").encode())
if options.after_eof:
    drain_stdin()
else:
    threading.Thread(target=drain_stdin).start()  # the end waits for it
jobs = [threading.Thread(target=job) for job in (pour_stdout, pour_stderr)]
for job in jobs:
    job.start()
for job in jobs:
    job.join()
if options.answer:
    write_all(1, options.answer.encode())
