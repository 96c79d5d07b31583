"""`# ignite-ipu: ignore[...]` with a name that is no rule's.

A misspelt suppression suppresses nothing, and one for a rule that is gone should go too.

Remedy: Correct the name; `ignite-ipu check --list-rules` shows them all.

Example:
    - x = 1  # ignite-ipu: ignore[cuda-devices]
    + x = 1  # ignite-ipu: ignore[cuda-device]
"""

from __future__ import annotations

import ast

from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity
from ignite_ipu.migration.program import EVERY_RULE
from ignite_ipu.migration.rules import all_rules

SEVERITY, RUN = Severity.WARNING, Outcome.UNCHANGED


def check(program: Program) -> Hits:
    known = all_rules()
    for line, names in sorted(program.suppressions.items()):
        for name in sorted(names - {EVERY_RULE} - set(known)):
            place = ast.Pass(lineno=line, col_offset=0, end_lineno=line, end_col_offset=0)
            yield Hit(place, f"there is no rule {name!r} to suppress")
