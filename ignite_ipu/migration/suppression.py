"""Comments that silence a rule on one line: `# ignite-ipu: ignore[rule, other-rule]`."""

from __future__ import annotations

import io
import re
import tokenize
from typing import Dict, Set

_COMMENT = re.compile(r"#\s*ignite-ipu:\s*ignore(?:\[(?P<rules>[^\]]*)\])?(?=\s|#|$)")

EVERY_RULE = "*"


def find_suppressions(text: str) -> Dict[int, Set[str]]:
    """Return the rule names silenced on each line (from 1); `*` for a comment that names none."""
    found: Dict[int, Set[str]] = {}
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            match = _COMMENT.search(token.string) if token.type == tokenize.COMMENT else None
            if match:
                rules = match.group("rules")
                names = {EVERY_RULE} if rules is None else {name.strip() for name in rules.split(",") if name.strip()}
                found.setdefault(token.start[0], set()).update(names)
    except (tokenize.TokenError, SyntaxError):
        # The parser accepted the text, so only its very end can be at fault; what was found before it counts.
        return found
    return found
