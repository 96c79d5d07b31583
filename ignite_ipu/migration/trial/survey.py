"""Watches a forward while the emulator traces it: what is refused, and which values of the host end up in the program.

A `TorchFunctionMode` above the trace's own sees every call of PyTorch before it. What the trace refuses is noted, with
the user's line, and answered with what the same call gave natively.
"""

from __future__ import annotations

import io
from typing import Any, Callable, Dict, List, Optional, Set, TextIO, Tuple

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from ignite_ipu.emulator.errors import Error
from ignite_ipu.emulator.trace.active import Trace, active
from ignite_ipu.emulator.trace.call_sites import name_of
from ignite_ipu.emulator.trace.operators import support, table
from ignite_ipu.emulator.trace.refusals import DynamicOutputShape
from ignite_ipu.emulator.trace.traced_tensor import IPU, IpuTensor
from ignite_ipu.emulator.values.nested import leaves, map_leaves
from ignite_ipu.errors import LossError
from ignite_ipu.migration.findings import Severity
from ignite_ipu.migration.trial.answers import Answers
from ignite_ipu.migration.trial.notes import Notes
from ignite_ipu.migration.trial.places import Place, current_place

_DECISIONS = {"__bool__", "is_nonzero", "__contains__", "equal", "allclose", "__index__"}
_READS = {"item", "tolist", "__int__", "__float__", "__complex__", "_local_scalar_dense"}
_MOVES = {"cpu", "numpy", "__array__", "__dlpack__"}
_GPU_MOVES = {"cuda", "xpu"}
_GRADIENTS = {"backward", "grad", "_engine_run_backward", "register_hook"}
_RANDOM = {
    "bernoulli",
    "multinomial",
    "normal",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "randperm",
}
_FROM_DATA = {"as_tensor", "from_numpy", "tensor"}


class Stopped(BaseException):
    """The trace cannot go on; why is noted. No `except Exception` of a model holds it up."""


