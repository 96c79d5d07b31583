"""The replacement of Ignite's factories by ours, which take the same arguments."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Mapping, Optional

import libcst as cst

from ignite_ipu.migration.analysis.names import argument, has_hidden_arguments
from ignite_ipu.migration.analysis.precision_arguments import refused_precision
from ignite_ipu.migration.analysis.training import trains_the_rest
from ignite_ipu.migration.rewriting.comma_lists import with_argument, without_arguments
from ignite_ipu.migration.rewriting.editor import Edit, Editor, keyword_argument


@dataclass(frozen=True)
class Replacement:
    """Replacement of a factory.

    Attributes:
        name: The factory in ignite_ipu.
        device_position: The position of the argument `device`, in both.
        trains: Whether it makes trainers.
    """

    name: str
    device_position: int
    trains: bool = False


def replace_engine_calls(editor: Editor, replacements: Mapping[str, Replacement]) -> None:
    """Replace calls of Ignite's factories, except those with arguments that an IPU cannot honour."""
    for call, name in editor.program.calls(*replacements):
        replacement = replacements[name]
        refused = [text for _, text in refused_precision(editor.program, call, name)]
        if refused:
            editor.remark(call, refused[0])
            continue
        if has_hidden_arguments(call):
            continue
        # Our engines run on the IPU, and natively where the model is.
        device = argument(call, "device", replacement.device_position)
        if isinstance(device, ast.Call):
            editor.forget("ignite_ipu.host_device")
        editor.forget(name)
        new = editor.need(replacement.name, call)
        editor.replace(call, _replaced(new, replacement.device_position if device is not None else None))
        training = editor.program.training
        if replacement.trains and trains_the_rest(training.file, call) and training.gets_a_rest(call):
            editor.replace(call, _with_rest)


def _with_rest(node: cst.CSTNode) -> cst.CSTNode:
    assert isinstance(node, cst.Call)
    return with_argument(node, keyword_argument("drop_last", "False"))


def _replaced(name: str, dropped: Optional[int]) -> Edit:
    def edit(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.Call)
        new = node.with_changes(func=cst.Name(name))
        if dropped is None:
            return new
        for arg in node.args:
            if arg.keyword is not None and arg.keyword.value == "device":
                return without_arguments(new, [arg])
        device, later = node.args[dropped], node.args[dropped + 1 :]
        if any(arg.keyword is None for arg in later):
            nothing = device.with_changes(value=cst.Name("None"))
            return new.with_changes(args=[*node.args[:dropped], nothing, *later])
        return without_arguments(new, [device])

    return edit
