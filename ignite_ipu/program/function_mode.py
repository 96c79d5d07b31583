"""Contexts in which calls of PyTorch's functions are made in another way, or looked at first, to refuse some."""

from __future__ import annotations

import abc
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch.overrides import TorchFunctionMode

from ignite_ipu.program.tensors.trees import tensors_in


class FunctionContext(TorchFunctionMode):
    """Calls `call` in place of each function of PyTorch's that is called in its `with` block."""

    @abc.abstractmethod
    def call(self, func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        """Return the function's result."""

    def concerns(
        self, func: Callable[..., Any], tensors: List[torch.Tensor], args: Tuple[Any, ...], kwargs: Dict[str, Any]
    ) -> bool:
        """Return False if `call` would do no more than call the function with these arguments and their `tensors`."""
        return True

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        return self.call(func, args, kwargs or {})


class FunctionGuard(FunctionContext):
    """Calls `check` before each function of PyTorch's that is called in its `with` block."""

    @abc.abstractmethod
    def check(self, func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        """Raise an error to refuse a call."""

    def call(self, func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        self.check(func, args, kwargs)
        return func(*args, **kwargs)


class FunctionGuards(FunctionGuard):
    """Several guards in one context. In one for each, PyTorch would hand every call on as many times."""

    def __init__(self, *guards: FunctionGuard) -> None:
        super().__init__()
        self._guards = guards

    def check(self, func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        for guard in self._guards:
            guard.check(func, args, kwargs)


class FunctionContexts(TorchFunctionMode):
    """Several contexts in one `with` block, as if each was within the next one.

    A call comes to those that it concerns. In one context for each, PyTorch would hand every call on as many times.
    """

    def __init__(self, *contexts: FunctionContext) -> None:
        super().__init__()
        self._contexts = [
            (each, FunctionContexts(*contexts[number + 1 :]) if contexts[number + 1 :] else None)
            for number, each in enumerate(contexts)
        ]

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        kwargs = kwargs or {}
        tensors = tensors_in((args, kwargs))
        for context, rest in self._contexts:
            if context.concerns(func, tensors, args, kwargs):
                if rest is None:
                    return context.call(func, args, kwargs)
                with rest:
                    return context.call(func, args, kwargs)
        return func(*args, **kwargs)


def writes_first(name: str) -> bool:
    """Return whether a function of this name writes into its first argument."""
    return name == "__setitem__" or name.startswith("__i") or (name.endswith("_") and not name.endswith("__"))
