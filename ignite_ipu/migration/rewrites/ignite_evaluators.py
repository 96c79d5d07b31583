"""create_supervised_evaluator becomes create_ipu_evaluator.

Example:
    - from ignite.engine import create_supervised_evaluator
      from ignite.metrics import Accuracy
    - from ignite_ipu import host_device
    + from ignite_ipu import create_ipu_evaluator

    - evaluator = create_supervised_evaluator(model, {"accuracy": Accuracy()}, host_device())
    + evaluator = create_ipu_evaluator(model, {"accuracy": Accuracy()})
"""

from __future__ import annotations

from ignite_ipu.migration.rewrites.ignite_factories import replace_engine_calls
from ignite_ipu.migration.rewriting.editor import Editor


def apply(editor: Editor) -> None:
    replace_engine_calls(editor, "ignite.engine.create_supervised_evaluator", "create_ipu_evaluator", 2)