class Survey(TorchFunctionMode):
    """Notes what a trace shows; entered around the code that is the user's.

    Args:
        notes: Where to.
        answers: What the same calls gave natively.

    Attributes:
        capture: The trace, once it has begun.
        operators: The user's line in which each operator was called first.
        constants: The user's line in which each constant of the program was made, by its name in the graph.
        nodes: The user's line of each operator of the graph, by its name in it.
    """

    def __init__(self, notes: Notes, answers: Answers) -> None:
        super().__init__()
        self.notes = notes
        self.answers = answers
        self.capture: Optional[Trace] = None
        self.operators: Dict[str, Optional[Place]] = {}
        self.constants: Dict[str, Optional[Place]] = {}
        self.nodes: Dict[str, Optional[Place]] = {}

    def __enter__(self) -> Any:
        self.capture = active()
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        kwargs = kwargs or {}
        name, place = name_of(func), current_place()
        self.operators.setdefault(name, place)
        known = set() if self.capture is None else set(self.capture.constants)
        try:
            result = func(*args, **kwargs)
        except (Error, LossError, DynamicOutputShape) as error:
            result = self._refused(func, name, place, args, kwargs, error)
        self._watch(name, place, args, kwargs, result, known)
        return result

    # -- what is refused ------------------------------------------------------------------------------------------

    def _refused(
        self,
        func: Callable[..., Any],
        name: str,
        place: Optional[Place],
        args: Tuple[Any, ...],
        kwargs: Dict[str, Any],
        error: Exception,
    ) -> Any:
        where = "the model" if place is None else place.where
        text = " ".join(getattr(error, "message", str(error)).split())
        if isinstance(error, LossError):
            self.notes.add("restricted-operator", place, text.rstrip("."))
            raise Stopped from error
        if name in _DECISIONS:
            self.notes.add(
                "data-dependent-control-flow",
                place,
                f"{where} asks for the truth of a tensor's value, which a trace does not have",
            )
        elif name in _READS or name in _MOVES or (name == "to" and "Illegal move" in text and ".to('cuda" not in text):
            self.notes.add(
                "host-value-in-forward",
                place,
                f"{where} takes a tensor's value to the host with {_shown(name)}, which a trace does not have",
            )
            if name in ("cpu", "to"):
                return args[0]
        elif name in _GPU_MOVES or (name == "to" and "Illegal move" in text):
            self.notes.add("cuda-device", place, f"{where} moves a tensor to a GPU")
            return args[0]
        elif name in _GRADIENTS:
            self.notes.add(
                "gradient-in-forward", place, f"{where} calls {name}, which does not exist inside a compiled program"
            )
        elif "dynamic output shape" in text or "eager mode" in text:
            self.notes.add("dynamic-shape", place, f"{where} calls {_shown(name)}, whose output size depends on values")
        elif "Expected an IPU tensor" in text:
            self.notes.add(
                "unregistered-tensor",
                place,
                f"{where} hands {_shown(name)} a tensor that is neither a parameter nor a buffer nor an input",
            )
            return self._again(func, place, *map_leaves((args, kwargs), _onto_ipu))
        elif support.SWITCH in text:  # the operator does not compile, or not with these arguments
            rule = "unsupported-operator" if table.refused(name) is not None else "restricted-operator"
            self.notes.add(rule, place, text.split(f" ({support.SWITCH}")[0].rstrip("."), Severity.ERROR)
            before = support.set_strict(False)
            try:
                return self._again(func, place, args, kwargs)
            finally:
                support.set_strict(before)
        else:
            self.notes.add("failed-trace", place, text.rstrip("."))
        return self._answer(place, name, error)

    def _again(
        self, func: Callable[..., Any], place: Optional[Place], args: Tuple[Any, ...], kwargs: Dict[str, Any]
    ) -> Any:
        try:
            return func(*args, **kwargs)
        except (Error, DynamicOutputShape) as error:
            return self._answer(place, name_of(func), error)

    def _answer(self, place: Optional[Place], name: str, error: Exception) -> Any:
        try:
            native = self.answers.take(place, name)
        except LookupError:
            raise Stopped from error
        return map_leaves(native, _onto_ipu)

    # -- what ends up in the program ------------------------------------------------------------------------------

    def _watch(
        self,
        name: str,
        place: Optional[Place],
        args: Tuple[Any, ...],
        kwargs: Dict[str, Any],
        result: Any,
        known: Set[str],
    ) -> None:
        for value in leaves(result):
            if isinstance(value, IpuTensor) and value.node.op == "call_function":
                self.nodes.setdefault(value.node.name, place)
        for constant in set(() if self.capture is None else self.capture.constants) - known:
            self.constants[constant] = place
            self._new_constant(name, place, args, kwargs)
        touched = any(isinstance(value, IpuTensor) for value in leaves((args, kwargs, result)))
        if name.rstrip("_") in _RANDOM and isinstance(result, torch.Tensor) and not touched:
            self._drawn(place, f"torch.{name}")

    def _new_constant(self, name: str, place: Optional[Place], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        where = "the model" if place is None else place.where
        data = args[0] if args else kwargs.get("data")
        if name in _RANDOM:
            self._drawn(place, f"torch.{name}")
        elif name == "to" or (name in _FROM_DATA and isinstance(data, (np.ndarray, torch.Tensor))):
            self.notes.add(
                "captured-constant",
                place,
                f"{where} moves a tensor of the host to the device; the program keeps the value it has while compiling",
            )

    def _drawn(self, place: Optional[Place], name: str) -> None:
        where = "the model" if place is None else place.where
        self.notes.add(
            "python-randomness",
            place,
            f"{where} draws from {name} on the host; the number drawn while tracing is used for ever",
        )


def unsupported_operators(survey: Survey, notes: Notes) -> List[str]:
    """Note the operators of a finished trace that PopTorch does not compile; returns their names."""
    capture = survey.capture
    found: List[str] = []
    for use in [] if capture is None else capture.unsupported:
        place = survey.operators.get(use.name)
        where = "the model" if place is None else place.where
        part = "" if table.canonical(use.name) == use.kind else f" (part of {use.name})"
        found.append(use.kind)
        notes.add(
            "unsupported-operator",
            place,
            f"{where} uses aten::{use.kind}{part}, which PopTorch does not compile",
            Severity.ERROR,
        )
    for text, name in [] if capture is None else capture.warned.items():
        about = text.replace(support.DOUBT, "PopTorch's sources read so.").rstrip(".")
        notes.add("restricted-operator", survey.operators.get(name), about, Severity.NOTE)
    return found


def _onto_ipu(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and not isinstance(value, IpuTensor):
        return value.to(IPU)
    return value


def _shown(name: str) -> str:
    return {"__getitem__": "indexing by a mask", "__array__": "numpy"}.get(name, name)


class Printed(io.TextIOBase):
    """Standard output while a forward is traced: what it prints is noted, and goes to another stream.

    Args:
        stream: Where to.
        notes: Where it is noted.
    """

    def __init__(self, stream: TextIO, notes: Notes) -> None:
        self._stream = stream
        self._notes = notes

    def write(self, text: str) -> int:
        """Write to the stream."""
        place = current_place()
        if place is not None and active() is not None:
            message = f"{place.where} calls print(), which runs once, while tracing, and has no values to show"
            self._notes.add("print-in-forward", place, message)
        return self._stream.write(text)

    def flush(self) -> None:
        """Flush the stream."""
        self._stream.flush()
