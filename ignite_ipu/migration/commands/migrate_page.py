"""The page of `ignite-ipu migrate --report html`: one file that needs no network, to read and to send on.

It shows the changes and the remaining code with the reasons, and then every file with old and new lines side by side.
"""

from __future__ import annotations

import difflib
import html
import itertools
from collections import Counter
from typing import Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ignite_ipu.migration.code_base import Group
from ignite_ipu.migration.migrator import Migration
from ignite_ipu.migration.program import AUTO
from ignite_ipu.migration.rewrites import all_rewrites
from ignite_ipu.migration.source.file import split_lines

_CONTEXT = 3
_LIKE = 0.4
_MOST_PAIRS = 400
_STYLE = """
:root { color-scheme: light dark; --line: #d8d8dc; --soft: #66666e; --add: #dff5df; --sub: #fbe3e3; --word: #9bdc9b;
  --gone: #f2a5a5; --head: #f4f4f7; }
@media (prefers-color-scheme: dark) { :root { --line: #3a3a40; --soft: #a0a0aa; --add: #16361b; --sub: #431f1f;
  --word: #2c6e35; --gone: #8a3434; --head: #24242a; } }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 90em; padding: 1.5em; }
code, .diff { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 13px; }
table.list { border-collapse: collapse; width: 100%; }
table.list td, table.list th { border-bottom: 1px solid var(--line); padding: .35em .8em .35em 0; text-align: left;
  vertical-align: top; }
#search { font: inherit; padding: .4em .6em; width: min(30em, 100%); box-sizing: border-box; }
.note, .number { color: var(--soft); }
.outcome { border: 1px solid var(--line); border-radius: 1em; font-size: 13px; padding: .1em .7em; }
details { border: 1px solid var(--line); border-radius: 6px; margin: 1em 0; overflow: hidden; }
summary { background: var(--head); cursor: pointer; padding: .5em 1em; }
details > p, details > ul { margin: .6em 1em; }
.diff { border-collapse: collapse; table-layout: fixed; width: 100%; }
.diff td { overflow-wrap: anywhere; padding: 0 .5em; vertical-align: top; white-space: pre-wrap; }
.diff .number { text-align: right; user-select: none; white-space: nowrap; width: 3.2em; box-sizing: border-box; }
.diff .sub { background: var(--sub); } .diff .add { background: var(--add); }
.diff del { background: var(--gone); text-decoration: none; }
.diff ins { background: var(--word); text-decoration: none; }
.diff .gap td { background: var(--head); color: var(--soft); }
@media (max-width: 800px) { .diff tr { display: grid; grid-template-columns: 3.2em 1fr; }
  .diff tr.same td:nth-child(n+3), .diff td.none { display: none; } }
@media print { #search { display: none; } details { break-inside: avoid-page; } }
"""
# Hides the files and rows without the searched words; without scripts the page is the same, and not searched.
_SEARCH = """
const field = document.getElementById("search"), parts = document.querySelectorAll("details, tbody.rows > tr");
field.hidden = false;
field.addEventListener("input", () => {
  const words = field.value.toLowerCase().split(" ").filter(Boolean);
  parts.forEach(part => {
    const text = part.textContent.toLowerCase();
    part.hidden = !words.every(word => text.includes(word));
  });
});
"""


class Row(NamedTuple):
    """An old line beside a new one, with their numbers from 1; None where there is none."""

    old: Optional[int]
    new: Optional[int]


