"""autocast and GradScaler are enabled in native runs only.

Example:
      import torch
    + from ignite_ipu import is_native

    - scaler = torch.amp.GradScaler("cuda", enabled=use_amp)
    + scaler = torch.amp.GradScaler("cuda", enabled=use_amp and is_native())
    - with torch.autocast("cuda"):
    + with torch.autocast("cuda", enabled=is_native()):
          loss = criterion(model(x), y)
      scaler.scale(loss).backward()
      scaler.step(optimizer)
      scaler.update()
"""

from __future__ import annotations

import ast

from ignite_ipu.migration.analysis import precision_arguments as precision
from ignite_ipu.migration.analysis.engines import TRAINER_FACTORIES
from ignite_ipu.migration.analysis.names import constant
from ignite_ipu.migration.rewriting.editor import Editor


def apply(editor: Editor) -> None:
    scalers = precision.scalers_of_trainers(editor.program, *TRAINER_FACTORIES)  # which have their meaning on IPUs, too
    for call in precision.switchable(editor.program):
        if id(call) in scalers or precision.native_only(editor.program, call):
            continue
        native = f"{editor.need('is_native', call)}()"
        enabled = precision.enabled_argument(editor.program, call)
        if enabled is None:
            editor.add_argument(call, "enabled", native)
        elif constant(enabled) is True:
            editor.expression(enabled, native)
        else:
            plain = isinstance(enabled, (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Compare))
            source = editor.program.source_of(enabled)
            editor.expression(enabled, f"{source if plain else f'({source})'} and {native}")
