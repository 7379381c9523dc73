# SPDX-License-Identifier: Apache-2.0
"""A fake of the package tokenizers: words and bytes.

Its tokenizer.json is {"special": [names], "vocabulary": N, "cut": "lines" or null}. Tokens are the special ones, then
bytes within a word, then first bytes of words. Words are what the expression WORD finds, so a text that is cut inside of
one has other tokens. FAKE_SECONDS delays each batch.
"""
import collections
import json
import os
import re
import time

WORD = re.compile(r"[^\S\n]*\S+|\s")
Encoding = collections.namedtuple("Encoding", "ids")
Added = collections.namedtuple("Added", "content special lstrip rstrip")


class Words:
    @staticmethod
    def pre_tokenize_str(text):
        return [(match.group(), match.span()) for match in re.finditer(r"[^\n]*\n|[^\n]+", text)]


class Tokenizer:
    @staticmethod
    def from_str(text):
        return Tokenizer(json.loads(text))

    def __init__(self, how):
        self.special = how["special"]
        self.vocabulary = how["vocabulary"]
        self.pre_tokenizer = Words() if how["cut"] else None
        self.normalizer = None
        self.encode_special_tokens = False

    def no_truncation(self):
        pass

    def no_padding(self):
        pass

    def get_vocab(self, with_added_tokens):
        return {"last": self.vocabulary - 1, **{name: i for i, name in enumerate(self.special)}}

    def get_added_tokens_decoder(self):
        return {i: Added(name, True, False, False) for i, name in enumerate(self.special)}

    def token_to_id(self, name):
        return self.special.index(name) if name in self.special else None

    def words(self, text):
        if self.encode_special_tokens or not self.special:
            return WORD.findall(text)
        parts = re.split("(" + "|".join(map(re.escape, self.special)) + ")", text)
        return [word for part in parts for word in ([part] if part in self.special else WORD.findall(part))]

    def encode(self, text, add_special_tokens):
        ids, n = [], len(self.special)
        for word in self.words(text):
            if word in self.special and not self.encode_special_tokens:
                ids.append(self.special.index(word))
                continue
            data = word.encode("utf-8")
            ids += [n + 256 + data[0]] + [n + byte for byte in data[1:]]
        return Encoding(ids)

    def encode_batch(self, texts, add_special_tokens):
        time.sleep(float(os.environ.get("FAKE_SECONDS", "0")))
        return [self.encode(text, add_special_tokens) for text in texts]

    def decode(self, ids, skip_special_tokens):
        n, data = len(self.special), b""
        for token in ids:
            data += self.special[token].encode() if token < n else bytes([(token - n) % 256])
        return data.decode("utf-8", "replace")