def page(summary: str, migrations: Sequence[Migration], groups: Sequence[Group], skipped: Sequence[str]) -> str:
    """Return the page of migrated files, of groups of files, and of the reasons for files that were skipped."""
    body = [
        "<h1>Moving to IPUs</h1>",
        f"<p>{_text(summary)}. Written by <code>ignite-ipu migrate</code>.</p>",
        '<p><input id="search" type="search" placeholder="Search files, code and reasons" hidden></p>',
        *_changes(migrations),
        *_left(migrations, groups, skipped),
        "<h2>Files</h2>",
        *(part for index, each in enumerate(migrations) if _is_shown(each) for part in _file(index, each)),
    ]
    unchanged = [each.source.path for each in migrations if not _is_shown(each)]
    if unchanged:
        body.append(f'<p class="note">Nothing to change in: {", ".join(map(_code, unchanged))}.</p>')
    content = "\n".join(body)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>Moving to IPUs</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n{content}\n<script>{_SEARCH}</script>\n</body>\n</html>"
    )


def _is_shown(migration: Migration) -> bool:
    return migration.outcome != "unchanged" or bool(migration.remarks)


def _changes(migrations: Sequence[Migration]) -> Iterator[str]:
    """Yield the table of rewrites that were made, and in which files."""
    counts = Counter(name for each in migrations if each.changed for name in each.applied)
    if not counts:
        return
    yield "<h2>What changes</h2>"
    yield '<table class="list"><thead><tr><th>Rewrite</th><th>In words</th><th>Files</th></tr></thead>'
    yield '<tbody class="rows">'
    for name in counts:
        files = ", ".join(_link(i, each) for i, each in enumerate(migrations) if each.changed and name in each.applied)
        yield f"<tr><td>{_code(name)}</td><td>{_text(_sentence(name))}</td><td>{files}</td></tr>"
    yield "</tbody></table>"


def _sentence(name: str) -> str:
    rewrite = all_rewrites().get(name)
    # The one change that is no rewrite.
    return f"Training code is captured as it is written, by `import {AUTO}`." if rewrite is None else rewrite.summary


def _left(migrations: Sequence[Migration], groups: Sequence[Group], skipped: Sequence[str]) -> Iterator[str]:
    """Yield code that was left alone or needs a look, with reasons, and files that move or stay together."""
    remarks = [(index, each, remark) for index, each in enumerate(migrations) for remark in each.remarks]
    if remarks or skipped:
        yield "<h2>Remaining findings, with reasons</h2>"
        yield '<table class="list"><thead><tr><th>Place</th><th>Reason</th></tr></thead><tbody class="rows">'
        for index, each, remark in remarks:
            kind = "" if each.blocked else "<b>Look at this:</b> "
            reason = f"{kind}{_text(remark.message)} <span class='note'>[{_text(remark.subject)}]</span>"
            place = f'<a href="#file-{index}">{_text(each.place(remark.line))}</a>'
            code = _line(each, remark.line) if each.blocked else ""
            yield f"<tr><td>{place}</td><td>{reason}{f'<br>{_code(code)}' if code else ''}</td></tr>"
        yield from (f"<tr><td></td><td>{_text(each)}</td></tr>" for each in skipped)
        yield "</tbody></table>"
    if groups:
        yield "<h2>Files that belong together</h2><ul>"
        for group in groups:
            outcome = f"stay as they are, because of {_text(group.because)}" if group.because else "move together"
            yield f"<li>{', '.join(map(_code, group.paths))} {outcome}.</li>"
        yield "</ul>"


def _lines(text: str) -> List[str]:
    lines = split_lines(text)
    return lines[:-1] if lines and not lines[-1] else lines


def _line(migration: Migration, number: int) -> str:
    lines = _lines(migration.source.text)
    return lines[number - 1].strip() if 0 < number <= len(lines) else ""


def _file(index: int, migration: Migration) -> Iterator[str]:
    yield f'<details open id="file-{index}"><summary>{_code(migration.source.path)}'
    yield f'<span class="outcome">{migration.outcome}</span></summary>'
    if migration.applied and migration.changed:
        yield f'<p class="note">Rewrites: {", ".join(map(_code, dict.fromkeys(migration.applied)))}</p>'
    if migration.blocked and migration.remarks:
        yield f'<p class="note">It stays as it is: {_text(migration.reason)}.</p>'
    if migration.changed:
        yield from _table(_lines(migration.source.text), _lines(migration.text))
    yield "</details>"


