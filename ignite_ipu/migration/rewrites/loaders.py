"""Loaders of hand-written training loops drop an incomplete last batch."""

from __future__ import annotations

import libcst as cst

from ignite_ipu.migration.analysis.names import argument, constant
from ignite_ipu.migration.rewriting.comma_lists import with_argument
from ignite_ipu.migration.rewriting.editor import Editor, Rewrite, keyword_argument


def apply(editor: Editor) -> None:
    """Add drop_last=True; loaders that an Ignite engine runs over are left to the engine."""
    for name, (call, replaced) in editor.program.training.training_loaders.items():
        if replaced or any(keyword.arg in (None, "batch_sampler") for keyword in call.keywords):
            continue
        value = argument(call, "drop_last")
        if value is None:
            editor.replace(call, _dropping)
        elif constant(value) is False:
            editor.expression(value, "True")
        else:
            continue
        editor.remark(call, f"{name} now drops an incomplete last batch, in native runs too")
    for call in editor.program.training.unseen_loaders:
        editor.remark(
            call,
            f"{editor.source_of(call)} is trained from, and a smaller last batch does not fit the compiled step: have "
            "its DataLoader made with drop_last=True, if there may be one",
        )


def _dropping(node: cst.CSTNode) -> cst.CSTNode:
    assert isinstance(node, cst.Call)
    return with_argument(node, keyword_argument("drop_last", "True"))


REWRITE = Rewrite(
    name="loaders",
    summary="Loaders of hand-written training loops drop an incomplete last batch.",
    before="""\
import torch
from ignite_ipu import ipu_train_batch

loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
for x, y in loader:
    _, loss = ipu_train_batch(model, optimizer, criterion, x, target=y)
""",
    after="""\
import torch
from ignite_ipu import ipu_train_batch

loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True, drop_last=True)
for x, y in loader:
    _, loss = ipu_train_batch(model, optimizer, criterion, x, target=y)
""",
    apply=apply,
)
