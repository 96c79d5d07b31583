"""Process functions that train are given to ipu_step.

Example:
      import torch
      from ignite.engine import Engine
    + from ignite_ipu import ipu_step

      model = torch.nn.Linear(4, 1)
      optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


      def train_step(engine, batch):
          optimizer.zero_grad()
          loss = model(batch[0]).pow(2).mean()
          loss.backward()
          optimizer.step()
          return loss.item()


    - trainer = Engine(train_step)
    + trainer = Engine(ipu_step(train_step))
"""

from __future__ import annotations

from ignite_ipu.migration.analysis.plain_updates import makes_plain_updates
from ignite_ipu.migration.rewrites.captured_loops import UPDATES
from ignite_ipu.migration.rewriting.editor import Editor


def apply(editor: Editor) -> None:
    training = editor.program.training
    settings = "" if makes_plain_updates(training) else f", {UPDATES}"
    for process, _ in training.engines.process_functions:
        source = editor.program.source_of(process)
        editor.expression(process, f"{editor.need('ipu_step', process)}({source}{settings})")
