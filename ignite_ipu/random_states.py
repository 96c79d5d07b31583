"""The random states of the host: torch's, Python's and numpy's, as plain data that checkpoints can hold."""

from __future__ import annotations

import random
from typing import Any, Dict, Mapping, Optional

import numpy as np
import torch

__all__ = ["read_random_states", "write_random_states"]


def read_random_states(generator: Optional[torch.Generator] = None) -> Dict[str, Any]:
    """Return the states of all generators.

    Args:
        generator: One more, such as a loader's own.
    """
    version, numbers, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state()
    states = {
        "torch": torch.random.get_rng_state(),
        "python": {"version": version, "state": torch.tensor(numbers, dtype=torch.int64), "gauss": gauss},
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
