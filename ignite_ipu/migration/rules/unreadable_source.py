"""Syntax errors, undecodable bytes, binary files, broken notebooks.

Nothing can be said about such a file.

Remedy: Mend the file, or leave it out of the paths given.

Example:
    - model = (
    + model = ()
"""

from __future__ import annotations

from ignite_ipu.migration.findings import Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.ERROR, Outcome.REFUSED


def check(program: Program) -> Hits:
    """Find nothing: a file that gets here has been read. The checker reports the others under this rule."""
    return iter(())
