"""Weights that adaptive optimizers move by rounding: gradients of zero but for rounding, divided by their own size.

A bias before a normalisation and the bias of attention's keys change no loss. Their gradients are sums that cancel to
rounding, which differs between two machines. Adam divides them by their own size, and makes whole updates of them.
"""

from __future__ import annotations

import functools
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

import torch

from ignite_ipu.parity.fingerprints import Fingerprint

_MOMENTS = {"exp_avg_sq": 0.5, "square_avg": 0.5, "sum": 0.5, "exp_inf": 1.0}
"""States that a gradient is divided by, and the power of each that is a gradient's size."""

_PART = 1e-5
"""Part of an optimizer's largest gradient below which a gradient is rounding, in single precision."""

Sequences = Mapping[Tuple[str, str], List[Tuple[int, Mapping[str, Any]]]]


class Rounding:
    """Distances between the parameters of two runs that rounding has made, update by update.

    Args:
        host, device: Entries of the two records by kind and name, in their order.
    """

    def __init__(self, host: Sequences, device: Sequences) -> None:
        self._drifts: Dict[Tuple[str, int], torch.Tensor] = {}
        largest: Dict[int, float] = {}
        sizes = [_sizes_of_gradients(each) for each in (host, device)]
        for (_, update), size in sizes[0].items():
            largest[update] = max(largest.get(update, 0.0), float(size.max()) if size.numel() else 0.0)
        names = {name for name, _ in sizes[0]}
        for (kind, name), entries in host.items():
            if kind != "parameter" or name not in names:
                continue
            drift: Optional[torch.Tensor] = None
            for (_, entry), (_, other) in zip(entries, device.get((kind, name), ())):
                update, values = entry["update"], (_values(entry["value"]), _values(other["value"]))
                mine, theirs = (size.get((name, update)) for size in sizes)
                if mine is not None and theirs is not None and all(each is not None for each in values):
                    drift = _drifted(drift, mine, theirs, largest[update] * _PART, *values)
                if drift is not None:
                    self._drifts[name, update] = drift

    @functools.cached_property
    def _largest(self) -> List[Tuple[int, float]]:
        return sorted((update, float(drift.max())) for (_, update), drift in self._drifts.items())

    def removed(self, kind: str, name: str, update: int, native: Fingerprint, device: Fingerprint) -> Fingerprint:
        """Return the device's value, with the part of its difference taken away that rounding explains.

        Buffers and saved files hold averages and copies of moved weights: each element may differ by as much as a
        weight.
        """
        mine, theirs = _values(native), _values(device)
        if not self._drifts or mine is None or theirs is None or mine.shape != theirs.shape:
            return device
        drift: Any = None
        if kind == "parameter":
            drift = self._drifts.get((name, update))
        elif kind in ("buffer", "saved file"):
            drift = max((each for made, each in self._largest if made <= update), default=None)
        if drift is None or not mine.is_floating_point():
            return device
        apart = mine.double() - theirs.double()
        explained = torch.minimum(apart.abs(), torch.as_tensor(drift, dtype=torch.float64)).copysign(apart)
        return {**device, "values": (theirs.double() + explained.nan_to_num()).to(theirs.dtype)}

    def remarks(self) -> Iterator[str]:
        """Yield a sentence about the parameters that are moved by rounding."""
        last = {name: drift for (name, _), drift in self._drifts.items()}
        moved = {name: drift for name, drift in last.items() if bool(drift.any())}
        if moved:
            elements = sum(int((drift > 0).sum()) for drift in moved.values())
            furthest = max(float(drift.max()) for drift in moved.values())
            yield (
                f"Gradients of {elements} elements are zero but for rounding, and the optimizer divides by their size: "
                f"{', '.join(moved)}. These elements are not compared; they are up to {furthest:.3g} apart."
            )


def _sizes_of_gradients(entries: Sequences) -> Dict[Tuple[str, int], torch.Tensor]:
    """Return the sizes of gradients by an optimizer's state, for each parameter and update."""
    found: Dict[Tuple[str, int], torch.Tensor] = {}
    for (kind, name), numbered in entries.items():
        parameter, _, state = name.partition("['")
        power = _MOMENTS.get(state[:-2])
        if kind != "optimizer state" or power is None:
            continue
        for _, entry in numbered:
            values = _values(entry["value"])
            if values is not None:
                found[parameter, entry["update"]] = values.double().abs() ** power
    return found


def _drifted(
    drift: Optional[torch.Tensor], mine: torch.Tensor, theirs: torch.Tensor, least: float, *values: Any
) -> Optional[torch.Tensor]:
    """Return the differences that rounding made up to this update, element by element."""
    native, device = values
    if not mine.shape == theirs.shape == native.shape == device.shape:
        return drift
    rounded = ((mine > 0) | (theirs > 0)) & (mine < least) & (theirs < least)
    if not bool(rounded.any()):
        return drift
    apart = (native.double() - device.double()).abs().nan_to_num()
    before = torch.zeros_like(apart) if drift is None else drift
    return torch.where(rounded, torch.maximum(apart, before), before)


def _values(value: Optional[Fingerprint]) -> Optional[torch.Tensor]:
    """Return the values of a tensor that is kept whole."""
    return None if value is None else value.get("values")
