"""Makes random sequences, plays each eagerly and captured, and classifies the outcomes."""

from __future__ import annotations

import dataclasses
import random
import re
import traceback
from pathlib import Path
from typing import Any, Callable, List, Optional, Tuple

import torch

from ignite_ipu.errors import CaptureError, OptimizerError
from tests.sequences import composed_worlds, worlds
from tests.sequences.events import Steps, all_events, play, steps_of
from tests.sequences.player import Event, Player, Seen

REFUSALS = (CaptureError, OptimizerError)
_BASE = ("forward", "backward", "step", "zero_grad")
_ODD = tuple(all_events())
PROGRAM_WORLDS = tuple(sorted(worlds.WORLDS))
COMPOSED_WORLDS = tuple(sorted(composed_worlds.COMPOSED))
_KINDS, _KINDS_ON_THE_HOST = worlds.KINDS, worlds.KINDS_ON_THE_HOST


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
    """How a captured sequence compares, with the reason or the place.

    It is `same`, `refused`, `different` or a `crash`; `undetermined` if the last bits of the weights at the start
    change what PyTorch itself computes by more than the values may differ.
    """

    kind: str
    detail: str = ""


def random_sequence(seed: int, names: Tuple[str, ...] = PROGRAM_WORLDS) -> Sequence_:
    """Return three to six updates of a loop, each with up to two odd events or an event left out."""
    chance = random.Random(seed)
    world = chance.choice(names)
    count = {"TwoModels": 2, "OutsideTwo": 2, "Adversaries": 2, "TwoHeads": 3}.get(world, 1)
    kinds = tuple(chance.choice(_KINDS if chance.random() < 0.85 else _KINDS_ON_THE_HOST) for _ in range(count))
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
    steps = steps_of(sequence.events)
    try:
        play(eager, steps)
    except Exception as error:
        if not is_of_pytorch(error):
            raise
        # PyTorch itself has an error for this loop: the values before it are compared.
        steps = [*steps[: eager.number], steps[-1]]
        eager = Player(sequence.world, sequence.kinds, None)
        play(eager, steps)
    player = Player(sequence.world, sequence.kinds, update, spread)
    try:
        refusal = refusal_of(play, player, steps)
        seen = eager.seen()
        found, late = difference(seen, player.seen(), refusal is not None)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        return Outcome("crash", f"{type(error).__name__}: {error} ({frames[-1].name}) at {player.number} {player.last}")
    if found is not None:
        return Outcome("undetermined" if is_undetermined(sequence, steps, seen) else "different", found)
    refusal = refusal or late
    return Outcome("same") if refusal is None else Outcome("refused", reason_of(refusal))


def is_undetermined(sequence: Sequence_, steps: Steps, seen: Seen) -> bool:
    """Return whether eager loops that begin with other last bits of the weights see other values."""
    for seed in range(4):
        player = Player(sequence.world, sequence.kinds, None, rounding=seed)
        play(player, steps)
        if difference(seen, player.seen(), is_part=False)[0] is not None:
            return True
    return False


def is_of_pytorch(error: Exception) -> bool:
    """Return whether PyTorch raised an error, and not the code of an event or this library."""
    file = traceback.extract_tb(error.__traceback__)[-1].filename
    return type(error) is RuntimeError or Path(torch.__file__).parent in Path(file).parents


def refusal_of(function: Callable[..., Any], *args: Any) -> Optional[Exception]:
    """Return the refusal that a function raises, None if it raises none."""
    try:
        function(*args)
    except REFUSALS as error:
        return error
    return None


def reason_of(error: BaseException) -> str:
    """Return the message of a refusal without its lines, numbers and names."""
    text = re.sub(r"\S+\.py:\d+", "LINE", str(error))
    return re.sub(r"[\d.]+", "N", text)[:110]


def difference(eager: Seen, captured: Seen, is_part: bool) -> Tuple[Optional[str], Optional[Exception]]:
    """Return where two records differ, None if nowhere, and the refusal of a value that is read here, if any.

    If a loop was refused, its record is a part of the eager one.
    """
    refusal: Optional[Exception] = None
    for (place, mine), (_, theirs) in zip(eager, captured):
        late = refusal_of(_read, theirs)
        if late is not None:
            refusal = refusal or late
        elif not equal(mine, theirs):
            return f"{place}: {shown(mine)} eagerly, {shown(theirs)} captured", None
    missing = len(eager) - len(captured)
    return None if missing == 0 or (is_part and missing > 0) else "another number of looks", refusal


def _read(value: Any) -> None:
    """Read the tensors in a value, which the step of a captured loop may have to compute first."""
    if isinstance(value, torch.Tensor):
        value.tolist()
    elif isinstance(value, (dict, list)):
        for each in value.values() if isinstance(value, dict) else value:
            _read(each)


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
