# SPDX-License-Identifier: Apache-2.0
"""Bytes on drives, by name, checked when they come back: lade/store.h by ctypes.

    with lade.Store("/nvme", "8GiB") as store:
        request = store.submit_put("layer 3", array)   # the drive writes while the caller computes
        request.wait()
        store.get("layer 3", array)                    # every 64 KiB has a checksum

Data is any object with the buffer protocol whose bytes lie together (bytes, bytearray, a NumPy array, mmap), or a pair
(address, bytes). The store borrows it until the call, or the request's wait(), returns. A failure raises lade.Error with
the library's line; its code is the negative errno.
"""
import ctypes as c
import errno
import os
import threading

from .errors import Error
from .library import ErrorText, check, library
from .size import size_bytes

_PUT, _GET = range(2)


class _Params(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("dirs", c.c_char_p), ("budget_bytes", c.c_uint64),
                ("allow_tmpfs", c.c_bool), ("allow_buffered", c.c_bool), ("use_threads", c.c_bool),
                ("is_durable", c.c_bool), ("in_flight_bytes", c.c_uint64)]


class _Request(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("op", c.c_int), ("name", c.c_char_p), ("data", c.c_void_p),
                ("bytes", c.c_uint64), ("tensor_bytes", c.c_uint64), ("offset", c.c_uint64)]


class _Info(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("budget_bytes", c.c_uint64), ("used_bytes", c.c_uint64),
                ("n_tensors", c.c_uint64), ("read_bytes", c.c_uint64), ("written_bytes", c.c_uint64),
                ("n_dirs", c.c_uint32), ("n_aside", c.c_uint32), ("is_direct", c.c_bool), ("uses_io_uring", c.c_bool),
                ("is_durable", c.c_bool), ("n_published", c.c_uint64), ("held_bytes", c.c_uint64),
                ("in_flight_bytes", c.c_uint64), ("in_flight_peak_bytes", c.c_uint64)]


class _View(c.Structure):
    """Py_buffer."""
    _fields_ = [("buf", c.c_void_p), ("obj", c.c_void_p), ("len", c.c_ssize_t), ("itemsize", c.c_ssize_t),
                ("readonly", c.c_int), ("ndim", c.c_int), ("format", c.c_char_p), ("shape", c.c_void_p),
                ("strides", c.c_void_p), ("suboffsets", c.c_void_p), ("internal", c.c_void_p)]


class _Borrowed:
    """The address and the bytes of data, held until release().

    There is no __del__: the garbage collector could call it before Store.__del__, while the drive writes the data.
    """

    def __init__(self, data, is_written):
        self.view = None
        if isinstance(data, tuple):
            self.address, self.n_bytes = data
            return
        self.view = _View()
        c.pythonapi.PyObject_GetBuffer(c.py_object(data), c.byref(self.view), int(is_written))
        self.address, self.n_bytes = self.view.buf, self.view.len

    def release(self):
        if self.view is not None:
            c.pythonapi.PyBuffer_Release(c.byref(self.view))
            self.view = None


def _encoded(name):
    """Return the bytes of a name, also of one that names() returned."""
    encoded = name if isinstance(name, bytes) else name.encode(errors="surrogateescape")
    if b"\0" in encoded:
        raise Error(f"the name {name!r} has a zero byte", -errno.EINVAL)
    return encoded


class Request:
    """A put or a get that has begun. wait() ends it; the store holds its data until then. Any thread."""

    def __init__(self, store, ticket, data):
        self._store, self._ticket, self._data = store, ticket, data
        self._lock, self._ended, self._fault = threading.Lock(), threading.Event(), None

    def is_done(self):
        """True if wait() would not block."""
        with self._lock:  # wait() in another thread ends the ticket
            if self._ticket is None:
                return self._ended.is_set()
            return check(self._store._call("is_done", self._ticket), None, "is_done") == 1

    def wait(self):
        """Wait for the request. Error if it failed, in all threads that wait. A later call does nothing."""
        if self._ended.is_set():
            return
        ticket = None
        try:
            with self._lock:
                ticket, self._ticket = self._ticket, None
            if ticket is not None:
                error = ErrorText()
                self._store._requests.discard(self)
                check(self._store._call("wait", ticket, c.byref(error)), error, "wait")
        except BaseException as fault:  # an Error, or Ctrl-C, whose handler runs when the call has returned
            if ticket is not None:
                text = str(fault) if isinstance(fault, Error) else "the thread that waited for the request was interrupted"
                self._fault = text, getattr(fault, "code", -errno.EINTR)
            raise
        finally:
            if ticket is not None:
                self._data.release()
                self._ended.set()
        self._ended.wait()
        if self._fault is not None:
            raise Error(*self._fault)


