# SPDX-License-Identifier: Apache-2.0
"""`lade data`: texts to token files that `lade train` reads. The command checks the options and calls main().

Documents go to processes in batches, and their tokens come back in the order of the files. The contents of a batch follow
from the files alone, so the output has the same bytes for any number of processes.
"""
import collections
import contextlib
import ctypes
import json
import multiprocessing
import os
import signal
import sys
import time
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from ..errors import Error
from .documents import DAMAGED, USAGE, Fault, is_split, pieces_of
from .files import Output, TokenFiles, header_make
from .vocabulary import Encoder, separator_of, tokenizer_parse

BATCH_BYTES = 1 << 18
BATCH_PIECES = 4096
AHEAD = 3  # batches of each process that are under way
TELL_SECONDS = 0.2
PR_SET_PDEATHSIG = 1
TOKENIZER_BYTES_MAX = 1 << 28

_ENCODER = None  # of this process, set by _worker_begin


def _worker_begin(encoder, first_process):
    global _ENCODER  # pylint: disable=global-statement  # a process of a pool has no other place
    _ENCODER = encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends the others
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != first_process:  # it ended before the line above
        os._exit(1)


def _batch_encode(pieces):
    return _ENCODER.batch(pieces)


class Progress:
    """One line on a terminal, rewritten a few times a second."""

    def __init__(self, n_bytes, is_quiet):
        self.n_bytes, self.done, self.shown_s = n_bytes, 0.0, 0.0
        self.begin, self.is_shown = time.monotonic(), not is_quiet and sys.stderr.isatty()

    def add(self, n_bytes, n_tokens):
        self.done += n_bytes
        now = time.monotonic()
        if self.is_shown and now - self.shown_s >= TELL_SECONDS:
            self.shown_s = now
            seconds = max(now - self.begin, 1e-9)
            share = min(100 * self.done / max(self.n_bytes, 1), 100)
            sys.stderr.write(f"\r\033[K{share:5.1f} %  {n_tokens / 1e6:.2f} M tokens, "
                             f"{n_tokens / seconds / 1e6:.2f} M a second")
            sys.stderr.flush()

    def __enter__(self):
        return self

    def __exit__(self, *_fault):
        if self.is_shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


class Split:
    """Choose the documents that validate: a function of a document's number alone, spread evenly."""

    def __init__(self, fraction):
        self.fraction, self.n = fraction, 0

    def next(self):
        self.n += 1
        return int(self.n * self.fraction) > int((self.n - 1) * self.fraction)


def _pieces_read(path, options, encoder):
    try:
        yield from pieces_of(path, options, encoder.cut_is_neutral)
    except OSError as fault:
        raise Fault(f"{path}: cannot read: {fault.strerror}", DAMAGED) from None


def _batches(options, encoder):
    """Yield lists of pieces (text, ends, is_valid), each with the bytes that it has in the files and its documents."""
    split, batch, n_bytes, n_documents = Split(options["valid_fraction"]), [], 0.0, 0
    for path in options["files"]:
        chooses = options["valid_fraction"] and not is_split(path, options)
        for piece in _pieces_read(path, options, encoder):
            is_valid = split.next() if chooses else piece.is_valid
            batch.append((piece.text, piece.ends, is_valid))
            n_bytes += piece.n_bytes
            n_documents += piece.ends
            if n_bytes >= BATCH_BYTES or len(batch) >= BATCH_PIECES:
                yield batch, n_bytes, n_documents
                batch, n_bytes, n_documents = [], 0.0, 0
    if batch:
        yield batch, n_bytes, n_documents


class _Here:
    """The interface of a pool, in this process."""

    def __init__(self, encoder):
        self.encoder = encoder

    def submit(self, _function, pieces):
        future = Future()
        future.set_result(self.encoder.batch(pieces))
        return future


@contextlib.contextmanager
def _pool(n_processes, encoder):
    if n_processes == 1:
        yield _Here(encoder)
        return
    pool = ProcessPoolExecutor(n_processes, multiprocessing.get_context("fork"), _worker_begin,
                               (encoder, os.getpid()))
    try:
        yield pool
    except BaseException:  # a signal too, also in the middle of a submit: nothing waits for batches under way
        for process in list((pool._processes or {}).values()):  # pylint: disable=protected-access  # the pool's alone
            process.kill()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _encoded(options, encoder, n_processes):
    """Yield ((training tokens, validation tokens), bytes, documents) of each batch in order."""
    under_way = collections.deque()
    with _pool(n_processes, encoder) as pool:
        try:
            for pieces, n_bytes, n_documents in _batches(options, encoder):
                under_way.append((pool.submit(_batch_encode, pieces), n_bytes, n_documents))
                if len(under_way) >= (1 if n_processes == 1 else AHEAD * n_processes):
                    future, n_bytes, n_documents = under_way.popleft()
                    yield future.result(), n_bytes, n_documents
            for future, n_bytes, n_documents in under_way:
                yield future.result(), n_bytes, n_documents
        except BrokenProcessPool:
            raise Fault("a process that made tokens has ended; is memory short? --processes N takes fewer", 1) from None


