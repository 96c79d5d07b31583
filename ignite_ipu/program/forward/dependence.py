"""Dependence of tensors on given ones, by the operators that compute them."""

from __future__ import annotations

from collections.abc import Mapping  # a class, which is asked faster than its name in `typing`
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

import torch

from ignite_ipu.program.tensors.trees import PLAIN
from ignite_ipu.torch_names.dispatch import DispatchMode, is_mutable, is_random, schema_of

_GIVEN = "_ignite_ipu_given"


class Dependence(DispatchMode):  # type: ignore[no-untyped-call]
    """Context that finds out which tensors are computed in it from given ones.

    Attributes:
        around: Calls an operator and returns its result, where more of it is to be noted.
    """

    def __init__(self, given: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.around: Optional[Callable[[Any, Tuple[Any, ...], Dict[str, Any]], Any]] = None
        self._token = object()
        for tensor in given:
            self._mark(tensor)

    def has(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is given, or computed from one that is."""
        return getattr(tensor, _GIVEN, None) is self._token

    def reaches(self, *values: Any) -> bool:
        """Return whether a tensor in values, nested in lists and dictionaries, is given or computed from one."""
        return any(map(self.has, _tensors(values)))

    def _mark(self, tensor: torch.Tensor) -> None:
        setattr(tensor, _GIVEN, self._token)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs) if self.around is None else self.around(func, args, kwargs)
        if self.reaches(args, kwargs):
            for tensor in _tensors(output):
                self._mark(tensor)
            written = zip(schema_of(func).arguments, args) if is_mutable(func) else ()
            for argument, value in written:
                if argument.alias_info is not None and argument.alias_info.is_write:
                    for tensor in _tensors(value):
                        self._mark(tensor)
        return output


class DeviceDrawsUndone(Dependence):  # type: ignore[no-untyped-call]
    """Context in which draws for tensors that depend on given ones leave the generator of the CPU as it was.

    They are those of a device, such as dropout. Draws for the weights of a layer are those of the host.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        draws = is_random(func) and self.reaches(args, kwargs)
        state = torch.get_rng_state() if draws else None
        output = super().__torch_dispatch__(func, types, args, kwargs)
        if state is not None:
            torch.set_rng_state(state)
        return output


def _tensors(value: Any) -> List[torch.Tensor]:
    found: List[torch.Tensor] = []
    _add_tensors(value, found)
    return found


def _add_tensors(value: Any, found: List[torch.Tensor]) -> None:
    if type(value) in PLAIN:
        return
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, (list, tuple)):
        for each in value:
            _add_tensors(each, found)
    elif isinstance(value, Mapping):
        for each in value.values():
            _add_tensors(each, found)
