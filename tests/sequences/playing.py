"""Makes random sequences, plays each eagerly and captured, and classifies the outcomes."""

from __future__ import annotations

import dataclasses
import random
import re
import traceback
from typing import Any, List, Optional, Sequence, Tuple

import torch

from ignite_ipu.errors import CaptureError, OptimizerError
from tests.sequences.events import EVENTS, play
from tests.sequences.player import Event, Player, Seen
from tests.sequences.worlds import KINDS, KINDS_ON_THE_HOST, WORLDS

REFUSALS = (CaptureError, OptimizerError)
_BASE = ("forward", "backward", "step", "zero_grad")
_ODD = tuple(EVENTS)


@dataclasses.dataclass(frozen=True)
class Sequence_:
    """A sequence: the events of a loop over a world, with an optimizer of a kind for each group of parameters."""

    world: str
    kinds: Tuple[str, ...]
    events: Tuple[Event, ...]

    def without(self, position: int) -> Sequence_:
        return dataclasses.replace(self, events=self.events[:position] + self.events[position + 1 :])

    def __str__(self) -> str:
        events = " ".join(name if not which else f"{name}:{which}" for name, which in self.events)
        return f"{self.world} {'+'.join(self.kinds)}: {events}"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a captured sequence compares: `same`, `refused`, `different` or `crash`, with the reason or the place."""

    kind: str
    detail: str = ""


def random_sequence(seed: int) -> Sequence_:
    """Return three to six updates of a loop, each with up to two odd events or an event left out."""
    chance = random.Random(seed)
    world = chance.choice(sorted(WORLDS))
    count = {"TwoModels": 2, "Adversaries": 2, "TwoHeads": 3}.get(world, 1)
    kinds = tuple(chance.choice(KINDS if chance.random() < 0.85 else KINDS_ON_THE_HOST) for _ in range(count))
    clears_first, clips = chance.random() < 0.5, chance.random() < 0.2
    base = ["zero_grad", *_BASE[:3]] if clears_first else list(_BASE)
    if clips:
        base.insert(base.index("step"), "clip")
    events: List[Event] = []
    for _ in range(chance.randint(3, 6)):
        update: List[Event] = [(name, 0) for name in base]
        for _ in range(chance.choice((0, 0, 1, 1, 2))):
            if chance.random() < 0.2:
                del update[chance.randrange(len(update))]
            else:
                update.insert(chance.randint(0, len(update)), (chance.choice(_ODD), chance.randrange(8)))
        events += update
    return Sequence_(world, kinds, tuple(events))


def outcome_of(sequence: Sequence_, update: str, spread: bool = False) -> Outcome:
    """Play a sequence eagerly and captured, and compare the values that the loop has read; `spread` takes two IPUs."""
    eager = Player(sequence.world, sequence.kinds, None)
    events: Sequence[Event] = sequence.events
    try:
        play(eager, events)
    except Exception:
        # PyTorch itself has an error for this loop: the values before it are compared.
        events = events[: eager.number]
        eager = Player(sequence.world, sequence.kinds, None)
        play(eager, events)
    player = Player(sequence.world, sequence.kinds, update, spread)
    try:
        play(player, events)
    except REFUSALS as error:
        found = difference(eager.seen[: len(player.seen)], player.seen)
        return Outcome("refused", reason_of(error)) if found is None else Outcome("different", found)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        return Outcome("crash", f"{type(error).__name__}: {error} ({frames[-1].name}) at {player.number} {player.last}")
    found = difference(eager.seen, player.seen)
    return Outcome("same") if found is None else Outcome("different", found)


def reason_of(error: BaseException) -> str:
    """Return the message of a refusal without its lines, numbers and names."""
    text = re.sub(r"\S+\.py:\d+", "LINE", str(error))
    return re.sub(r"[\d.]+", "N", text)[:110]


def difference(eager: Seen, captured: Seen) -> Optional[str]:
    """Return where two records differ, None if nowhere."""
    for (place, mine), (_, theirs) in zip(eager, captured):
        if not equal(mine, theirs):
            return f"{place}: {shown(mine)} eagerly, {shown(theirs)} captured"
    return None if len(eager) == len(captured) else "another number of looks"


def shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return str([round(each, 5) for each in value.double().flatten().tolist()[:3]])
    return re.sub(r"\s+", " ", str(value))[:200]


def equal(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, torch.Tensor) and isinstance(theirs, torch.Tensor):
        return mine.shape == theirs.shape and torch.allclose(mine, theirs, rtol=2e-4, atol=2e-6)
    if isinstance(mine, dict) and isinstance(theirs, dict):
        return mine.keys() == theirs.keys() and all(equal(mine[key], theirs[key]) for key in mine)
    if isinstance(mine, list) and isinstance(theirs, list):
        return len(mine) == len(theirs) and all(map(equal, mine, theirs))
    if isinstance(mine, float) and isinstance(theirs, float):
        return abs(mine - theirs) <= 2e-6 + 2e-4 * abs(mine)
    return bool(type(mine) is type(theirs) and mine == theirs)


def shrunk(sequence: Sequence_, update: str, outcome: Outcome) -> Sequence_:
    """Return a sequence with as few events as show an outcome of the same kind, a refusal for the same reason."""
    position = len(sequence.events) - 1
    while position >= 0:
        shorter = sequence.without(position)
        found = outcome_of(shorter, update)
        if found.kind == outcome.kind and (found.kind != "refused" or found.detail == outcome.detail):
            sequence = shorter
            position = min(position, len(sequence.events))
        position -= 1
    return sequence
