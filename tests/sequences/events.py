"""The events of a loop by their names."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Callable, Dict, List, Sequence, Tuple

import torch

from tests.sequences.player import Event, Player

EventFunction = Callable[[Player, int], None]
Steps = List[Tuple[str, EventFunction, int]]
"""The names of events, their functions, and their numbers."""
_MODULES = ("loop_events", "gradient_events", "state_events")
_OTHERS = ("optimizer_state",)


def all_events() -> Dict[str, EventFunction]:
    """Return all events.

    They are imported by name. A program that plays a sequence then names the functions of its own events alone, as a
    training loop does: the library searches the code that running code names.
    """
    modules = [import_module(f"tests.sequences.{name}") for name in _MODULES]
    members = [(name, value, module) for module in modules for name, value in vars(module).items()]
    own = [(name, value) for name, value, module in members if getattr(value, "__module__", "") == module.__name__]
    return {name: value for name, value in own if name[0] != "_" and name not in _OTHERS}


def steps_of(events: Sequence[Event]) -> Steps:
    """Return the functions of events."""
    functions = all_events()
    look: Any = functions["look"]
    return [*((name, functions[name], which) for name, which in events), ("end", look, 0)]


def play(player: Player, steps: Steps) -> None:
    """Play events, and look at everything in the end."""
    for player.number, (player.last, function, which) in enumerate(steps):
        function(player, which)
    player.note([torch.rand(1)])
