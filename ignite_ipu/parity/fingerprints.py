"""Fingerprints of values: small tensors whole, large ones by their norm and fixed random projections."""

from __future__ import annotations

import functools
import math
import zlib
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch

from ignite_ipu.parity.differences import Distance
from ignite_ipu.program.tensors.raw import dtype_of, is_on_cpu, layout_of, shape_of, size_of
from ignite_ipu.program.tensors.trees import Attribute, opened
from ignite_ipu.torch_names.lists import flatten_tensors
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

WHOLE = 4096
"""Most elements of a tensor that is kept whole."""

_PROJECTIONS = 4
_COLUMNS = 1024
_DEPTH = 12
_LEAVES = (torch.Tensor, str, int, float, type(None))

Fingerprint = Dict[str, Any]
"""Plain values and tensors that `torch.load(weights_only=True)` reads: kind, shape, dtype, and the values."""


def fingerprint(value: Any, everything: bool = False) -> Fingerprint:
    """Return the fingerprint of a tensor, number, text or other object.

    A tensor with more than `WHOLE` elements is kept by its norm and by projections on vectors of ones and minus ones,
    unless `everything` is kept. The difference of two projections is about the norm of the difference.
    """
    if isinstance(value, torch.Tensor):
        # Optimizers count steps in tensors or in Python, by their version.
        if not value.dim() and not value.is_complex():
            return {"kind": "number", "value": float(value.detach())}
        return _of_tensor(value, everything)
    if isinstance(value, bool) or value is None:
        return {"kind": "text", "value": repr(value)}
    if isinstance(value, (int, float)):
        return {"kind": "number", "value": float(value)}
    return {"kind": "text", "value": value if isinstance(value, str) else type(value).__name__}


def _of_tensor(tensor: torch.Tensor, everything: bool) -> Fingerprint:
    plain = tensor.detach().to("cpu").as_subclass(torch.Tensor)
    found: Fingerprint = {"kind": "tensor", "shape": list(plain.shape), "dtype": str(plain.dtype)}
    if plain.is_sparse or plain.is_quantized:
        plain = plain.to_dense() if plain.is_sparse else plain.dequantize()
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    if everything or plain.numel() <= WHOLE:
        found["values"] = plain.clone().contiguous()
        return found
    flat = plain.flatten() if plain.dtype == torch.float64 else plain.flatten().float()
    found["norm"] = math.sqrt(float(torch.dot(flat, flat)))
    rows = flat.numel() // _COLUMNS
    whole, rest = flat[: rows * _COLUMNS].view(rows, _COLUMNS), flat[rows * _COLUMNS :]
    # Products of signs of rows and columns, so that the values are read once for all projections.
    across, down = _signs(_COLUMNS, _PROJECTIONS).to(flat.dtype), _signs(rows, 1)[0].to(flat.dtype)
    found["projections"] = (across @ (down @ whole) + across[:, : rest.numel()] @ rest).tolist()
    return found


@functools.lru_cache(maxsize=64)
def _signs(size: int, count: int) -> torch.Tensor:
    """Return rows of fixed random signs."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{size}".encode()))
    return torch.randint(0, 2, (count, size), generator=generator).float() * 2 - 1


Fingerprints = Dict[str, Any]
"""The fingerprints of many values: small tensors of single precision one after another, the others by their number."""


def fingerprints(values: Sequence[Any], everything: bool = False) -> Fingerprints:
    """Return the fingerprints of many values, such as all parameters of a model, with one copy of small tensors.

    Weights are read as they are on the host, without asking a device for newer ones.
    """
    largest, single, strided = math.inf if everything else WHOLE, torch.float32, torch.strided
    shapes: List[Optional[List[int]]] = []
    small: List[torch.Tensor] = []
    others: Dict[int, int] = {}
    # One text may stand for many values, such as the gradients that exist.
    distinct: Dict[int, Any] = {}
    with torch.no_grad(), DisableTorchFunctionSubclass():
        classes = {type(value): _is_ordinary(value) for value in {type(value): value for value in values}.values()}
        for number, value in enumerate(values):
            ordinary = classes[type(value)] and dtype_of(value) is single and layout_of(value) is strided
            if ordinary and is_on_cpu(value) and size_of(value) <= largest:
                shapes.append([*shape_of(value)])
                small.append(value)
            else:
                shapes.append(None)
                key = others[number] = id(value)
                if key not in distinct:
                    distinct[key] = torch.Tensor.detach(value) if isinstance(value, torch.Tensor) else value
        flat = flatten_tensors(small or [torch.empty(0)])
        whole = flat if len(small) > 1 else flat.clone()  # of a single one it is not a copy
    known = {key: fingerprint(value, everything) for key, value in distinct.items()}
    return {"shapes": shapes, "values": whole, "others": {number: known[key] for number, key in others.items()}}


def _is_ordinary(value: Any) -> bool:
    """Return whether a tensor, and others of its class, have memory as PyTorch's own have."""
    return isinstance(value, torch.Tensor) and type(torch.Tensor.detach(value)) is torch.Tensor


