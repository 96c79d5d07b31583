"""The events of a loop by their names."""

from __future__ import annotations

from typing import Callable, Dict, Sequence

import torch

from tests.sequences import gradient_events, loop_events, state_events
from tests.sequences.player import Event, Player
from tests.sequences.state_events import look

EVENTS: Dict[str, Callable[[Player, int], None]] = {
    name: value
    for module in (loop_events, gradient_events, state_events)
    for name, value in vars(module).items()
    if getattr(value, "__module__", "") == module.__name__ and name[0] != "_" and name != "optimizer_state"
}


def play(player: Player, events: Sequence[Event]) -> None:
    """Play events, and look at everything in the end."""
    for player.number, (name, which) in enumerate(events):
        player.last = name
        EVENTS[name](player, which)
    player.last = "end"
    look(player, 0)
    player.note([torch.rand(1)])
