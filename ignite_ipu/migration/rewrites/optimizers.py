"""Optimizers lose the arguments that only choose how a GPU computes them."""

from __future__ import annotations

import libcst as cst

from ignite_ipu.migration.rewrite import Editor, Rewrite, with_arguments

_SWITCHES = {"fused", "foreach", "capturable"}


def apply(editor: Editor) -> None:
    """Remove fused, foreach and capturable from torch's optimizers."""
    for call, name in editor.program.training.optimizer_calls:
        if name.startswith("torch.optim.") and any(keyword.arg in _SWITCHES for keyword in call.keywords):
            editor.replace(call, _without_switches)


def _without_switches(node: cst.CSTNode) -> cst.CSTNode:
    assert isinstance(node, cst.Call)
    kept = [arg for arg in node.args if arg.keyword is None or arg.keyword.value not in _SWITCHES]
    return with_arguments(node, kept)


REWRITE = Rewrite(
    name="optimizers",
    summary="Optimizers lose the arguments that only choose how a GPU computes them.",
    before="""\
import torch

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
""",
    after="""\
import torch

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
""",
    apply=apply,
)
