"""torch.load gets the device for its tensors.

Example:
      import torch
    + from ignite_ipu import host_device

    - state = torch.load("model.pt")
    + state = torch.load("model.pt", map_location=host_device())
"""

from __future__ import annotations

from ignite_ipu.migration.analysis.names import argument
from ignite_ipu.migration.rewriting.editor import Editor


def apply(editor: Editor) -> None:
    for call, _ in editor.program.calls("torch.load"):
        unclear = any(keyword.arg is None for keyword in call.keywords)
        if unclear or argument(call, "map_location", 1) is not None:
            continue
        editor.add_argument(call, "map_location", f"{editor.need('host_device', call)}()")
