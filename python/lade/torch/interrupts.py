# SPDX-License-Identifier: Apache-2.0
"""What a running step keeps away: Ctrl-C, and autocast."""
import contextlib
import signal
import threading

import torch


class Interrupts:
    """Within this context Ctrl-C waits; deliver() lets it act."""

    def __enter__(self):
        self.waiting, self.held = [], None
        if threading.current_thread() is threading.main_thread():
            self.held = signal.getsignal(signal.SIGINT)
        if self.held is not None:
            signal.signal(signal.SIGINT, lambda *args: self.waiting.append(args))
        return self

    def __exit__(self, *fault):
        if self.held is not None:
            signal.signal(signal.SIGINT, self.held)

    def deliver(self):
        if self.waiting and callable(self.held):
            self.held(*self.waiting[0])


@contextlib.contextmanager
def without_autocast():
    with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        yield
