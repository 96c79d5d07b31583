"""The change from fused updates to updates on the host, in the middle of a loop."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import torch

from ignite_ipu.deferred.compiled.host_update import refuse_replicas
from ignite_ipu.deferred.graph.step_graph import Loss
from ignite_ipu.deferred.model.gradients import Entry, GradientBook
from ignite_ipu.errors import CaptureError, logger
from ignite_ipu.program.tensors.raw import gradient_of, plain, set_gradient
from ignite_ipu.program.user_code import current_line
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass


def leave_device(model: Any, reason: str) -> None:
    """Make the updates of a captured loop on the host from here on, with everything that the book has of gradients.

    Args:
        model: The `CapturedModel` that owns the updates.
        reason: What fused updates cannot express, as a sentence.

    Raises:
        CaptureError: Gradients are needed that cannot be computed any more. The loop is as it was.
    """
    refuse_replicas(model.turns[0].training.replicas)
    _check_known(model)
    model.edits.look()
    logger.warning(
        "Weights are updated on the host from %s on. %s From now on each backward() copies the gradients to the host, "
        "and each update the changed weights to the device: about %.2f MB each way. The program is compiled again.",
        current_line(),
        reason,
        _megabytes(model),
    )
    zeros = [each for each in model.modes.parameters if _is_zero(model, each)]
    state = next((found for found in (turn.training.random_state() for turn in model.turns) if found is not None), None)
    model.session.hooks.withheld = None
    stepped: Dict[int, int] = {}
    for turn in model.turns:
        turn.training.forget_program()
        turn.take_back()
        stepped.update(dict.fromkeys(turn.own & model.book.all, turn.stepped))
    plan = _plan(model)
    clips = [(turn, next((entry.clip for entry in turn.entries if entry.made), None)) for turn in model.turns]
    model.edits.ignore()
    on_host = model.on_host = model.standby
    model.standby = None
    on_host.programs.told = True
    on_host.go_on_from(stepped, model.history.kept)
    if state is not None:
        on_host.programs.set_random_state(state)
    for each in (model, *model.parts):
        each.session.hooks.gradients = None
    model.book = GradientBook(model.book.all)
    with DisableTorchFunctionSubclass():
        for parameter in zeros:
            set_gradient(parameter, torch.zeros_like(plain(parameter)))
    for loss, ids, made in plan:
        if made is not None:
            with made.rewound():
                on_host.add_gradients(loss, ids)
    for turn, norm in clips:
        turn.training.gradients.clip_on_host(_gradients(model, turn), norm, awaited=False)
    for loss, ids, made in plan:
        if made is None:
            on_host.add_gradients(loss, ids)
    for turn in model.turns:
        turn.training.gradients.clip_on_host(_gradients(model, turn), turn.training.clipped_to)
        turn.training.clipped = False
    model.views.settle()
    for part in model.parts:
        part.on_host = on_host
    model.history.forget()


def _plan(model: Any) -> List[Tuple[Loss, Any, Any]]:
    """Return each loss that gradients are of, with the ids of their parameters, and with what it was computed from."""
    found: Dict[int, Tuple[Loss, Any, Any]] = {}

    def add(loss: Loss, entry: Entry, made: Any) -> None:
        known = found.get(id(loss))
        found[id(loss)] = (loss, entry.ids if known is None else known[1] | entry.ids, made)

    for entry in model.book.entries:
        for made in entry.made:
            add(made.loss, entry, made)
        for loss in entry.losses:
            add(loss, entry, None)
    return sorted(found.values(), key=lambda planned: planned[0].value.operation.number)


def _check_known(model: Any) -> None:
    for turn in model.turns:
        if turn.early is not None and not turn.early.can_be_taken_back:
            raise turn.early.error(
                f"that update cannot be taken back at {current_line()}: only the first updates of a loop can. Read "
                "values after optimizer.step(), or set IPUConfig(update='host')."
            )
    for entry in model.book.entries:
        lost = entry.used is not None and not entry.made
        if (lost or entry.unknown) and not entry.ids.isdisjoint(map(id, model.modes.parameters)):
            why = entry.unknown or f"they are those of the update made at {entry.used}, and were on the device"
            raise CaptureError(
                f"Gradients are used at {current_line()} that nothing has cleared, and {why}. Only the first updates "
                "of a loop can be made again on the host: let the loop do in its first updates what it does later, or "
                "set IPUConfig(update='host'); or call optimizer.zero_grad() after every optimizer.step()."
            )


def _is_zero(model: Any, parameter: torch.Tensor) -> bool:
    entry = model.book.holding(id(parameter))
    return entry is not None and entry.zeros is not None and model.had_gradient(parameter)


def _gradients(model: Any, turn: Any) -> Dict[int, Any]:
    with DisableTorchFunctionSubclass():
        return {id(each): gradient_of(each) for each in model.modes.parameters if id(each) in turn.own}


def _megabytes(model: Any) -> float:
    with DisableTorchFunctionSubclass():
        tensors = [plain(each) for each in model.modes.parameters]
    return sum(each.numel() * each.element_size() for each in tensors) / 1e6