def _tokenizer_read(path):
    try:
        with open(path, "rb") as file:
            data = file.read(TOKENIZER_BYTES_MAX + 1)
    except OSError as fault:
        raise Fault(f"--tokenizer {path}: {fault.strerror}", USAGE) from None
    if len(data) > TOKENIZER_BYTES_MAX:
        raise Fault(f"--tokenizer {path}: longer than {TOKENIZER_BYTES_MAX} bytes", USAGE)
    return data


def _inputs_check(files):
    """Return the bytes of all files. A fault before the output is made."""
    n_bytes = 0
    for path in files:
        try:
            with open(path, "rb"):
                n_bytes += os.path.getsize(path)
        except OSError as fault:
            raise Fault(f"{path}: {fault.strerror}", USAGE) from None
    return n_bytes


def _counts_check(parts, options):
    if not parts[0].n_tokens():
        raise Fault("no document has a token to train on", DAMAGED)
    if options["valid_fraction"] and not parts[1].n_tokens():
        raise Fault(f"--valid-fraction {options['valid_fraction']:g}: too few documents to validate on: give more, or "
                    "a larger fraction", USAGE)


def tokens_write(options):
    """Write the token files of @options, and return a summary. Fault, or OSError of the output."""
    n_bytes = _inputs_check(options["files"])
    data = _tokenizer_read(options["tokenizer"])
    tokenizer = tokenizer_parse(options["tokenizer"], data)
    separator, separator_text = separator_of(tokenizer, options["tokenizer"], options["separator"])
    encoder = Encoder(tokenizer, separator, options["special_tokens"])
    n_processes = options["processes"] or len(os.sched_getaffinity(0))
    progress, n_documents = Progress(n_bytes, options["quiet"]), 0
    with progress, Output(options["output"]) as output:
        parts = [TokenFiles(output.temporary, kind, encoder.token_bytes) for kind in ("train", "valid")]
        for tokens, n_batch_bytes, n in _encoded(options, encoder, n_processes):
            for part, new in zip(parts, tokens):
                part.append(new)
            n_documents += n
            progress.add(n_batch_bytes, sum(part.n_tokens() for part in parts))
        _counts_check(parts, options)
        names = [part.finish(lambda n: header_make(n, encoder.token_bytes, encoder.vocabulary, separator,
                                                   options["tokenizer_hash"], os.path.basename(options["tokenizer"])))
                 for part in parts]
        output.file_write("tokenizer.json", data)
        output.commit()
    paths = [[os.path.join(options["output"], name) for name in part] for part in names]
    return {"schema_version": 1, "documents": n_documents, "train_tokens": parts[0].n_tokens(),
            "valid_tokens": parts[1].n_tokens(), "vocabulary": encoder.vocabulary, "bits": 8 * encoder.token_bytes,
            "separator": None if separator < 0 else separator_text, "separator_id": None if separator < 0 else separator,
            "tokenizer_hash": options["tokenizer_hash"], "train": paths[0], "valid": paths[1],
            "tokenizer": os.path.join(options["output"], "tokenizer.json")}


def _summary_print(summary):
    valid = f", {summary['valid_tokens']} to validate" if summary["valid"] else ""
    separator = f"{summary['separator']} ({summary['separator_id']})" if summary["separator"] else "none"
    print(f"documents     {summary['documents']}, separated by {separator}\n"
          f"tokens        {summary['train_tokens']} to train{valid}; {summary['bits']} bits, vocabulary "
          f"{summary['vocabulary']}\n"
          f"files         {', '.join(_plain(path) for path in summary['train'] + summary['valid'])}")


def _plain(text):
    """Return @text with control characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def fail(verb, text, code):
    """Print one line and return the exit code."""
    print(f"lade {verb}: {_plain(text)}", file=sys.stderr)
    return code


class Stopped(BaseException):
    """A signal that ends the command."""


def _stop(number, _frame):
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)  # a second one would end the way out halfway, and leave processes waiting
    raise Stopped(number)


def run(verb, function, *arguments):
    """Call @function; return its exit code, or that of its fault."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    try:
        return function(*arguments)
    except Stopped as stop:
        return 128 + stop.args[0]
    except Fault as fault:
        return fail(verb, str(fault), fault.exit_code)
    except MemoryError:
        return fail(verb, "out of memory", 4)
    except BrokenPipeError:
        return 128 + signal.SIGPIPE
    except OSError as fault:
        where = f"{fault.filename}: " if fault.filename else ""
        return fail(verb, f"{where}{fault.strerror}", DAMAGED)
    except Error as fault:
        return fail(verb, str(fault), 1)


def _data(options):
    try:
        summary = tokens_write(options)
    except OSError as fault:
        raise Fault(f"-o {options['output']}: {fault.strerror}; nothing is written", DAMAGED) from None
    if options["json"]:
        print(json.dumps(summary))
    else:
        _summary_print(summary)
    sys.stdout.flush()
    return 0


def main(argument, tokenizer, output, *files):
    """Run `lade data` with the other options in the JSON object @argument. Return the exit code."""
    return run("data", _data, {**json.loads(argument), "tokenizer": tokenizer, "output": output, "files": files})
