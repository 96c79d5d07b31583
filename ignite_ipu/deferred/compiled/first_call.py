"""The first call of a model on the host, before there is a program.

As in eager PyTorch, it may set up state: a mask, a table, a layer whose width depends on the first batch. A trace would
make that state on the device, where code on the host could not use it.
"""

from __future__ import annotations

from typing import Any, ContextManager, Dict, List, Optional, Sequence, Tuple

import torch
from torch import nn

from ignite_ipu.deferred.compiled.host_calls import NO_CONTEXT, HeldBuffers, changed_values
from ignite_ipu.deferred.compiled.modes import refuse_replaced
from ignite_ipu.deferred.graph.structure import is_bare_tensor, leaves_in, mapped
from ignite_ipu.deferred.tensor.deferred_values import all_values, resolved
from ignite_ipu.deferred.tensor.functions import written
from ignite_ipu.errors import ForwardError, IPUError
from ignite_ipu.program.forward.assigned_buffers import Assignments, assignments_written
from ignite_ipu.program.forward.dependence import DeviceDrawsUndone
from ignite_ipu.program.forward.eager import EAGER
from ignite_ipu.program.forward.first_call import SetOnce, set_once
from ignite_ipu.program.forward.left_behind import LeftBehind
from ignite_ipu.program.forward.model_libraries import without_generation_cache
from ignite_ipu.program.forward.randomness import draw_from, host_random_state
from ignite_ipu.program.forward.state_before import StateBefore
from ignite_ipu.program.forward.weight_writes import WeightWriteGuard
from ignite_ipu.program.function_mode import FunctionContext
from ignite_ipu.program.guards.retrace import OperatorRecorder
from ignite_ipu.program.module_state import REGISTRATIONS
from ignite_ipu.program.tensors.iterators import with_items
from ignite_ipu.program.tensors.raw import is_lazy, named_tensors, plain, table_of
from ignite_ipu.program.traced_places import changes_in_every_call
from ignite_ipu.session.session import IPUSession
from ignite_ipu.torch_names.modules import BUFFERS, all_modules, all_named_buffers
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass, memory_of


