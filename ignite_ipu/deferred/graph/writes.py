"""Lines of running code that write into a tensor, for a refusal: PyTorch counts writes, and not where they are."""

from __future__ import annotations

import ast
import contextlib
import dis
import linecache
import sys
from types import FrameType
from typing import Any, Iterator, List, Mapping, Optional

import torch
from torch import nn

from ignite_ipu.program.user_code import is_users_file, variables_of


def describe_writes(tensor: torch.Tensor) -> str:
    """Return where functions of the user's that are running write into a tensor, as words to follow "changed in place".

    Code that has returned, and writes through names that it alone had, is not found.
    """
    frame: Optional[FrameType] = sys._getframe(1)
    lines: List[str] = []
    while frame is not None:
        if is_users_file(frame.f_code.co_filename):
            lines += [f"{frame.f_code.co_filename}:{line}" for line in sorted(set(_lines(frame, tensor)))]
        frame = frame.f_back
    return f" at {' or '.join(lines)}" if lines else " (through another name, or in a function that has returned)"


def _lines(frame: FrameType, tensor: torch.Tensor) -> Iterator[int]:
    try:
        tree = ast.parse("".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals)))
    except SyntaxError:
        return  # it was edited while it ran
    lines, variables = {line for _, line in dis.findlinestarts(frame.f_code)}, variables_of(frame)
    for node in ast.walk(tree):
        if getattr(node, "lineno", None) in lines and any(_holds(each, variables, tensor) for each in _written(node)):
            yield node.lineno  # type: ignore[attr-defined]


def _written(node: ast.AST) -> List[ast.expr]:
    """Return the expressions that a statement or a call writes into, if they are tensors."""
    if isinstance(node, ast.AugAssign):
        return [node.target]
    if isinstance(node, ast.Assign):
        return [target for target in node.targets if isinstance(target, ast.Subscript)]
    if not isinstance(node, ast.Call):
        return []
    out = [keyword.value for keyword in node.keywords if keyword.arg == "out"]
    if isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_"):
        return [*out, node.func.value, *node.args[:1]]  # a method, or a function such as `init.normal_(tensor)`
    return out


def _holds(node: ast.AST, variables: Mapping[str, Any], tensor: torch.Tensor) -> bool:
    """Tell whether an expression is a tensor with the memory of another, or a view of such, `x.data.view(-1)[0]`."""
    found = _value(node, variables)
    if type(found) is torch.Tensor:
        return found.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
    inner = node.func if isinstance(node, ast.Call) else getattr(node, "value", None)
    return isinstance(inner, ast.AST) and _holds(inner, variables, tensor)


def _value(node: ast.AST, variables: Mapping[str, Any]) -> Any:
    """Return what names, plain attributes and constant keys stand for, without running code; None for all else."""
    if isinstance(node, ast.Name):
        return variables.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _value(node.value, variables)
        own = getattr(owner, "__dict__", {})
        return own.get(node.attr, owner._buffers.get(node.attr) if isinstance(owner, nn.Module) else None)
    if isinstance(node, ast.Subscript):
        owner, key = _value(node.value, variables), getattr(node.slice, "value", None)
        key = getattr(key, "value", key)  # Python 3.8 has a node in between
        if type(owner) in (dict, list, tuple) and isinstance(key, (int, str)):
            with contextlib.suppress(LookupError, TypeError):
                return owner[key]
    return None
