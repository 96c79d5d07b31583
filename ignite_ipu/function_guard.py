"""A context in which calls of PyTorch's functions are looked at before they are made, to refuse some."""

from __future__ import annotations

import abc
from typing import Any, Callable, Dict, Optional, Tuple

from torch.overrides import TorchFunctionMode

__all__ = ["FunctionGuard"]


class FunctionGuard(TorchFunctionMode):
    """Calls `check` before each function of PyTorch's that is called in its `with` block."""

    @abc.abstractmethod
    def check(self, func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        """Raise an error to refuse a call."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Tuple[Any, ...] = (),
        kwargs: Optional[Dict[str, Any]] = None,
    ) -> Any:
        kwargs = kwargs or {}
        self.check(func, args, kwargs)
        return func(*args, **kwargs)
