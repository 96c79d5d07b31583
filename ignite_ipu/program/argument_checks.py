"""Checks of values: tests whose only consequence is an error, as `assert (x > 0).all()` or `if bad.any(): raise ...`.

A compiled program runs no Python code, and a trace has no values to check. A check passes there, as PopTorch has those
of `torch.distributions` pass. The host makes it for the first batch, before the model is compiled.
"""

from __future__ import annotations

import ast
import functools
import itertools
import linecache
import sys
from types import CodeType
from typing import Dict, Iterator, List, Optional, Tuple, Union

from ignite_ipu.program.user_code import Line

Check = Union[ast.Assert, ast.If]


def is_check(statement: ast.stmt) -> bool:
    """Return whether a statement does nothing, or raises an error."""
    if isinstance(statement, ast.If):
        return len(statement.body) == 1 and isinstance(statement.body[0], ast.Raise)
    return isinstance(statement, ast.Assert)


def passing_value(at: Line) -> Optional[bool]:
    """Return the truth value with which a check passes that code makes at a line; None if it makes none there.

    Before Python 3.11 it is not known which of several values is asked for in a line. None, too, if they decide in
    different ways there.
    """
    file, number = at.place
    text = "".join(linecache.getlines(file))
    checks = _checks_of(text).get(number) if text else None
    place = _last_computed(*at)
    asked = [each for check in checks or () for each in _asked_for(check, number)]
    exact = [each for each in asked if (each[0].lineno, each[0].col_offset) == place]
    values = {value for _, value in exact or asked}
    return values.pop() if len(values) == 1 else None


def _last_computed(code: CodeType, instruction: int) -> Optional[Tuple[Optional[int], Optional[int]]]:
    """Return the line and the column, in bytes, where the expression begins that was computed before an instruction."""
    if sys.version_info < (3, 11) or not instruction:
        return None
    line, _, column, _ = next(itertools.islice(code.co_positions(), instruction // 2 - 1, None))
    return line, column


@functools.lru_cache(maxsize=64)
def _checks_of(text: str) -> Dict[int, List[Check]]:
    """Return the checks in the text of a file, by each line of their tests."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return {}
    found: Dict[int, List[Check]] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assert, ast.If)) and is_check(node):
            for line in range(node.test.lineno, (node.test.end_lineno or node.test.lineno) + 1):
                found.setdefault(line, []).append(node)
    return found


def _asked_for(check: Check, line: int) -> List[Tuple[ast.expr, bool]]:
    asked = operands(check.test, isinstance(check, ast.Assert))
    return [(each, value) for each, value in asked if each.lineno <= line <= (each.end_lineno or each.lineno)]


def operands(test: ast.expr, value: bool) -> Iterator[Tuple[ast.expr, bool]]:
    """Yield the expressions of a test that Python asks for their truth, each with the one that makes the test so."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from operands(test.operand, not value)
    elif isinstance(test, ast.BoolOp):
        for operand in test.values:
            yield from operands(operand, value)
    else:
        yield test, value
