"""Comments that silence a rule on one line: `# ignite-ipu: ignore[rule, other-rule]`."""

from __future__ import annotations

import re
from typing import Dict, Set

from ignite_ipu.migration.comments import find_comments

_COMMENT = re.compile(r"#\s*ignite-ipu:\s*ignore(?:\[(?P<rules>[^\]]*)\])?(?=\s|#|$)")

EVERY_RULE = "*"


def find_suppressions(text: str) -> Dict[int, Set[str]]:
    """Return the rule names silenced on each line (from 1); `*` for a comment that names none."""
    found: Dict[int, Set[str]] = {}
    for comment in find_comments(text):
        match = _COMMENT.search(comment.text)
        if match:
            rules = match.group("rules")
            names = {EVERY_RULE} if rules is None else {name.strip() for name in rules.split(",") if name.strip()}
            found.setdefault(comment.line, set()).update(names)
    return found
