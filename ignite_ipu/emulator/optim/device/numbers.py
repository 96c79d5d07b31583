"""An optimizer's update as a program of tensors, with the numbers that change from step to step taken out of it.

A compiled step must not be compiled again because the learning rate falls or Adam counts on. So the update's own code
runs in two other ways. `Recording` runs it on stand-ins, inside a trace, with an entry of a vector in the place of each
number; `Replay` runs it without any tensor work, for the numbers alone. What the code decides by a number (a weight
decay of zero needs no addition) shows in the operators that it calls: when these differ, the step is traced afresh.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import torch
from torch.overrides import TorchFunctionMode

Operator = Callable[..., Any]
Calls = List[Tuple[Operator, Any]]
"""The operators of an update in turn, and what each one returned when it was recorded."""


class Changed(Exception):
    """The update no longer calls the operators that were recorded."""


class Recording(TorchFunctionMode):
    """Run the `with` block's operators on stand-ins, and with entries of a vector for the numbers that they take.

    Args:
        stand_ins: What takes the place of each tensor, by its id.
        vector: Where the compiled step will find the numbers, float32.
        taken: Numbers at the vector's beginning that others use.

    Attributes:
        calls: What was called.
        numbers: The numbers of this run, in the order of their places in the vector.
    """

    def __init__(
        self, stand_ins: Mapping[int, torch.Tensor], vector: torch.Tensor, taken: Sequence[float] = ()
    ) -> None:
        super().__init__()
        self._stand_ins = stand_ins
        self._vector = vector
        self.calls: Calls = []
        self.numbers: List[float] = list(taken)

    def __torch_function__(
        self, func: Operator, types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        listwise = _LISTWISE.get(getattr(func, "__name__", ""))
        args, kwargs = self._replaced(args, listwise is not None), self._replaced(kwargs or {}, listwise is not None)
        result = (listwise or func)(*args, **kwargs)
        self.calls.append((func, result))
        return result

    def _replaced(self, value: Any, listwise: bool) -> Any:
        if isinstance(value, torch.Tensor):
            return self._stand_ins.get(id(value), value)
        if _is_number(value, listwise):
            self.numbers.append(float(value))
            if len(self.numbers) > len(self._vector):
                raise Changed(f"the update takes more than {len(self._vector)} numbers")
            return self._vector[len(self.numbers) - 1]
        if isinstance(value, (list, tuple)):
            return type(value)([self._replaced(item, listwise) for item in value])
        if isinstance(value, dict):
            return {key: self._replaced(item, listwise) for key, item in value.items()}
        return value


class Replay(TorchFunctionMode):
    """Collect the numbers that the `with` block's operators take; they compute nothing.

    Args:
        calls: What was recorded; each operator returns what it returned then.

    Attributes:
        numbers: The numbers, in the order of the recording.

    Raises:
        Changed: Another operator is called than was recorded.
    """

    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self._calls = calls
        self._position = 0
        self.numbers: List[float] = []

    def __torch_function__(
        self, func: Operator, types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        position = self._position
        self._position = position + 1
        if position >= len(self._calls) or self._calls[position][0] != func:
            raise Changed(f"operator {position} is another one")
        listwise = getattr(func, "__name__", "") in _LISTWISE
        for value in args:
            if _is_number(value, listwise):
                self.numbers.append(value)
        if kwargs:
            for value in kwargs.values():
                if _is_number(value, listwise):
                    self.numbers.append(value)
        return self._calls[position][1]

    def finish(self) -> None:
        """Check that nothing of the recording is left.

        Raises:
            Changed: Fewer operators were called than recorded.
        """
        if self._position != len(self._calls):
            raise Changed(f"only {self._position} of {len(self._calls)} operators are called")


def _is_number(value: Any, listwise: bool) -> bool:
    # Elsewhere integers are dimensions and the like, which belong to the program.
    kind = type(value)
    return kind is float or (listwise and kind is int)


# What `torch._foreach_*` does, tensor by tensor: here numbers may be tensors.


def _pairs(tensors: Sequence[torch.Tensor], other: Any) -> List[Tuple[torch.Tensor, Any]]:
    return list(zip(tensors, other if isinstance(other, (list, tuple)) else [other] * len(tensors)))


def _scaled(to: torch.Tensor, value: Any, alpha: Any) -> Any:
    """Return `alpha * value`, computed in the wider type of the two as an addition to `to` would."""
    if alpha is None:
        return value
    return value.to(torch.promote_types(to.dtype, value.dtype)) * alpha


def _add(tensors: Sequence[torch.Tensor], other: Any, alpha: Any = None) -> List[torch.Tensor]:
    return [tensor + _scaled(tensor, value, alpha) for tensor, value in _pairs(tensors, other)]


def _add_(tensors: Sequence[torch.Tensor], other: Any, alpha: Any = None) -> None:
    for tensor, value in _pairs(tensors, other):
        tensor.add_(_scaled(tensor, value, alpha))


def _mul(tensors: Sequence[torch.Tensor], other: Any) -> List[torch.Tensor]:
    return [tensor * value for tensor, value in _pairs(tensors, other)]


def _mul_(tensors: Sequence[torch.Tensor], other: Any) -> None:
    for tensor, value in _pairs(tensors, other):
        tensor.mul_(value)


def _div(tensors: Sequence[torch.Tensor], other: Any) -> List[torch.Tensor]:
    return [tensor / value for tensor, value in _pairs(tensors, other)]


def _div_(tensors: Sequence[torch.Tensor], other: Any) -> None:
    for tensor, value in _pairs(tensors, other):
        tensor.div_(value)


def _lerp_(tensors: Sequence[torch.Tensor], ends: Sequence[torch.Tensor], weight: Any) -> None:
    for tensor, end in zip(tensors, ends):
        tensor.add_((end - tensor) * weight)


def _addcmul(tensors: Sequence[torch.Tensor], one: Any, two: Any, value: Any = 1) -> List[torch.Tensor]:
    return [tensor + first * second * value for tensor, first, second in zip(tensors, one, two)]


def _addcmul_(tensors: Sequence[torch.Tensor], one: Any, two: Any, value: Any = 1) -> None:
    for tensor, first, second in zip(tensors, one, two):
        tensor.add_(first * second * value)


def _addcdiv_(tensors: Sequence[torch.Tensor], over: Any, under: Any, value: Any = 1) -> None:
    for tensor, first, second in zip(tensors, over, under):
        tensor.add_(first / second * value)


def _sqrt(tensors: Sequence[torch.Tensor]) -> List[torch.Tensor]:
    return [tensor.sqrt() for tensor in tensors]


def _sqrt_(tensors: Sequence[torch.Tensor]) -> None:
    for tensor in tensors:
        tensor.sqrt_()


def _norm(tensors: Sequence[torch.Tensor]) -> List[torch.Tensor]:
    return [torch.linalg.vector_norm(tensor) for tensor in tensors]


def _copy_(tensors: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    for tensor, value in zip(tensors, values):
        tensor.copy_(value)


def _zero_(tensors: Sequence[torch.Tensor]) -> None:
    for tensor in tensors:
        tensor.zero_()


_LISTWISE: Dict[str, Operator] = {
    f"_foreach{function.__name__}": function
    for function in (
        _add,
        _add_,
        _mul,
        _mul_,
        _div,
        _div_,
        _lerp_,
        _addcmul,
        _addcmul_,
        _addcdiv_,
        _sqrt,
        _sqrt_,
        _norm,
        _copy_,
        _zero_,
    )
}
