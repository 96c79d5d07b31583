"""Answers for a trace that asks for values which are not there: what the operators of a forward give natively.

So a trace goes on after the first thing that PopTorch refuses, and shows the others too.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from typing import Any, Callable, DefaultDict, Dict, List, Optional, Tuple
from typing import Counter as CounterType
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

from ignite_ipu.emulator.inspection import map_leaves, name_of
from ignite_ipu.migration.trial.notes import Place, current_place

_LARGEST = 10_000
_Key = Tuple[Optional[Place], str]


class Answers(TorchFunctionMode):
    """Keeps the results of the calls made in its context, by line and operator, in order.

    `doubles` has the first operator in each line that computed in double precision.
    """

    def __init__(self) -> None:
        super().__init__()
        self.doubles: Dict[Optional[Place], str] = {}
        self._results: DefaultDict[_Key, List[Any]] = defaultdict(list)
        self._taken: CounterType[_Key] = Counter()
        self._calls = 0
        self._indexing = contextlib.ExitStack()

    def __enter__(self) -> Any:
        # What indexing gives is kept also where modes do not see it: they do since PyTorch 2.1.
        original: Any = torch.Tensor.__getitem__

        def get_item(tensor: torch.Tensor, index: Any) -> Any:
            before = self._calls
            result = original(tensor, index)
            if self._calls == before:
                self._keep(original, result)
            return result

        self._indexing.enter_context(mock.patch.object(torch.Tensor, "__getitem__", get_item))
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> Any:
        self._indexing.close()
        return super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self._keep(func, result)
        return result

    def _keep(self, func: Callable[..., Any], result: Any) -> None:
        self._calls += 1
        name, place = name_of(func), current_place()
        self._results[place, name].append(map_leaves(result, _kept))
        if isinstance(result, torch.Tensor) and result.dtype is torch.float64:
            self.doubles.setdefault(place, name)

    def again(self) -> None:
        """Begin with the first results again, for another trace of the same forward."""
        self._taken.clear()

    def take(self, place: Optional[Place], name: str) -> Any:
        """Return what the operator gave when it was called for the n-th time in this line, for the n-th asking.

        Raises:
            LookupError: It was not called there.
        """
        results = self._results.get((place, name))
        if not results:
            raise LookupError(name)
        position = self._taken[place, name]
        self._taken[place, name] += 1
        return map_leaves(results[min(position, len(results) - 1)], _given)


def _kept(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    with torch._C.DisableTorchFunction():
        # Of a large tensor only shape and type are worth keeping.
        return value.detach().to("meta") if value.numel() > _LARGEST else value.detach().clone()


def _given(value: Any) -> Any:
    return torch.zeros(value.shape, dtype=value.dtype) if isinstance(value, torch.Tensor) and value.is_meta else value
