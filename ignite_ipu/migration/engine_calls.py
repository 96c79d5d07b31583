"""The replacement of Ignite's factories by ours, which take the same arguments."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Mapping, Optional

import libcst as cst

from ignite_ipu.migration.names import argument, constant, dotted
from ignite_ipu.migration.program import Program
from ignite_ipu.migration.rewrite import Edit, Editor, with_arguments


@dataclass(frozen=True)
class Replacement:
    """What takes the place of a factory.

    Attributes:
        name: The factory in ignite_ipu.
        device_position: The position of the argument `device`, in both.
    """

    name: str
    device_position: int


def replace_engine_calls(editor: Editor, replacements: Mapping[str, Replacement]) -> None:
    """Replace calls of Ignite's factories, except those with arguments that an IPU cannot honour."""
    for call, name in editor.program.calls(*replacements):
        replacement = replacements[name]
        refused = _refused_argument(call)
        if refused is not None:
            editor.remark(call, f"{refused} has no counterpart on an IPU")
            continue
        device = argument(call, "device", replacement.device_position)
        drop = device is not None and _is_host_device(editor.program, device)
        if drop and isinstance(device, ast.Call):
            editor.forget("ignite_ipu.host_device")
        editor.forget(name)
        new = editor.need(replacement.name, call)
        editor.replace(call, _replaced(new, replacement.device_position if drop else None))


def _refused_argument(call: ast.Call) -> Optional[str]:
    for keyword in call.keywords:
        if keyword.arg in ("amp_mode", "scaler") and constant(keyword.value) not in (None, False):
            return keyword.arg
    return None


def _is_host_device(program: Program, node: ast.expr) -> bool:
    """Whether an expression is what ignite_ipu's engines take by default."""
    call = node
    name = dotted(node)
    if name is not None:
        values = [value for target, value in program.training.assigned if target == name]
        arguments = {arg.arg for arg in program.nodes(ast.arg)}
        if len(values) != 1 or name in arguments:
            return False
        call = values[0]
    if program.names.called(call) == "str" and isinstance(call, ast.Call) and len(call.args) == 1:
        call = call.args[0]
    return program.names.called(call) == "ignite_ipu.host_device" and not getattr(call, "args", True)


def _replaced(name: str, dropped: Optional[int]) -> Edit:
    def edit(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.Call)
        new = node.with_changes(func=cst.Name(name))
        if dropped is None:
            return new
        arguments = list(node.args)
        for position, arg in enumerate(arguments):
            if arg.keyword is not None and arg.keyword.value == "device":
                return with_arguments(new, [*arguments[:position], *arguments[position + 1 :]])
        later = arguments[dropped + 1 :]
        if any(arg.keyword is None for arg in later):
            arguments[dropped] = arguments[dropped].with_changes(value=cst.Name("None"))
            return with_arguments(new, arguments)
        return with_arguments(new, [*arguments[:dropped], *later])

    return edit
