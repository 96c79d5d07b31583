"""Events that read or write weights, buffers, attributes and the state of optimizers."""

from __future__ import annotations

import copy
import io
from typing import Any, Dict, List, Tuple

import torch
from torch import nn
from torch.nn.utils import parametrize, prune

from tests.sequences.player import Player, X, Y


def read_weight(player: Player, which: int) -> None:
    player.note([player.parameter(which)])


def write_weight(player: Player, which: int) -> None:
    with torch.no_grad():
        player.parameter(which).mul_(0.9)


def write_data(player: Player, which: int) -> None:
    player.parameter(which).data.add_(0.01)


def value_into_weight(player: Player, which: int) -> None:
    """Move a weight to the last loss, which may have yet to be computed."""
    parameter = player.parameter(which)
    if player.losses:
        with torch.no_grad():
            parameter.lerp_(player.losses[-1].detach().expand(parameter.shape), 0.05)


def value_into_item(player: Player, which: int) -> None:
    if player.losses:
        with torch.no_grad():
            player.parameter(which).view(-1)[0] = 0.1 * player.losses[-1].detach()


def value_through_data(player: Player, which: int) -> None:
    if player.losses:
        player.parameter(which).data.mul_(0.9).add_(player.losses[-1].detach(), alpha=0.01)


def value_into_buffer(player: Player, which: int) -> None:
    buffers = [each for module in player.modules for each in module.buffers() if each.is_floating_point()]
    if buffers and player.losses:
        with torch.no_grad():
            buffers[which % len(buffers)].mul_(0.95).add_(player.losses[-1].detach(), alpha=0.05)


def read_state(player: Player, which: int) -> None:
    player.note([dict(module.state_dict()) for module in player.modules])


def read_buffers(player: Player, which: int) -> None:
    player.note([list(module.buffers()) for module in player.modules])


def read_optimizer_state(player: Player, which: int) -> None:
    player.note([optimizer_state(player.optimizer(which))])


def copy_of_model(player: Player, which: int) -> None:
    duplicate = copy.deepcopy(player.modules[which % len(player.modules)])
    player.note([dict(duplicate.state_dict())])


def evaluate(player: Player, which: int) -> None:
    for module in player.modules:
        module.eval()
    with torch.no_grad():
        player.note([player.world.loss(X[0], Y[0]).item()])
    for module in player.modules:
        module.train()


def load_model(player: Player, which: int) -> None:
    number = which % len(player.modules)
    player.modules[number].load_state_dict(player.start[number])


def load_optimizer(player: Player, which: int) -> None:
    number = which % len(player.optimizers)
    player.optimizers[number].load_state_dict(copy.deepcopy(player.optimizer_start[number]))


def optimizer_state(optimizer: torch.optim.Optimizer) -> Dict[Any, Any]:
    """Return the state by parameter, without entries that are zero: a missing moment is one of zeros.

    RMSprop counts steps, computes nothing from them, and a device counts for all of its parameters together.
    """
    unused = ("step",) if isinstance(optimizer, torch.optim.RMSprop) else ()
    state: Any = optimizer.state_dict()["state"]
    found: Dict[Any, Any] = {}
    for number, entries in state.items():
        kept = {}
        for name, value in entries.items():
            if isinstance(value, list):
                continue  # the history of LBFGS, which its next steps show
            tensor = torch.as_tensor(0.0 if value is None else value).float()
            if name not in unused and bool((tensor != 0).any()):
                kept[name] = tensor
        if kept:
            found[number] = kept
    return found


def look(player: Player, which: int) -> None:
    """Look at everything."""
    player.note([list(player.parameters), [list(module.buffers()) for module in player.modules]])
    player.note([parameter.grad for parameter in player.parameters])
    player.note([optimizer_state(optimizer) for optimizer in player.optimizers])


def replace_data(player: Player, which: int) -> None:
    parameter = player.parameter(which)
    parameter.data = parameter.data * 0.9


def write_item(player: Player, which: int) -> None:
    with torch.no_grad():
        player.parameter(which).view(-1)[0] = 0.3


def write_together(player: Player, which: int) -> None:
    with torch.no_grad():
        torch._foreach_mul_([each.data for each in player.own(which)], 0.95)


def write_buffers(player: Player, which: int) -> None:
    for module in player.modules:
        for buffer in module.buffers():
            if buffer.is_floating_point():
                buffer.mul_(0.5)


def average(player: Player, which: int) -> None:
    """Follow weights by a moving average, as teachers do."""
    now = [parameter.detach() for parameter in player.parameters]
    if not player.averages:
        player.averages = [each.clone() for each in now]
    for mine, theirs in zip(player.averages, now):
        mine.lerp_(theirs, 0.1)
    player.note([player.averages])


