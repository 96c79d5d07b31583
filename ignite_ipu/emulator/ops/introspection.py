"""Questions of PopTorch's compiled part to its Python part: rarely of use in programs, but part of the API."""

from __future__ import annotations

import contextlib
import json
from typing import Any, Dict

import torch

from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.ops.custom import attributes_lists
from ignite_ipu.emulator.trace.traced_tensor import IpuTensor

_PREFIX = "attr:"


def accessAttributes(attribute_id_str: str) -> Dict[str, Any]:
    """Return the attributes of a custom operator.

    Args:
        attribute_id_str: `"attr:"` and their place in `attributes_lists`, as a hexadecimal number; or a JSON object.

    Raises:
        ValueError: It is neither.
    """
    if not isinstance(attribute_id_str, str):
        raise ValueError(f"Attributes are asked for by a string, got {attribute_id_str!r}.")
    with contextlib.suppress(ValueError):
        if not attribute_id_str.startswith(_PREFIX):
            found = json.loads(attribute_id_str)
            if isinstance(found, dict):
                return found
        elif 0 <= (index := int(attribute_id_str[len(_PREFIX) :], 16)) < len(attributes_lists):
            return attributes_lists[index]
    raise ValueError(
        f'{attribute_id_str!r} stands for no attributes: give a JSON object, or "attr:" with a hexadecimal number '
        f"below {len(attributes_lists):#x}."
    )


def getIpuTensorId(x: torch.Tensor) -> int:
    """Return the number of a tensor on the IPU, which tells it from all others of the same trace.

    Raises:
        Error: It is not on the IPU.
    """
    if not isinstance(x, IpuTensor):
        raise backend_error(
            f"Expected an IPU tensor, got one on {x.device}: only tensors of a traced forward have ids."
        )
    return 1 + list(x.capture.graph.nodes).index(x.origin)
