"""Contexts in which calls of PyTorch's functions are made in another way, or looked at first, to refuse some."""

from __future__ import annotations

import abc
from typing import Any, Callable, Dict, Optional, Tuple

from torch.overrides import TorchFunctionMode


class FunctionContext(TorchFunctionMode):
    """Calls `call` in place of each function of PyTorch's that is called in its `with` block."""

    @abc.abstractmethod
    def call(self, func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        """Return the function's result."""

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
