# SPDX-License-Identifier: Apache-2.0
"""Token files, and the directory that has them.

The header is llm.c's, 256 words of 32 bits, with more words where llm.c has zeros (src/run/session/data_header.h):
llm.c reads such a file. Until all is written, files begin with UNFINISHED, which `lade train` refuses, in a directory of
another name. One rename makes the directory appear with all its files.
"""
import errno
import fcntl
import os
import shutil
import struct

from .documents import USAGE, Fault

HEADER_BYTES = 1024
UNFINISHED = b"LADEPART"
MAGIC_16, VERSION_16 = 20240520, 1
MAGIC_32, VERSION_32 = 20240801, 7
EXTENSION, EXTENSION_VERSION = 0x4544414C, 1  # "LADE"
NAME_BYTES = 256
TOKENS_MAX = 1 << 30  # of a file; llm.c's count has 31 bits


def header_make(n_tokens, token_bytes, vocabulary, separator, digest, name):
    """Return the header of a finished file."""
    magic, version = (MAGIC_16, VERSION_16) if token_bytes == 2 else (MAGIC_32, VERSION_32)
    words = struct.pack("<iiiiiiii", magic, version, n_tokens, 0, EXTENSION, EXTENSION_VERSION, vocabulary, separator)
    name = name.encode("utf-8")[:NAME_BYTES - 1].decode("utf-8", "ignore").encode("utf-8")
    return (words + bytes.fromhex(digest).ljust(32, b"\0") + name).ljust(HEADER_BYTES, b"\0")


class TokenFiles:
    """The files of one part, each of at most @n_max tokens; @kind is "train" or "valid"."""

    def __init__(self, directory, kind, token_bytes, n_max=TOKENS_MAX):
        self.directory, self.kind, self.token_bytes, self.n_max = directory, kind, token_bytes, n_max
        self.file, self.counts = None, []

    def path(self, i):
        return os.path.join(self.directory, f"{self.kind}-{i + 1:05d}.bin")

    def append(self, data):
        """Write tokens, in a next file where one is full."""
        while data:
            if not self.file or self.counts[-1] == self.n_max:
                self.close()
                self.counts.append(0)
                self.file = open(self.path(len(self.counts) - 1), "xb")  # pylint: disable=consider-using-with
                self.file.write(UNFINISHED.ljust(HEADER_BYTES, b"\0"))
            n_bytes = min(len(data), (self.n_max - self.counts[-1]) * self.token_bytes)
            self.file.write(data[:n_bytes])
            self.counts[-1] += n_bytes // self.token_bytes
            data = data[n_bytes:]

    def close(self):
        file, self.file = self.file, None
        if file:
            file.close()

    def finish(self, header_of):
        """Write the headers, sync, and return the names."""
        self.close()
        names = []
        for i, n_tokens in enumerate(self.counts):
            with open(self.path(i), "r+b") as file:
                file.write(header_of(n_tokens))
                file.flush()
                os.fsync(file.fileno())
            names.append(os.path.basename(self.path(i)))
        if len(names) == 1:
            os.rename(self.path(0), os.path.join(self.directory, f"{self.kind}.bin"))
            names = [f"{self.kind}.bin"]
        return names

    def n_tokens(self):
        return sum(self.counts)


class Output:
    """A directory that appears whole, or not at all. Use as a context; commit() before its end keeps it."""

    def __init__(self, path):
        self.path = os.path.abspath(path)
        self.shown = path
        parent, name = os.path.split(self.path)
        self.parent = parent
        self.temporary = os.path.join(parent, f".{name}.lade-data")
        self.lock = -1

    def __enter__(self):
        self.check()
        try:
            os.mkdir(self.temporary)
        except FileExistsError:
            pass  # of a run that was killed, or of one that runs
        except OSError as fault:
            raise Fault(f"-o {self.shown}: {fault.strerror}", USAGE) from None
        self.lock = os.open(self.temporary, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self.lock)
            raise Fault(f"-o {self.shown}: another lade data writes it", USAGE) from None
        if os.fstat(self.lock).st_uid != os.geteuid():
            os.close(self.lock)
            raise Fault(f"-o {self.shown}: {self.temporary} belongs to another user", USAGE)
        for entry in os.listdir(self.temporary):
            os.unlink(os.path.join(self.temporary, entry))
        return self

    def check(self):
        """Refuse a place that has files."""
        try:
            if os.listdir(self.path):
                raise Fault(f"-o {self.shown}: the directory has files: name a new one", USAGE)
        except FileNotFoundError:
            if not os.path.isdir(self.parent):
                raise Fault(f"-o {self.shown}: there is no directory {self.parent}", USAGE) from None
        except OSError as fault:
            raise Fault(f"-o {self.shown}: {fault.strerror}", USAGE) from None

    def file_write(self, name, data):
        with open(os.path.join(self.temporary, name), "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def commit(self):
        os.fsync(self.lock)
        try:
            os.rename(self.temporary, self.path)
        except OSError as fault:
            if fault.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            raise Fault(f"-o {self.shown}: another program made it meanwhile: name a new one", USAGE) from None
        parent = os.open(self.parent, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(parent)
        os.close(parent)

    def __exit__(self, *_fault):
        shutil.rmtree(self.temporary, ignore_errors=True)  # after commit() it has another name
        os.close(self.lock)
