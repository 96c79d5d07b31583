"""Comments: where they stand, and those of statements that go away."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from typing import TYPE_CHECKING, Dict, List, NamedTuple, Sequence, Set

from ignite_ipu.migration.source.file import split_lines

if TYPE_CHECKING:
    from ignite_ipu.migration.rewriting.editor import Editor


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


def comments_around(editor: Editor, statements: Sequence[ast.stmt], kept: Sequence[ast.AST] = ()) -> List[str]:
    """Return the comments above, in and behind statements that go away, without those in the parts that are kept."""
    lines = split_lines(editor.program.source.text)
    found: List[str] = []
    for statement in statements:
        above: List[str] = []
        number = statement.lineno - 2
        while number >= 0 and lines[number].lstrip().startswith("#"):
            above.insert(0, lines[number].strip())
            number -= 1
        found += above
        found += comments_in(editor, statement, kept)
        last = lines[(statement.end_lineno or statement.lineno) - 1].encode("utf-8")
        rest = last[statement.end_col_offset or 0 :].decode("utf-8").strip()
        if rest.startswith("#"):
            found.append(rest)
    return found


def comments_in(editor: Editor, statement: ast.stmt, kept: Sequence[ast.AST]) -> List[str]:
    """Return the comments between the first and the last line of a statement, without those in the parts kept."""
    if statement.lineno == statement.end_lineno:
        return []
    inside = [comment for comment in find_comments(editor.program.source.text) if _holds(editor, statement, comment)]
    return [comment.text for comment in inside if not any(_holds(editor, part, comment) for part in kept)]


def _holds(editor: Editor, node: ast.AST, comment: Comment) -> bool:
    first, start, last, end = editor.range_of(node)
    return (first, start) <= (comment.line, comment.column) < (last, end)


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
