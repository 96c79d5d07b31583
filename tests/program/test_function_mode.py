"""Contexts for PyTorch's functions, several of them in one `with` block."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple

import pytest
import torch
from torch.overrides import TorchFunctionMode

from ignite_ipu.program.function_mode import FunctionContext, FunctionContexts, FunctionGuard, FunctionGuards


class Replaced(FunctionContext):
    """Computes one function by another, and notes all calls that come to it."""

    def __init__(self, replaced: Any, by: Callable[..., Any], always: bool) -> None:
        super().__init__()
        self.replaced, self.by, self.always = replaced, by, always
        self.calls: List[Any] = []

    def concerns(self, func: Any, tensors: List[torch.Tensor], args: Any, kwargs: Any) -> bool:
        return self.always or func is self.replaced

    def call(self, func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        self.calls.append(func)
        return self.by(*args, **kwargs) if func is self.replaced else func(*args, **kwargs)


class Noted(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: List[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("always", [False, True])
def test_together_they_are_as_one_within_the_other(always: bool) -> None:
    """The calls that a context makes come to those after it, and then to the contexts outside."""

    def entered(together: bool) -> Tuple[torch.Tensor, List[Any]]:
        first = Replaced(torch.sinh, lambda x: torch.sin(x) + torch.exp(x), always)
        second = Replaced(torch.sin, lambda x: 2 * torch.cos(x), always)
        with Noted() as outside:
            if together:
                with FunctionContexts(first, second):
                    result = torch.sinh(x)
            else:
                with second, first:
                    result = torch.sinh(x)
        return result, [outside.calls, second.calls if always else [torch.sin], first.calls if always else []]

    x = torch.rand(3)
    (result, calls), (expected, others) = entered(True), entered(False)
    torch.testing.assert_close(result, 2 * torch.cos(x) + torch.exp(x))
    torch.testing.assert_close(expected, result)
    assert calls == others


def test_a_call_that_concerns_none_comes_to_none() -> None:
    first, second = (Replaced(func, torch.cos, always=False) for func in (torch.sinh, torch.sin))
    with FunctionContexts(first, second):
        result = torch.exp(torch.zeros(2))
    torch.testing.assert_close(result, torch.ones(2))
    assert first.calls == second.calls == []


class Refused(FunctionGuard):
    """Refuses one function."""

    def __init__(self, refused: Any) -> None:
        super().__init__()
        self.refused = refused

    def check(self, func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        if func is self.refused:
            raise ValueError(func.__name__)


def test_each_of_several_guards_refuses() -> None:
    """And functions that none refuses are called."""
    with FunctionGuards(Refused(torch.sinh), Refused(torch.sin)):
        torch.testing.assert_close(torch.exp(torch.zeros(2)), torch.ones(2))
        for func in (torch.sinh, torch.sin):
            with pytest.raises(ValueError, match=func.__name__):
                func(torch.zeros(2))
