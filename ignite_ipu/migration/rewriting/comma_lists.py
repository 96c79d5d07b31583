"""Lists between commas, such as a call's arguments and an import's names: what comes and goes leaves the rest alone.

A list of n items has n + 1 gaps, which hold its layout and comments. A comment at the end of a line is about the item
in front of it, and goes with that; one on a line of its own stays.
"""

from __future__ import annotations

from typing import List, Sequence, Tuple, TypeVar, Union

import libcst as cst

Item = TypeVar("Item", cst.Arg, cst.ImportAlias)
Gap = cst.BaseParenthesizableWhitespace

_NONE = cst.SimpleWhitespace("")
_SPACE = cst.SimpleWhitespace(" ")


def without_arguments(call: cst.Call, dropped: Sequence[cst.Arg]) -> cst.Call:
    """Return a call without some of its arguments."""
    kept, gaps = _without(call.args, _gaps_of(call), dropped)
    if not kept:
        return call.with_changes(args=[], whitespace_before_args=gaps[0])
    return _rebuilt(call, kept, gaps)


def with_argument(call: cst.Call, argument: cst.Arg) -> cst.Call:
    """Return a call with one more argument at its end, on a line of its own if the others are."""
    gaps = _gaps_of(call)
    if call.args:
        before, end = gaps[-2:]
        gaps[-1] = _SPACE
        if isinstance(before, cst.ParenthesizedWhitespace):
            gaps[-1] = before.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[])
            if isinstance(end, cst.ParenthesizedWhitespace):
                gaps[-1] = gaps[-1].with_changes(first_line=end.first_line)
                end = end.with_changes(first_line=cst.TrailingWhitespace())
        gaps.append(end)
        comma = call.args[-1].comma
        argument = argument.with_changes(comma=cst.Comma() if isinstance(comma, cst.Comma) else comma)
    else:
        gaps.append(_NONE)
    return _rebuilt(call, [*call.args, argument], gaps)


def without_names(node: cst.ImportFrom, dropped: Sequence[cst.ImportAlias]) -> cst.ImportFrom:
    """Return an import without some of its names, of which at least one stays."""
    assert not isinstance(node.names, cst.ImportStar)
    gaps: List[Gap] = [node.lpar.whitespace_after if node.lpar is not None else _NONE]
    gaps += [_gap_behind(alias, _NONE) for alias in node.names]
    if node.rpar is not None and not isinstance(node.names[-1].comma, cst.Comma):
        gaps[-1] = node.rpar.whitespace_before
    kept, gaps = _without(node.names, gaps, dropped)
    trailing = isinstance(node.names[-1].comma, cst.Comma)
    kept = _with_commas(kept, gaps, trailing)
    if node.lpar is None or node.rpar is None:
        return node.with_changes(names=kept)
    return node.with_changes(
        names=kept,
        lpar=node.lpar.with_changes(whitespace_after=gaps[0]),
        rpar=node.rpar.with_changes(whitespace_before=_NONE if trailing else gaps[-1]),
    )


def _gaps_of(call: cst.Call) -> List[Gap]:
    return [call.whitespace_before_args, *(_gap_behind(arg, arg.whitespace_after_arg) for arg in call.args)]


def _gap_behind(item: Union[cst.Arg, cst.ImportAlias], without_comma: Gap) -> Gap:
    return item.comma.whitespace_after if isinstance(item.comma, cst.Comma) else without_comma


def _without(items: Sequence[Item], gaps: List[Gap], dropped: Sequence[Item]) -> Tuple[List[Item], List[Gap]]:
    kept: List[Item] = []
    left = [gaps[0]]
    for position, item in enumerate(items):
        if any(item is other for other in dropped):
            left[-1] = _merged(left[-1], gaps[position + 1], last=position == len(items) - 1)
        else:
            kept.append(item)
            left.append(gaps[position + 1])
    return kept, left


def _merged(before: Gap, after: Gap, last: bool) -> Gap:
    """Return the one gap where an item stood between two."""
    if isinstance(after, cst.ParenthesizedWhitespace):
        if not isinstance(before, cst.ParenthesizedWhitespace):
            return after
        lines = [*before.empty_lines, *after.empty_lines]
        return after.with_changes(first_line=before.first_line, empty_lines=lines)
    if isinstance(before, cst.ParenthesizedWhitespace):
        comments = [before.first_line.comment, *(line.comment for line in before.empty_lines)]
        return after if last and not any(comments) else before
    return after if last else before


def _rebuilt(call: cst.Call, args: List[cst.Arg], gaps: List[Gap]) -> cst.Call:
    trailing = bool(call.args) and isinstance(call.args[-1].comma, cst.Comma)
    *front, last = (arg.with_changes(whitespace_after_arg=_NONE) for arg in _with_commas(args, gaps, trailing))
    args = [*front, last if trailing else last.with_changes(whitespace_after_arg=gaps[-1])]
    return call.with_changes(args=args, whitespace_before_args=gaps[0])


def _with_commas(items: Sequence[Item], gaps: Sequence[Gap], trailing: bool) -> List[Item]:
    found: List[Item] = []
    for position, item in enumerate(items):
        if position == len(items) - 1 and not trailing:
            found.append(item.with_changes(comma=cst.MaybeSentinel.DEFAULT))
        else:
            comma = item.comma if isinstance(item.comma, cst.Comma) else cst.Comma()
            found.append(item.with_changes(comma=comma.with_changes(whitespace_after=gaps[position + 1])))
    return found
