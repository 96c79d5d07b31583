"""What goes wrong with an optimizer on an IPU.

ValueError
└── OptimizerError                  it cannot be converted, or does not fit the model
└── ConstantAttributeError      a value that was compiled in has been changed
"""

from __future__ import annotations

from typing import Optional

from ignite_ipu.optimizers.receipt import Receipt

__all__ = ["ConstantAttributeError", "OptimizerError"]


class OptimizerError(ValueError):
    """An optimizer that an IPU cannot run, or that does not fit the model it trains.

    Attributes:
        receipt: What would have become of every attribute, where some cannot be converted; None otherwise.
    """

    def __init__(self, message: str, receipt: Optional[Receipt] = None) -> None:
        super().__init__(message)
        self.receipt = receipt


class ConstantAttributeError(OptimizerError):
    """A hyper-parameter that is a constant of the compiled program has been changed.

    Attributes:
        attribute: Name of the hyper-parameter.
    """

    def __init__(self, attribute: str, message: str) -> None:
        super().__init__(message)
        self.attribute = attribute
