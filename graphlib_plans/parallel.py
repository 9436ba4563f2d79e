"""Functions on other threads, of which nothing is lost: neither a result nor whatever was raised."""

import threading

from .errors import StopRun


def result_of(function):
    """Return (result, None) or (None, whatever was raised): the outermost frame of a worker, so nothing is lost."""
    try:
        return function(), None
    except BaseException as error:
        return None, error


def in_parallel(function, items, limit, name):
    """Return [function(index, item), …] computed by this thread and limit - 1 others, which are called name.1, name.2 …

    After a failure nothing more is begun. Raises a StopRun if there was one, else the failure of the first item.
    """
    results = [None] * len(items)
    todo = enumerate(items)
    failures = []
    # Protects todo; held for one step of it.
    lock = threading.Lock()

    def work():
        while True:
            with lock:
                index, item = (None, None) if failures else next(todo, (None, None))
            if index is None:
                return
            results[index], error = result_of(lambda: function(index, item))
            if error is not None:
                failures.append((index, error))

    threads = [threading.Thread(target=work, name=f"{name}.{n}", daemon=True) for n in range(1, limit)]
    for thread in threads:
        thread.start()
    work()
    for thread in threads:
        thread.join()
    if failures:
        raise min(failures, key=lambda failure: (not isinstance(failure[1], StopRun), failure[0]))[1]
    return results
