"""The random states of the host, as plain data that checkpoints can hold, and those of devices in a file."""

from __future__ import annotations

import json
import random
from typing import Any, Dict, List, Mapping, Optional, Sequence

import numpy as np
import torch

from ignite_ipu.errors import CheckpointError

_LARGEST_FILE = 1 << 20


def read_random_states(generator: Optional[torch.Generator] = None) -> Dict[str, Any]:
    """Return the states of all generators, and of one more, such as a loader's own."""
    version, numbers, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state()
    states = {
        "torch": torch.random.get_rng_state(),
        "python": {"version": version, "state": torch.from_numpy(np.array(numbers, np.int64)), "gauss": gauss},
        "numpy": {
            "kind": str(kind),
            "state": torch.from_numpy(np.asarray(keys, dtype=np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "gauss": float(cached),
        },
    }
    if generator is not None:
        states["generator"] = generator.get_state()
    return states


def write_random_states(states: Mapping[str, Any], generator: Optional[torch.Generator] = None) -> None:
    """Go on drawing from states that `read_random_states` returned."""
    torch.random.set_rng_state(states["torch"])
    python, numpy = states["python"], states["numpy"]
    random.setstate((python["version"], tuple(python["state"].tolist()), python["gauss"]))
    keys = numpy["state"].numpy().astype(np.uint32)
    np.random.set_state((numpy["kind"], keys, numpy["position"], numpy["has_gauss"], numpy["gauss"]))
    if generator is not None and "generator" in states:
        generator.set_state(states["generator"])


def write_device_states(path: str, states: Sequence[Optional[List[int]]]) -> None:
    """Write random states of devices to a JSON file, or None; one that an earlier entry has is its position."""
    entries: List[Any] = []
    for number, state in enumerate(states):
        first = states.index(state)
        entries.append(first if state is not None and first < number else state)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(entries, file)


def read_device_states(path: str) -> List[Optional[List[int]]]:
    """Return the random states of a JSON file that `write_device_states` wrote."""
    with open(path, "rb") as file:
        data = file.read(_LARGEST_FILE + 1)
    try:
        states = json.loads(data) if len(data) <= _LARGEST_FILE else None
    except (ValueError, RecursionError):
        states = None
    if not isinstance(states, list) or not all(
        _is_state(state, states[:number]) for number, state in enumerate(states)
    ):
        raise CheckpointError(
            f"{path} holds no random states of devices: they are a list of lists of 64-bit numbers, of at most "
            f"{_LARGEST_FILE} bytes. It was changed since it was written; remove it to go on with other random numbers."
        )
    return [states[state] if type(state) is int else state for state in states]


def _is_state(state: Any, earlier: Sequence[Any]) -> bool:
    if type(state) is int:
        return 0 <= state < len(earlier) and isinstance(earlier[state], list)
    is_list = isinstance(state, list) and bool(state)
    return state is None or (is_list and all(type(number) is int and 0 <= number < 1 << 64 for number in state))
