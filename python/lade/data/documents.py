# SPDX-License-Identifier: Apache-2.0
"""Read documents from files of text, JSON Lines or Parquet.

Each reader yields pieces in the order of the file. A piece is a text, with a flag on the last piece of a document. The
pieces are a function of the file and the options alone, so the tokens do not depend on the number of processes. A long
text is cut into pieces where the tokenizer gives the same tokens for both sides as for the whole (cut_is_neutral).

Damage is named with its file and line: bytes that are not UTF-8, a line that is not JSON, a missing field.
"""
import json
import math
import os

from ..errors import Error

BLOCK_BYTES = 1 << 18  # read at once
PIECE_BYTES = 1 << 18  # of a text, if the tokenizer allows a cut
WINDOW_CHARACTERS = 512  # of each side, compared at a cut
CUTS_TRIED = 64  # places that a piece tries before it grows
BOM = b"\xef\xbb\xbf"

DAMAGED, MISSING, USAGE = 5, 7, 2  # exit codes of the command


class Fault(Error):
    """A fault with the exit code of the command in @exit_code."""

    def __init__(self, text, exit_code):
        super().__init__(text)
        self.exit_code = exit_code


class Piece:
    """A text of a document, with the bytes that it has in its file; @ends: the document ends after it."""
    __slots__ = ("text", "n_bytes", "ends", "is_valid")

    def __init__(self, text, n_bytes, ends, is_valid=False):
        self.text, self.n_bytes, self.ends, self.is_valid = text, n_bytes, ends, is_valid


def format_of(path):
    """Return the format that the name of a file means."""
    name = path.lower()
    if name.endswith((".jsonl", ".ndjson")):
        return "jsonl"
    return "parquet" if name.endswith(".parquet") else "text"


def decode(path, data, line):
    """Decode @data, which begins in line @line of the file. Damage names its line."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as fault:
        at = line + data.count(b"\n", 0, fault.start)
        raise Fault(f"{path}:{at}: byte 0x{data[fault.start]:02x} is not UTF-8 ({fault.reason})", DAMAGED) from None


def open_binary(path):
    try:
        return open(path, "rb")  # pylint: disable=consider-using-with  # the callers do
    except OSError as fault:
        raise Fault(f"{path}: {fault.strerror}", USAGE) from None


def lines_of(path):
    """Yield (number, bytes) of each line, its line break included; a byte order mark is dropped."""
    with open_binary(path) as file:
        for number, line in enumerate(file, 1):
            yield number, line[len(BOM):] if number == 1 and line.startswith(BOM) else line


# ---- text ----

def cuts_of(data):
    """Yield places after a line break, last first, between characters that are no white space, all of ASCII."""
    at = len(data)
    for _ in range(CUTS_TRIED):
        at = data.rfind(b"\n", 1, at)
        if at < 0:
            return
        if at + 1 < len(data) and data[at - 1:at].strip() and data[at + 1:at + 2].isalnum():
            yield at + 1


def piece_end(data, cut_is_neutral):
    """Return the end of a piece at the beginning of @data; 0: it must grow."""
    for cut in cuts_of(data):
        begin = data.rfind(b"\n", 0, max(cut - WINDOW_CHARACTERS, 1)) + 1
        left = data[begin:cut].decode("utf-8", "ignore")
        right = data[cut:cut + WINDOW_CHARACTERS].decode("utf-8", "ignore")
        if cut_is_neutral(left, right):
            return cut
    return 0


def split_offset(path, n_bytes, fraction):
    """Return the line that ends the training part of a text: the last @fraction of its bytes validate."""
    target = math.floor(n_bytes * (1 - fraction))
    with open_binary(path) as file:
        file.seek(target)
        while block := file.read(BLOCK_BYTES):
            at = block.find(b"\n")
            if at >= 0:
                return target + at + 1
            target += len(block)
    return n_bytes


def part_read(file, path, begin, end, line, cut_is_neutral):
    """Yield pieces of bytes [begin, end) of a text as one document. @line counts lines, in a list of one number."""
    held, limit, is_begun = b"", PIECE_BYTES, False
    while begin < end:
        block = file.read(min(BLOCK_BYTES, end - begin))
        if not block:
            raise Fault(f"{path}: has become shorter while it was read", DAMAGED)
        if begin == 0 and block.startswith(BOM):
            block = block[len(BOM):]
            begin += len(BOM)
        begin += len(block)
        held += block
        cut = piece_end(held, cut_is_neutral) if len(held) >= limit and begin < end else 0
        if cut:
            yield Piece(decode(path, held[:cut], line[0]), cut, False)
            line[0] += held.count(b"\n", 0, cut)
            held, limit, is_begun = held[cut:], PIECE_BYTES, True
        else:
            limit = max(limit, 2 * len(held)) if len(held) >= limit else limit
    if held or is_begun:
        yield Piece(decode(path, held, line[0]), len(held), True)
    line[0] += held.count(b"\n")


def file_read(path, options, cut_is_neutral):
    """Yield a text as one document, or as two if a fraction of it validates."""
    n_bytes = os.path.getsize(path)
    end = split_offset(path, n_bytes, options["valid_fraction"]) if options["valid_fraction"] else n_bytes
    line = [1]
    with open_binary(path) as file:
        yield from part_read(file, path, 0, end, line, cut_is_neutral)
        for piece in part_read(file, path, end, n_bytes, line, cut_is_neutral):
            piece.is_valid = True
            yield piece


def line_read(path, _options, _cut_is_neutral):
    for number, line in lines_of(path):
        text = decode(path, line, number).strip()
        if text:
            yield Piece(text, len(line), True)


def paragraph_read(path, _options, _cut_is_neutral):
    """Yield texts between lines that are empty or blank."""
    held, first = [], 1
    for number, line in lines_of(path):
        if line.strip():
            first = first if held else number
            held.append(line)
        elif held:
            data, held = b"".join(held), []
            yield Piece(decode(path, data, first).strip("\r\n"), len(data), True)
    if held:
        data = b"".join(held)
        yield Piece(decode(path, data, first).strip("\r\n"), len(data), True)


# ---- JSON Lines and Parquet ----

def text_check(where, field, value):
    """Return a document's text. A fault names its place."""
    if not isinstance(value, str):
        kind = "null" if value is None else f"of type {type(value).__name__}"
        raise Fault(f"{where}: field {json.dumps(field)} is {kind}: expected a string", DAMAGED)
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as fault:
        raise Fault(f"{where}: field {json.dumps(field)} has half of a surrogate pair, U+"
                    f"{ord(value[fault.start]):04X}", DAMAGED) from None
    return value


