"""Arguments of calls: insertions and deletions leave the rest alone.

A call with n arguments has n + 1 gaps, which hold its layout and comments. A comment at the end of a line is about the
argument in front of it, and goes with that; one on a line of its own stays.
"""

from __future__ import annotations

from typing import List, Sequence

import libcst as cst

Gap = cst.BaseParenthesizableWhitespace

_NONE = cst.SimpleWhitespace("")
_SPACE = cst.SimpleWhitespace(" ")


def without_arguments(call: cst.Call, dropped: Sequence[cst.Arg]) -> cst.Call:
    """Return a call without some of its arguments."""
    before, *behind = _gaps_of(call)
    kept: List[cst.Arg] = []
    gaps = [before]
    for item, gap in zip(call.args, behind):
        if any(item is other for other in dropped):
            gaps[-1] = _merged(gaps[-1], gap, last=item is call.args[-1])
        else:
            kept.append(item)
            gaps.append(gap)
    return _rebuilt(call, kept, gaps) if kept else call.with_changes(args=[], whitespace_before_args=gaps[0])


def with_argument(call: cst.Call, argument: cst.Arg) -> cst.Call:
    """Return a call with one more argument at its end, on a line of its own if the others are."""
    gaps = _gaps_of(call)
    if not call.args:
        return _rebuilt(call, [argument], [*gaps, _NONE])
    *_, before, end = gaps
    gaps[-1] = _SPACE
    if isinstance(before, cst.ParenthesizedWhitespace):
        gaps[-1] = before.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[])
        if isinstance(end, cst.ParenthesizedWhitespace):
            gaps[-1] = gaps[-1].with_changes(first_line=end.first_line)
            end = end.with_changes(first_line=cst.TrailingWhitespace())
    comma = call.args[-1].comma
    argument = argument.with_changes(comma=cst.Comma() if isinstance(comma, cst.Comma) else comma)
    return _rebuilt(call, [*call.args, argument], [*gaps, end])


def _gaps_of(call: cst.Call) -> List[Gap]:
    behind = (
        arg.comma.whitespace_after if isinstance(arg.comma, cst.Comma) else arg.whitespace_after_arg
        for arg in call.args
    )
    return [call.whitespace_before_args, *behind]


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


def _rebuilt(call: cst.Call, items: Sequence[cst.Arg], gaps: Sequence[Gap]) -> cst.Call:
    trailing = bool(call.args) and isinstance(call.args[-1].comma, cst.Comma)
    args: List[cst.Arg] = []
    for item, gap in zip(items, gaps[1:]):
        if item is items[-1] and not trailing:
            args.append(item.with_changes(comma=cst.MaybeSentinel.DEFAULT, whitespace_after_arg=gap))
        else:
            comma = item.comma if isinstance(item.comma, cst.Comma) else cst.Comma()
            comma = comma.with_changes(whitespace_after=gap)
            args.append(item.with_changes(comma=comma, whitespace_after_arg=_NONE))
    return call.with_changes(args=args, whitespace_before_args=gaps[0])
