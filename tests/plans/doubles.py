"""Small stand-ins and waits that several test files share."""

import os
import select

#: Seconds until a wait gives up; running into it is a failure.
LIMIT_S = 40


class Model:
    """Stands for models.Models: notes what it is asked, says "an answer" or gives {"n": 1}."""

    def __init__(self, *names):
        self.asked, self._names = [], frozenset(names)

    def names(self):
        return self._names

    def complete(self, name, **asked):
        self.asked.append((name, asked))
        return type("Reply", (), {"text": "an answer"})

    def structured(self, name, **asked):
        self.asked.append((name, asked))
        return {"n": 1}


def wait_for_end(pid):
    """Wait until a process that is no child of ours has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended, _, _ = select.select([descriptor], [], [], LIMIT_S)
    os.close(descriptor)
    assert ended, f"process {pid} is still alive"
