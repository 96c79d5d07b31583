"""Calls of programs that bring gradients back: reading them, and the copies of weights that go with them."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import torch

from ignite_ipu.poptorch_types import Executor
from ignite_ipu.program.tensors.raw import named_tensors, requires_grad
from ignite_ipu.session.compiled_program import CompiledProgram
from ignite_ipu.session.host_gradients import are_finite
from ignite_ipu.session.program import ModelProgram
from ignite_ipu.session.program_kinds import GradientKind
from ignite_ipu.session.weights.tracker import Weights
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass


def read_gradients(program: ModelProgram) -> Dict[str, torch.Tensor]:
    """Return the gradients of the last update by the names of the parameters in the module that is compiled."""
    executor, kind = program.state.executor, program.kind
    assert executor is not None and kind.gradients is not None and kind.link is not None
    found = kind.gradients.read(executor, float(kind.link.settings.loss_scaling))
    if kind.maximizes:
        found = [-gradient for gradient in found]
    return dict(zip(kind.gradients.names, found))


def take_gradients(program: ModelProgram, weights: Weights) -> List[torch.Tensor]:
    """Return the gradients of a call, for the parameters of `kind.gradients`; to be called once after each call.

    For updates on the host. The call is counted, and buffers that it has written come to the host.
    """
    compiled, kind = program.state, program.kind
    assert isinstance(compiled, CompiledProgram) and isinstance(kind, GradientKind)
    compiled.calls += 1
    executor: Any = compiled.executor
    gradients = kind.gradients.read(executor, float(kind.link.settings.loss_scaling))
    writes = compiled.trace.writes_buffers
    looks = writes or kind.checks
    finite = are_finite(gradients) if looks else True
    if writes:
        kind.fetching = True
        program.copied(lambda executor: executor.fetch_buffers(finite))  # type: ignore[attr-defined]
        kind.fetching, executor = False, program.state.executor
    kind.unchecked = not looks
    weights.called(executor, writes_buffers=writes, spoils=not finite)
    return gradients


def refresh_weights(kind: GradientKind, executor: Executor, weights: Weights) -> None:
    """Upload the weights of the host before a call, if they are others, or the device's may be spoilt."""
    if kind.unchecked and not weights.programs.is_stale(executor):
        # A gradient that is not finite has made the device's weights NaN.
        kind.checks = True
        weights.programs.spoil(executor)
    kind.unchecked = False
    weights.to_inference(executor)


def host_update_bytes(program: ModelProgram) -> Tuple[int, int]:
    """Return how many bytes of gradients and of weights an update on the host copies.

    Each micro-batch and replica has gradients of its own. Buffers that a call writes come with all weights.
    """
    with DisableTorchFunctionSubclass():
        tensors = {id(each): each for each in named_tensors(program.step).values()}.values()
        gradients = sum(each.numel() * each.element_size() for each in tensors if requires_grad(each))
        weights = sum(each.numel() * each.element_size() for each in tensors if each.is_floating_point())
    return gradients * program.resolved.geometry.micro_batches, weights


def host_update_cost(program: ModelProgram) -> str:
    """Return in words the copies of an update on the host."""
    gradients, weights = host_update_bytes(program)
    compiled = program.compiled
    writes = compiled is None or compiled.trace.writes_buffers
    buffers = ", and the weights with the buffers that a call writes" if writes else ""
    return (
        f"each backward pass copies {gradients / 1e6:,.3g} MB of gradients to the host{buffers}, and each update "
        f"{weights / 1e6:,.3g} MB of weights to the device"
    )
