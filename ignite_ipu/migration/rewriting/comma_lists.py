"""Arguments of calls: what comes and goes leaves the rest alone.

A call with n arguments has n + 1 gaps, which hold its layout and comments. A comment at the end of a line is about the
argument in front of it, and goes with that; one on a line of its own stays.
"""

from __future__ import annotations

from typing import List, Sequence, Tuple

import libcst as cst

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


def _gaps_of(call: cst.Call) -> List[Gap]:
    behind = (
        arg.comma.whitespace_after if isinstance(arg.comma, cst.Comma) else arg.whitespace_after_arg
        for arg in call.args
    )
    return [call.whitespace_before_args, *behind]


def _without(items: Sequence[cst.Arg], gaps: List[Gap], dropped: Sequence[cst.Arg]) -> Tuple[List[cst.Arg], List[Gap]]:
    kept: List[cst.Arg] = []
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


def _with_commas(items: Sequence[cst.Arg], gaps: Sequence[Gap], trailing: bool) -> List[cst.Arg]:
    found: List[cst.Arg] = []
    for position, item in enumerate(items):
        if position == len(items) - 1 and not trailing:
            found.append(item.with_changes(comma=cst.MaybeSentinel.DEFAULT))
        else:
            comma = item.comma if isinstance(item.comma, cst.Comma) else cst.Comma()
            found.append(item.with_changes(comma=comma.with_changes(whitespace_after=gaps[position + 1])))
    return found
