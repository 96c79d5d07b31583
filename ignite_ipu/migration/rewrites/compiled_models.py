"""torch.compile(model) is for native runs: PopTorch compiles the model itself.

Example:
      import torch
    + from ignite_ipu import is_native

      model = torch.nn.Linear(2, 2)
    - model = torch.compile(model, mode="max-autotune")
    + model = torch.compile(model, mode="max-autotune") if is_native() else model
"""

from __future__ import annotations

import ast

import libcst as cst

from ignite_ipu.migration.analysis.devices import is_native_alone
from ignite_ipu.migration.analysis.names import argument, dotted
from ignite_ipu.migration.rewriting.editor import Editor


def apply(editor: Editor) -> None:
    """Choose between a compiled model and the model, where that has a name."""
    for call, _ in editor.program.calls("torch.compile"):
        model = argument(call, "model", 0)
        if dotted(model) is not None and not is_native_alone(editor.program, call):
            alone = isinstance(editor.program.parents[call], ast.Assign)
            editor.replace(call, _chosen, editor.need("is_native", call), dotted(model) or "", alone)


def _chosen(node: cst.Call, name: str, model: str, alone: bool) -> cst.IfExp:
    choice = cst.IfExp(test=cst.Call(cst.Name(name)), body=node, orelse=cst.parse_expression(model))
    return choice if alone else choice.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
