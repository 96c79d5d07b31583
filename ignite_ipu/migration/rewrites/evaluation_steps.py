"""Model calls of hand-written evaluation loops run on the IPU."""

from __future__ import annotations

import libcst as cst

from ignite_ipu.migration.analysis.names import dotted
from ignite_ipu.migration.rewriting.editor import Edit, Editor, Rewrite


def apply(editor: Editor) -> None:
    """Replace `model(x)` by `ipu_evaluate_batch(model, x)` in evaluation code."""
    for call in editor.program.training.evaluations:
        if not call.args and not call.keywords:
            editor.remark(call, f"{dotted(call.func)} is called without arguments")
            continue
        editor.replace(call, _evaluated(editor.need("ipu_evaluate_batch", call)))


def _evaluated(name: str) -> Edit:
    def edit(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.Call)
        return node.with_changes(func=cst.Name(name), args=[cst.Arg(node.func), *node.args])

    return edit


REWRITE = Rewrite(
    name="evaluation-steps",
    summary="Model calls of hand-written evaluation loops run on the IPU.",
    before="""\
import torch

model = torch.nn.Linear(4, 2)
model.eval()
with torch.no_grad():
    for x, y in loader:
        output = model(x)
""",
    after="""\
import torch
from ignite_ipu import ipu_evaluate_batch

model = torch.nn.Linear(4, 2)
model.eval()
with torch.no_grad():
    for x, y in loader:
        output = ipu_evaluate_batch(model, x)
""",
    apply=apply,
)
