# SPDX-License-Identifier: Apache-2.0
"""Copies between locked host memory and a CUDA device, by the driver's own functions.

A step has hundreds of copies, each with events that order it after and before the ops. Through torch's tensors, streams
and events one copy costs 100 us of Python, through the driver 10. All steps of a process share two streams, one for copies
to the device and one for copies to the host, in the primary context, which is torch's. An event goes back to a pool when
its last user drops it: a stream's wait for it is in the stream by then.
"""
import ctypes as c
import errno
import functools

from ...errors import Error

_NO_TIMING, _NON_BLOCKING, _NOT_READY = 2, 1, 600
_POINTER = c.c_void_p
_FUNCTIONS = {"cuInit": [c.c_uint], "cuDeviceGet": [c.POINTER(c.c_int), c.c_int],
              "cuDevicePrimaryCtxRetain": [c.POINTER(_POINTER), c.c_int], "cuCtxPushCurrent_v2": [_POINTER],
              "cuCtxPopCurrent_v2": [c.POINTER(_POINTER)], "cuStreamCreate": [c.POINTER(_POINTER), c.c_uint],
              "cuStreamWaitEvent": [_POINTER, _POINTER, c.c_uint], "cuEventCreate": [c.POINTER(_POINTER), c.c_uint],
              "cuEventRecord": [_POINTER, _POINTER], "cuEventQuery": [_POINTER], "cuEventSynchronize": [_POINTER],
              "cuMemcpyAsync": [c.c_uint64, c.c_uint64, c.c_size_t, _POINTER],
              "cuMemHostRegister_v2": [_POINTER, c.c_size_t, c.c_uint], "cuMemHostUnregister": [_POINTER]}


def _checked(name, code):
    """Return a driver's code, if it is no failure."""
    if code not in (0, _NOT_READY):
        raise Error(f"{name} failed (CUDA error {code})", -errno.EIO)
    return code


@functools.lru_cache(maxsize=None)
def _driver():
    """Return the driver's library, whose functions raise Error."""
    library = c.CDLL("libcuda.so.1")
    for name, types in _FUNCTIONS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = types, functools.partial(_checked, name)
    library.cuInit(0)
    return library


@functools.lru_cache(maxsize=None)
def copies_of(index):
    """Return the copies of the device with this number."""
    return Copies(index)


class Copies:
    """The two streams of a device, and its idle events. Any thread."""

    def __init__(self, index):
        self.driver, self.idle = _driver(), []
        device, self.context = c.c_int(), _POINTER()
        self.driver.cuDeviceGet(c.byref(device), index)
        self.driver.cuDevicePrimaryCtxRetain(c.byref(self.context), device)  # for the rest of the process
        self.streams = _POINTER(), _POINTER()  # in, out
        with self:
            for stream in self.streams:
                self.driver.cuStreamCreate(c.byref(stream), _NON_BLOCKING)

    def __enter__(self):
        """Make the device's context this thread's."""
        self.driver.cuCtxPushCurrent_v2(self.context)
        return self

    def __exit__(self, *_fault):
        self.driver.cuCtxPopCurrent_v2(c.byref(_POINTER()))

    def record(self, stream):
        """Return an event after the work that is in a stream now. pre: within the context."""
        try:
            handle = self.idle.pop()
        except IndexError:
            handle = _POINTER()
            self.driver.cuEventCreate(c.byref(handle), _NO_TIMING)
        event = Event(self, handle)
        self.driver.cuEventRecord(handle, stream)
        return event

    def begin(self, to, source, n_bytes, is_out, after):
        """Begin a copy after the events @after; return its event. pre: within the context."""
        stream = self.streams[is_out]
        for event in after:
            self.driver.cuStreamWaitEvent(stream, event.handle, 0)
        self.driver.cuMemcpyAsync(to, source, n_bytes, stream)
        return self.record(stream)

    def lock(self, address, n_bytes):
        """Lock pages of the host in memory: only then does a copy run beside kernels."""
        with self:
            self.driver.cuMemHostRegister_v2(address, n_bytes, 0)

    def unlock(self, address):
        with self:
            self.driver.cuMemHostUnregister(address)


class Event:
    """A point in a stream."""
    __slots__ = ("copies", "handle")

    def __init__(self, copies, handle):
        self.copies, self.handle = copies, handle

    def hold(self, stream):
        """Let later work of a stream wait for the event; the host does not wait."""
        with self.copies as copies:
            copies.driver.cuStreamWaitEvent(stream, self.handle, 0)

    def is_done(self):
        with self.copies as copies:
            return copies.driver.cuEventQuery(self.handle) == 0

    def wait(self):
        """Block until the event has happened."""
        with self.copies as copies:
            copies.driver.cuEventSynchronize(self.handle)

    def __del__(self):
        self.copies.idle.append(self.handle)
