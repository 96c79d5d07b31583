"""Texts of rules and rewrites, which are their modules' docstrings: reports and the documentation show them.

The summary is the first line and the rationale the next paragraph; "Remedy:" and an example follow. An example is the
difference of two programs, with `- ` in front of lines of the first alone and `+ ` of lines of the second alone. It is
written out under "Example:", or as a part of a small model ("In forward:", with or without "In __init__:"), of a
training loop ("In the loop:", "Before the loop:", "After the loop:"), or of a program "With PopTorch:".
"""

from __future__ import annotations

import re
from types import ModuleType
from typing import NamedTuple

from ignite_ipu.errors import UserError

_FRAMES = {
    "Example": "{Example}",
    "In forward": """\
  import torch
  from torch import nn


  class Net(nn.Module):
      def __init__(self):
          super().__init__()
          self.layer = nn.Linear(4, 4)
{In __init__}
      def forward(self, x):
{In forward}""",
    "In the loop": """\
  import torch
  from torch import nn

  model = nn.Linear(4, 2)
  criterion = nn.CrossEntropyLoss()
  optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{Before the loop}\
  model.train()
  for x, y in loader:
      optimizer.zero_grad()
      loss = criterion(model(x), y)
      loss.backward()
{In the loop}{After the loop}""",
    "With PopTorch": """\
  import poptorch
  import torch

  model = torch.nn.Linear(4, 2)
  options = poptorch.Options()
{With PopTorch}""",
}
_FACTORY = """

  def make():
      return Net(), torch.ones(8, 4)
"""
_INDENTS = {"In __init__": 8, "In forward": 8, "In the loop": 4}
_PARTS = ("Remedy", "In __init__", "Before the loop", "After the loop", *_FRAMES)
_SECTION = re.compile(rf"^({'|'.join(_PARTS)}):", re.MULTILINE)


class Texts(NamedTuple):
    """Parts of a docstring, each in one line but for the example."""

    summary: str
    rationale: str
    remedy: str
    example: str


def texts_of(module: ModuleType) -> Texts:
    """Return the parts of a module's docstring, which is a `UserError` where Python was told to leave docstrings out.

    A model gets a factory where the module has no `check` to read it.
    """
    if module.__doc__ is None:
        raise UserError("rules and rewrites are described by their docstrings, which python -OO leaves out")
    head, *rest = _SECTION.split(module.__doc__)
    parts = {**dict.fromkeys(_PARTS, ""), **dict(zip(rest[::2], rest[1::2]))}
    summary, _, rationale = head.partition("\n\n")
    frame = next(name for name in _FRAMES if parts[name])
    example = _FRAMES[frame].format(**{name: _lines(parts[name], _INDENTS.get(name, 0)) for name in _PARTS})
    if frame == "In forward" and not hasattr(module, "check"):
        example += _FACTORY
    return Texts(summary, " ".join(rationale.split()), " ".join(parts["Remedy"].split()), example)


def _lines(section: str, indent: int) -> str:
    """Return the lines of a section without its own indentation, their code indented by so much."""
    lines = [line[4:] for line in section.strip("\n").splitlines()]
    return "".join(f"{line[:2]}{' ' * indent}{line[2:]}\n" if line else "\n" for line in lines)


def one_side(difference: str, left_out: str) -> str:
    """Return one of the two texts that a difference stands for, without the lines that have the mark of the other."""
    return "".join(f"{line[2:]}\n" for line in difference.splitlines() if not line.startswith(left_out))
