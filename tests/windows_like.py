"""Run mcp_relay.py with the platform differences of Windows injected: `python windows_like.py RELAY_FILE ARGUMENT...`

What is missing there is missing here: poll, select on anything but sockets, set_blocking, process groups, fork-related
calls, most signals. What behaves otherwise does so: creationflags are accepted, taskkill ends a process tree.
"""

import errno
import os
import select
import signal
import stat
import subprocess
import sys

relay_file, arguments = sys.argv[1], sys.argv[2:]
sys.argv = [relay_file] + arguments
real_select, real_popen, kill = select.select, subprocess.Popen, os.kill


def sockets_only(readers, writers, others, *timeout):
    for each in [*readers, *writers, *others]:
        number = each if isinstance(each, int) else each.fileno()
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            raise OSError(errno.ENOTSOCK, "select knows sockets alone here")
    return real_select(readers, writers, others, *timeout)


class Popen(real_popen):
    """Accepts creationflags, refuses what Windows refuses."""

    def __init__(self, command, **keywords):
        keywords.pop("creationflags", None)
        assert not keywords.get("start_new_session") and not keywords.get("preexec_fn")
        super().__init__(command, **keywords)

    def send_signal(self, number):
        if number != signal.SIGTERM:
            raise ValueError("Unsupported signal: %s" % number)
        kill(self.pid, signal.SIGKILL)  # TerminateProcess


def call(command, **keywords):
    assert command[0] == "taskkill" and "/PID" in command, command
    kill(int(command[command.index("/PID") + 1]), signal.SIGKILL)
    return 0


def absent(*arguments, **keywords):
    raise AttributeError("not on Windows")


select.select = sockets_only
subprocess.Popen, subprocess.call = Popen, call
os.kill = absent
MISSING = {select: ["poll"], os: ["set_blocking", "getsid", "getpgid", "killpg", "setsid", "fork", "waitid", "wait4"],
           signal: ["SIGHUP", "SIGPIPE", "SIGUSR1"]}
for module, names in MISSING.items():
    for name in names:
        delattr(module, name)

with open(relay_file, encoding="utf-8") as source:
    text = source.read()
text = text.replace('WINDOWS = os.name == "nt"\n', "WINDOWS = True\n", 1)
assert "WINDOWS = True\n" in text
module = {"__name__": "__main__", "__file__": relay_file}
sys.exit(exec(compile(text, relay_file, "exec"), module))
