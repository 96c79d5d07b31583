"""Comments: where they stand, and those of statements that go away."""

from __future__ import annotations

import ast
import io
import tokenize
from typing import TYPE_CHECKING, List, NamedTuple, Sequence

from ignite_ipu.migration.source import split_lines

if TYPE_CHECKING:
    from ignite_ipu.migration.rewrite import Editor


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
