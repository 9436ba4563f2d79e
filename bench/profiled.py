"""A relay with a profiler in each of its threads, for `bench/attached.py --profile`.

    python3 bench/profiled.py REPORT RELAY [ARG...]

Writes two tables to the file REPORT when the relay ends: CPU seconds by thread, and the functions that took most
themselves. The clock is the thread's CPU time, so that waiting costs nothing; the profiler makes small functions look
dearer than they are. The main thread, which starts up and waits, is left out. Not from Python 3.12 on, where a process
can have only one profiler.
"""
import cProfile
import os
import pstats
import runpy
import sys
import threading
import time

TOP = 25
profiles = []
run_thread = threading.Thread.run
end_process = os._exit


def run_profiled(thread):
    profile = cProfile.Profile(time.thread_time)
    profiles.append((thread, profile))
    profile.runcall(run_thread, thread)


def report(file):
    stats = pstats.Stats(stream=file)
    for thread, profile in profiles:
        thread.join(0.5)
        if thread.is_alive():  # what it is in cannot be timed from here: the clock is each thread's own
            print("       ? s  %s, which has not ended" % thread.name, file=file)
            continue
        of_thread = pstats.Stats(profile)
        stats.add(of_thread)
        print("%8.3f s  %s" % (of_thread.total_tt, thread.name), file=file)
    stats.strip_dirs().sort_stats("tottime").print_stats(TOP)


def end(code):
    with open(target, "w") as file:
        report(file)
    end_process(code)


target, sys.argv = sys.argv[1], sys.argv[2:]
threading.Thread.run = run_profiled
os._exit = end
runpy.run_path(sys.argv[0], run_name="__main__")
