"""Convolutions that the device computes together."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple, Union

import torch

from ignite_ipu.emulator.enums import MultiConvPlanType
from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.trace.active import Trace, active

_PARTIALS = (torch.float32, torch.float16)
_CONVOLUTIONS = (
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "convolution",
)


class MultiConv:
    """A `with` statement whose convolutions run together where none needs the result of another.

    The settings are recorded on the convolutions; they change no value, and nothing happens outside a traced model.
    A list has one element for each convolution, or one for all.
    """

    def __init__(self) -> None:
        self._available_memory: Optional[List[float]] = None
        self._partials: Optional[List[torch.dtype]] = None
        self._dithering: Optional[List[bool]] = None
        self._plan: Optional[MultiConvPlanType] = None
        self._reserved_tiles: Optional[int] = None
        self._back_off: Optional[float] = None
        self._entered: List[Tuple[Optional[Trace], int]] = []

    def availableMemoryProportions(self, value: Union[float, List[float], None]) -> MultiConv:
        """Set the share of memory for temporary values; None leaves it to the compiler again.

        Raises:
            AssertionError: It is neither a float nor a list of floats.
        """
        if value is None:
            self._available_memory = None
            return self
        values = _as_list(value)
        if not values or not all(isinstance(each, float) for each in values):
            raise AssertionError(f"Invalid available memory proportion {value!r}: pass a float or a list of floats.")
        self._available_memory = values
        return self

    def partialsTypes(self, value: Union[torch.dtype, List[torch.dtype]]) -> MultiConv:
        """Set the types in which the convolutions add up.

        Raises:
            ValueError: One is neither `torch.float` nor `torch.half`.
        """
        values = _as_list(value)
        if not values or not all(each in _PARTIALS for each in values):
            raise ValueError(f"Invalid partials types {value!r}: pass torch.float or torch.half, or a list of them.")
        self._partials = values
        return self

    def enableConvDithering(self, value: Union[bool, List[bool], None]) -> MultiConv:
        """Spread the convolutions over the tiles, or not; None leaves it to the compiler again.

        Raises:
            ValueError: It is neither a bool nor a list of bools.
        """
        if value is None:
            self._dithering = None
            return self
        values = _as_list(value)
        if not values or not all(isinstance(each, bool) for each in values):
            raise ValueError(f"Convolution dithering must be bool or list of bools, got {value!r}.")
        self._dithering = values
        return self

    def planType(self, value: Optional[MultiConvPlanType]) -> MultiConv:
        """Choose whether the convolutions run at the same time; None leaves it to the compiler again.

        Raises:
            AssertionError: It is no `MultiConvPlanType`.
        """
        if value is not None and not isinstance(value, MultiConvPlanType):
            raise AssertionError(f"Invalid plan type {value!r}: pass a poptorch.MultiConvPlanType.")
        self._plan = value
        return self

    def perConvReservedTiles(self, value: int) -> MultiConv:
        """Set how many tiles are kept for each convolution.

        Raises:
            AssertionError: It is no int.
        """
        if not isinstance(value, int):
            raise AssertionError(f"perConvReservedTiles takes an int, got {value!r}.")
        self._reserved_tiles = value
        return self

    def cycleBackOff(self, value: float) -> MultiConv:
        """Set by how much the planner may exceed the fastest plan's cycles.

        Raises:
            AssertionError: It is no float.
        """
        if not isinstance(value, float):
            raise AssertionError(f"cycleBackOff takes a float, got {value!r}.")
        self._back_off = value
        return self

    def __enter__(self) -> None:
        trace = active()
        if trace is not None:
            if trace.multi_conv is not None:
                raise backend_error("Nested poptorch.MultiConv is not supported: close the outer one first.")
            trace.multi_conv = self
        self._entered.append((trace, 0 if trace is None else len(trace.graph.nodes)))

    def __exit__(self, type: Any, value: Any, traceback: Any) -> None:
        trace, before = self._entered.pop()
        if trace is None:
            return
        trace.multi_conv = None
        if value is not None:
            return
        nodes = list(trace.graph.nodes)[before:]
        convolutions = [node for node in nodes if node.meta.get("operator") in _CONVOLUTIONS]
        if not convolutions:
            raise backend_error("Unexpected end_multi_conv: there is no convolution inside poptorch.MultiConv.")
        settings = {
            "availableMemoryProportions": self._available_memory,
            "partialsTypes": self._partials,
            "enableConvDithering": self._dithering,
        }
        for name, values in settings.items():
            if values is not None and len(values) not in (1, len(convolutions)):
                raise backend_error(
                    f"MultiConv.{name} has {len(values)} values for {len(convolutions)} convolutions: give one for all "
                    "of them, or one for each."
                )
        common = {"planType": self._plan, "perConvReservedTiles": self._reserved_tiles, "cycleBackOff": self._back_off}
        for index, node in enumerate(convolutions):
            own = {name: values[index % len(values)] for name, values in settings.items() if values is not None}
            node.meta["multi_conv"] = {**own, **{name: each for name, each in common.items() if each is not None}}


def _as_list(value: Any) -> List[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
