"""Optimizers lose the arguments that only choose how a GPU computes them.

Example:
      import torch

    - optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    + optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
"""

from __future__ import annotations

import libcst as cst

from ignite_ipu.capabilities.optimizers import left_out_arguments
from ignite_ipu.migration.rewriting.comma_lists import without_arguments
from ignite_ipu.migration.rewriting.editor import Editor

_SWITCHES = left_out_arguments()


def apply(editor: Editor) -> None:
    for call, name in editor.program.training.optimizer_calls:
        if name.startswith("torch.optim.") and any(keyword.arg in _SWITCHES for keyword in call.keywords):
            editor.replace(call, _without_switches)


def _without_switches(node: cst.Call) -> cst.Call:
    dropped = [arg for arg in node.args if arg.keyword is not None and arg.keyword.value in _SWITCHES]
    return without_arguments(node, dropped)