def average_of_swa(player: Player, which: int) -> None:
    number = which % len(player.modules)
    if number not in player.averaged:
        player.averaged[number] = torch.optim.swa_utils.AveragedModel(player.modules[number])
    player.averaged[number].update_parameters(player.modules[number])
    player.note([dict(player.averaged[number].module.state_dict())])


def swap_weights(player: Player, which: int) -> None:
    """Evaluate with other weights, and go on with the ones of before."""
    before = [parameter.detach().clone() for parameter in player.parameters]
    with torch.no_grad():
        for parameter in player.parameters:
            parameter.copy_(parameter * 0.5)
    evaluate(player, which)
    with torch.no_grad():
        for parameter, value in zip(player.parameters, before):
            parameter.copy_(value)


def read_penalty(player: Player, which: int) -> None:
    player.note([float(sum(parameter.detach().pow(2).sum() for parameter in player.parameters))])


def read_attributes(player: Player, which: int) -> None:
    """Read tensors that are attributes of modules, as hooks before forward compute them."""
    for module in player.modules:
        for part in module.modules():
            found = {name: value for name, value in vars(part).items() if isinstance(value, torch.Tensor)}
            player.note([{name: found[name] for name in sorted(found)}])


def write_constant(player: Player, which: int) -> None:
    """Change an attribute of the model that is no weight: by PyTorch's count, beside it, or in its place."""
    value = 1 + player.number / 16
    for module in filter(lambda each: hasattr(each, "shared"), player.modules):
        if which % 5 == 0:
            module.number = value
        elif which % 5 == 1:
            module.tensors[0][which % 4] = value
        elif which % 5 == 2:
            module.tensor.data.add_(value)
        elif which % 5 == 3:
            module.array[which % 4] = value
        else:
            module.tensor = torch.full((4,), value)


def save_state(player: Player, which: int) -> None:
    player.saved = [copy.deepcopy(module.state_dict()) for module in player.modules]
    player.saved_optimizers = [copy.deepcopy(optimizer.state_dict()) for optimizer in player.optimizers]


def restore_state(player: Player, which: int) -> None:
    """Go back to the saved state, as after a bad batch."""
    for module, state in zip(player.modules, player.saved):
        module.load_state_dict(state)
    for optimizer, state in zip(player.optimizers, player.saved_optimizers):
        optimizer.load_state_dict(copy.deepcopy(state))


def save_file(player: Player, which: int) -> None:
    file = io.BytesIO()
    torch.save([module.state_dict() for module in player.modules], file)
    file.seek(0)
    player.note([[dict(state) for state in torch.load(file)]])


def optimizer_state_scaled(player: Player, which: int) -> None:
    for entries in player.optimizer(which).state.values():
        for value in entries.values():
            if isinstance(value, torch.Tensor) and value.dim():
                value.mul_(0.5)


def optimizer_state_cleared(player: Player, which: int) -> None:
    player.optimizer(which).state.clear()


def wrap_layer(player: Player, which: int) -> None:
    """Put an activation behind a layer, as a part of the model in its place."""
    for part, name, layer in _layer(player, which):
        setattr(part, name, nn.Sequential(layer, nn.Tanh()))


def new_layer(player: Player, which: int) -> None:
    """Put a new layer in the place of one, and give its weights to an optimizer."""
    for part, name, layer in _layer(player, which):
        new = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None)
        player.optimizer(which).add_param_group({"params": list(new.parameters()), "lr": 0.02})
        player.parameters += new.parameters()
        setattr(part, name, new)


def prune_layer(player: Player, which: int) -> None:
    for _, _, layer in _layer(player, which):
        prune.l1_unstructured(layer, "weight", amount=0.3)  # type: ignore[no-untyped-call]


def parametrize_layer(player: Player, which: int) -> None:
    for _, _, layer in _layer(player, which):
        parametrize.register_parametrization(layer, "weight", nn.Tanh())


def restore_layers(player: Player, which: int) -> None:
    """Make parameters of the weights that masks and parametrizations compute."""
    for part in [part for module in player.modules for part in module.modules()]:
        if parametrize.is_parametrized(part):
            parametrize.remove_parametrizations(part, "weight")
        elif hasattr(part, "weight_mask"):
            prune.remove(part, "weight")  # type: ignore[no-untyped-call]


def _layer(player: Player, which: int) -> List[Tuple[nn.Module, str, nn.Linear]]:
    """Return a linear layer with the module and the name that it has there; none if the world has none."""
    found = [
        (part, name, child)
        for module in player.modules
        for part in module.modules()
        for name, child in part.named_children()
        if type(child) is nn.Linear
    ]
    return [found[which % len(found)]] if found else []
