"""Reports of a migration, for programs (JSON) and as one page for people (HTML)."""

from __future__ import annotations

import difflib
import html
import json
from typing import Any, Dict, Iterator, Sequence

import ignite_ipu
from ignite_ipu.errors import listed
from ignite_ipu.migration.groups import Group
from ignite_ipu.migration.migrator import OUTCOMES, Migration
from ignite_ipu.migration.source.file import split_lines


def together(group: Group) -> str:
    """Return one sentence that says which files hang together, and what became of them."""
    names = listed(group.paths, most=len(group.paths))
    outcome = f"left alone together because of {group.because}" if group.because else "moved together"
    return f"{outcome}: {names}"


def json_migration(migrations: Sequence[Migration], groups: Sequence[Group], skipped: Sequence[str]) -> str:
    """Return one JSON object, whose `version` changes when its structure does."""
    document = {
        "version": 1,
        "tool": {"name": "ignite-ipu migrate", "version": ignite_ipu.__version__},
        "files": [_file(migration) for migration in migrations],
        "together": [{"paths": list(group.paths), "because": group.because or None} for group in groups],
        "skipped": list(skipped),
    }
    return json.dumps(document, indent=2)


def _file(migration: Migration) -> Dict[str, Any]:
    return {
        "path": migration.source.path,
        "outcome": migration.outcome,
        "rewrites": migration.applied,
        "remarks": [
            {"place": migration.place(each.line), "subject": each.subject, "message": each.message}
            for each in migration.remarks
        ],
        "diff": "".join(migration.difference()),
    }


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 110em; padding: 0 1em; color: #222; }
code, table.diff { font-family: ui-monospace, monospace; font-size: 13px; }
table.diff { border-collapse: collapse; width: 100%; table-layout: fixed; }
table.diff td { white-space: pre-wrap; overflow-wrap: anywhere; vertical-align: top; padding: 0 .4em; }
table.diff colgroup:nth-child(3n+1) { width: 1.5em; } table.diff colgroup:nth-child(3n+2) { width: 3.5em; }
.diff_header { color: #888; text-align: right; } .diff_next { display: none; }
.diff_add { background: #d4f4d4; } .diff_chg { background: #fff3c4; } .diff_sub { background: #fbd9d9; }
h2 { border-top: 1px solid #ddd; padding-top: 1em; } .outcome { font-weight: normal; color: #666; }
@media (prefers-color-scheme: dark) { body { background: #1b1b1b; color: #ddd; }
 .diff_add { background: #1d4a1d; } .diff_chg { background: #55491a; } .diff_sub { background: #5a2222; } }
"""


def html_migration(migrations: Sequence[Migration], groups: Sequence[Group], skipped: Sequence[str]) -> str:
    """Return a page that needs no other file: what hangs together, the reasons, and the differences side by side."""
    counted = {outcome: sum(each.outcome == outcome for each in migrations) for outcome in OUTCOMES}
    told = ", ".join(f"{count} {outcome}" for outcome, count in counted.items() if count) or "no Python files"
    parts = [f"<p>{told}</p>", _items([together(group) for group in groups]), _items(skipped)]
    for index, migration in enumerate(migrations):
        if migration.outcome != "unchanged" or migration.remarks:
            parts += _section(index, migration)
    body = "\n".join(part for part in parts if part)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>ignite-ipu migrate</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n<h1>ignite-ipu migrate</h1>\n{body}\n</body></html>"
    )


def _section(index: int, migration: Migration) -> Iterator[str]:
    path = html.escape(migration.source.path)
    yield f'<h2 id="file-{index}"><code>{path}</code> <span class="outcome">{migration.outcome}</span></h2>'
    if migration.applied:
        yield f"<p>{html.escape(listed(migration.applied, most=len(migration.applied)))}</p>"
    lines = split_lines(migration.source.text)
    if migration.remarks:
        verdict = "" if migration.blocked else "remark: "
        yield "<ul>"
        for each in migration.remarks:
            code = lines[each.line - 1].strip() if migration.blocked and 0 < each.line <= len(lines) else ""
            told = html.escape(f"{migration.place(each.line)}: {verdict}{each.message} [{each.subject}]")
            yield f"<li>{told}{f'<br><code>{html.escape(code)}</code>' if code else ''}</li>"
        yield "</ul>"
    if migration.changed:
        table = difflib.HtmlDiff(tabsize=4).make_table(lines, split_lines(migration.text), context=True, numlines=3)
        yield table.replace("&nbsp;", " ").replace(' nowrap="nowrap"', "")


def _items(texts: Sequence[str]) -> str:
    items = "".join(f"<li>{html.escape(text)}</li>" for text in texts)
    return f"<ul>{items}</ul>" if items else ""
