"""Loops that become one: an encoder and a decoder, two towers, a frozen backbone and its head.

To PyTorch their models are separate modules; PopTorch compiles one. So they become the children of one module as soon
as one optimizer holds parameters of several, a loss is computed with frozen ones, or they have a buffer in common, and
each stays the object that the user calls.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import List, Optional, Sequence

import torch

from ignite_ipu.deferred.compiled.joined_models import JoinedModels
from ignite_ipu.deferred.graph.owners import MODEL, OPTIMIZERS, held_by, held_tensors, is_held
from ignite_ipu.deferred.model.fused_update import FusedUpdate, known_update
from ignite_ipu.deferred.model.fused_updates import FusedUpdates
from ignite_ipu.deferred.model.loop import Loop
from ignite_ipu.deferred.model.model import CapturedModel, loops_of
from ignite_ipu.errors import listed
from ignite_ipu.program.tensors.raw import requires_grad
from ignite_ipu.program.user_code import Line, current_line
from ignite_ipu.torch_names.modules import all_parameters
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass


def join(loops: Sequence[Loop]) -> Loop:
    """Return the loop that several become from now on, the trained ones first."""
    first, *others = loops
    if not others:
        return first
    tops = [top for loop in loops for top in loop.tops]
    for loop in loops:
        books = loop.updates.books if isinstance(loop.updates, FusedUpdates) else None
        if books is not None and (books.awaits_backward or books.are_clipped):
            why = "an update ran for a read of" if books.awaits_backward else "the loop has clipped the gradients of"
            loop.updates.leave_device(f"Models are joined at {current_line()}, after {why} one.")
        # A model that was trained alone goes on together with the others.
        loop.updates.forget_programs()
    with contextlib.ExitStack() as stack:
        for loop in loops:
            stack.enter_context(loop.modes.with_parts_of_before())
        module = JoinedModels(tops)
        requests = {
            loop.module.get_submodule(path): request for loop in loops for path, request in loop.places.requests.items()
        }
        places = {name: requests[top] for name, top in module.named_children() if top in requests}
        joined = Loop(module, tops, first.setup, places)
        joined.merge(loops)
    return joined


def joined_by_optimizers(models: Sequence[CapturedModel], line: Line) -> List[Loop]:
    """Return the loops of models, joined if they share an optimizer or the loss at a line.

    Their optimizers are known then. Of several optimizers of the same weights, the one counts that could train the
    models alone; `step()` shows which one does.
    """
    optimizers = list(OPTIMIZERS)
    for optimizer in optimizers:
        _loop_of(optimizer)
    loops = list(dict.fromkeys(model.loop for model in models))
    # The trained ones come first.
    loops.sort(key=lambda loop: not is_held(loop.module) and _is_frozen(loop))
    loops = [join(loops)]
    known = [(each, loop) for each, loop in zip(optimizers, map(_loop_of, optimizers)) if loop is not None]
    for optimizer, loop in sorted(known, key=lambda pair: not _holds_all(*pair)):
        if isinstance(loop.updates, FusedUpdates) and not _overlapping(optimizer, loop):
            loop.updates.update_of(optimizer)
    return loops


def trained_by(optimizer: torch.optim.Optimizer) -> Optional[FusedUpdate]:
    """Return the known update by an optimizer; None if its weights have another, or none yet."""
    loops = loops_of(held_tensors(optimizer))
    every = [loop.updates for loop in loops if isinstance(loop.updates, FusedUpdates)]
    return next(
        (update for one in every for update in one.books.updates if update.training.optimizer is optimizer), None
    )


def captured_by(optimizer: torch.optim.Optimizer) -> Optional[FusedUpdate]:
    """Return the update of captured models by an optimizer that holds parameters of these; None if it holds none.

    Loops whose parameters it holds become one from then on.
    """
    update = known_update(optimizer)
    if update is not None:
        return update
    loop = _loop_of(optimizer)
    if loop is None or not isinstance(loop.updates, FusedUpdates):
        return None
    rivals, updates = _overlapping(optimizer, loop), loop.updates.books.updates
    if len(rivals) == 1:
        # It follows the other one, as a classifier's optimizer that of the encoder before.
        update = next(each for each in updates if each.training.optimizer is rivals[0])
    elif rivals:
        names = listed([type(each).__name__ for each in (*rivals, optimizer)])
        loop.updates.leave_device(
            f"{loop.name} has optimizers that hold the same weights, {names}. Let each have parameters of its own, or "
            "one follow one other."
        )
        return None
    else:
        update = loop.updates.update_of(optimizer)
        for other in list(OPTIMIZERS) if not _holds_all(optimizer, loop) else ():
            if other is not optimizer and _loop_of(other) is loop and not _overlapping(other, loop):
                loop.updates.update_of(other)
    optimizer.__dict__[MODEL] = weakref.ref(update)
    return update


def _overlapping(optimizer: torch.optim.Optimizer, loop: Loop) -> List[torch.optim.Optimizer]:
    """Return the other optimizers of a loop that hold some of the same parameters."""
    own = held_by(optimizer)
    return [each for each in loop.updates.optimizers if each is not optimizer and own & held_by(each)]


def _loop_of(optimizer: torch.optim.Optimizer) -> Optional[Loop]:
    """Return the loop whose parameters an optimizer holds, after joining it from several where need be."""
    loops = loops_of(held_tensors(optimizer))
    return join(loops) if loops else None


def _is_frozen(loop: Loop) -> bool:
    with DisableTorchFunctionSubclass():
        return not any(map(requires_grad, all_parameters(loop.module)))


def _holds_all(optimizer: torch.optim.Optimizer, loop: Loop) -> bool:
    """Return whether an optimizer alone could train a loop's models."""
    held = held_by(optimizer)
    with DisableTorchFunctionSubclass():
        return all(id(parameter) in held for parameter in all_parameters(loop.module) if requires_grad(parameter))
