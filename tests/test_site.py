"""The documentation as a site: English that is easy to read, a place for every page, and errors that are explained."""

from __future__ import annotations

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

import ignite_ipu.errors
from tests.prose_measures import Passage, literal, measure, of_page, passages

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [path for path in sorted(DOCS.rglob("*.md")) if "_build" not in path.parts]
TROUBLESHOOTING = DOCS / "troubleshooting.md"
ERRORS = [
    value
    for value in vars(ignite_ipu.errors).values()
    if inspect.isclass(value) and issubclass(value, ignite_ipu.errors.IPUError)
]


@pytest.mark.parametrize(
    ("kind", "mean", "long", "what", "speaking", "nobody"),
    [
        # Measured, when the limits were set: 11 to 13 words in a sentence, and 0.1 of each phrase at most.
        ("docs", 12.5, 0.03, 0.4, 0.2, 0.1),
        ("docstrings", 13.5, 0.015, 0.3, 0.1, 0.1),
        ("comments", 12, 0.005, 0.4, 0.2, 0.2),
        ("messages", 13, 0.03, 0.3, 0.2, 0.1),
        ("tests", 13, 0.01, 0.5, 0.2, 0.1),
    ],
)
def test_sentences_are_short_and_plain(kind, mean, long, what, speaking, nobody):
    """`python -m tests.prose_measures --longest 20` prints the measures and the longest sentences."""
    found = measure(passages(kind))
    assert found.words > 1000
    assert found.mean <= mean and found.long <= long
    assert found.phrases["headless what"] <= what
    assert found.phrases["speaking programs"] <= speaking
    assert found.phrases["nobody"] <= nobody


def test_measures_of_sentences_that_can_be_counted_by_hand(tmp_path):
    """Code is one word; tables, headings and code blocks are left out."""
    page = tmp_path / "page.md"
    page.write_text(
        "# What it is\n\nIt tells what the loop does. `a b c` is fine here.\n\n```\nWhat now\n```\n\n|What x|\n|-|\n"
    )
    assert [each.text for each in of_page(page)] == ["It tells what the loop does. X is fine here."]
    found = measure(list(of_page(page)))
    assert (found.words, found.mean, found.long) == (10, 5.0, 0.0)
    assert found.phrases == {"headless what": 100.0, "speaking programs": 100.0, "nobody": 0.0}
    assert measure([Passage("", " ".join(["word"] * 29) + ".")]).long == 1.0


def contents(page):
    """Return the pages in the tables of contents of a page."""
    found = []
    for token in MarkdownIt("commonmark").parse(page.read_text(encoding="utf-8")):
        if token.type == "fence" and token.info == "{toctree}":
            names = [line for line in token.content.splitlines() if line and not line.startswith(":")]
            for name in names:
                found += sorted(page.parent.glob(name + ".md"))
                assert list(page.parent.glob(name + ".md")), name
    return found


def test_every_page_has_one_place_in_the_sidebar():
    found = [DOCS / "index.md", *(child for page in PAGES for child in contents(page))]
    assert sorted(found) == PAGES


def test_the_sidebar_has_groups():
    """Readers look for a page by their task."""
    captions = re.findall(r"^:caption: (.+)$", (DOCS / "index.md").read_text(encoding="utf-8"), re.MULTILINE)
    groups = ["Start", "Port a script", "Train", "Scale", "Emulator", "Command line", "Reference", "Project"]
    assert captions == groups


def anchors(page):
    """Return the anchors of the headings of a page."""
    tokens = MarkdownIt("commonmark").parse(page.read_text(encoding="utf-8"))
    titles = [
        "".join(child.content for child in after.children or ())
        for token, after in zip(tokens, tokens[1:])
        if token.type == "heading_open"
    ]
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_links_to_headings_resolve(page):
    tokens = MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))
    links = [str(child.attrGet("href")) for token in tokens for child in token.children or () if child.attrGet("href")]
    for link in links:
        file, mark, anchor = link.partition("#")
        if mark and not re.match(r"[a-z]+:", link):
            assert anchor in anchors(page.parent / file if file else page), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_code_fits_a_window_of_1280_pixels(page):
    """Output of programs is folded by the style sheet; code and commands are not."""
    for token in MarkdownIt("commonmark").parse(page.read_text(encoding="utf-8")):
        if token.type == "fence" and token.info in ("python", "bash", "console"):
            assert [line for line in token.content.splitlines() if len(line) > 88] == []


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_is_on_the_page_that_it_names(kind):
    """Also those that other modules derive from them."""
    file, _, anchor = kind.docs.partition("#")
    assert ROOT / file == TROUBLESHOOTING and anchor in anchors(TROUBLESHOOTING)
    assert f"\n## {kind.__name__}\n" in TROUBLESHOOTING.read_text(encoding="utf-8")

    class Derived(kind):
        pass

    assert Derived.docs == kind.docs


def test_a_traceback_names_the_page():
    error = ignite_ipu.errors.BatchError("the message")
    assert str(error) == "the message"
    if hasattr(error, "__notes__"):
        assert error.__notes__ == ["Read more: docs/troubleshooting.md#batcherror"]


def test_messages_on_the_page_are_those_of_the_source():
    """Each heading in quotation marks is a part of a message that the library raises."""
    quoted = re.findall(r'^### "(.+)"$', TROUBLESHOOTING.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(quoted) >= 30
    texts = [
        literal(node)
        for path in (ROOT / "ignite_ipu").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, (ast.Constant, ast.JoinedStr))
    ]
    assert [words for words in quoted if not any(words in text for text in texts)] == []


@pytest.mark.parametrize("module", ["", ".handlers", ".checkpoints", ".pipeline", ".running", ".deferred", ".errors"])
def test_every_public_name_is_in_the_reference(module):
    page = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "api").glob("*.md"))
    found = import_module(f"ignite_ipu{module}")
    names = getattr(found, "__all__", None) or [kind.__name__ for kind in ERRORS]
    listed = set(re.findall(r"auto\w+:: \S+\.(\w+)$", page, re.MULTILINE))
    assert set(names) - {"__version__"} - listed == set()
