"""Every Python block of the README and of the documentation runs, and every relative link leads somewhere."""

from __future__ import annotations

import dataclasses
import linecache
import re
from pathlib import Path
from typing import Iterator, NamedTuple

import ignite.handlers
import pytest
from markdown_it import MarkdownIt

from ignite_ipu import IPUConfig
from tests.half_precision import needs_half_precision

_ROOT = Path(__file__).parents[1]
_PAGES = sorted([*_ROOT.glob("*.md"), *_ROOT.glob("docs/**/*.md")])
_PAGES = [page for page in _PAGES if "_build" not in page.parts]
_PYTHON = re.compile(r"python|\{code-block\} *python")


class Block(NamedTuple):
    """One fenced block of a page: its code, and the page's line (from 0) that the code starts on."""

    code: str
    line: int


def python_blocks(text: str, line: int = 0) -> Iterator[Block]:
    """Yield the Python blocks of a page in order, those inside MyST directives such as `{note}` included."""
    for token in MarkdownIt("commonmark").parse(text):
        if token.type != "fence" or token.map is None:
            continue
        start = line + token.map[0] + 1
        if _PYTHON.fullmatch(token.info.strip()):
            yield Block(token.content, start)
        elif token.info.startswith("{"):
            yield from python_blocks(token.content, start)


def run_blocks(path: Path) -> None:
    """Run a page's blocks in order in one namespace, as a reader who types them in would.

    Tracebacks and `inspect.getsource` see the page itself, with its line numbers.
    """
    text = path.read_text(encoding="utf-8")
    linecache.cache[str(path)] = (len(text), None, text.splitlines(keepends=True), str(path))
    namespace = {"__name__": "__main__"}
    for block in python_blocks(text):
        exec(compile("\n" * block.line + block.code, str(path), "exec", dont_inherit=True), namespace)


_IN_HALF_PRECISION = [_ROOT / "docs" / name for name in ("command-line.md", "precision.md")]
_MARKS = {
    **dict.fromkeys(_IN_HALF_PRECISION, needs_half_precision),
    _ROOT / "docs" / "handlers.md": pytest.mark.skipif(
        not hasattr(ignite.handlers, "ProgressBar"), reason="Ignite 0.5 moved its progress bar to where it is here"
    ),
}
_RUN = [pytest.param(page, marks=_MARKS.get(page, ())) for page in _PAGES]


@pytest.mark.parametrize("page", _RUN, ids=[str(page.relative_to(_ROOT)) for page in _PAGES])
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_blocks(page)


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(_ROOT)))
def test_relative_links_lead_to_files(page):
    links = [
        target
        for token in MarkdownIt("commonmark").parse(page.read_text(encoding="utf-8"))
        for child in token.children or ()
        for target in [child.attrGet("href") or child.attrGet("src")]
        if target
    ]
    files = [str(link).split("#")[0] for link in links if not re.match(r"[a-z]+:", str(link))]
    assert [name for name in files if name and not (page.parent / name).exists()] == []


def test_blocks_of_a_page_share_a_namespace_and_errors_point_at_the_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n```python\nx = 1\n```\n\ntext\n\n````{note}\n```python\nassert x == 2, x\n```\n````\n")
    with pytest.raises(AssertionError, match="1") as error:
        run_blocks(page)
    assert error.traceback[-1].path == page
    assert error.traceback[-1].lineno + 1 == 11


def test_only_python_blocks_run():
    """Shell commands, output and diffs are shown, not run; a directive's options are not code."""
    text = "```\n1\n```\n```bash\n2\n```\n```diff\n3\n```\n```python\n4\n```\n```{code-block} python\n5\n```\n"
    assert [block.code for block in python_blocks(text)] == ["4\n", "5\n"]


def test_every_variable_that_is_read_is_in_the_table():
    """Those of the environment that this library or the emulator looks at, by their names in the source."""
    page = (_ROOT / "docs" / "environment.md").read_text(encoding="utf-8")
    name = re.compile(r'"((?:IGNITE_IPU|POPTORCH|POPLAR|PVTI)_[A-Z_]+)"')
    read = {found for file in (_ROOT / "ignite_ipu").rglob("*.py") for found in name.findall(file.read_text())}
    # From `ignite-ipu launch` and `run` to the processes that they start.
    ours = {"IGNITE_IPU_STARTER", "IGNITE_IPU_JOB", "IGNITE_IPU_SPAWNED"}
    assert {found for found in read - ours if f"`{found}`" not in page} == set()


def test_every_setting_is_in_the_table():
    """Each field of `IPUConfig` once, in the first column, and no other name."""
    page = (_ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    table = page.partition("| Setting | Effect |\n|---|---|\n")[2].partition("\n\n")[0]
    named = [name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.split("|")[1])]
    assert sorted(named) == sorted(field.name for field in dataclasses.fields(IPUConfig))
