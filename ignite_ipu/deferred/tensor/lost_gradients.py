"""Stand-ins for gradients that PyTorch would still have of an update that a device has made, and that are gone."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any, Callable, Dict, Iterable, Iterator, List, NoReturn, Optional, Sequence, Tuple

import torch

from ignite_ipu.deferred.graph.structure import mapped
from ignite_ipu.deferred.tensor.device_gradient import DeviceGradient
from ignite_ipu.deferred.tensor.functions import attribute_of
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.tensors.raw import gradient_of, plain, set_gradient
from ignite_ipu.program.tensors.trees import leaves_of
from ignite_ipu.program.user_code import current_line
from ignite_ipu.torch_names.lists import ZERO_ALL
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

_ZEROING = frozenset(("zero_", ZERO_ALL))
# The same gradient, which is in no graph.
_IDENTITIES = frozenset(("detach", "detach_", "requires_grad_"))

LOST: Dict[int, weakref.ref[torch.Tensor]] = {}
"""By `id`, the parameters whose gradients were lost. Who clears one is not noticed; `_stand_ins` looks."""


class LostGradient(DeviceGradient):
    """The gradient of a parameter whose values are gone: it can be cleared, and a use of its values is refused.

    Attributes:
        problem: The reason, as the beginning of a message.
    """

    problem: str

    def read(self) -> torch.Tensor:
        if self.held is None:
            self.refuse()
        return self.held

    def refuse(self, writes: bool = False) -> NoReturn:
        """Refuse a use.

        Raises:
            CaptureError: Always.
        """
        raise CaptureError(
            f"A gradient is used at {current_line()} that is gone. {self.problem} Only the first updates of a loop can "
            "be made again on the host. Call optimizer.zero_grad() after every optimizer.step(), let the first updates "
            "do the same as later ones, or set IPUConfig(update='host')."
        )

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name, first = func.__name__, args[0] if args else None
        same = name in _IDENTITIES or (name == "__get__" and attribute_of(func) == "data")
        if same and isinstance(first, LostGradient) and first.held is None:
            return first
        if name in _ZEROING:
            return func(*mapped(args, _as_zeros), **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Callable[..., Any], types: Sequence[type], args: Tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.__name__.partition(".")[0] in _ZEROING:
            return func(*mapped(args, _as_zeros), **(kwargs or {}))
        gradient = next(leaf for leaf in leaves_of((args, kwargs or {})) if isinstance(leaf, LostGradient))
        gradient.refuse()


def _as_zeros(leaf: Any) -> Any:
    """Return a lost gradient as an ordinary one of zeros, which its parameter has from here on."""
    if not isinstance(leaf, LostGradient):
        return leaf
    parameter = leaf.parameter()
    if leaf.held is None and parameter is not None:
        leaf.held, leaf.writable = torch.zeros_like(plain(parameter)), True
        leaf.release = _ignore
        with DisableTorchFunctionSubclass():
            if gradient_of(parameter) is leaf:
                set_gradient(parameter, leaf.held)
    return leaf.held


def _ignore(writes: bool) -> None:
    """Leave the gradient: the host has it."""


def lose(parameters: Iterable[torch.Tensor], problem: str) -> None:
    """Give parameters stand-ins for gradients that are gone, for a reason."""
    with DisableTorchFunctionSubclass():
        for parameter in parameters:
            lost = LostGradient(plain(parameter), _no_source, weakref.ref(parameter), "")
            lost.problem, lost.release = problem, lost.refuse
            LOST[id(parameter)] = weakref.ref(parameter)
            set_gradient(parameter, lost)


def _no_source() -> None:
    return None


def refuse_lost(parameters: Iterable[torch.Tensor]) -> None:
    """Refuse a step with the gradients of some parameters, if one is lost; it would change some weights before."""
    lost = {id(parameter) for parameter, _ in _stand_ins()}
    for parameter in parameters:
        if id(parameter) in lost:
            with DisableTorchFunctionSubclass():
                gradient = gradient_of(parameter)
            assert isinstance(gradient, LostGradient)
            gradient.refuse()


@contextlib.contextmanager
def lost_aside() -> Iterator[None]:
    """Let gradients be added in the `with` block to those that are not lost; lost ones stay so."""
    pairs = _stand_ins()
    with DisableTorchFunctionSubclass():
        for parameter, _ in pairs:
            set_gradient(parameter, None)
    try:
        yield
    finally:
        with DisableTorchFunctionSubclass():
            for parameter, lost in pairs:
                set_gradient(parameter, lost)


def _stand_ins() -> List[Tuple[torch.Tensor, LostGradient]]:
    """Return the parameters that still have lost gradients, with these, and forget the others."""
    found: List[Tuple[torch.Tensor, LostGradient]] = []
    with DisableTorchFunctionSubclass():
        for key, reference in list(LOST.items()):
            parameter = reference()
            gradient: Optional[torch.Tensor] = None if parameter is None else gradient_of(parameter)
            if parameter is not None and isinstance(gradient, LostGradient):
                found.append((parameter, gradient))
            else:
                del LOST[key]
    return found
