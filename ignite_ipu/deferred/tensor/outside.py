"""Tensors outside of a captured model that its code computes with, as another model's weights in a closure or list.

A program has such tensors as constants. Those of another captured model change on a device, and gradients may flow to
them. So the code of such a model is the loop's: each of its functions is recorded, or computed by the host.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any, Callable, ContextManager, Dict, Iterable, Iterator, Mapping, Optional, Tuple

import torch
from torch import nn

from ignite_ipu.deferred.graph.owners import OWNERS, owned_tensors
from ignite_ipu.deferred.tensor.composed import ComposedCode, ComposedError
from ignite_ipu.deferred.tensor.deferred_values import Deferred
from ignite_ipu.deferred.tensor.functions import METADATA
from ignite_ipu.errors import listed
from ignite_ipu.operators.words import word_set
from ignite_ipu.program.function_mode import FunctionGuard
from ignite_ipu.program.tensors.described import DRAWN, LIKE
from ignite_ipu.program.tensors.raw import named_tensors, plain, requires_grad
from ignite_ipu.program.tensors.trees import tensors_in
from ignite_ipu.program.user_code import current_line
from ignite_ipu.torch_names.dispatch import DispatchMode, operator_name, schema_of
from ignite_ipu.torch_names.tensors import DisableTorchFunction, DisableTorchFunctionSubclass, memory_of

_OF_SHAPE = LIKE | DRAWN
# Functions that tell nothing of the values of a tensor.
_WITHOUT_VALUES = METADATA | word_set("__get__")


class OutsideReads:
    """Context that notes the tensors which code computes with on the host, and which it has not computed there.

    Args:
        refuse: Called with the memory of each tensor that a function is given for its values, before it is called.

    Attributes:
        tensors: The first in each memory, by the number of the memory.
    """

    def __init__(self, refuse: Callable[[int], None]) -> None:
        self.tensors: Dict[int, torch.Tensor] = {}
        self._operators = _Operators(self.tensors)
        self._functions = _Functions(self._operators, refuse)

    def __enter__(self) -> None:
        self._operators.__enter__()  # type: ignore[no-untyped-call]
        self._functions.__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        self._functions.__exit__(*error)  # type: ignore[no-untyped-call]
        self._operators.__exit__(*error)  # type: ignore[no-untyped-call]


class _Operators(DispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operands that no operator has computed. Views do not count, nor do operators that take a shape."""

    def __init__(self, found: Dict[int, torch.Tensor]) -> None:
        super().__init__()
        self._found = found
        # Kept, so that no other tensor gets their memory.
        self._made: Dict[int, torch.Tensor] = {}
        self._viewed: Dict[int, torch.Tensor] = {}

    def note(self, memory: int, tensor: torch.Tensor) -> None:
        if memory not in self._made:
            self._found.setdefault(memory, self._viewed.get(memory, tensor))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        kwargs = kwargs or {}
        schema = schema_of(func)
        if not schema.is_mutable and any(each.alias_info is not None for each in schema.returns):
            for memory, each in _by_memory(args):
                self._viewed.setdefault(memory, each)
            return func(*args, **kwargs)
        counted = args[1:] if operator_name(func) in _OF_SHAPE else args
        for memory, each in _by_memory((counted, kwargs)):
            self.note(memory, each)
        output = func(*args, **kwargs)
        self._made.update({memory: each for memory, each in _by_memory(output) if memory not in self._found})
        return output


class _Functions(FunctionGuard):
    """Refuses functions that are given some tensors, before these are accessed; notes the tensors of all others."""

    def __init__(self, operators: _Operators, refuse: Callable[[int], None]) -> None:
        super().__init__()
        self._operators, self._refuse = operators, refuse

    def check(self, func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        name = getattr(func, "__name__", "")
        if name not in _WITHOUT_VALUES:
            with DisableTorchFunction():
                for memory, each in _by_memory((args[1:] if name in _OF_SHAPE else args, kwargs)):
                    self._refuse(memory)
                    self._operators.note(memory, each)


def _by_memory(values: Any) -> Iterator[Tuple[int, torch.Tensor]]:
    for each in tensors_in(values):
        if not isinstance(each, Deferred) and each.layout is torch.strided:  # a value to come has no memory
            yield memory_of(each), each


class OutsideTensors:
    """Finds out whether the code of one captured model computes with weights or buffers that are another's.

    Args:
        model: The model.
        composed: Whether its code is the loop's, which it is if it does.

    Attributes:
        count: The value of `OWNERS.count` at the last look.
        composed: As given.
    """

    def __init__(self, model: nn.Module, composed: ComposedCode) -> None:
        self.count = OWNERS.count
        self._model, self.composed = model, composed
        self._found: Dict[int, weakref.ref[torch.Tensor]] = {}

    def reads(self) -> OutsideReads:
        """Return a context for calls on the host, which ends one before it uses another captured model's tensor.

        By a `ComposedError`, at which the call has written nothing of that model's.
        """
        return self._reads(self._others())

    def reads_of_others(self) -> ContextManager[Any]:
        """Return the same, which does nothing if no other model is captured; nothing notes the tensors then."""
        others = self._others()
        return self._reads(others) if others else contextlib.nullcontext()

    def _reads(self, others: Mapping[int, Tuple[str, torch.Tensor]]) -> OutsideReads:
        def refuse(memory: int) -> None:
            if memory in others:
                self._compose(f"tensors of another captured model ({others[memory][0]})")
                raise ComposedError

        return OutsideReads(refuse)

    def check(self, operands: Iterable[torch.Tensor], trains: bool = False) -> None:
        """Take notice of the tensors that the operators of a call on the host have had and none has computed.

        Gradients flow through the results of a call that `trains`.

        Raises:
            ComposedError: Gradients would flow to some that are not the model's.
        """
        with DisableTorchFunctionSubclass():
            own = {memory_of(plain(each)) for each in named_tensors(self._model).values()}
            outside = [each for each in operands if each.layout is torch.strided and memory_of(each) not in own]
            trained = [tuple(each.shape) for each in outside if trains and each.is_leaf and requires_grad(each)]
        self._found.update({id(each): weakref.ref(each) for each in outside})
        if trained:
            self._compose(f"trainable tensors that are no parameters of it, of shape {listed(list(map(str, trained)))}")
            raise ComposedError

    def are_captured(self) -> bool:
        """Return whether a captured model has some of the known tensors by now."""
        self.count = OWNERS.count
        found = [each for each in (reference() for reference in self._found.values()) if each is not None]
        if not found:
            return False
        others = self._others()
        with DisableTorchFunctionSubclass():
            names = [others[memory][0] for memory in set(map(memory_of, found)) & others.keys()]
        if names:
            self._compose(f"tensors of another captured model ({listed(names)})")
        return bool(names)

    def _others(self) -> Dict[int, Tuple[str, torch.Tensor]]:
        """Return names of other captured models' tensors, and these, by their memory, which they keep."""
        with DisableTorchFunctionSubclass():
            every = [(plain(each), f"{name} of {model.name}") for model, name, each in owned_tensors(self._model)]
            own = {memory_of(plain(each)) for each in named_tensors(self._model).values()} if every else ()
            return {memory_of(each): (name, each) for each, name in every if memory_of(each) not in own}

    def _compose(self, others: str) -> None:
        self.composed.begin(
            f"The code of {type(self._model).__name__} computes, at {current_line()}, with {others}.",
            " Make both parts of one module and prepare that, to have it compiled.",
        )
