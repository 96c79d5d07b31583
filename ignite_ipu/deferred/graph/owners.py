"""Protocols of captured models and loops for recorded operations, optimizers of captured loops, and their tensors."""

from __future__ import annotations

import weakref
from typing import Any, Dict, FrozenSet, Iterator, List, Mapping, Optional, Protocol, Sequence, Tuple

import torch
from torch import nn

from ignite_ipu.errors import CaptureError
from ignite_ipu.optimizers.step_hooks import replaced_method
from ignite_ipu.program.module_tables import CHANGES
from ignite_ipu.program.tensors.raw import named_tensors
from ignite_ipu.program.tensors.sharing import address_of
from ignite_ipu.program.user_code import Line
from ignite_ipu.torch_names.modules import all_parameters
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass, base_of, sharers_of


class ReplacedError(CaptureError):
    """A model that has other weights than when it was captured."""


class LoopReads(Protocol):
    """Reads of a loop's values, `HostReads`, as recorded operations see them."""

    def computes_on_host(self, line: Line) -> bool: ...
    def computes_alone(self, call: Any) -> bool: ...
    def known(self, operations: Sequence[Any]) -> Mapping[Any, List[torch.Tensor]]: ...
    def check_unwritten(self, operations: Sequence[Any]) -> None: ...
    def check_weights(self) -> None: ...
    def before_write(self, tensors: Sequence[torch.Tensor], is_counted: bool) -> None: ...
    def weights_then(self, operation: Any) -> Optional[Sequence[Tuple[torch.Tensor, Any]]]: ...
    def was_written_uncounted(self, tensor: torch.Tensor, operation: Any) -> bool: ...
    def show_weights(self, operations: Sequence[Any]) -> None: ...
    def settle_before(self, operation: Any, line: Line) -> None: ...


class CapturedLoop(Protocol):
    """A captured loop, `Loop`, as recorded operations see it."""

    updates: Any
    setup: Any
    steady: Any
    buffers: Any

    @property
    def name(self) -> str: ...
    def backward(self, loss: Any) -> None: ...
    def note_write(self, tensors: Sequence[torch.Tensor]) -> None: ...
    def take_replaced(self) -> None: ...
    @property
    def reads(self) -> LoopReads: ...


class Captured(Protocol):
    """A captured model, `CapturedModel`, as recorded operations see it."""

    model: nn.Module
    path: str
    parameter_ids: Sequence[int]

    @property
    def loop(self) -> CapturedLoop: ...
    @property
    def name(self) -> str: ...
    def follow(self, loop: Any) -> None: ...
    def release(self) -> None: ...
    def owns(self, name: str, tensor: torch.Tensor) -> bool: ...
    def beside(self, weights: Sequence[torch.Tensor]) -> Captured: ...
    def others_with_buffers(self) -> Sequence[Captured]: ...
    def called_with(self, call: Any, tensors: Sequence[torch.Tensor]) -> List[torch.Tensor]: ...
    def evaluate(self, call: Any) -> None: ...


class _Owners:
    """The number of times so far that a captured model got tensors."""

    count = 0


OWNERS = _Owners()
"""Those of this process. While their count is the same, no tensor belongs to a captured model that did not before."""

OWNED: Dict[int, Tuple[weakref.ref[Captured], str]] = {}
"""By `id`: who owns a tensor, and its name there. An id may be another tensor's by now; `parameter_of` finds out."""

OPTIMIZERS: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
MODEL = "_ignite_ipu_model"
"""The attribute of an optimizer that holds, weakly, its updates of a captured model."""
METHODS = ("step", "zero_grad", "add_param_group")
"""The methods that a captured optimizer has as attributes of its own."""
WATCH = "_ignite_ipu_watch"
"""The attribute of an optimizer that holds what has functions of its parameters recorded."""


Held = Mapping[CapturedLoop, Sequence[torch.Tensor]]
"""Captured loops, each with some of its weights and buffers."""


class ModelCode(Protocol):
    """The code of a captured model, `Modes`, as recorded operations see it."""

    @property
    def holds_awaited(self) -> bool: ...
    def bring_awaited(self) -> None: ...
    def reads(self, tensor: torch.Tensor) -> bool: ...


CODES: weakref.WeakSet[ModelCode] = weakref.WeakSet()
"""The code of all captured models."""


_LOOSE: Dict[int, int] = {}
"""By `id`, the weights that no captured model had at the last look, and the count of changes of tables then."""


