"""Gradients of captured updates: those that a program brought back or the host computes, and the norm for clipping."""

from __future__ import annotations

import contextlib
import functools
import weakref
from typing import (
    Any,
    Callable,
    Container,
    Dict,
    FrozenSet,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

import torch
from torch import nn

from ignite_ipu.deferred.graph.leaves import Input
from ignite_ipu.deferred.graph.operations import Operation, Value, by_number, replayed
from ignite_ipu.deferred.graph.state import Older
from ignite_ipu.deferred.graph.step_graph import Loss
from ignite_ipu.deferred.graph.structure import unflatten
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.forward.eager import EAGER
from ignite_ipu.program.forward.left_behind import called_beside
from ignite_ipu.program.tensors.differentiated import differentiated
from ignite_ipu.program.tensors.raw import named_tensors, plain, requires_grad
from ignite_ipu.program.user_code import current_line
from ignite_ipu.session.anchored_gradients import AnchoredGradients
from ignite_ipu.session.gradients import gradient_reader, log_cost
from ignite_ipu.session.program import ModelProgram
from ignite_ipu.session.returned_gradients import read_gradients
from ignite_ipu.session.session import IPUSession
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

# PyTorch's `clip_grad_norm_` adds this to the norm, the device does not.
_EPSILON = 1e-6


class _Norm(NamedTuple):
    """Norm that clipping is to return.

    Weakly its value, the parameters of the gradients (None for all), the order of the norm, and the norm that they have
    been clipped to before (or None).
    """

    value: weakref.ref[Value]
    parameters: Optional[List[torch.Tensor]]
    kind: float
    clipped: Optional[float]


class UpdateGradients:
    """Gradients of a captured model's updates. Programs bring them back from the first read on.

    `returned` has the ids of the parameters that have gradients, if these are `available`; `norms` are to come with the
    pending update.
    """

    def __init__(self, session: IPUSession) -> None:
        self._session = session
        self.wanted = False
        self.returned: Set[int] = set()
        self._program: Callable[[], Optional[ModelProgram]] = lambda: None
        self._found: Dict[int, Optional[torch.Tensor]] = {}
        self._factors: Dict[float, torch.Tensor] = {}
        self.norms: List[_Norm] = []

    def look_for_readers(self) -> None:
        """Want them if code reads gradients that is running, or that it names: it may do so after the update."""
        reader = None if self.wanted else gradient_reader()
        if reader is not None:
            self.want(reader)

    def want(self, reader: str) -> None:
        """Have programs bring them back that are compiled from now on, for who reads them at a line."""
        if not self.wanted:
            self.wanted = True
            log_cost(reader, [parameter for _, parameter in self._trained()])

    def anchored(self) -> AnchoredGradients:
        """Return the anchors that make the next compiled program bring them back."""
        return AnchoredGradients(f"model.{name}" for name, _ in self._trained())

    def await_norm(
        self, value: Value, parameters: Optional[List[torch.Tensor]], kind: float, clipped: Optional[float]
    ) -> None:
        """Let a value become the norm of the pending update's gradients, of some parameters or all."""
        self.norms.append(_Norm(weakref.ref(value), parameters, kind, clipped))

    def awaits(self, norm: Operation) -> bool:
        """Return whether a norm is to come with the pending update."""
        return any(value.operation is norm for value, _ in self._awaited())

    def needed(self) -> bool:
        """Return whether the pending update has to bring them back, for code that reads them or for a norm."""
        for value, _ in self._awaited() if self.norms and not self.wanted else ():
            if value.is_needed(set()):
                self.want(str(value.operation.line))
        return self.wanted

    def follow(self, program: Optional[ModelProgram]) -> None:
        """Take the update that a program has just made; None for one that brings no gradients back."""
        self._found, self._factors = {}, {}
        if program is None:
            self._program, self.returned = lambda: None, set()
            return
        if program is not self._program():
            assert program.kind.gradients is not None
            self._program, names = weakref.ref(program), set(program.kind.gradients.names)
            self.returned = {id(each) for name, each in self._trained() if f"model.{name}" in names}
        self.settle_norms()

    def compute(self, losses: Sequence[Loss]) -> None:
        """Have the host compute those of losses, with the newest weights, and show them until the update is made."""
        self._found, self._factors, self._program = _on_host(self._session.model, losses), {}, lambda: None
        self.returned = {key for key, gradient in self._found.items() if gradient is not None}

    def read(self) -> None:
        """Copy those of the last update, which every process has to do where several make it."""
        self._all()

    def settle_norms(self) -> None:
        awaited, self.norms = self._awaited(), []
        for value, norm in awaited:
            value.take(self.norm(norm.parameters, norm.kind, norm.clipped))
            value.operation.finish()

    def clip_on_host(
        self, gradients: Mapping[int, Optional[torch.Tensor]], max_norm: Optional[float], awaited: bool = True
    ) -> None:
        """Clip gradients on the host, by `id` of their parameter, to a norm; resolve `awaited` norms by them before."""
        self._found, self._factors, self._program = dict(gradients), {}, lambda: None
        if awaited:
            self.settle_norms()
        if max_norm is not None:
            factor = self._factor(max_norm)
            for gradient in gradients.values():
                if gradient is not None:
                    gradient.mul_(factor.to(gradient.dtype))
        self._found, self._factors = {}, {}

    def discard(self, problem: str) -> None:
        """Let norms of an update that will not be made never be known, for a reason."""
        for value, _ in self._awaited():
            value.operation.problem = problem
        self.norms = []

    def _awaited(self) -> List[Tuple[Value, _Norm]]:
        return [(value, norm) for value, norm in [(norm.value(), norm) for norm in self.norms] if value is not None]

    @property
    def available(self) -> bool:
        """True if those of the last update have been brought back, or the current ones computed."""
        return bool(self._found) or self._program() is not None

    def of(self, parameter: torch.Tensor, max_norm: Optional[float] = None) -> Optional[torch.Tensor]:
        """Return the gradient of a parameter, clipped to a norm if to one; None where no loss depends on it."""
        gradient = self._all().get(id(parameter))
        if gradient is None or max_norm is None:
            return gradient
        return gradient * self._factor(max_norm).to(gradient.dtype)

    def _factor(self, max_norm: float) -> torch.Tensor:
        """Return the factor that clips gradients to a norm."""
        factor = self._factors.get(max_norm)
        if factor is None:
            factor = self._factors[max_norm] = torch.clamp(max_norm / (self.norm() + _EPSILON), max=1.0)
        return factor

    def norm(
        self,
        parameters: Optional[Iterable[torch.Tensor]] = None,
        kind: float = 2.0,
        clipped: Optional[float] = None,
    ) -> torch.Tensor:
        """Return the norm of the gradients of parameters, or of all, as `clip_grad_norm_` does that follows another."""
        if clipped is not None:
            return self.norm(parameters, kind) * self._factor(clipped)
        every = self._all()
        ids = every if parameters is None else dict.fromkeys(map(id, parameters))
        found = [gradient for gradient in map(every.get, ids) if gradient is not None]
        norms = [torch.linalg.vector_norm(gradient, kind) for gradient in found]
        return torch.linalg.vector_norm(torch.stack(norms), kind) if norms else torch.tensor(0.0)

    def _all(self) -> Dict[int, Optional[torch.Tensor]]:
        """Return the gradients by `id` of their parameter, which are copied once for each update."""
        program = self._program()
        if not self._found and (program is None or program.executor is None):
            raise CaptureError(
                f"A gradient is read at {current_line()} of an update that did not bring its gradients back, since no "
                "code that reads them was found when it was compiled. Read them between backward() and "
                "optimizer.step(); or let the function with the loop name the function that reads them after step()."
            )
        if not self._found and program is not None:
            with DisableTorchFunctionSubclass():
                named = list(self._session.model.named_parameters())
            found = read_gradients(program)
            self._found = {id(parameter): found.get(f"model.{name}") for name, parameter in named}
        return self._found

    def _trained(self) -> List[Tuple[str, torch.Tensor]]:
        with DisableTorchFunctionSubclass():
            return [(name, each) for name, each in self._session.model.named_parameters() if requires_grad(each)]


def _on_host(model: nn.Module, losses: Sequence[Loss]) -> Dict[int, Optional[torch.Tensor]]:
    """Return the gradients of the sum of losses by `id` of the parameter, None where none depends on it.

    The host has the newest weights. Layers are in the modes they are in: random ones draw others than the step will,
    and statistics of batches are not kept.
    """
    with DisableTorchFunctionSubclass():
        trained = {id(each): plain(each).requires_grad_() for each in model.parameters() if requires_grad(each)}
        total = _total(losses, trained)
        found = torch.autograd.grad(total, list(trained.values()), allow_unused=True)
    return dict(zip(trained, found))


def reached_by(losses: Sequence[Loss], parameters: Iterable[torch.Tensor]) -> FrozenSet[int]:
    """Return the ids of those parameters that losses depend on, by autograd's graph of them on the host."""
    with DisableTorchFunctionSubclass():
        trained = {id(each): plain(each).requires_grad_() for each in parameters}
        total = _total(losses, trained)
    leaves = set(map(id, differentiated([total])))
    return frozenset(key for key, tensor in trained.items() if id(tensor) in leaves)


def saved_by(losses: Sequence[Loss], parameters: Iterable[torch.Tensor], trains: Container[int]) -> Dict[int, bool]:
    """Return the ids of those parameters whose values autograd needs for the gradients of losses.

    With each is whether autograd may have saved the parameter itself, and not a transposed view or a part of it alone.
    `trains` has the ids of those that have gradients: through which others the gradients flow depends on them.
    """
    with DisableTorchFunctionSubclass():
        trained = {id(each): plain(each).requires_grad_(id(each) in trains) for each in parameters}
        places = {tensor.untyped_storage().data_ptr(): key for key, tensor in trained.items()}
        saved: Dict[int, bool] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            key = places.get(tensor.untyped_storage().data_ptr())
            if key is not None:
                itself = (tensor.shape, tensor.stride()) == (trained[key].shape, trained[key].stride())
                saved[key] = saved.get(key, False) or itself
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            _total(losses, trained)
    return saved


def mixed_gradients(
    loss: Loss, parameters: Sequence[torch.Tensor], trains: Container[int], changes: Sequence[Older]
) -> Tuple[Dict[int, Optional[torch.Tensor]], Dict[Operation, List[torch.Tensor]]]:
    """Return gradients by `id` of their parameter as PyTorch computes them, and the results of a loss's operations.

    Parameters were changed after operations, in the order of `changes`. They are changed in the same ways here, so that
    autograd finds the memory that it has saved with the later values, or raises its error for writes that it counts.
    """
    known = {id(each): plain(each) for each in parameters}
    # By the id of a parameter: the values that it got by the changes, and the number of the operation before each.
    events: List[Tuple[Older, int, Callable[[], torch.Tensor]]] = []
    first = dict(known)
    for change in reversed(changes):
        for tensor, before in change.values:
            if id(tensor) in known:
                assert before is not None
                events.insert(0, (change, id(tensor), functools.partial(torch.clone, first[id(tensor)])))
                first[id(tensor)] = before
    with DisableTorchFunctionSubclass():
        copies = {key: value.clone().requires_grad_(key in trains) for key, value in first.items()}

    def change_before(number: float) -> None:
        while events and events[0][0].taken < number:
            change, key, value = events.pop(0)
            copy = copies[key]
            if key in change.replaced:
                copy.data = value()
            elif key in change.uncounted - change.counted:
                copy.data.copy_(value())
            else:
                with torch.no_grad():
                    copy.copy_(value())

    with DisableTorchFunctionSubclass():
        results = _replayed([loss], copies, lambda operation: change_before(operation.number))
        change_before(float("inf"))
        trained = {key: copy for key, copy in copies.items() if copy.requires_grad}
        total = results[loss.value.operation][loss.value.index].sum()
        found = torch.autograd.grad(total, list(trained.values()), allow_unused=True)
    return dict(zip(trained, found)), results


def _total(losses: Sequence[Loss], trained: Mapping[int, torch.Tensor]) -> torch.Tensor:
    """Return the sum of losses, computed on the host from copies of parameters, by the ids of these."""
    results = _replayed(losses, trained)
    with DisableTorchFunctionSubclass(), torch.enable_grad():
        return torch.stack([results[loss.value.operation][loss.value.index].sum() for loss in losses]).sum()


def _replayed(
    losses: Sequence[Loss], trained: Mapping[int, torch.Tensor], before: Callable[[Operation], None] = lambda each: None
) -> Dict[Operation, List[torch.Tensor]]:
    """Compute the operations of losses on the host from copies of parameters, and return the results of each.

    `before` is called before each operation that reads tensors of the host.
    """
    operations = {each for loss in losses for each in loss.operations}
    buffers: Dict[int, torch.Tensor] = {}

    def tensor_of(leaf: Input, operation: Operation) -> torch.Tensor:
        before(operation)
        return trained.get(id(leaf.tensor), torch.Tensor.detach(leaf.tensor))

    def called(operation: Operation, leaves: List[Any]) -> Any:
        before(operation)
        return _called(trained, buffers, operation, leaves)

    with torch.random.fork_rng(devices=[]), DisableTorchFunctionSubclass(), torch.enable_grad():
        return replayed(sorted(operations, key=by_number), tensor_of, called)


def _called(
    trained: Mapping[int, torch.Tensor], buffers: Dict[int, torch.Tensor], operation: Operation, leaves: List[Any]
) -> Any:
    """Return the result of a model with copies of its parameters, and of its buffers after the previous calls."""
    assert operation.model is not None
    model, (args, kwargs) = operation.model.model, unflatten(operation.signature.structure, leaves)
    # Each tensor of each module by one name: PyTorch would leave a copy there if a module has several.
    tensors = named_tensors(model)
    # A buffer that a previous call has written is copied again, since gradients of that call may need it.
    copies = {id(each): buffers.get(id(each), torch.Tensor.detach(each)).clone() for each in tensors.values()}
    buffers.update(copies)
    given = {name: trained.get(id(each), copies[id(each)]) for name, each in tensors.items()}
    modes = operation.signature.modes
    with EAGER, modes.of.at(modes) if modes is not None else contextlib.nullcontext():
        call = functools.partial(torch.func.functional_call, model, given, args, kwargs, tie_weights=False)
        result = called_beside(operation.signature.left, call)
    # PyTorch stores the buffers there that the call has assigned.
    buffers.update({id(each): given[name] for name, each in tensors.items() if id(each) not in trained})
    return result