def jsonl_read(path, options, _cut_is_neutral):
    field = options["field"]
    for number, line in lines_of(path):
        where = f"{path}:{number}"
        text = decode(path, line, number)
        if not text.strip():
            continue
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as fault:
            raise Fault(f"{where}: not JSON: {fault}", DAMAGED) from None
        if not isinstance(value, dict):
            raise Fault(f"{where}: not a JSON object: expected one with the field {json.dumps(field)}", DAMAGED)
        if field not in value:
            raise Fault(f"{where}: field {json.dumps(field)} is missing; --field names another", DAMAGED)
        yield Piece(text_check(where, field, value[field]), len(line), True)


def parquet_read(path, options, _cut_is_neutral):
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise Fault(f"{path}: Parquet needs the Python package pyarrow: python3 -m pip install pyarrow",
                    MISSING) from None
    field, row = options["field"], 0
    open_binary(path).close()
    try:
        file = parquet.ParquetFile(path)
        if field not in file.schema_arrow.names:
            raise Fault(f"{path}: column {json.dumps(field)} is missing; --field names another", DAMAGED)
        n_bytes = os.path.getsize(path) / max(file.metadata.num_rows, 1)
        for batch in file.iter_batches(batch_size=1024, columns=[field]):
            for value in batch.column(0).to_pylist():
                row += 1
                yield Piece(text_check(f"{path}: row {row}", field, value), n_bytes, True)
    except (pyarrow.ArrowException, OSError) as fault:
        raise Fault(f"{path}: row {row + 1}: {fault}".splitlines()[0], DAMAGED) from None


READERS = {"jsonl": jsonl_read, "parquet": parquet_read}
TEXT_READERS = {"file": file_read, "line": line_read, "paragraph": paragraph_read}


def pieces_of(path, options, cut_is_neutral):
    """Yield the pieces of a file in its order."""
    kind = options["format"] if options["format"] != "auto" else format_of(path)
    reader = TEXT_READERS[options["documents"]] if kind == "text" else READERS[kind]
    return reader(path, options, cut_is_neutral)


def is_split(path, options):
    """True if each file validates by its end, false if documents do."""
    kind = options["format"] if options["format"] != "auto" else format_of(path)
    return kind == "text" and options["documents"] == "file"