class Store:
    """A store in one directory, or in a list of them on different drives.

    @budget: bytes for all tensors ("8GiB"), taken from the drive and written once when the store opens; 0 opens the
    durable store that exists in the directory, with its budget. @is_durable keeps published tensors. Without it
    all bytes are lost at close(). @in_flight bounds the bytes of requests that have begun. Any thread; close() alone.
    """

    def __init__(self, directory, budget=0, *, is_durable=False, in_flight=0, allow_tmpfs=False, allow_buffered=True,
                 use_threads=False):
        self._lib, self._store, self._requests = library(), c.c_void_p(), set()
        directories = [directory] if isinstance(directory, (str, bytes, os.PathLike)) else directory
        dirs = b",".join(os.fsencode(one).replace(b",", b",,") for one in directories)
        params = _Params(c.sizeof(_Params), dirs, size_bytes(budget), allow_tmpfs, allow_buffered, use_threads, is_durable,
                         size_bytes(in_flight))
        error = ErrorText()
        check(self._lib.lade_tensor_store_open(c.byref(params), c.byref(error), c.byref(self._store)), error, "open")

    def _call(self, name, *args):
        if not self._store:
            raise Error("the store is closed", -errno.EBADF)
        function = getattr(self._lib, "lade_tensor_store_" + name)
        return function(self._store, *args)

    def _checked(self, name, *args):
        error = ErrorText()
        return check(self._call(name, *args, c.byref(error)), error, name)

    def close(self):
        """Finish the requests that have begun, and close. A request that was given up is an Error in its wait()."""
        if self._store:
            store, self._store = self._store, c.c_void_p()
            self._lib.lade_tensor_store_close.argtypes = [c.c_void_p]
            self._lib.lade_tensor_store_close.restype = None
            self._lib.lade_tensor_store_close(store)
            while self._requests:
                self._requests.pop()._data.release()

    def __del__(self):
        if getattr(self, "_store", None):
            self.close()

    def __enter__(self):
        return self

    def __exit__(self, *fault):
        self.close()

    # transfers

    def put(self, name, data):
        """Store all of @data as @name, over an older tensor of that name. Blocks."""
        held = _Borrowed(data, False)
        try:
            self._checked("put", _encoded(name), c.c_void_p(held.address), c.c_uint64(held.n_bytes))
        finally:
            held.release()

    def get(self, name, out=None):
        """Read the tensor @name into @out, which has its size, or into a new bytearray; return it. Blocks."""
        if out is None:
            n_bytes = self.find(name)
            if n_bytes is None:
                raise Error(f"the store has no {name!r}", -errno.ENOENT)
            out = bytearray(n_bytes)
        held = _Borrowed(out, True)
        try:
            self._checked("get", _encoded(name), c.c_void_p(held.address), c.c_uint64(held.n_bytes))
        finally:
            held.release()
        return out

    def submit_put(self, name, data, *, offset=0, tensor_bytes=0):
        """Begin to store @data as @name; return the Request. With @tensor_bytes, the size of the whole tensor, @data is
        the part at @offset, a multiple of 65536. So is its size unless it ends the tensor."""
        return self._submit(_PUT, name, data, offset, tensor_bytes)

    def submit_get(self, name, out, *, offset=0, tensor_bytes=0):
        """Begin to read @name, or the part of it at @offset, into @out; return the Request."""
        return self._submit(_GET, name, out, offset, tensor_bytes)

    def _submit(self, op, name, data, offset, tensor_bytes):
        held = _Borrowed(data, op == _GET)
        ticket, error = c.c_void_p(), ErrorText()
        try:
            request = _Request(c.sizeof(_Request), op, _encoded(name), held.address, held.n_bytes, tensor_bytes, offset)
            check(self._call("submit", c.byref(request), c.byref(error), c.byref(ticket)), error, "submit")
        except BaseException:
            held.release()
            raise
        made = Request(self, ticket, held)
        self._requests.add(made)
        return made

    def publish(self):
        """Make the present tensors those that the next open of this durable store finds. Blocks until they are safe."""
        self._checked("publish")

    # tensors

    def find(self, name):
        """Return the bytes of @name, or None."""
        n_bytes = c.c_uint64()
        code = self._call("find", _encoded(name), c.byref(n_bytes))
        return None if code == -errno.ENOENT else check(code, None, "find") or n_bytes.value

    def names(self):
        """Return {name: bytes} of all tensors, in the order of bytes."""
        found, name, n_bytes, room = {}, None, c.c_uint64(), c.create_string_buffer(1 << 16)
        while True:
            code = self._call("find_next", name, room, c.c_size_t(len(room)), c.byref(n_bytes))
            if code == -errno.ENOENT:
                return found
            check(code, None, "find_next")
            name = room.value
            found[name.decode(errors="surrogateescape")] = n_bytes.value

    def drop(self, name):
        """Drop @name and free its room."""
        check(self._call("drop", _encoded(name)), None, f"drop {name!r}")

    # the store

    def info(self):
        """Return sizes and counts: the fields of struct lade_tensor_store_info."""
        info = _Info(c.sizeof(_Info))
        check(self._call("get_info", c.byref(info)), None, "get_info")
        return {name: getattr(info, name) for name, _ in _Info._fields_ if name != "struct_size"}

    def note(self):
        """Return one line about a fallback, such as the page cache, or an empty text."""
        self._lib.lade_tensor_store_note.restype = c.c_char_p
        return (self._call("note") or b"").decode(errors="replace")

    def notices(self):
        """Return a line for each drive that was set aside since the last call."""
        found, text = [], c.create_string_buffer(512)
        while self._call("take_notice", text, c.c_size_t(len(text))) == 1:
            found.append(text.value.decode(errors="replace"))
        return found
