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

import ast
from typing import Optional

import libcst as cst

from ignite_ipu.migration.analysis.engines import trains_the_rest
from ignite_ipu.migration.analysis.names import argument, has_hidden_arguments
from ignite_ipu.migration.analysis.precision_arguments import refused_precision
from ignite_ipu.migration.rewriting.comma_lists import without_arguments
from ignite_ipu.migration.rewriting.editor import Editor, RewriteRefused


def apply(editor: Editor) -> None:
    replace_engine_calls(editor, "ignite.engine.create_supervised_trainer", "create_ipu_trainer", 3)


def replace_engine_calls(editor: Editor, theirs: str, ours: str, device_position: int) -> None:
    """Replace calls of one of Ignite's factories, except those with arguments that an IPU cannot honour.

    Trainers go on training on incomplete batches. The argument `device` has the same position in both.
    """
    training = editor.program.training
    for call, _ in editor.program.calls(theirs):
        refused = [text for _, text in refused_precision(editor.program, call, theirs)]
        if refused:
            editor.remark(call, refused[0])
            continue
        if has_hidden_arguments(call):
            continue
        steps = argument(call, "gradient_accumulation_steps", 11)
        if steps is not None and not (isinstance(steps, ast.Constant) and steps.value == 1):
            # An iteration of ours is an update, and schedules and events would count otherwise.
            raise RewriteRefused(call.lineno, "the trainer accumulates gradients over iterations of Ignite")
        # Our engines run on the IPU, and in a native run where the model is.
        device = argument(call, "device", device_position)
        if isinstance(device, ast.Call):
            editor.forget("ignite_ipu.host_device")
        editor.forget(theirs)
        editor.replace(call, _replaced, editor.need(ours, call), None if device is None else device_position)
        if call in training.trainers and trains_the_rest(editor.program, call) and training.engines.gets_a_rest(call):
            editor.add_argument(call, "drop_last", "False")


def _replaced(node: cst.Call, name: str, dropped: Optional[int]) -> cst.Call:
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