def each_fingerprint(found: Fingerprints) -> Iterator[Fingerprint]:
    """Yield the fingerprint of each of many values."""
    place = 0
    for number, shape in enumerate(found["shapes"]):
        if shape is None:
            yield found["others"][number]
            continue
        values = found["values"][place : place + math.prod(shape)]
        place += values.numel()
        if shape:
            yield {"kind": "tensor", "shape": shape, "dtype": "torch.float32", "values": values.view(shape)}
        else:
            yield {"kind": "number", "value": float(values)}


def joined(values: Sequence[Optional[Fingerprint]], other: Mapping[str, Any]) -> Optional[Fingerprint]:
    """Return the fingerprint of the outputs of several batches, as an entry of the device has them.

    Numbers are averaged where the device does, and small tensors come after one another. Otherwise it is the last
    one's. None if the device's has a shape that neither has: it is the result of another reduction.
    """
    last, like = values[-1], other["value"]
    if last is None or like is None:
        return last
    known = [value for value in values if value is not None]
    if last["kind"] == "number" and other.get("mean"):
        return {**last, "value": sum(value["value"] for value in known) / len(known)}
    if last["kind"] != "tensor" or last["shape"] == like.get("shape"):
        return last
    parts = [value.get("values") for value in known]
    tensors = [part for part in parts if isinstance(part, torch.Tensor) and part.dim()]
    if len(tensors) < len(values) or len({tensor.shape[1:] for tensor in tensors}) > 1:
        return None
    whole = torch.cat(tensors)
    return {**last, "shape": list(whole.shape), "values": whole} if list(whole.shape) == like["shape"] else None


def leaves(value: Any, place: str = "", depth: int = 0) -> List[Tuple[str, Any]]:
    """Return the tensors, numbers and texts in nested containers, each with the keys that lead to it."""
    container = None if isinstance(value, _LEAVES) or depth > _DEPTH else opened(value)
    if container is None:
        return [(place, value)]
    found: List[Tuple[str, Any]] = []
    keys = container.keys or range(len(container.parts))
    for key, part in zip(keys, container.parts):
        if type(key) is Attribute:  # as of a state dict: a file has its entries
            continue
        if isinstance(part, _LEAVES):
            found.append((f"{place}[{key!r}]", part))
        else:
            found += leaves(part, f"{place}[{key!r}]", depth + 1)
    return found


def distance(native: Fingerprint, device: Fingerprint, tolerance: float, floor: float) -> Distance:
    """Return how far the device's value is from that of the host.

    Args:
        native, device: The fingerprints.
        tolerance: Part of the largest value, or of the norm, that they may differ by.
        floor: Difference that is always allowed, per element.
    """
    if native["kind"] != device["kind"]:
        return Distance(math.inf, 0.0, f"{_described(native)} on the host, {_described(device)} on the device")
    if native["kind"] == "text":
        same = native["value"] == device["value"]
        return Distance(0.0 if same else math.inf, 0.0, "" if same else f"{native['value']!r} is {device['value']!r}")
    if native["kind"] == "number":
        mine, theirs = native["value"], device["value"]
        if mine == theirs or (math.isnan(mine) and math.isnan(theirs)):
            return Distance(0.0, floor)
        return Distance(_finite(abs(mine - theirs)), tolerance * abs(mine) + floor)
    if native["shape"] != device["shape"]:
        return Distance(math.inf, 0.0, f"shape {tuple(device['shape'])} instead of {tuple(native['shape'])}")
    if "values" in native:
        return _of_values(native["values"], device["values"], tolerance, floor)
    apart = [abs(one - other) for one, other in zip(native["projections"], device["projections"])]
    size = math.prod(native["shape"])
    return Distance(_finite(max(apart)), (tolerance * native["norm"] + floor * math.sqrt(size)) * 4)


def _of_values(native: torch.Tensor, device: torch.Tensor, tolerance: float, floor: float) -> Distance:
    if not native.numel():
        return Distance(0.0, floor)
    if not native.dtype.is_floating_point:
        different = int((native != device).sum())
        return Distance(float(different), 0.0, f"{different} of {native.numel()} values differ" if different else "")
    mine, theirs = native.double(), device.double()
    both_nan = torch.isnan(mine) & torch.isnan(theirs)
    apart = torch.where(both_nan | (mine == theirs), 0.0, (mine - theirs).abs())
    finite = mine[torch.isfinite(mine)].abs()
    scale = float(finite.max()) if finite.numel() else 0.0
    return Distance(_finite(float(apart.nan_to_num(nan=math.inf).max())), tolerance * scale + floor)


def _finite(size: float) -> float:
    return math.inf if math.isnan(size) else size


def _described(found: Optional[Mapping[str, Any]]) -> str:
    if found is None:
        return "nothing"
    if found["kind"] == "tensor":
        return f"a {found['dtype']} tensor of shape {tuple(found['shape'])}"
    return f"a {found['kind']}"
