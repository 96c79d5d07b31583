"""Files that cannot be read as Python."""

from __future__ import annotations

from ignite_ipu.migration.findings import Hits, Outcome, Rule, Severity
from ignite_ipu.migration.program import Program


def check(program: Program) -> Hits:
    """Find nothing: a file that gets here has been read. The checker reports the others under this rule."""
    return iter(())


RULE = Rule(
    name="unreadable-source",
    severity=Severity.ERROR,
    run=Outcome.REFUSED,
    summary="Syntax errors, undecodable bytes, binary files, broken notebooks.",
    rationale="Nothing can be said about such a file.",
    remedy="Mend the file, or leave it out of the paths given.",
    example="""\
- model = (
+ model = ()
""",
    check=check,
)
