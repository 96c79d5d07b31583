"""Gradients of captured updates: those that a program brought back, and the norm that clipping returns."""

from __future__ import annotations

import weakref
from typing import Callable, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

import torch

from ignite_ipu.deferred.graph.operations import Value
from ignite_ipu.errors import CaptureError
from ignite_ipu.poptorch_types import Options
from ignite_ipu.program.tensors.raw import requires_grad
from ignite_ipu.program.user_code import current_line
from ignite_ipu.session.gradients import anchor_gradients, anchored_gradient, gradient_reader, log_cost
from ignite_ipu.session.program import ModelProgram
from ignite_ipu.session.session import IPUSession

__all__ = ["UpdateGradients"]

# What PyTorch's `clip_grad_norm_` adds to the norm, and the device does not.
_EPSILON = 1e-6


class _Norm(NamedTuple):
    """Norm that clipping is to return: weakly its value, whose gradients (None for all), and which norm."""

    value: weakref.ref[Value]
    parameters: Optional[List[torch.Tensor]]
    kind: float


class UpdateGradients:
    """Gradients of a captured model's updates, which programs bring back from when somebody looks at them.

    Attributes:
        wanted: Whether programs are compiled with them.
        unused: By `id`, the parameters on which the loss of the last update does not depend, as far as that is known.
    """

    def __init__(self, session: IPUSession) -> None:
        self._session = session
        self.wanted = False
        self.unused: Set[int] = set()
        self._program: Callable[[], Optional[ModelProgram]] = _none
        self._found: Dict[int, Optional[torch.Tensor]] = {}
        self._factor: Optional[torch.Tensor] = None
        self._norms: List[_Norm] = []

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

    def anchor(self, options: Options) -> None:
        """Have a program that will be compiled with some options bring them back."""
        anchor_gradients(options, [name for name, _ in self._trained()])

    def await_norm(self, value: Value, parameters: Optional[List[torch.Tensor]], kind: float) -> None:
        """Let a value become the norm of the coming update's gradients, of some parameters or all."""
        self._norms.append(_Norm(weakref.ref(value), parameters, kind))

    @property
    def awaited(self) -> bool:
        """True if somebody awaits a norm of the coming update's gradients."""
        return bool(self._norms)

    def needed(self) -> bool:
        """Tell whether the coming update has to bring them back, for code that reads them or for a norm."""
        for norm in () if self.wanted else self._norms:
            value = norm.value()
            if value is not None and value.is_needed(set()):
                self.want(str(value.operation.line))
        return self.wanted

    def follow(self, program: Optional[ModelProgram]) -> None:
        """Take the update that a program has just made; None for one that brings no gradients back."""
        self._found, self._factor = {}, None
        if program is None:
            self._program, self.unused = _none, set()
            return
        if program is not self._program():
            self._program = weakref.ref(program)
            self.unused = {id(each) for name, each in self._trained() if anchored_gradient(program, name, each) is None}
        self.settle_norms()

    def show(self, found: Dict[int, Optional[torch.Tensor]]) -> None:
        """Show those that the host has computed, by `id` of their parameter, until the update is made."""
        self._found, self._factor, self._program = found, None, _none
        self.unused = {key for key, gradient in found.items() if gradient is None}

    def settle_norms(self) -> bool:
        """Let awaited norms be known; returns True."""
        norms, self._norms = self._norms, []
        for norm in norms:
            value = norm.value()
            if value is not None:
                value.take(self.norm(norm.parameters, norm.kind))
                value.operation.finish()
        return True

    def give_up(self, problem: str) -> None:
        """Let norms of an update that will not be made never be known, for a reason."""
        norms, self._norms = self._norms, []
        for norm in norms:
            value = norm.value()
            if value is not None:
                value.operation.problem = problem

    @property
    def available(self) -> bool:
        """True if those of the last update have been brought back, or those of now computed."""
        return bool(self._found) or self._program() is not None

    def of(self, parameter: torch.Tensor, max_norm: Optional[float] = None) -> Optional[torch.Tensor]:
        """Return the gradient of a parameter, None where the loss does not depend on it.

        Args:
            parameter: The parameter.
            max_norm: What the gradients were clipped to, None if they were not.

        Raises:
            CaptureError: The update brought none back.
        """
        gradient = self._all().get(id(parameter))
        if gradient is None or max_norm is None:
            return gradient
        if self._factor is None:
            self._factor = torch.clamp(max_norm / (self.norm() + _EPSILON), max=1.0)
        return gradient * self._factor.to(gradient.dtype)

    def norm(self, parameters: Optional[Iterable[torch.Tensor]] = None, kind: float = 2.0) -> torch.Tensor:
        """Return the norm of the gradients of parameters, or of all, as `clip_grad_norm_` does.

        Raises:
            CaptureError: The update brought none back.
        """
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
                "optimizer.step(); or let the function with the loop call by its name what reads them after step()."
            )
        if not self._found and program is not None:
            with torch._C.DisableTorchFunctionSubclass():
                named = list(self._session.model.named_parameters())
            self._found = {id(parameter): anchored_gradient(program, name, parameter) for name, parameter in named}
        return self._found

    def _trained(self) -> List[Tuple[str, torch.Tensor]]:
        with torch._C.DisableTorchFunctionSubclass():
            return [(name, each) for name, each in self._session.model.named_parameters() if requires_grad(each)]


def _none() -> None:
    return None
