"""Run a command and keep a copy of every byte on its three pipes: python tee.py FOLDER -- COMMAND ARG...

Each start makes a folder of its own in FOLDER with the files stdin, stdout and stderr, so that a client which starts
its server twice leaves two recordings. Bytes are written on before they are kept. Exits with the command's code.
"""
import os
import subprocess
import sys
import tempfile
import threading


def copy(source, target, record, close=False):
    """Pass bytes from one descriptor on to another until the source ends or the target is gone."""
    with open(record, "wb") as kept:
        while True:
            chunk = os.read(source, 65536)
            if not chunk:
                break
            kept.write(chunk)
            kept.flush()
            try:
                view = memoryview(chunk)
                while view:
                    view = view[os.write(target, view):]
            except BrokenPipeError:
                break
    if close:
        os.close(target)


def main(folder, command):
    folder = tempfile.mkdtemp(dir=folder)
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
    paths = [os.path.join(folder, name) for name in ("stdin", "stdout", "stderr")]
    # The descriptor is copied, so that closing it here never meets subprocess closing the same number.
    lanes = [threading.Thread(target=copy, args=(0, os.dup(child.stdin.fileno()), paths[0], True), daemon=True),
             threading.Thread(target=copy, args=(child.stdout.fileno(), 1, paths[1])),
             threading.Thread(target=copy, args=(child.stderr.fileno(), 2, paths[2]))]
    child.stdin.close()
    for lane in lanes:
        lane.start()
    for lane in lanes[1:]:
        lane.join()
    return child.wait()


if __name__ == "__main__":
    # The daemon thread may be inside a read of our stdin, which never ends while the client lives.
    status = main(sys.argv[1], sys.argv[3:])
    os._exit(status if status >= 0 else 128 - status)
