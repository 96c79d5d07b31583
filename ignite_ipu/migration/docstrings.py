"""Texts of rules and rewrites, which are their modules' docstrings: reports and the documentation show them.

The summary is the first line and the rationale the next paragraph; "Remedy:" and an example follow. An example is the
difference of two programs, with `- ` in front of what the first alone has and `+ ` of what the second alone has. Of one
"In forward:", with or without "In __init__:", only these parts of a small model are written out.
"""

from __future__ import annotations

import re
from types import ModuleType
from typing import NamedTuple

from ignite_ipu.errors import UserError

_SECTION = re.compile(r"^(Remedy|Example|In __init__|In forward):", re.MULTILINE)
_MODEL = """\
  import torch
  from torch import nn


  class Net(nn.Module):
      def __init__(self):
          super().__init__()
          self.layer = nn.Linear(4, 4)
{}
      def forward(self, x):
{}"""
_FACTORY = """

  def make():
      return Net(), torch.ones(8, 4)
"""


class Texts(NamedTuple):
    """Parts of a docstring, each in one line but for the example."""

    summary: str
    rationale: str
    remedy: str
    example: str


def texts_of(module: ModuleType) -> Texts:
    """Return the parts of a module's docstring; a model gets a factory where the module has no `check` to read it.

    Raises:
        UserError: Python was told to leave docstrings out.
    """
    if module.__doc__ is None:
        raise UserError("rules and rewrites are described by their docstrings, which python -OO leaves out")
    head, *rest = _SECTION.split(module.__doc__)
    parts = dict(zip(rest[::2], rest[1::2]))
    summary, _, rationale = head.partition("\n\n")
    example = _lines(parts.get("Example", ""), 0)
    if "In forward" in parts:
        example = _MODEL.format(_lines(parts.get("In __init__", ""), 8), _lines(parts["In forward"], 8))
        example += "" if hasattr(module, "check") else _FACTORY
    return Texts(summary, " ".join(rationale.split()), " ".join(parts.get("Remedy", "").split()), example)


def _lines(section: str, indent: int) -> str:
    """Return the lines of a section without its own indentation, their code indented by so much."""
    lines = [line[4:] for line in section.strip("\n").splitlines()]
    return "".join(f"{line[:2]}{' ' * indent}{line[2:]}\n" if line else "\n" for line in lines)


def one_side(difference: str, left_out: str) -> str:
    """Return one of the two texts that a difference stands for, without the lines that have the mark of the other."""
    return "".join(f"{line[2:]}\n" for line in difference.splitlines() if not line.startswith(left_out))
