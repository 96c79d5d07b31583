"""Events of the body of a loop: calls, backward passes, steps, and clearing of gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ignite_ipu import ipu_clip_grad_norm_
from tests.sequences.player import LONG_NORM, Player, X, Y


def forward(player: Player, which: int) -> None:
    index = player.batch % len(X)
    player.batch += 1
    player.loss = player.world.loss(X[index], Y[index])
    player.losses.append(player.loss)


def backward(player: Player, which: int) -> None:
    loss, player.loss = player.loss, None
    if loss is not None:
        loss.backward()  # type: ignore[no-untyped-call]


def backward_twice(player: Player, which: int) -> None:
    loss, player.loss = player.loss, None
    if loss is not None:
        loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]
        loss.backward()  # type: ignore[no-untyped-call]


def another(player: Player, which: int) -> None:
    """Let another loss go backward for the same update."""
    forward(player, which)
    backward(player, which)


def step(player: Player, which: int) -> None:
    for number in range(len(player.optimizers)):
        step_of_one(player, number)


def step_of_one(player: Player, which: int) -> None:
    optimizer = player.optimizer(which)
    if isinstance(optimizer, torch.optim.LBFGS):
        step_with_closure(player, which)
    else:
        optimizer.step()


def step_with_closure(player: Player, which: int) -> None:
    optimizer = player.optimizer(which)

    def closure() -> Any:
        optimizer.zero_grad()
        another(player, which)
        return player.losses[-1]

    loss: Any = optimizer.step(closure)
    player.note([loss])


def zero_grad(player: Player, which: int) -> None:
    for optimizer in player.optimizers:
        optimizer.zero_grad()


def zero_grad_of_one(player: Player, which: int) -> None:
    player.optimizer(which).zero_grad()


def zero_grad_to_zeros(player: Player, which: int) -> None:
    for optimizer in player.optimizers:
        optimizer.zero_grad(set_to_none=False)


def zero_grad_of_module(player: Player, which: int) -> None:
    player.modules[which % len(player.modules)].zero_grad()


def zero_grad_of_part(player: Player, which: int) -> None:
    parts = [part for module in player.modules for part in (*module.children(), module)]
    parts[which % len(parts)].zero_grad()


def step_by_norm(player: Player, which: int) -> None:
    """Leave out the update if its gradients are small, as guards against bad batches do."""
    for number, optimizer in enumerate(player.optimizers):
        norm = ipu_clip_grad_norm_(player.own(number), LONG_NORM)
        if norm > 0.3 + 0.2 * (which % 3):
            optimizer.step()
    zero_grad(player, which)


def freeze(player: Player, which: int) -> None:
    parameter = player.parameter(which)
    parameter.requires_grad_(not parameter.requires_grad)


def learning_rate(player: Player, which: int) -> None:
    for group in player.optimizer(which).param_groups:
        group["lr"] *= 0.5


def read_loss(player: Player, which: int) -> None:
    if player.losses:
        player.note([player.losses[-1].item()])


def read_first_loss(player: Player, which: int) -> None:
    if player.losses:
        player.note([player.losses[0].item()])


def draw(player: Player, which: int) -> None:
    player.note([torch.rand(2)])


def backward_kept(player: Player, which: int) -> None:
    """Let a loss go backward that may do so again."""
    if player.loss is not None:
        player.loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]


def backward_scaled(player: Player, which: int) -> None:
    """Scale a loss before, and the gradients after it went backward, as for half precision."""
    loss, player.loss = player.loss, None
    if loss is not None:
        (loss * 8.0).backward()
        for parameter in player.parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(1 / 8.0)


def backward_to_some(player: Player, which: int) -> None:
    loss, player.loss = player.loss, None
    if loss is not None:
        loss.backward(inputs=[player.parameter(which)])  # type: ignore[no-untyped-call]


def gradients_by_function(player: Player, which: int) -> None:
    """Have `torch.autograd.grad` compute gradients, and put them where the optimizer looks."""
    loss, player.loss = player.loss, None
    if loss is not None:
        trained = [parameter for parameter in player.parameters if parameter.requires_grad]
        found = torch.autograd.grad(loss, trained, allow_unused=True)
        player.note([list(found)])
        for parameter, gradient in zip(trained, found):
            parameter.grad = gradient


def two_losses(player: Player, which: int) -> None:
    """Let the sum of two losses go backward."""
    forward(player, which)
    first = player.loss
    forward(player, which)
    assert first is not None and player.loss is not None
    player.loss = first + 0.5 * player.loss


def step_with_plain_closure(player: Player, which: int) -> None:
    """Give a step a closure that returns the loss without computing gradients."""
    player.optimizer(which).step(lambda: player.losses[-1] if player.losses else 0.0)  # type: ignore[arg-type]


def step_if_finite(player: Player, which: int) -> None:
    loss = player.losses[-1] if player.losses else None
    if loss is not None and bool(torch.isfinite(loss)):
        step(player, which)


def without_gradients(player: Player, which: int) -> None:
    """Call the models in training mode, under `no_grad`."""
    with torch.no_grad():
        player.note([player.world.loss(X[1], Y[1]).item()])


def freeze_module(player: Player, which: int) -> None:
    parts = [part for module in player.modules for part in module.children()] or player.modules
    part = parts[which % len(parts)]
    part.requires_grad_(not all(parameter.requires_grad for parameter in part.parameters()))


def switch_mode(player: Player, which: int) -> None:
    module = player.modules[which % len(player.modules)]
    module.train(not module.training)


def evaluate_with_gradients(player: Player, which: int) -> None:
    """Evaluate without `no_grad`, and keep the loss."""
    modes = [module.training for module in player.modules]
    for module in player.modules:
        module.eval()
    player.losses.append(player.world.loss(X[which], Y[which]))
    player.note([player.losses[-1].item()] if which % 2 else [])
    for module, mode in zip(player.modules, modes):
        module.train(mode)


def backward_in_evaluation(player: Player, which: int) -> None:
    """Let a loss of models in evaluation mode go backward."""
    evaluate_with_gradients(player, which)
    player.losses[-1].backward()  # type: ignore[no-untyped-call]


def switch_normalisations(player: Player, which: int) -> None:
    """Freeze the statistics of normalisations, as in fine-tuning."""
    for module in player.modules:
        for part in module.modules():
            if isinstance(part, nn.BatchNorm1d):
                part.train(not part.training)


def schedule(player: Player, which: int) -> None:
    number = which % len(player.optimizers)
    if number not in player.schedulers:
        kept = player.optimizers[number]
        player.schedulers[number] = torch.optim.lr_scheduler.ExponentialLR(kept, 0.7)
    player.schedulers[number].step()
    player.note([player.schedulers[number].get_last_lr()])


def weight_decay(player: Player, which: int) -> None:
    for group in player.optimizer(which).param_groups:
        if "weight_decay" in group:
            group["weight_decay"] = 0.05


def add_group(player: Player, which: int) -> None:
    """Let an optimizer train parameters that it has not held so far, at a rate of their own."""
    held = {id(each) for number in range(len(player.optimizers)) for each in player.own(number)}
    left = [each for each in player.parameters if id(each) not in held]
    if left:
        player.optimizer(which).add_param_group({"params": left, "lr": 0.02})


def sum_of_losses(player: Player, which: int) -> None:
    player.note([float(sum(loss.detach() for loss in player.losses))])
