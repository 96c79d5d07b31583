"""Plays a sequence of events, and keeps everything that the loop looks at on its way."""

from __future__ import annotations

import copy
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch import nn

from ignite_ipu import IPUConfig, ipu_clip_grad_norm_, ipu_prepare
from ignite_ipu.pipeline.profiling.layers import layer_names
from tests.sequences.worlds import WORLDS, World

Event = Tuple[str, int]
"""The name of an event, and a number: of the optimizer or of the parameter that it is about."""
Seen = List[Tuple[str, Any]]
_DATA = torch.Generator().manual_seed(11)
X = torch.randn(64, 4, 3, generator=_DATA)
Y = torch.randint(0, 2, (64, 4), generator=_DATA)
_LONG_NORM, _SHORT_NORM = 5.0, 0.05


class Player:
    """One loop over one world.

    Attributes:
        seen: The values that the loop has looked at, each with the number and the name of its event.
    """

    def __init__(self, world: str, kinds: Sequence[str], update: Optional[str], spread: bool = False) -> None:
        torch.manual_seed(3)
        self.world: World = WORLDS[world](kinds)
        self.modules, self.optimizers = self.world.modules, self.world.optimizers
        self.parameters = list({id(p): p for module in self.modules for p in module.parameters()}.values())
        self.start = copy.deepcopy([module.state_dict() for module in self.modules])
        self.optimizer_start = copy.deepcopy([optimizer.state_dict() for optimizer in self.optimizers])
        self.loss: Optional[torch.Tensor] = None
        self.losses: List[torch.Tensor] = []
        self.batch = self.number = 0
        self.seen: Seen = []
        if update is not None:
            settings: Dict[str, Any] = {} if update == "device" else {"update": update}
            if spread:
                settings.update(pipeline=dict(map(over_two_ipus, self.modules)), execution="sharded")
            config = IPUConfig(**settings)
            if len(self.optimizers) == 1:
                ipu_prepare(self.optimizers[0], *self.modules, config=config)
            else:
                for optimizer, module in zip(self.optimizers, self.modules):
                    ipu_prepare(optimizer, module, config=config)

    def play(self, events: Sequence[Event]) -> None:
        for self.number, (name, which) in enumerate(events):
            self.last = name
            EVENTS[name](self, which)
        self.last = "end"
        look(self, 0)
        self.note([torch.rand(1)])

    def note(self, values: Sequence[Any]) -> None:
        for value in values:
            self.seen.append((f"{self.number} {self.last}", copied(value)))

    def parameter(self, which: int) -> torch.Tensor:
        return self.parameters[which % len(self.parameters)]

    def optimizer(self, which: int) -> torch.optim.Optimizer:
        return self.optimizers[which % len(self.optimizers)]

    def own(self, which: int) -> List[torch.Tensor]:
        return [parameter for group in self.optimizer(which).param_groups for parameter in group["params"]]


def over_two_ipus(module: nn.Module) -> Tuple[str, List[Tuple[str, int]]]:
    """Return the name of a module's class, and layers at which a stage on each of two IPUs begins."""
    names = layer_names(module)
    second = [(names[len(names) // 2], 1)] if len(names) > 1 else []
    return type(module).__name__, [(names[0], 0), *second]


def copied(value: Any) -> Any:
    """Return a value as a structure of ordinary tensors and Python values."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone() + 0
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [copied(each) for each in value]
    return value


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
    for optimizer in player.optimizers:
        optimizer.step()


def step_of_one(player: Player, which: int) -> None:
    player.optimizer(which).step()


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
    ipu_clip_grad_norm_(player.own(which), (_SHORT_NORM, _LONG_NORM)[which % 2])


def clip_and_read(player: Player, which: int) -> None:
    norm = ipu_clip_grad_norm_(player.own(which), _SHORT_NORM)
    player.note([float(norm)])


def clip_nothing(player: Player, which: int) -> None:
    player.note([float(ipu_clip_grad_norm_(player.own(which), float("inf")))])


def clip_one(player: Player, which: int) -> None:
    nn.utils.clip_grad_norm_([player.parameter(which)], _SHORT_NORM)


def clip_by_torch(player: Player, which: int) -> None:
    nn.utils.clip_grad_norm_(player.own(which), _SHORT_NORM)


def clip_values(player: Player, which: int) -> None:
    nn.utils.clip_grad_value_(player.own(which), 0.02)


def step_by_norm(player: Player, which: int) -> None:
    """Leave out the update if its gradients are small, as guards against bad batches do."""
    for number, optimizer in enumerate(player.optimizers):
        norm = ipu_clip_grad_norm_(player.own(number), _LONG_NORM)
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


def read_weight(player: Player, which: int) -> None:
    player.note([player.parameter(which)])


def write_weight(player: Player, which: int) -> None:
    with torch.no_grad():
        player.parameter(which).mul_(0.9)


def write_data(player: Player, which: int) -> None:
    player.parameter(which).data.add_(0.01)


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


def draw(player: Player, which: int) -> None:
    player.note([torch.rand(2)])


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


EVENTS: Dict[str, Callable[[Player, int], None]] = {
    each.__name__: each
    for each in (
        *(forward, backward, backward_twice, another, step, step_of_one, step_with_closure),
        *(zero_grad, zero_grad_of_one, zero_grad_to_zeros, zero_grad_of_module, zero_grad_of_part),
        *(gradient_to_none, gradient_scaled, gradients_divided, gradient_replaced, read_gradient, asks_for_gradients),
        *(clip, clip_and_read, clip_nothing, clip_one, clip_by_torch, clip_values, step_by_norm),
        *(freeze, learning_rate, read_loss, read_first_loss, read_weight, write_weight, write_data),
        *(read_state, read_buffers, read_optimizer_state, copy_of_model, evaluate, load_model, load_optimizer),
        *(draw, look),
    )
}
