"""`Trained`: how a model is trained, by one program after another, and the tie to the user's optimizer."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Dict, List, Optional, Tuple, Union

import torch
from torch import nn

from ignite_ipu.errors import LossError, listed, logger
from ignite_ipu.optimizers.conversion import Conversion
from ignite_ipu.optimizers.host_link import HostLink, HostUpdates, Link
from ignite_ipu.optimizers.link import OptimizerLink, check_parameters
from ignite_ipu.optimizers.step_hooks import StepHooks
from ignite_ipu.program.geometry import BatchGeometry
from ignite_ipu.program.layout import BatchLayout
from ignite_ipu.program.step import BatchStep
from ignite_ipu.program.tensors.raw import named_tensors, requires_grad
from ignite_ipu.session.hooks import SessionHooks
from ignite_ipu.session.processes import connected
from ignite_ipu.session.program import ModelProgram
from ignite_ipu.session.program_kinds import kind_of
from ignite_ipu.session.program_source import OnTrace
from ignite_ipu.session.resolved import Resolved
from ignite_ipu.session.weights.tracker import Weights
from ignite_ipu.torch_names.modules import PARAMETERS, all_named_parameters
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

if TYPE_CHECKING:
    from ignite_ipu.session.placement import Placing


class Trainable:
    """Parameters of a module that were trained when its program was compiled, which has gradients of these alone."""

    def __init__(self, module: nn.Module) -> None:
        # Without a look at those of a wrapped module, which would download; of several names the first counts.
        held = named_tensors(module, PARAMETERS)
        first = {id(tensor): name for name, tensor in reversed(held.items())}
        self._held: Dict[str, torch.Tensor] = {first[id(tensor)]: tensor for tensor in held.values()}
        self._compiled = self._now()

    def names(self) -> List[str]:
        """Return the names of the parameters that are trained now."""
        return [name for name, trained in zip(self._held, self._now()) if trained]

    def change(self) -> str:
        """Return in words which parameters were frozen or unfrozen since then; empty for none."""
        now = self._now()
        if now == self._compiled:
            return ""
        flags = list(zip(self._held, self._compiled, now))
        frozen = [name for name, before, after in flags if before > after]
        unfrozen = [name for name, before, after in flags if before < after]
        named = {"frozen": frozen, "unfrozen": unfrozen}
        return " and ".join(f"{len(names)} {what} ({listed(names, 4)})" for what, names in named.items() if names)

    def _now(self) -> List[bool]:
        with DisableTorchFunctionSubclass():
            return list(map(requires_grad, self._held.values()))


class Trained:
    """The program that trains a model, those kept `aside` until they train it again, and the tie to the optimizer.

    `resolved` has the options of the programs for whole calls.
    """

    def __init__(
        self,
        step: BatchStep,
        conversion: Union[Conversion, HostUpdates],
        resolved: Resolved,
        weights: Weights,
        hooks: SessionHooks,
        placing: Optional[Placing],
        on_trace: OnTrace,
    ) -> None:
        self.link: Link
        if isinstance(conversion, HostUpdates):
            self.link, self.hooks = HostLink(conversion), None
        else:
            names = dict(all_named_parameters(step))
            self.link = OptimizerLink(conversion, names, copying=hooks.copy, check_shown=hooks.check_shown)
            self.hooks = StepHooks(conversion.source)
        kind = kind_of(self.link)
        self.program = ModelProgram(step, resolved, kind, weights, hooks, placing, on_trace)
        self.aside: List[ModelProgram] = []
        # By program that was set aside, the names of the parameters that it trains.
        self._aside_names: weakref.WeakKeyDictionary[ModelProgram, List[str]] = weakref.WeakKeyDictionary()
        self.resolved = resolved
        self._partial: Dict[Tuple[int, int, int], Resolved] = {}
        self._trainable = Trainable(step)
        self._weights = weights

    @property
    def updates_on_host(self) -> bool:
        """True if PyTorch makes the updates."""
        return self.hooks is None

    def replace(self, step: BatchStep, resolved: Resolved, keep: bool) -> None:
        """Train by another program from now on, with the weights and the optimizer's state of the one before.

        `keep` keeps that for `resume`, if it is compiled and no parameters were frozen or unfrozen.
        """
        program, changed = self.program, bool(self._trainable.change())
        if changed:
            self._check_parameters(step)
            self.link.refresh_state()
            self.drop_aside()
        if not (keep and not changed and self._set_aside()):
            program.destroy(unwrap=True)
        self.program = program.like(step, resolved)
        self._trainable = Trainable(step)
        if not keep:
            self.resolved = resolved
            self._partial.clear()
        if changed:
            self.link.send_again(self._trainable.names())
        else:
            self.link.complete(self._trainable.names())

    def resolved_for(self, call: BatchGeometry) -> Resolved:
        """Return the options of the programs for a smaller call; the same object for the same factors."""
        factors = call.device_iterations, call.gradient_accumulation, call.replication_factor
        if factors not in self._partial:
            self._partial[factors] = self.resolved.with_factors(call)
        return self._partial[factors]

    def serves(self, resolved: Resolved, layout: BatchLayout) -> bool:
        """Return whether the program at present is the one for batches of this layout, or for none that are like it."""
        compiled_for = self.program.step.layout.decided
        if self.program.resolved is not resolved:
            return False
        return compiled_for is None or not compiled_for.differs_in_shapes(layout) or connected()[1] > 1

    def kept_for(self, resolved: Resolved, layout: BatchLayout) -> Optional[ModelProgram]:
        """Return the program that was compiled for batches of this layout, None where there is none."""
        self.aside = [program for program in self.aside if program.compiled]  # a release destroys them
        for program in list(self.aside):
            if program.resolved is resolved and program.step.layout.decided == layout:
                if self._aside_names[program] == Trainable(program.step).names():
                    return program
                self.drop_aside(program)
        return None

    def shapes_of(self, resolved: Resolved) -> int:
        """Return for how many shapes of calls with these options there are programs."""
        return sum(1 for each in (self.program, *self.aside) if each.resolved is resolved and each.compiled)

    def resume(self, program: ModelProgram) -> None:
        """Train by an earlier program again, which `replace` has kept.

        Weights and optimizer state go to the host once, and from there to the program when it is loaded.
        """
        current = self.program
        if not self._set_aside():
            current.destroy(unwrap=True)
        self.aside.remove(program)
        program.stream = current.stream
        self.link.complete(self._trainable.names())
        program.go_on()
        self.program = program

    def drop_aside(self, program: Optional[ModelProgram] = None) -> None:
        """Destroy a program that was kept, or all of them."""
        for kept in [program] if program is not None else list(self.aside):
            self.aside.remove(kept)
            kept.destroy()

    def stop(self) -> None:
        """Give the programs back; the optimizer is an ordinary one again."""
        self.link.refresh_state()
        self._weights.to_host()
        self.program.destroy()
        self.drop_aside()
        self.link.detach()

    def follow_trainable(self) -> None:
        """Compile again if parameters were frozen or unfrozen."""
        change = self._trainable.change()
        if not change:
            return
        self._check_parameters(self.program.step)
        if self.program.compiled:
            logger.warning("Parameters were frozen or unfrozen, %s: the model is compiled again.", change)
            self.compile_again()
        else:
            # After a release PopTorch's optimizer holds the state, and would drop that of frozen parameters.
            self.link.refresh_state()
            self.link.send_again(self._trainable.names())
        self._trainable = Trainable(self.program.step)

    def _check_parameters(self, step: BatchStep) -> None:
        if isinstance(self.link, OptimizerLink):
            check_parameters(self.link.conversion.source, step)

    def check_any_trained(self) -> None:
        """Refuse to compile a program that trains nothing, where PyTorch refuses to go backward."""
        if not self._trainable.names():
            raise LossError(
                "The loss has no gradient: all parameters of the model (and of the loss) are frozen, so nothing would "
                "be trained. Set requires_grad_(True) on those that are to be trained; to compute losses alone, use "
                "an evaluator."
            )

    def compile_again(self) -> None:
        """Have the next call compile, with the weights and the optimizer's state of this moment."""
        self.link.refresh_state()
        self._weights.to_host()
        self.program.destroy()
        self.link.send_again(self._trainable.names())

    def _set_aside(self) -> bool:
        """Keep the program for later, and return whether there is a compiled one to keep."""
        if self.program.compiled is None:
            return False
        self.program.set_aside(keep_ipus=False)
        self._aside_names[self.program] = Trainable(self.program.step).names()
        self.aside.append(self.program)
        return True