class _StoredResults(FunctionContext):
    """Gives functions the values of results that a model holds: modes hand on no tensor subclass in PyTorch 2.0."""

    def call(self, func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        values, name = all_values((args, kwargs)), getattr(func, "__name__", "")
        if (
            values
            and all(each.available for each in values)
            and name != "__get__"
            and written(name, args, kwargs) is None
        ):
            args, kwargs = resolved((args, kwargs))
        return func(*args, **kwargs)


class _MadeBuffers:
    """Context that keeps the first values of buffers that a model makes in it, by lazy layers or new ones."""

    def __init__(self, model: nn.Module) -> None:
        self._found: Dict[int, Tuple[torch.Tensor, torch.Tensor]] = {}
        # `self.count += 1` registers a buffer again, after the write.
        self._known = {id(each) for _, each in all_named_buffers(model) if not is_lazy(each)}
        self._lazy = [each for each in all_modules(model) if any(map(is_lazy, _own_buffers(each)))]
        self._handles: List[Any] = []

    def before_registration(self, module: nn.Module, given: Any) -> None:
        if isinstance(given, torch.Tensor) and not isinstance(given, nn.Parameter):
            self._keep(given)
        elif isinstance(given, nn.Module):
            # A copy of another module has buffers that were never registered.
            self._keep(*given.buffers())

    def _keep(self, *buffers: torch.Tensor) -> None:
        for each in buffers:
            if id(each) not in self._known and not is_lazy(each):
                self._found.setdefault(id(each), (each, plain(each).clone()))

    @property
    def found(self) -> List[Tuple[torch.Tensor, torch.Tensor]]:
        """The buffers with these values."""
        return [(plain(buffer), values) for buffer, values in self._found.values()]

    def __enter__(self) -> None:
        REGISTRATIONS.observe(self)
        for each in self._lazy:
            # After the layer's own, which makes them.
            hook = each.register_forward_pre_hook(lambda layer, _: self._keep(*_own_buffers(layer)))
            self._handles.append(hook)

    def __exit__(self, *error: Any) -> None:
        REGISTRATIONS.observers.discard(self)
        for handle in self._handles:
            handle.remove()


def _own_buffers(module: nn.Module) -> List[torch.Tensor]:
    return [each for each in table_of(module, BUFFERS).values() if each is not None]


def call_first(
    model: nn.Module,
    args: Tuple[Any, ...],
    kwargs: Dict[str, Any],
    session: IPUSession,
    state_before: StateBefore,
    failed: Optional[Dict[str, torch.Tensor]] = None,
    operands: ContextManager[Any] = NO_CONTEXT,
) -> bool:
    """Call a model on the host, which leaves tensors that it is given, its buffers and random numbers as they are.

    Before anything is trained it may make weights and buffers, for which random numbers are drawn as in eager PyTorch,
    and set some by the first batch. The calls are made in the context `operands`. The host has the newest weights,
    `state_before` is of this moment, and `failed` is as for `called_on_host`.

    Returns:
        Whether each call adds to lists.

    Raises:
        ReplacedError: It has made some tensors of which the session does not know.
        ComposedError: By `operands`.
        ForwardError: As of `set_once`.
    """
    before, held = named_tensors(model), HeldBuffers(model)
    lazy = [each for each in before.values() if is_lazy(each)]
    held_buffers = {path: each for path, each in all_named_buffers(model) if not is_lazy(each)}
    buffers = {path: plain(each) for path, each in held_buffers.items()}
    values_before = {path: each.clone() for path, each in buffers.items()}
    state = host_random_state()
    args, kwargs = mapped((args, kwargs), torch.Tensor.clone, is_bare_tensor)
    made_buffers = _MadeBuffers(model)
    named = state_before.named
    behind, grows = LeftBehind(named, ()), False
    found = SetOnce({}, [])
    assignments = Assignments(model)
    registered: List[torch.Tensor] = []

    given = DeviceDrawsUndone(leaves_in((args, kwargs)))

    def call_again() -> Sequence[torch.Tensor]:
        recorder = OperatorRecorder()
        with given, recorder:
            with_items(model(*args, **kwargs))
        return recorder.constants

    def call_once() -> Any:
        with given, operands:
            given_now, named_now = mapped((args, kwargs), torch.Tensor.clone, is_bare_tensor)
            return with_items(model(*given_now, **named_now))

    with session.weights.put_back_unnoticed():
        try:
            cacheless = without_generation_cache(all_modules(model))
            with EAGER, cacheless, DisableTorchFunctionSubclass(), _StoredResults(), made_buffers:
                # So a value that it keeps for later calls is distinguished from a constant.
                with torch.set_grad_enabled(model.training and torch.is_grad_enabled()):
                    if session.training is None:
                        found = set_once(model, call_once, given, state_before.decisions)
                    else:
                        with given, operands, WeightWriteGuard(model):
                            with_items(model(*args, **kwargs))
                    registered = assignments.find(call_again, session.training is None)
                    if behind.may_grow or (behind.stores and not registered):
                        again = LeftBehind(named, ())
                        with given, assignments_written(model):
                            with_items(model(*args, **kwargs))
                        again.refuse_moved()
                        grows = again.grows
        except IPUError:  # which may be a RuntimeError
            raise
        except Exception as error:
            if failed is not None:
                failed.clear()
                failed.update(changed_values(values_before, held_buffers))
            # The host lacks operators in half precision that a device has; other such errors come again in the trace.
            if not isinstance(error, RuntimeError):
                _put_memory_back(held_buffers, buffers)
                for path, values in values_before.items():
                    buffers[path].copy_(values)
                raise
        if grows:
            behind.shrink()
        behind.put_cleared_back()
        _put_memory_back(held_buffers, buffers)
        pairs = [(buffers[path], values) for path, values in values_before.items()]
        for buffer, values in (*pairs, *made_buffers.found):
            if not torch.equal(buffer, values):
                buffer.copy_(values)
        found.put(model)
    if found.counters:
        raise ForwardError(changes_in_every_call(model, found.counters))
    if found.values:
        session.weights.host_changed()
    after = {name: each for name, each in named_tensors(model).items() if all(each is not new for new in registered)}
    made = after.keys() != before.keys() or any(after[name] is not each for name, each in before.items())
    made |= not all(map(is_lazy, lazy))
    if made and session.training is not None:
        held.put_back()  # the trace refuses it
        made = False
    if not (made or found.values):
        draw_from(state)
    refuse_replaced(session.weights, session.model)
    return grows


def _put_memory_back(buffers: Dict[str, torch.Tensor], before: Dict[str, torch.Tensor]) -> None:
    """Give buffers the memory back that they had before a call, which may have assigned `buffer.data`."""
    with DisableTorchFunctionSubclass():
        for path, buffer in buffers.items():
            if memory_of(buffer) != memory_of(before[path]):
                buffer.data = before[path]
