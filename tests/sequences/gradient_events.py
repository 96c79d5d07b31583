"""Events that read, write, clip or hook gradients."""

from __future__ import annotations

import torch
from torch import nn

from ignite_ipu import ipu_clip_grad_norm_
from tests.sequences.player import LONG_NORM, SHORT_NORM, Player


def gradient_to_none(player: Player, which: int) -> None:
    player.parameter(which).grad = None


def gradient_scaled(player: Player, which: int) -> None:
    gradient = player.parameter(which).grad
    if gradient is not None:
        gradient.mul_(0.5)


def gradients_divided(player: Player, which: int) -> None:
    for parameter in player.parameters:
        if parameter.grad is not None:
            parameter.grad.div_(2.0)


def gradient_replaced(player: Player, which: int) -> None:
    parameter = player.parameter(which)
    parameter.grad = torch.full(tuple(parameter.shape), 0.1)


def read_gradient(player: Player, which: int) -> None:
    player.note([player.parameter(which).grad])


def asks_for_gradients(player: Player, which: int) -> None:
    player.note([parameter.grad is None for parameter in player.parameters])


def clip(player: Player, which: int) -> None:
    ipu_clip_grad_norm_(player.own(which), (SHORT_NORM, LONG_NORM)[which % 2])


def clip_and_read(player: Player, which: int) -> None:
    norm = ipu_clip_grad_norm_(player.own(which), SHORT_NORM)
    player.note([float(norm)])


def clip_nothing(player: Player, which: int) -> None:
    player.note([float(ipu_clip_grad_norm_(player.own(which), float("inf")))])


def clip_one(player: Player, which: int) -> None:
    nn.utils.clip_grad_norm_([player.parameter(which)], SHORT_NORM)


def clip_by_torch(player: Player, which: int) -> None:
    nn.utils.clip_grad_norm_(player.own(which), SHORT_NORM)


def clip_values(player: Player, which: int) -> None:
    nn.utils.clip_grad_value_(player.own(which), 0.02)


def gradient_item_set(player: Player, which: int) -> None:
    gradient = player.parameter(which).grad
    if gradient is not None and gradient.dim():
        gradient[0] = 0.1


def gradient_part_scaled(player: Player, which: int) -> None:
    """Write through a view of a gradient."""
    gradient = player.parameter(which).grad
    if gradient is not None:
        gradient.view(-1)[:1].mul_(2.0)


def gradient_masked(player: Player, which: int) -> None:
    gradient = player.parameter(which).grad
    if gradient is not None:
        gradient[gradient.abs() < 0.02] = 0.0


def gradient_data_scaled(player: Player, which: int) -> None:
    gradient = player.parameter(which).grad
    if gradient is not None:
        gradient.data.mul_(0.5)


def gradient_reassigned(player: Player, which: int) -> None:
    parameter = player.parameter(which)
    if parameter.grad is not None:
        parameter.grad = parameter.grad * 0.5


def gradient_zeroed(player: Player, which: int) -> None:
    gradient = player.parameter(which).grad
    if gradient is not None:
        gradient.zero_()


def gradient_deleted(player: Player, which: int) -> None:
    del player.parameter(which).grad


def gradients_scaled_together(player: Player, which: int) -> None:
    found = [parameter.grad for parameter in player.parameters if parameter.grad is not None]
    if found:
        torch._foreach_mul_(found, 0.5)


def gradients_added_together(player: Player, which: int) -> None:
    """Add decay to gradients, as optimizers of one's own do."""
    pairs = [(each.grad, each.detach()) for each in player.parameters if each.grad is not None]
    if pairs:
        torch._foreach_add_([one for one, _ in pairs], [other for _, other in pairs], alpha=0.1)


def gradients_noised(player: Player, which: int) -> None:
    for parameter in player.parameters:
        if parameter.grad is not None:
            parameter.grad += 0.01 * torch.randn_like(parameter.grad)


def gradients_normalised(player: Player, which: int) -> None:
    for parameter in player.own(which):
        if parameter.grad is not None:
            parameter.grad.div_(parameter.grad.norm() + 1e-3)


def gradients_kept(player: Player, which: int) -> None:
    """Keep the gradients of now, to add them to later ones."""
    player.kept = [None if each.grad is None else each.grad.clone() for each in player.parameters]


def gradients_of_before_added(player: Player, which: int) -> None:
    for parameter, kept in zip(player.parameters, player.kept):
        if kept is not None:
            parameter.grad = kept if parameter.grad is None else parameter.grad + kept


def gradient_held(player: Player, which: int) -> None:
    """Hold a gradient, not a copy of it, to look at it later."""
    gradient = player.parameter(which).grad
    if gradient is not None:
        player.held.append(gradient)


def read_held_gradients(player: Player, which: int) -> None:
    player.note(player.held)


def read_norm_by_hand(player: Player, which: int) -> None:
    squares = [each.grad.detach().pow(2).sum() for each in player.own(which) if each.grad is not None]
    player.note([float(sum(squares))])


def read_gradient_vector(player: Player, which: int) -> None:
    found = [each.grad for each in player.parameters if each.grad is not None]
    if found:
        player.note([nn.utils.parameters_to_vector(found)])


def read_norms_together(player: Player, which: int) -> None:
    found = [each.grad for each in player.parameters if each.grad is not None]
    if found:
        player.note([list(torch._foreach_norm(found))])


def clip_layers(player: Player, which: int) -> None:
    for parameter in player.own(which):
        nn.utils.clip_grad_norm_(parameter, SHORT_NORM)


def clip_by_maximum(player: Player, which: int) -> None:
    nn.utils.clip_grad_norm_(player.own(which), SHORT_NORM, norm_type=float("inf"))


def clip_by_hand(player: Player, which: int) -> None:
    found = [each.grad for each in player.own(which) if each.grad is not None]
    if found:
        norm = torch.stack([each.norm() for each in found]).norm()
        for each in found:
            each.mul_(torch.clamp(SHORT_NORM / (norm + 1e-6), max=1.0))


def hook(player: Player, which: int) -> None:
    """Have autograd halve a gradient."""
    parameter = player.parameter(which)
    if parameter.requires_grad:
        player.hooks.append(parameter.register_hook(lambda gradient: gradient * 0.5))


def hook_that_looks(player: Player, which: int) -> None:
    """Look at one gradient by a hook: PyTorch promises no order of the hooks on several."""
    parameter = player.parameter(which)
    if parameter.requires_grad:
        while player.looking:
            player.looking.pop().remove()
        player.looking.append(parameter.register_hook(lambda gradient: player.note([gradient])))


def hook_after(player: Player, which: int) -> None:
    """Have autograd scale the accumulated gradients."""
    parameter = player.parameter(which)
    if parameter.requires_grad and hasattr(parameter, "register_post_accumulate_grad_hook"):
        player.hooks.append(parameter.register_post_accumulate_grad_hook(_scale))


def _scale(parameter: torch.Tensor) -> None:
    if parameter.grad is not None:  # as it is for a parameter that was frozen since the forward
        parameter.grad.mul_(0.25)


def unhook(player: Player, which: int) -> None:
    for each in [*player.hooks, *player.looking]:
        each.remove()
    player.hooks.clear()
    player.looking.clear()
