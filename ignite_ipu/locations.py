"""Where the tensors of training are kept: on an IPU or off it, whole or split between replicas."""

from __future__ import annotations

from typing import Any, Sequence

from ignite_ipu import backend
from ignite_ipu.options import OptionsError

__all__ = ["TENSORS", "place_tensors"]

TENSORS = {
    "activations": ("setActivationLocation", "location_activation"),
    "weights": ("setWeightLocation", "location_weight"),
    "optimizer": ("setOptimizerLocation", "location_optimizer"),
    "accumulators": ("setAccumulatorLocation", "location_accumulator"),
}
"""The kinds of tensors that have a place of their own, with PopTorch's names for setting and reading it."""


def place_tensors(options: Any, offload: Sequence[str] = (), shard: Sequence[str] = ()) -> None:
    """Write into `options` which tensors leave the IPU and which are split between replicas.

    Args:
        options: Unfrozen `poptorch.Options` for training.
        offload: Kinds of `TENSORS` to keep in off-chip memory, from where they are streamed when needed.
        shard: Kinds of `TENSORS` of which each replica keeps a part (replicated tensor sharding).

    Raises:
        OptionsError: An unknown kind, sharding without replicas, or a location said twice.
    """
    offload, shard = _known("offload", offload), _known("shard", shard)
    if shard and options.replication_factor == 1:
        raise OptionsError(
            f"shard={list(shard)} splits tensors between replicas, but there is one (replicationFactor 1). Set "
            "replication_factor=2 or more, or leave shard out."
        )
    kinds = [kind for kind in TENSORS if kind in (*offload, *shard)]
    for kind in kinds:
        setter, name = TENSORS[kind]
        if options.TensorLocations.exists(name):
            raise OptionsError(
                f"The options say where {kind} are already ({getattr(options.TensorLocations, name)}). Say it in one "
                "place only: leave offload and shard out, or do not set it in options.TensorLocations."
            )
        settings = backend.poptorch().TensorLocationSettings()
        if kind in offload:
            settings.useOnChipStorage(False)
        if kind in shard:
            settings.useReplicatedTensorSharding(True)
        getattr(options.TensorLocations, setter)(settings)


def _known(name: str, kinds: Sequence[str]) -> Sequence[str]:
    if isinstance(kinds, str):
        raise OptionsError(f"{name}={kinds!r} must be a list: {name}=[{kinds!r}].")
    for kind in kinds:
        if kind not in TENSORS:
            raise OptionsError(f"{name} lists {kind!r}; choose from: {', '.join(TENSORS)}.")
    return kinds
