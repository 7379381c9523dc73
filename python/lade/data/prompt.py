# SPDX-License-Identifier: Apache-2.0
"""Text for `lade sample`: tokens of a prompt, and text of tokens, over two pipes.

The first line of standard input is the prompt as a JSON string; the answer is a line with its tokens as a JSON array.
Each further line is a token; the answer is the text that it completes, as a JSON string, "" while a character lacks
bytes. At the end of the input comes the rest.
"""
import json
import sys

from . import run
from .documents import USAGE, Fault
from .vocabulary import tokenizer_parse

CONTEXT_TOKENS = 8  # before a new token, for decoders that join words
BROKEN = "\ufffd"  # of a character whose bytes are not complete


class Text:
    """Tokens to text, in pieces that are whole characters."""

    def __init__(self, tokenizer, tokens):
        self.tokenizer, self.tokens = tokenizer, list(tokens)
        self.begin, self.returned = max(len(tokens) - CONTEXT_TOKENS, 0), len(tokens)

    def decode(self, end=None):
        return self.tokenizer.decode(self.tokens[self.begin:end], skip_special_tokens=False)

    def add(self, token):
        """Return the text that @token completes."""
        self.tokens.append(token)
        before, after = self.decode(self.returned), self.decode()
        if after.endswith(BROKEN) or len(after) < len(before):
            return ""
        self.begin, self.returned = self.returned, len(self.tokens)
        return after[len(before):]

    def rest(self):
        before, after = self.decode(self.returned), self.decode()
        return after[len(before):]


def answer(value):
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def serve(path):
    try:
        with open(path, "rb") as file:
            tokenizer = tokenizer_parse(path, file.read())
    except OSError as fault:
        raise Fault(f"{path}: {fault.strerror}", USAGE) from None
    line = sys.stdin.readline()
    if not line:
        return 0  # the command has refused the model
    tokens = tokenizer.encode(json.loads(line), add_special_tokens=False).ids
    answer(tokens)
    text = Text(tokenizer, tokens)
    for line in sys.stdin:
        answer(text.add(int(line)))
    answer(text.rest())
    return 0


def main(path):
    """Serve one `lade sample`. Return the exit code."""
    return run("sample", serve, path)
