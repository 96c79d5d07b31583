"""Hyper-parameters of a PopTorch optimizer that may change after the model is compiled."""

from __future__ import annotations

from typing import List, Tuple


class VariableAttributes:
    """The hyper-parameters of one optimizer that are compiled as variables; all others are constants.

    `betas` stands for both of Adam's decay rates. Marks count when the optimizer is given to an executor, and cannot
    change once that executor is compiled.

    Args:
        variable_attributes: Names that start out variable.
        allowed_attributes: Names that may be marked at all.
    """

    def __init__(self, variable_attributes: List[str], allowed_attributes: List[str]) -> None:
        self._variable = list(variable_attributes)
        self._allowed = list(allowed_attributes)

    def __copy__(self) -> VariableAttributes:
        return VariableAttributes(self._variable, self._allowed)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VariableAttributes) and self._sorted() == other._sorted()

    __hash__ = None  # type: ignore[assignment]  # marks change

    def __repr__(self) -> str:
        return f"VariableAttributes(variable={sorted(self._variable)}, allowed={sorted(self._allowed)})"

    def isConstant(self, attr: str) -> bool:
        """Return whether `attr` is compiled in; true of every name nobody marked as variable, known or not."""
        return attr not in self._variable

    def markAsConstant(self, attr: str) -> None:
        """Compile the value of `attr` in.

        Raises:
            AssertionError: The optimizer has no such hyper-parameter.
        """
        self._check(attr)
        self._variable = [name for name in self._variable if name != attr]

    def markAsVariable(self, attr: str) -> None:
        """Let `setOptimizer` change `attr` without compiling again.

        Raises:
            AssertionError: The optimizer has no such hyper-parameter.
        """
        self._check(attr)
        if attr not in self._variable:
            self._variable.append(attr)

    def _check(self, attr: str) -> None:
        if attr not in self._allowed:
            raise AssertionError(
                f"Unknown attribute {attr!r}: this optimizer can mark only {', '.join(sorted(self._allowed))} "
                "as constant or variable."
            )

    def _sorted(self) -> Tuple[List[str], List[str]]:
        return sorted(set(self._variable)), sorted(set(self._allowed))
