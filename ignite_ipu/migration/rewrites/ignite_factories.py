"""create_supervised_trainer becomes create_ipu_trainer.

Example:
    - from ignite.engine import Events, create_supervised_trainer
    + from ignite.engine import Events
    - from ignite_ipu import host_device
    + from ignite_ipu import create_ipu_trainer, host_device

      device = host_device()
    - trainer = create_supervised_trainer(model, optimizer, criterion, device=device)
    + trainer = create_ipu_trainer(model, optimizer, criterion, drop_last=False)
      trainer.add_event_handler(Events.EPOCH_COMPLETED, report)
"""

from __future__ import annotations

from ignite_ipu.migration.rewriting.editor import Editor
from ignite_ipu.migration.rewriting.engine_calls import replace_engine_calls


def apply(editor: Editor) -> None:
    replace_engine_calls(editor, "ignite.engine.create_supervised_trainer", "create_ipu_trainer", 3)
