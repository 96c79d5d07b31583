"""Tensors outside of a captured model that its code computes with, as another model's weights in a closure or list.

A program has such tensors as constants. Those of another captured model change on a device, and gradients may flow to
them. So the code of such a model is the loop's: each of its functions is recorded, or computed by the host.
"""

from __future__ import annotations

import weakref
from typing import Any, Dict, Iterable, Optional, Tuple

import torch
from torch import nn

from ignite_ipu.deferred.graph.owners import OWNERS, owned_tensors
from ignite_ipu.errors import CaptureError, listed, logger
from ignite_ipu.program.tensors.raw import named_tensors, plain, requires_grad
from ignite_ipu.program.tensors.trees import tensors_in
from ignite_ipu.program.user_code import current_line
from ignite_ipu.torch_names.dispatch import DispatchMode
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass, memory_of


class ComposedError(CaptureError):
    """A call of a model whose code is to be the loop's."""


class OperandsRead(DispatchMode):  # type: ignore[no-untyped-call]
    """Notes the tensors that operators have in its `with` block, and none there has computed.

    Attributes:
        tensors: The first in each memory, by the number of the memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tensors: Dict[int, torch.Tensor] = {}
        self._made: Dict[int, torch.Tensor] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        for each in tensors_in((args, kwargs or {})):
            if each.layout is torch.strided and memory_of(each) not in self._made:
                self.tensors.setdefault(memory_of(each), each)
        output = func(*args, **(kwargs or {}))
        made = [each for each in tensors_in(output) if each.layout is torch.strided]
        self._made.update({memory_of(each): each for each in made if memory_of(each) not in self.tensors})
        return output


class OutsideTensors:
    """Finds out whether the code of one captured model computes with weights or buffers that are another's.

    Attributes:
        count: The value of `OWNERS.count` at the last look.
        is_composed: Whether its code is the loop's from now on.
    """

    def __init__(self, model: nn.Module) -> None:
        self.count = OWNERS.count
        self.is_composed = False
        self._model = model
        self._found: Dict[int, weakref.ref[torch.Tensor]] = {}

    def check(self, operands: Iterable[torch.Tensor], trains: bool = False) -> None:
        """Take notice of the tensors that the operators of a call on the host have had and none has computed.

        Gradients flow through the results of a call that `trains`.

        Raises:
            ComposedError: Some are another captured model's, or gradients would flow to some.
        """
        with DisableTorchFunctionSubclass():
            own = {memory_of(plain(each)) for each in named_tensors(self._model).values()}
            outside = [each for each in operands if each.layout is torch.strided and memory_of(each) not in own]
            trained = trains and any(each.is_leaf and requires_grad(each) for each in outside)
        self._found.update({id(each): weakref.ref(each) for each in outside})
        if self.are_captured() or trained:
            self.is_composed = True
            raise ComposedError

    def are_captured(self) -> bool:
        """Return whether a captured model has some of the known tensors by now."""
        self.count = OWNERS.count
        found = [each for each in (reference() for reference in self._found.values()) if each is not None]
        if not found:
            return False
        own = set(map(id, named_tensors(self._model).values()))
        with DisableTorchFunctionSubclass():
            memories = set(map(memory_of, found))
            others = [
                f"{name} of {model.name}"
                for model, name, each in owned_tensors()
                if id(each) not in own and memory_of(plain(each)) in memories
            ]
        if others:
            self.is_composed = True
            logger.warning(
                "The code of %s computes, at %s, with tensors of another captured model (%s). Each function of it is "
                "recorded by itself while weights are trained, and the host computes evaluations, with a copy of the "
                "weights. Make both parts of one module and prepare that, to have it compiled.",
                type(self._model).__name__,
                current_line(),
                listed(others),
            )
        return bool(others)
