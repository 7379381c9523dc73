# SPDX-License-Identifier: Apache-2.0
"""A thread that makes calls in the order in which they were submitted.

A step that the garbage collector destroys submits copies that bring its bytes back. The collector may run at any
allocation, also inside submit() of another step. concurrent.futures holds locks there that the same thread cannot take
again, so that the second submit() would never return. Here submit() holds no lock: SimpleQueue.put() may be called in
a destructor.
"""
import atexit
import os
import queue
import threading
from concurrent.futures import Future


class Worker:
    """One thread. When the interpreter ends, it makes the calls that were submitted; later ones are made at once."""

    def __init__(self):
        self._calls, self._is_ended = queue.SimpleQueue(), False
        self._thread = threading.Thread(target=self._run, name="lade", daemon=True)
        self._thread.start()
        atexit.register(self._end)

    def submit(self, call, *args):
        """Make the call after those submitted before; return its Future. Any thread, destructors too."""
        future = Future()
        if self._is_ended:
            _make(future, call, args)
        else:
            self._calls.put((future, call, args))
        return future

    def _run(self):
        while (item := self._calls.get()) is not None:
            _make(*item)
            del item  # its tensors are not held until the next call

    def _end(self):
        self._is_ended = True
        self._calls.put(None)
        self._thread.join()


def is_own_thread():
    """True in a thread of this file, which waits for no call of its own: the collector may run a destructor there."""
    return any(worker._thread is threading.current_thread() for worker in list(_WORKERS.values()))


# A thread for each use and process. They outlive their users, because a step that is collected still brings bytes back. A
# thread of the step would be collected with it, and would have ended.
_WORKERS = {}


def submit(use, call, *args):
    """Make the call in this process's thread for @use, after the calls before it; return its Future."""
    key = use, os.getpid()  # a forked process has no threads of its parent
    worker = _WORKERS.get(key)
    if worker is None:  # two threads, or a destructor inside of Worker(), may come here at once: one worker serves both
        worker = _WORKERS.setdefault(key, Worker())
    return worker.submit(call, *args)


def _make(future, call, args):
    """Call, and give the result or the fault to the future."""
    try:
        future.set_result(call(*args))
    except BaseException as fault:  # result() raises it
        future.set_exception(fault)
