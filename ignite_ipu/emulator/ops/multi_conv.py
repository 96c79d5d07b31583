"""Convolutions that the device computes together."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple, Union

import torch

from ignite_ipu.emulator.enums import MultiConvPlanType
from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.options.guarded import checked
from ignite_ipu.emulator.trace.active import Trace, active

_PARTIALS = (torch.float32, torch.float16)
_CONVOLUTIONS = ("convolution", *(f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3)))


class MultiConv:
    """A `with` statement whose convolutions run together where none needs the result of another.

    The settings are recorded on the convolutions; they change no value, and nothing happens outside a traced model.
    A list has one element for each convolution, or one for all.
    """

    def __init__(self) -> None:
        self._for_each: Dict[str, List[Any]] = {}
        self._for_all: Dict[str, Any] = {}
        self._entered: List[Tuple[Optional[Trace], int]] = []

    def availableMemoryProportions(self, value: Union[float, List[float], None]) -> MultiConv:
        """Set the share of memory for temporary values; None leaves it to the compiler again.

        Raises:
            AssertionError: It is neither a float nor a list of floats.
        """
        error = AssertionError(f"Invalid available memory proportion {value!r}: pass a float or a list of floats.")
        return self._set_for_each("availableMemoryProportions", value, lambda each: isinstance(each, float), error)

    def partialsTypes(self, value: Union[torch.dtype, List[torch.dtype]]) -> MultiConv:
        """Set the types in which the convolutions add up.

        Raises:
            ValueError: One is neither `torch.float` nor `torch.half`.
        """
        error = ValueError(f"Invalid partials types {value!r}: pass torch.float or torch.half, or a list of them.")
        if value is None:
            raise error
        return self._set_for_each("partialsTypes", value, _PARTIALS.__contains__, error)

    def enableConvDithering(self, value: Union[bool, List[bool], None]) -> MultiConv:
        """Spread the convolutions over the tiles, or not; None leaves it to the compiler again.

        Raises:
            ValueError: It is neither a bool nor a list of bools.
        """
        error = ValueError(f"Convolution dithering must be bool or list of bools, got {value!r}.")
        return self._set_for_each("enableConvDithering", value, lambda each: isinstance(each, bool), error)

    def planType(self, value: Optional[MultiConvPlanType]) -> MultiConv:
        """Choose whether the convolutions run at the same time; None leaves it to the compiler again.

        Raises:
            AssertionError: It is no `MultiConvPlanType`.
        """
        if value is not None and not isinstance(value, MultiConvPlanType):
            raise AssertionError(f"Invalid plan type {value!r}: pass a poptorch.MultiConvPlanType.")
        self._for_all["planType"] = value
        return self

    def perConvReservedTiles(self, value: int) -> MultiConv:
        """Set how many tiles are kept for each convolution.

        Raises:
            AssertionError: It is no int.
        """
        self._for_all["perConvReservedTiles"] = checked("perConvReservedTiles", value, int)
        return self

    def cycleBackOff(self, value: float) -> MultiConv:
        """Set by how much the planner may exceed the fastest plan's cycles.

        Raises:
            AssertionError: It is no float.
        """
        self._for_all["cycleBackOff"] = checked("cycleBackOff", value, float)
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
        for name, values in self._for_each.items():
            if len(values) not in (1, len(convolutions)):
                raise backend_error(
                    f"MultiConv.{name} has {len(values)} values for {len(convolutions)} convolutions: give one for all "
                    "of them, or one for each."
                )
        common = {name: value for name, value in self._for_all.items() if value is not None}
        for index, node in enumerate(convolutions):
            own = {name: values[index % len(values)] for name, values in self._for_each.items()}
            node.meta["multi_conv"] = {**own, **common}

    def _set_for_each(self, name: str, value: Any, is_allowed: Callable[[Any], bool], error: Exception) -> MultiConv:
        values = list(value) if isinstance(value, (list, tuple)) else [value]
        if value is not None and not (values and all(map(is_allowed, values))):
            raise error
        self._for_each.pop(name, None)
        if value is not None:
            self._for_each[name] = values
        return self
