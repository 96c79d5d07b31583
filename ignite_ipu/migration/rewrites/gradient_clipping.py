"""Gradients are clipped by norm on the device.

Example:
    - from torch.nn.utils import clip_grad_norm_
    + from ignite_ipu import ipu_clip_grad_norm_

      loss.backward()
    - clip_grad_norm_(model.parameters(), 1.0)
    + ipu_clip_grad_norm_(model.parameters(), 1.0)
      optimizer.step()
"""

from __future__ import annotations

from ignite_ipu.migration.rewriting.editor import Editor


def apply(editor: Editor) -> None:
    for call, name in editor.program.calls("torch.nn.utils.clip_grad_norm_"):
        editor.forget(name)
        editor.expression(call.func, editor.need("ipu_clip_grad_norm_", call))
