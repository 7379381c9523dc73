# SPDX-License-Identifier: Apache-2.0
"""A tokenizer.json: its vocabulary, its separator, and tokens of texts.

Text that spells a special token is text, and no such token: a document cannot end itself. Tokens that a tokenizer adds
around a text (its template) are left out. So are truncation and padding.
"""
import array
import json
import os
import sys

from .documents import MISSING, USAGE, Fault

# Names of the token that ends a document, in the order in which they are looked for.
SEPARATORS = ("<|endoftext|>", "<|end_of_text|>", "<|begin_of_text|>", "</s>", "<eos>", "<|end▁of▁sentence|>",
              "[SEP]", "<|im_end|>")


def tokenizers_import():
    """Return the module tokenizers. Fault says how to install it."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # processes are the parallelism
    try:
        import tokenizers
    except ImportError:
        raise Fault(f"the Python package tokenizers is missing: {sys.executable} -m pip install tokenizers, or "
                    "LADE_PYTHON=PYTHON names a Python that has it", MISSING) from None
    return tokenizers


def tokenizer_parse(path, data):
    """Return the tokenizer of the bytes @data of file @path."""
    tokenizers = tokenizers_import()
    try:
        tokenizer = tokenizers.Tokenizer.from_str(data.decode("utf-8"))
    except Exception as fault:  # pylint: disable=broad-except  # the package raises Exception itself
        raise Fault(f"{path}: not a tokenizer.json: {str(fault).splitlines()[0]}", USAGE) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def vocabulary_of(tokenizer):
    """Return the number of token ids: 1 above the largest."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def stated_separator(path):
    """Return eos_token of the tokenizer_config.json beside @path; None: there is none."""
    config = os.path.join(os.path.dirname(path), "tokenizer_config.json")
    try:
        with open(config, encoding="utf-8") as file:
            token = json.load(file).get("eos_token")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError) as fault:
        raise Fault(f"{config}: {fault}; --separator names the token instead", USAGE) from None
    return token.get("content") if isinstance(token, dict) else token


def separator_of(tokenizer, path, asked):
    """Return (id, text) of the token between documents; (-1, None) for none."""
    if asked == "none":
        return -1, None
    if asked is not None:
        token = tokenizer.token_to_id(asked)
        if token is None:
            raise Fault(f"--separator {asked}: not a token of {path}", USAGE)
        return token, asked
    for name in (stated_separator(path), *SEPARATORS):
        if name is not None and tokenizer.token_to_id(name) is not None:
            return tokenizer.token_to_id(name), name
    raise Fault(f"{path} has no token that is known to end documents: --separator TOKEN names one, --separator none "
                "leaves it out", USAGE)


class Encoder:
    """Texts to tokens of 16 or 32 bits, little-endian."""

    def __init__(self, tokenizer, separator, has_special):
        self.tokenizer, self.separator = tokenizer, separator
        self.vocabulary = vocabulary_of(tokenizer)
        self.token_bytes = 2 if self.vocabulary <= 1 << 16 else 4
        tokenizer.encode_special_tokens = not has_special
        self.encode_batch = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)
        added = tokenizer.get_added_tokens_decoder().values()
        self.can_cut = tokenizer.pre_tokenizer is not None and not any(
            (has_special or not token.special) and (token.lstrip or token.rstrip or "\n" in token.content)
            for token in added)

    def cut_is_neutral(self, left, right):
        """True if the tokens of @left and of @right, one after the other, are those of both together."""
        if not self.can_cut:
            return False
        normalizer, splitter = self.tokenizer.normalizer, self.tokenizer.pre_tokenizer
        if normalizer:
            whole = normalizer.normalize_str(left + right)
            left, right = normalizer.normalize_str(left), normalizer.normalize_str(right)
            if left + right != whole:
                return False
        words = [word for word, _ in splitter.pre_tokenize_str(left + right)]
        return words == [word for part in (left, right) for word, _ in splitter.pre_tokenize_str(part)]

    def batch(self, pieces):
        """Return (training tokens, validation tokens) of a batch of (text, ends, is_valid), as bytes."""
        outputs = [array.array("H" if self.token_bytes == 2 else "I") for _ in range(2)]
        encoded = self.encode_batch([text for text, _, _ in pieces], add_special_tokens=False)
        for (_, ends, is_valid), one in zip(pieces, encoded):
            output = outputs[is_valid]
            output.extend(one.ids)
            if ends and self.separator >= 0:
                output.append(self.separator)
        if sys.byteorder == "big":
            for output in outputs:
                output.byteswap()
        return tuple(output.tobytes() for output in outputs)
