"""Comments of a text, and the rules that they silence."""

from __future__ import annotations

import io
import re
import tokenize
from typing import Dict, List, NamedTuple, Set


class Comment(NamedTuple):
    """A comment's line, from 1, its column in characters, from 0, and its text."""

    line: int
    column: int
    text: str


def find_comments(text: str) -> List[Comment]:
    """Return the comments of a text that the parser accepts."""
    found: List[Comment] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text, newline=None).readline):
            if token.type == tokenize.COMMENT:
                found.append(Comment(*token.start, token.string))
    except (tokenize.TokenError, SyntaxError):
        # The parser accepted the text, so only its very end can be at fault; what was found before it counts.
        return found
    return found


_COMMENT = re.compile(r"#\s*ignite-ipu:\s*ignore(?:\[(?P<rules>[^\]]*)\])?(?=\s|#|$)")

EVERY_RULE = "*"


def find_suppressions(text: str) -> Dict[int, Set[str]]:
    """Return the rule names silenced on each line (from 1); `*` for a comment that names none."""
    found: Dict[int, Set[str]] = {}
    # Finding comments takes as long as parsing does.
    for comment in find_comments(text) if "ignite-ipu" in text else ():
        match = _COMMENT.search(comment.text)
        if match:
            rules = match.group("rules")
            names = {EVERY_RULE} if rules is None else {name.strip() for name in rules.split(",") if name.strip()}
            found.setdefault(comment.line, set()).update(names)
    return found