def _table(before: List[str], after: List[str]) -> Iterator[str]:
    yield '<table class="diff"><colgroup><col style="width:3.2em"><col><col style="width:3.2em"><col></colgroup><tbody>'
    last: Optional[Row] = None
    for block in _blocks(before, after):
        if last is not None or (block[0].old or 1, block[0].new or 1) != (1, 1):
            yield '<tr class="gap"><td colspan="4">…</td></tr>'
        for row in block:
            yield _row(row, before, after)
        last = block[-1]
    yield "</tbody></table>"


def _blocks(before: List[str], after: List[str]) -> Iterator[List[Row]]:
    """Yield the places where lines differ, each as rows with a few equal lines around it."""
    for group in difflib.SequenceMatcher(None, before, after, autojunk=False).get_grouped_opcodes(_CONTEXT):
        rows: List[Row] = []
        for kind, old, old_end, new, new_end in group:
            if kind == "equal":
                rows += map(Row, range(old + 1, old_end + 1), range(new + 1, new_end + 1))
            else:
                rows += _paired(before, after, range(old, old_end), range(new, new_end))
        yield rows


def _paired(before: List[str], after: List[str], old: range, new: range) -> Iterator[Row]:
    """Yield lines that differ, the most similar ones beside each other."""
    pairs = itertools.product(old, new) if len(old) * len(new) <= _MOST_PAIRS else zip(old, new)
    likeness = {pair: difflib.SequenceMatcher(None, before[pair[0]], after[pair[1]]).ratio() for pair in pairs}
    best = max(likeness, key=lambda pair: likeness[pair], default=None)
    if best is None or likeness[best] < _LIKE:
        yield from (Row(line + 1, None) for line in old)
        yield from (Row(None, line + 1) for line in new)
        return
    i, j = best
    yield from _paired(before, after, range(old.start, i), range(new.start, j))
    yield Row(i + 1, j + 1)
    yield from _paired(before, after, range(i + 1, old.stop), range(j + 1, new.stop))


def _row(row: Row, before: List[str], after: List[str]) -> str:
    old = None if row.old is None else before[row.old - 1].rstrip("\r\n")
    new = None if row.new is None else after[row.new - 1].rstrip("\r\n")
    if old == new and old is not None:
        cells = _cell(row.old, _text(old), "") + _cell(row.new, _text(old), "")
        return f'<tr class="same">{cells}</tr>'
    left, right = _marked(old, new) if old is not None and new is not None else (_text(old or ""), _text(new or ""))
    return f"<tr>{_cell(row.old, left, 'sub')}{_cell(row.new, right, 'add')}</tr>"


def _cell(number: Optional[int], content: str, kind: str) -> str:
    if number is None:
        return '<td class="number none"></td><td class="none"></td>'
    return f'<td class="number">{number}</td><td class="{kind}">{content}</td>'


def _marked(old: str, new: str) -> Tuple[str, str]:
    """Return two lines as HTML in which differences are marked, unless nearly all of it differs."""
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    if matcher.ratio() < _LIKE:
        return _text(old), _text(new)
    left, right = [], []
    for kind, old_start, old_end, new_start, new_end in matcher.get_opcodes():
        gone, come = _text(old[old_start:old_end]), _text(new[new_start:new_end])
        left.append(gone if kind == "equal" or not gone else f"<del>{gone}</del>")
        right.append(come if kind == "equal" or not come else f"<ins>{come}</ins>")
    return "".join(left), "".join(right)


def _link(index: int, migration: Migration) -> str:
    return f'<a href="#file-{index}">{_text(migration.source.path)}</a>'


def _code(text: str) -> str:
    return f"<code>{_text(text)}</code>"


def _text(text: str) -> str:
    return html.escape(text)
