"""Rules and rewrites are described by the docstrings of their modules."""

from __future__ import annotations

from types import ModuleType

import pytest

from ignite_ipu.errors import UserError
from ignite_ipu.migration.docstrings import texts_of

RULE = """Models on a GPU.

There is
none.

Remedy: Leave
it out.

In forward:
    - return x.cuda()
    + return x
"""


def test_parts():
    """A model without a check gets a factory, by which it can be compiled."""
    texts = texts_of(ModuleType("rule", RULE))
    assert texts[:3] == ("Models on a GPU.", "There is none.", "Leave it out.")
    assert "      def forward(self, x):\n-         return x.cuda()\n+         return x\n" in texts.example
    assert texts.example.endswith("  def make():\n      return Net(), torch.ones(8, 4)\n")


def test_python_without_docstrings():
    with pytest.raises(UserError, match="-OO"):
        texts_of(ModuleType("rule"))
