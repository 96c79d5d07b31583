"""Gradients of captured updates: those that a program brought back or the host has computed, and their norms."""

from __future__ import annotations

import weakref
from typing import Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

import torch

from ignite_ipu.deferred.compiled.clipping import Clipping
from ignite_ipu.deferred.compiled.replayed_losses import computed_gradients
from ignite_ipu.deferred.graph.operations import Operation, Value
from ignite_ipu.deferred.graph.step_graph import Loss
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.tensors.raw import requires_grad
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

    Weakly its value, the parameters of the gradients (None for those that are clipped), the order of the norm, and the
    norm that they have been clipped to before (or None).
    """

    value: weakref.ref[Value]
    parameters: Optional[List[torch.Tensor]]
    kind: float
    clipped: Optional[float]


class UpdateGradients:
    """Gradients of a captured model's updates. Programs bring them back from the first read on.

    `returned` has the ids of the parameters that have gradients, if these are `available`; `norms` are to come with the
    pending update.

    Args:
        session: That of the model.
        clipping: Knows which gradients are clipped: there may be others of parameters that no optimizer holds.
    """

    def __init__(self, session: IPUSession, clipping: Clipping) -> None:
        self._session, self._clipping = session, clipping
        self.wanted = False
        self.returned: Set[int] = set()
        self._program: Callable[[], Optional[ModelProgram]] = lambda: None
        self._names: Dict[int, str] = {}
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
        """Let a value become the norm of the pending update's gradients, of some parameters or those clipped."""
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
            with DisableTorchFunctionSubclass():
                named = list(self._session.model.named_parameters())
            # The loop may give parameters other names before it reads their gradients.
            self._names = {id(parameter): f"model.{name}" for name, parameter in named}
        self.settle_norms()

    def compute(self, losses: Sequence[Loss]) -> None:
        """Have the host compute those of losses, with the newest weights, and show them until the update is made."""
        self._found, self._factors, self._program = computed_gradients(self._session.model, losses), {}, lambda: None
        self.returned = {key for key, gradient in self._found.items() if gradient is not None}

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
            given = [gradient for gradient in gradients.values() if gradient is not None]
            factor = _clip_factor(max_norm, _total_norm([torch.linalg.vector_norm(each) for each in given]))
            for gradient in given:
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
        """Return the gradient of a parameter, clipped to a norm with the others that are; None if there is none."""
        gradient = self.read().get(id(parameter))
        if gradient is None or max_norm is None or not self._is_clipped(id(parameter)):
            return gradient
        return gradient * self._factor(max_norm).to(gradient.dtype)

    def _is_clipped(self, parameter: int) -> bool:
        """Return whether the gradient of a parameter, by its id, is one of those that are clipped together.

        If the settings alone name a norm, these are all.
        """
        return not self._clipping.clipped or parameter in self._clipping.clipped

    def _factor(self, max_norm: float) -> torch.Tensor:
        """Return the factor that clips gradients to a norm."""
        factor = self._factors.get(max_norm)
        if factor is None:
            factor = self._factors[max_norm] = _clip_factor(max_norm, self.norm())
        return factor

    def norm(
        self,
        parameters: Optional[Iterable[torch.Tensor]] = None,
        kind: float = 2.0,
        clipped: Optional[float] = None,
    ) -> torch.Tensor:
        """Return the norm of the gradients of parameters, or of those that are clipped, as `clip_grad_norm_` does.

        These may be `clipped` to a norm before.
        """
        every = self.read()
        ids = filter(self._is_clipped, every) if parameters is None else dict.fromkeys(map(id, parameters))
        found = {key: gradient for key, gradient in ((key, every.get(key)) for key in ids) if gradient is not None}
        norms = [torch.linalg.vector_norm(gradient, kind) for gradient in found.values()]
        if clipped is not None and norms:
            factor = self._factor(clipped)
            norms = [norm * factor if self._is_clipped(key) else norm for key, norm in zip(found, norms)]
        return _total_norm(norms, kind)

    def read(self) -> Dict[int, Optional[torch.Tensor]]:
        """Return the gradients by `id` of their parameter, which are copied once for each update.

        Where several processes make the update, every one of them has to.
        """
        program = self._program()
        if not self._found and (program is None or program.executor is None):
            raise CaptureError(
                f"A gradient is read at {current_line()} of an update that did not bring its gradients back, since no "
                "code that reads them was found when it was compiled. Read them between backward() and "
                "optimizer.step(); or let the function with the loop name the function that reads them after step()."
            )
        if not self._found and program is not None:
            found = read_gradients(program)
            self._found = {key: found.get(name) for key, name in self._names.items()}
        return self._found

    def _trained(self) -> List[Tuple[str, torch.Tensor]]:
        with DisableTorchFunctionSubclass():
            return [(name, each) for name, each in self._session.model.named_parameters() if requires_grad(each)]


def _total_norm(norms: Sequence[torch.Tensor], kind: float = 2.0) -> torch.Tensor:
    """Return the norm of gradients of which each has one of some norms."""
    return torch.linalg.vector_norm(torch.stack(list(norms)), kind) if norms else torch.tensor(0.0)


def _clip_factor(max_norm: float, norm: torch.Tensor) -> torch.Tensor:
    """Return the factor that clips gradients of a norm to another."""
    return torch.clamp(max_norm / (norm + _EPSILON), max=1.0)
