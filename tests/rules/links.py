#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pages lead somewhere: every relative link of a page, and every page that a text names, is there; docs/README.md lists
all pages of its folder. Pages are few and short, so that a reader can read them all.
"""
import os
import re

import tree

LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)[^)]*\)")
CAPABILITIES = 4  # later than the trainer, two pages each: callers' steps, PyTorch, clusters, model families
PAGES_MAX = 18 + 2 * CAPABILITIES
KIBIBYTES_MAX = 140 * PAGES_MAX // 18  # of all pages
WORDS_MAX = 80  # of the glossary
PAGE = re.compile(r"\b((?:docs|bench)/[\w/.-]+\.md)\b")


def links_check(path, content, exists):
    """Links are from the page's folder; names in running text are from the root."""
    here = os.path.dirname(path)
    problems = [f"{path}: leads to {link}, which is not there" for link in LINK.findall(content)
                if path.endswith(".md") and not exists(os.path.normpath(os.path.join(here, link)))]
    return problems + [f"{path}: names {page}, which is not there" for page in PAGE.findall(LINK.sub("", content))
                       if not exists(page)]


def index_check(pages, index):
    listed = set(LINK.findall(index))
    return [f"docs/README.md: does not list {page}" for page in sorted(pages) if page not in listed | {"README.md"}]


def sizes_check(pages):
    """@pages maps the name of each page in docs/ to its text."""
    kibibytes = sum(len(text.encode()) for text in pages.values()) / 1024
    words = len(re.findall(r"^\| (?!word )", pages.get("glossary.md", ""), re.MULTILINE))
    checks = ((len(pages), PAGES_MAX, "pages"), (kibibytes, KIBIBYTES_MAX, "KiB"), (words, WORDS_MAX, "words"))
    return [f"docs: {n:.0f} {unit}, over {most}" for n, most, unit in checks if n > most]


def self_test():
    def exists(path):
        return path in ("docs/a.md", "README.md", "examples")
    assert not links_check("README.md", "[a](docs/a.md#part) [e](examples/) https://x docs/a.md", exists)
    assert not links_check("docs/a.md", "[up](../README.md) [out](https://b.md)", exists)
    assert links_check("docs/a.md", "[a](docs/a.md)", exists) and links_check("src/a.c", "/* docs/b.md */", exists)
    assert not sizes_check({"a.md": "a", "glossary.md": "| word | m |\n|---|---|\n" + "| a | b |\n" * 80})
    assert len(sizes_check({f"{i}.md": "a" * 8000 for i in range(PAGES_MAX + 1)})) == 2
    assert sizes_check({"glossary.md": "| a | b |\n" * 81})
    assert index_check(["a.md", "b.md"], "[a](a.md)") == ["docs/README.md: does not list b.md"]


self_test()
FILES = [path for path in tree.files() if path != "tests/rules/links.py"]  # whose pages are made up


def exists(path):
    return os.path.exists(os.path.join(tree.ROOT, path))


found = [problem for path in FILES if path.endswith(tree.CODE + (".md", ".py", ".build"))
         for problem in links_check(path, tree.text(path), exists)]
DOCS = [path for path in FILES if re.fullmatch(r"docs/[\w-]+\.md", path)]
found += sizes_check({os.path.basename(path): tree.text(path) for path in DOCS})
found += index_check([os.path.basename(path) for path in DOCS], tree.text("docs/README.md"))
tree.report(found)
