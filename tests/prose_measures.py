"""Measures of the English in documentation and source: length of sentences, and turns of phrase that slow readers down.

`python -m tests.prose_measures` prints them; `--longest 10` adds the longest sentences with their places.
"""

from __future__ import annotations

import argparse
import ast
import functools
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Sequence, Tuple

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[1]
KINDS = ("docs", "docstrings", "comments", "messages", "tests")
"""Pages, the three kinds of English in the package, and docstrings with comments of tests."""
_KINDS = ("docstrings", "comments", "messages")
ENGLISH = re.compile(r"\b(a|an|the|is|are|has|of|to|in|no|not)\b")
"""Finds the words that lists of names do not have."""
LONG = 28
"""Words above which a sentence counts as long."""

PHRASES = {
    # "what the loop does": the noun that is meant comes last, or never. "what if", "see what" and questions are fine.
    "headless what": r"(?<!\bsee )\b[Ww]hat (?!if\b|for\b|about\b|kinds?\b|happen(s|ed)\b|change[sd]\b)\w",
    # Programs return, raise, print and log.
    "speaking programs": (
        r"\b([Tt]ells?|told|[Ss]ays?|said|[Aa]sks?|asked|[Kk]nows?) "
        r"(whether|what|how|which|so|that|who|it|them|where|why)\b"
    ),
    "nobody": r"\b(some|no)body\b|\bsomeone\b|\b[Ww]hoever\b|\b(Some|No)body\b",
}


# Strings are matched for the signs in them that would begin comments. `tokenize` needs eight times as long.
_STRING_OR_COMMENT = re.compile(
    r"""(?s:"{3}(?:\\.|[^\\])*?"{3}|'{3}(?:\\.|[^\\])*?'{3})"""
    r"""|(?s:"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|(?P<comment>#[^\n]*)"""
)


class Passage(NamedTuple):
    """A paragraph of a page, a docstring, a comment or a message.

    Attributes:
        place: File and line.
        text: The words; code in it is one word.
    """

    place: str
    text: str


class Measures(NamedTuple):
    """Measures of some passages.

    Attributes:
        words: Number of words.
        mean: Words in a sentence.
        long: Share of sentences of more than `LONG` words.
        phrases: Occurrences of each of `PHRASES` per 1,000 words.
    """

    words: int
    mean: float
    long: float
    phrases: Dict[str, float]


def of_page(path: Path) -> Iterator[Passage]:
    """Yield the paragraphs and list items of a Markdown page; tables, headings and code are left out."""
    tokens = MarkdownIt("commonmark").enable("table").parse(path.read_text(encoding="utf-8"))
    inside: List[str] = []
    for token in tokens:
        if token.nesting == 1:
            inside.append(token.type)
        elif token.nesting == -1:
            inside.pop()
        elif token.type == "inline" and not {"table_open", "heading_open"} & set(inside):
            words = [
                {"code_inline": "X", "softbreak": " ", "hardbreak": " "}.get(child.type, child.content)
                for child in token.children or ()
            ]
            yield Passage(f"{path.name}:{(token.map or [0])[0] + 1}", "".join(words))


@functools.lru_cache(maxsize=None)
def of_source(path: Path, kinds: Tuple[str, ...]) -> Dict[str, List[Passage]]:
    """Return the docstrings, comments and messages of a Python file, those of the given kinds, by the kind.

    Messages are all English texts of four words or more that are no docstrings: of exceptions, of the log, of help.
    """
    source = path.read_text(encoding="utf-8")
    nodes = list(ast.walk(ast.parse(source)))
    ways: Dict[str, Iterator[Tuple[int, str]]] = {
        "docstrings": _docstrings(nodes),
        "comments": _comments(source),
        "messages": _messages(nodes),
    }
    place = str(path.relative_to(ROOT))
    return {kind: [Passage(f"{place}:{line}", text) for line, text in ways[kind]] for kind in kinds}


def _docstrings(nodes: Sequence[ast.AST]) -> Iterator[Tuple[int, str]]:
    for node in nodes:
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), re.sub(r"`+[^`]*`+", "X", text)


def _comments(source: str) -> Iterator[Tuple[int, str]]:
    line, end = 1, 0
    for found in _STRING_OR_COMMENT.finditer(source):
        if found["comment"]:
            line, end = line + source.count("\n", end, found.start()), found.start()
            yield line, found["comment"].lstrip("# ")


def _messages(nodes: Sequence[ast.AST]) -> Iterator[Tuple[int, str]]:
    inner = {part for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    inner |= {node.value for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, (ast.Constant, ast.JoinedStr)) and node not in inner:
            text = literal(node)
            if len(text.split()) > 3 and "\n" not in text and ENGLISH.search(text):
                yield node.lineno, text


def literal(node: ast.expr) -> str:
    """Return the text of a string expression, with X for each value that is put in."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(literal(part) if isinstance(part, ast.Constant) else "X" for part in node.values)
    if isinstance(node, ast.BinOp):
        return literal(node.left) + literal(node.right)
    return ""


def sentences(text: str) -> Iterator[List[str]]:
    """Yield the words of each sentence of three words or more."""
    for part in re.split(r"(?<=[.!?:;])\s+(?=[A-Z(\[])|\n\s*\n|\n\s*[-*]\s", text):
        words = re.findall(r"[A-Za-z][\w'-]*", part)
        if len(words) > 2:
            yield words


def measure(passages: Sequence[Passage]) -> Measures:
    """Return the measures of passages."""
    lengths = [len(words) for passage in passages for words in sentences(passage.text)]
    total = sum(lengths) or 1
    found = Counter({name: sum(len(re.findall(p, each.text)) for each in passages) for name, p in PHRASES.items()})
    return Measures(
        total,
        total / (len(lengths) or 1),
        sum(length > LONG for length in lengths) / (len(lengths) or 1),
        {name: 1000 * found[name] / total for name in PHRASES},
    )


def pages() -> List[Path]:
    """Return the pages that people write and read: those of releases and of single rules are lists."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    left_out = {"_build", "rules"}
    return [path for path in found if not left_out & set(path.parts) and path.name != "changelog.md"]


def passages(kind: str) -> List[Passage]:
    """Return all passages of one of `KINDS`."""
    if kind == "docs":
        return [passage for path in pages() for passage in of_page(path)]
    folder, kinds = ("tests", _KINDS[:2]) if kind == "tests" else ("ignite_ipu", _KINDS)
    found = [of_source(path, kinds) for path in sorted((ROOT / folder).rglob("*.py"))]
    return [passage for each in found for part in (kinds if kind == "tests" else (kind,)) for passage in each[part]]


def main(arguments: Sequence[str]) -> None:
    """Print the measures of each kind, and the longest sentences."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--longest", type=int, default=0)
    longest = parser.parse_args(arguments).longest
    for kind in KINDS:
        every = passages(kind)
        found = measure(every)
        rates = ", ".join(f"{name} {rate:.1f}" for name, rate in found.phrases.items())
        print(f"{kind}: {found.words} words, {found.mean:.1f} a sentence, {found.long:.1%} long; per 1,000: {rates}")
        ranked = [(len(words), each.place, " ".join(words)) for each in every for words in sentences(each.text)]
        for count, place, words in sorted(ranked, reverse=True)[:longest]:
            print(f"  {count} {place}: {words[:200]}")


if __name__ == "__main__":
    main(sys.argv[1:])
