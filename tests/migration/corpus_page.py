"""The page "Corpus of scripts", from the expected results of the corpus: `python -m tests.migration.corpus_page`."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

from tests.running.test_corpus import REFUSED, TOLERANCE

CORPUS = Path(__file__).parent / "corpus"
PAGE = Path(__file__).parents[2] / "docs" / "migration" / "corpus.md"
_HEAD = """\
# Corpus of scripts

The {count} scripts of `tests/migration/corpus` resemble public training code, on small data. Tests run each script on
the host, under `ignite-ipu run`, and as `ignite-ipu migrate` writes it. Losses and metrics are equal except for
rounding, or within the tolerance of the table. `run` trains {run} of them unchanged. `migrate` writes {migrated} that
train to the same numbers. A refusal names the reason and the line.
`python -m tests.migration.corpus_page` writes the page from the tests.

| Script | Content | `run` | `migrate` |
|---|---|---|---|
"""


def page() -> str:
    """Return the page."""
    expectations = json.loads((CORPUS / "expectations.json").read_text(encoding="utf-8"))
    rows, migrated = [], 0
    for name, expected in sorted(expectations.items()):
        what = ast.get_docstring(ast.parse((CORPUS / f"{name}.py").read_text(encoding="utf-8"))) or ""
        tolerance, why = TOLERANCE.get(name, (0, ""))
        run = f"refused: {_code(REFUSED[name][1])}" if name in REFUSED else "the same numbers"
        if why:
            run += f", within {tolerance:g}: {why}"
        if "because" in expected:
            migrate = f"left alone: {', '.join(f'[{rule}](rules/{rule}.md)' for rule in expected['because'])}"
        else:
            migrate, migrated = "the same", migrated + 1
        rows.append(f"| `{name}` | {what.splitlines()[0].rstrip('.')} | {run} | {migrate} |\n")
    head = _HEAD.format(count=len(rows), run=len(rows) - len(REFUSED), migrated=migrated)
    return head + "".join(rows)


def _code(text: str) -> str:
    return f"`{text}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")
