"""Gradients that a training program brings back to the host with every call.

PopTorch returns anchored tensors, and anchors are compiled in. A gradient comes back raw: one block for each
micro-batch and replica that the output mode returns, multiplied by the loss scaling. A parameter that the loss does not
depend on has none, and an anchor of it stops the compilation, so the loss is computed on the host before.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Optional, Sequence, Set

import torch
import torch.distributed as dist
from torch import nn

from ignite_ipu import backend
from ignite_ipu.errors import OptionsError, logger
from ignite_ipu.poptorch_types import Executor, Options
from ignite_ipu.program.micro_batches import first_micro_batch
from ignite_ipu.program.step import BatchStep
from ignite_ipu.program.tensors.differentiated import differentiated
from ignite_ipu.program.tensors.raw import dtype_of, named_tensors, plain, requires_grad, shape_of
from ignite_ipu.session.gradient_hooks import GradientHooks
from ignite_ipu.session.job import job
from ignite_ipu.session.resolved import Resolved
from ignite_ipu.torch_names import lists
from ignite_ipu.torch_names.lists import flatten_tensors, unflatten_tensors
from ignite_ipu.torch_names.modules import PARAMETERS
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

_PREFIX = "ignite_ipu_gradient_"
_SCALING = "ignite_ipu_loss_scaling"


class AnchoredGradients:
    """The gradients of one training program.

    Args:
        asked: Names of parameters of the module that is compiled; None for all that are trained.
        own: Whether those of this process are meant, and not those of all processes together.

    Attributes:
        names, parameters: Those whose gradients come back: the trained ones that the loss depends on. Empty before the
            compilation.
        hooks: Finds those of the parameters that have hooks on their gradients.
    """

    def __init__(self, asked: Optional[Iterable[str]] = None, own: bool = False) -> None:
        self.asked: Optional[Sequence[str]] = None if asked is None else tuple(asked)
        self.own = own
        self.names: Sequence[str] = ()
        self.parameters: Sequence[torch.Tensor] = ()
        self._shorts: List[str] = []
        self.hooks = GradientHooks()
        self._strided: List[int] = []  # the parameters that have gaps, or another order of dimensions
        self._is_wide = False  # whether there are parameters of 64 bits, which the device narrows
        self._adapts_scaling = False

    def again(self) -> AnchoredGradients:
        """Return the same request for another program."""
        return AnchoredGradients(self.asked, self.own)

    def settle(self, step: BatchStep, resolved: Resolved, leaves: Sequence[Any]) -> None:
        """Find the parameters that have gradients, by a call of the module on the host with these arguments.

        Raises:
            OptionsError: The output mode does not return all parts of the gradient of an update.
        """
        _check_output_mode(resolved)
        parameters = named_tensors(step, PARAMETERS)
        reached = reached_parameters(step, leaves, resolved.micro_batches)
        self.names = [name for name in (parameters if self.asked is None else self.asked) if name in reached]
        self.parameters = [parameters[name] for name in self.names]
        self._shorts = [f"{_PREFIX}{name}" for name in self.names]
        self._strided = [number for number, each in enumerate(self.parameters) if not plain(each).is_contiguous()]
        self._resolved = resolved
        self._is_wide = any(dtype_of(each) is torch.float64 for each in self.parameters)
        reduction = resolved.options.Training.accumulation_and_replication_reduction_type
        self._averages = reduction is backend.poptorch().ReductionType.Mean

    def request(self, options: Options) -> None:
        """Anchor the gradients in the options that a module is compiled with."""
        for name, short in zip(self.names, self._shorts):
            options.anchorTensor(short, f"Gradient___{name}")
        popart = getattr(options._Popart, "options", {})
        self._adapts_scaling = bool(popart.get("automaticLossScalingSettings.enabled", False))
        if self._adapts_scaling:
            options.anchorTensor(_SCALING, "finalLossScale")

    def read(self, executor: Executor, loss_scaling: float) -> List[torch.Tensor]:
        """Return the gradients of the last update of the last call, in the order of `names`, as PyTorch has them.

        They are summed or averaged over its micro-batches, replicas and processes as the options say. Their memory is
        their own.
        """
        get, resolved = executor.getAnchoredTensor, self._resolved
        if self._adapts_scaling:
            loss_scaling = float(get(_SCALING))
        calls = resolved.geometry
        replicas = calls.replication_factor
        count = calls.gradient_accumulation * replicas
        processes = 1 if self.own else calls.processes
        blocks = replicas if resolved.output_mode == "Sum" else count
        divisor = loss_scaling * (count * processes if self._averages else 1)
        with DisableTorchFunctionSubclass():
            # Asked in the ordinary way, a wrapped parameter would fetch all weights first.
            if blocks == 1 and calls.device_iterations == 1:
                # Not a view, which the loop could not detach in place.
                found = [torch.Tensor.detach(get(short)) for short in self._shorts]
            else:
                pairs = zip(self._shorts, self.parameters)
                found = [_reduced(get(short), shape_of(each), blocks) for short, each in pairs]
            if processes > 1 and found:
                _add_processes(found)
            if divisor != 1.0 and found:
                found = [each.float() for each in found]
                lists.mul_(found, 1.0 / divisor)
            if divisor != 1.0 or blocks > 1 or processes > 1 or self._is_wide:
                found = [each.to(dtype_of(like)) for each, like in zip(found, self.parameters)]
        for number in self._strided:
            # As autograd accumulates it.
            found[number] = torch.empty_like(plain(self.parameters[number])).copy_(found[number])
        return found


def reached_parameters(step: BatchStep, leaves: Sequence[Any], micro_batches: int) -> Set[str]:
    """Return the names of the trained parameters of a module that its loss depends on, by a call of it on the host.

    All trained ones, if the host cannot call it. Weights, buffers and random numbers are left as they are.
    """
    trained = _trained(step)
    if not trained:
        return set()
    try:
        with step.host_weights.tried_in(step, step), torch.enable_grad():
            tensors = named_tensors(step, PARAMETERS)
            watched = {id(tensors[name].requires_grad_()): name for name in trained}
            loss = step.loss_of(step(*first_micro_batch(leaves, micro_batches)))
            return {watched[id(leaf)] for leaf in differentiated([loss]) if id(leaf) in watched}
    except Exception as error:
        logger.info("The loss cannot be computed on the host: %s", error)
        return trained


def _trained(step: nn.Module) -> Set[str]:
    """Return the first name of each parameter that requires gradients, which is its name in PopTorch."""
    names: Dict[int, str] = {}
    with DisableTorchFunctionSubclass():
        for name, tensor in named_tensors(step, PARAMETERS).items():
            if requires_grad(tensor):
                names.setdefault(id(tensor), name)
    return set(names.values())


def _check_output_mode(resolved: Resolved) -> None:
    mode, calls = resolved.output_mode, resolved.geometry
    several = {"Final": calls.gradient_accumulation, "Sum": calls.device_iterations}.get(mode, 1)
    if several > 1:
        factor = "gradientAccumulation" if mode == "Final" else "deviceIterations"
        raise OptionsError(
            f"Gradients are brought back with OutputMode.{mode} and {factor} {several}: PopTorch returns them as it "
            "returns outputs, so those of one weight update would be incomplete. Use IPUConfig(output_mode='All')."
        )


def _reduced(anchored: torch.Tensor, shape: torch.Size, blocks: int) -> torch.Tensor:
    return anchored.reshape(-1, *shape)[-blocks:].sum(dim=0, dtype=torch.float32)


def _add_processes(tensors: List[torch.Tensor]) -> None:
    flat = flatten_tensors([each.float() for each in tensors])
    with job().reporting():
        dist.all_reduce(flat)
    tensors[:] = unflatten_tensors(flat, tensors)
