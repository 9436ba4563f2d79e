"""A server whose ways of living and dying are chosen by flags; it holds a lifeline (a FIFO) while it lives.

--lifeline PATH   open PATH for writing and tell it "alive PID", "eof", "got SIGTERM", "answered"
--deaf            ignore the end of stdin            --ignore NAME   ignore that signal (several times)
--exit-on-term N  exit with N on SIGTERM             --exit N        exit code at the end of stdin (default 0)
--grandchild      start a deaf copy of itself that shares stdout, "--ignore"s the same and lives on its own
--setsid          ... in a session of its own        --leave         exit at once, leaving the grandchild
--close-stdout    close descriptor 1 after the first line    --close-stderr   close descriptor 2 at the start
--stop            stop itself (SIGSTOP) at the start
--talk            write a line to stdout again and again after the first line of stdin
Every line of stdin is answered by {"jsonrpc":"2.0","id":N,"result":{}} with N = 1, 2, ...
"""

import argparse
import os
import signal
import subprocess
import sys

parser = argparse.ArgumentParser()
parser.add_argument("--lifeline")
parser.add_argument("--ignore", action="append", default=[])
for name in ("--exit", "--exit-on-term"):
    parser.add_argument(name, type=int)
for name in ("--deaf", "--grandchild", "--setsid", "--leave", "--close-stdout", "--close-stderr", "--stop", "--talk"):
    parser.add_argument(name, action="store_true")
options = parser.parse_args()
line = os.open(options.lifeline, os.O_WRONLY) if options.lifeline else os.open(os.devnull, os.O_WRONLY)


def tell(word):
    os.write(line, (word + "\n").encode())


def on_signal(number, frame):
    name = signal.Signals(number).name
    tell("got " + name)
    if name not in options.ignore:
        if number == signal.SIGTERM and options.exit_on_term is not None:
            os._exit(options.exit_on_term)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def wait_for_ever():
    while True:
        signal.pause()


for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(each, on_signal)
if options.grandchild:
    flags = [flag for name in options.ignore for flag in ("--ignore", name)]
    subprocess.Popen([sys.executable, "-I", "-S", os.path.abspath(__file__), "--deaf", "--lifeline", options.lifeline]
                     + flags, stdin=subprocess.DEVNULL, start_new_session=options.setsid)
    with open(options.lifeline + ".ready", "rb") as ready:  # a FIFO of the test: go on when it says so
        ready.read(1)
if options.close_stderr:
    os.close(2)
tell("alive %d" % os.getpid())
if options.leave:
    os._exit(options.exit or 0)
if options.stop:
    os.kill(os.getpid(), signal.SIGSTOP)
count = 0
pending = b""
while True:
    chunk = os.read(0, 65536)
    if not chunk:
        break
    pending += chunk
    while b"\n" in pending:
        _, pending = pending.split(b"\n", 1)
        count += 1
        if options.close_stdout and count == 2:
            os.close(1)
            tell("closed stdout")
            wait_for_ever()
        try:
            os.write(1, b'{"jsonrpc":"2.0","id":%d,"result":{}}\n' % count)
            while options.talk:
                os.write(1, b'{"jsonrpc":"2.0","method":"notifications/message"}\n')
        except BrokenPipeError:
            tell("stdout is gone")
            if not options.deaf:
                raise SystemExit(1)
            break
        tell("answered")
tell("eof")
if options.deaf:
    wait_for_ever()
sys.exit(options.exit or 0)