def own(model: Captured, tensors: Mapping[str, torch.Tensor]) -> None:
    """Let a captured model own tensors, by their names, as long as it lives; of tied ones the first name counts."""
    OWNERS.count += 1
    reference = weakref.ref(model)
    for name, tensor in reversed(list(tensors.items())):
        OWNED[id(tensor)] = (reference, name)
    weakref.finalize(model, _forget, [id(tensor) for tensor in tensors.values()], reference).atexit = False


def parameter_of(tensor: torch.Tensor) -> Optional[Tuple[Captured, str]]:
    """Return which captured model has a tensor, and under which name; None for any other tensor."""
    found = OWNED.get(id(tensor))
    if found is None:
        return None
    model, name = found[0](), found[1]
    return (model, name) if model is not None and model.owns(name, tensor) else None


def capture_held(weights: Sequence[torch.Tensor]) -> bool:
    """Capture weights by an optimizer that holds one of them, and return whether there is one that captures them."""
    own = set(map(id, weights))
    holding = (each for each in list(OPTIMIZERS) if not own.isdisjoint(held_by(each)))
    return any(optimizer.__dict__[WATCH].capture(weights) for optimizer in holding)


def take_replaced(used: torch.Tensor) -> None:
    """Have the loop of a weight take its models as they are now if parts of these were replaced, before it is used.

    A loop may call the parts of a model, and the model never.

    Raises:
        ReplacedError: That is not possible.
    """
    found = parameter_of(used)
    if found is not None:
        found[0].loop.take_replaced()
    elif _LOOSE.get(id(used)) != CHANGES.count:
        for owner in _owners():
            if any(each is used for each in all_parameters(owner.model)):
                owner.loop.take_replaced()
        _LOOSE[id(used)] = CHANGES.count


def _owners() -> List[Captured]:
    """Return the captured models that have tensors."""
    models = [reference() for reference, _ in list(OWNED.values())]
    return list({id(model): model for model in models if model is not None}.values())


def owned_tensors(but: Optional[nn.Module] = None) -> Iterator[Tuple[Captured, str, torch.Tensor]]:
    """Yield the parameters and buffers of all captured models `but` one, with their names there."""
    for model in [each for each in _owners() if each.model is not but]:
        for name, tensor in named_tensors(model.model).items():
            yield model, name, tensor


def captured_at(tensor: torch.Tensor) -> Held:
    """Return the loops whose weights or buffers have the memory of a tensor, as `parameter.data`, each with these."""
    found: Dict[CapturedLoop, List[torch.Tensor]] = {}
    base = base_of(tensor)
    known = [tensor] if base is None else [tensor, base]
    if sharers_of(tensor) == len(known) and not any(map(parameter_of, known)):
        return found
    place = address_of(tensor)
    for model, _, each in owned_tensors() if place else ():
        if address_of(each) == place:
            found.setdefault(model.loop, []).append(each)
    return found


def is_read_by_code(tensor: torch.Tensor) -> bool:
    """Return whether the code of a captured model reads a tensor that is none of its weights or buffers."""
    base = base_of(tensor)
    known = [tensor] if base is None else [tensor, base]
    return any(code.reads(each) for code in list(CODES) for each in known)


def _forget(keys: List[int], reference: weakref.ref[Captured]) -> None:
    for key in keys:
        if key in OWNED and OWNED[key][0] is reference:
            del OWNED[key]


def release_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Give an optimizer its own methods back; functions that a script has put in place of the captured ones stay."""
    watch = optimizer.__dict__.pop(WATCH, None)
    if watch is not None:
        watch.end()
    optimizer.__dict__.pop(MODEL, None)
    for name in METHODS:
        if name in optimizer.__dict__ and replaced_method(optimizer, name) is None:
            del optimizer.__dict__[name]
    OPTIMIZERS.discard(optimizer)


def held_tensors(optimizer: torch.optim.Optimizer) -> List[torch.Tensor]:
    """Return the parameters that an optimizer holds."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def held_by(optimizer: torch.optim.Optimizer) -> FrozenSet[int]:
    """Return the ids of the parameters that an optimizer holds."""
    return frozenset(map(id, held_tensors(optimizer)))


def held_parameters() -> FrozenSet[int]:
    """Return the ids of the parameters that some optimizer holds."""
    return frozenset().union(*map(held_by, list(OPTIMIZERS)))


def is_held(model: nn.Module) -> bool:
    """Return whether some optimizer holds a parameter of a model."""
    held = held_parameters()
    with DisableTorchFunctionSubclass():
        return any(id(each) in held for each in all_parameters(model))
