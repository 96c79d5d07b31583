"""Process functions of another shape than the common one are given to `ipu_step`."""

from __future__ import annotations

from ignite_ipu.migration.analysis.engine_functions import capturable_engines
from ignite_ipu.migration.rewriting.editor import Editor, Rewrite


def apply(editor: Editor) -> None:
    """Put `ipu_step` around what an engine is made over; the function itself stays as it is."""
    for process, _ in capturable_engines(editor.program):
        editor.expression(process, f"{editor.need('ipu_step', process)}({editor.source_of(process)})")


REWRITE = Rewrite(
    name="engine-steps",
    summary="Process functions of another shape than the common one are given to ipu_step.",
    before="""\
import torch
from ignite.engine import Engine

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train_step(engine, batch):
    optimizer.zero_grad()
    loss = (model(batch[0]) - model(batch[1])).pow(2).mean()
    (loss / 2).backward()
    optimizer.step()
    return loss.item()


trainer = Engine(train_step)
""",
    after="""\
import torch
from ignite.engine import Engine
from ignite_ipu import ipu_step

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train_step(engine, batch):
    optimizer.zero_grad()
    loss = (model(batch[0]) - model(batch[1])).pow(2).mean()
    (loss / 2).backward()
    optimizer.step()
    return loss.item()


trainer = Engine(ipu_step(train_step))
""",
    apply=apply,
)
