"""Watches a forward while the emulator traces it: the refused calls, and the host values that end up in the program.

A `TorchFunctionMode` above the trace's own sees every call of PyTorch before it. A refused call is noted, with the
user's line, and answered with its result in eager PyTorch. So the trace goes on and shows more.
"""

from __future__ import annotations

import contextlib
import io
from collections import Counter, defaultdict
from typing import Any, Callable, DefaultDict, Dict, List, Optional, Set, TextIO, Tuple
from typing import Counter as CounterType
from unittest import mock

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from ignite_ipu.capabilities.traced import GRADIENT, OPERATOR, SHAPE, STATE, VALUE
from ignite_ipu.emulator import inspection
from ignite_ipu.emulator.inspection import IpuTensor, Refusal, Trace, leaves, map_leaves, name_of
from ignite_ipu.errors import LossError
from ignite_ipu.migration.findings import Severity
from ignite_ipu.migration.trial.notes import CodePlace, Notes, current_place
from ignite_ipu.operators.words import word_set
from ignite_ipu.program.argument_checks import passing_value
from ignite_ipu.program.user_code import current_line
from ignite_ipu.torch_names.dispatch import LOCAL_SCALAR
from ignite_ipu.torch_names.tensors import DisableTorchFunction

_DECISIONS = {"__bool__", "is_nonzero", "__contains__", "equal", "allclose", "__index__"}
_READS = {"item", "tolist", "__int__", "__float__", "__complex__", LOCAL_SCALAR, "apply_", "map_", "map2_"}
# Rule and message of a refusal; the error's own message where there is none.
_DECIDED = ("data-dependent-control-flow", VALUE.reason("{where}", "{name}"))
_HOST = ("host-value-in-forward", VALUE.reason("{where}", "{name}"))
_BY_VALUES = ("dynamic-shape", SHAPE.reason("{where}", "{name}"))
_REFUSED: Dict[Optional[Refusal], Tuple[str, str]] = {
    Refusal.MOVE_TO_HOST: _HOST,
    Refusal.MOVE_TO_GPU: ("cuda-device", "{where} moves a tensor to a GPU"),
    Refusal.GRADIENT: ("gradient-in-forward", GRADIENT.reason("{where}", "{name}")),
    Refusal.DYNAMIC_SHAPE: _BY_VALUES,
    Refusal.HOST_TENSOR: (
        "unregistered-tensor",
        "{where} hands {name} a tensor that is neither a parameter nor a buffer nor an input",
    ),
    Refusal.UNSUPPORTED_OPERATOR: ("unsupported-operator", ""),
    Refusal.RESTRICTED_ARGUMENT: ("restricted-operator", ""),
}
_Function = Callable[..., Any]
_RANDOM = word_set("bernoulli multinomial normal rand rand_like randint randint_like randn randn_like randperm")
_SHOWN = {"__getitem__": "indexing by a mask", "__array__": "numpy"}
_FROM_DATA = {"as_tensor", "from_numpy", "tensor"}
_LARGEST = 10_000
# PyTorch 2.0 shows indexing to no mode. To set the method makes a tensor a sequence for C, also after it is taken back.
_HIDES_INDEXING = torch.__version__.startswith("2.0.")
_Key = Tuple[Optional[CodePlace], str]


class Answers(TorchFunctionMode):
    """Keeps the results of the calls made in its context, by line and operator, in order.

    `doubles` has the first operator in each line that computed in double precision.
    """

    def __init__(self) -> None:
        super().__init__()
        self.doubles: Dict[Optional[CodePlace], str] = {}
        self._results: DefaultDict[_Key, List[Any]] = defaultdict(list)
        self._taken: CounterType[_Key] = Counter()
        self._indexing = contextlib.ExitStack()

    def __enter__(self) -> Any:
        if _HIDES_INDEXING:
            original: Any = torch.Tensor.__getitem__

            def get_item(tensor: torch.Tensor, index: Any) -> Any:
                result = original(tensor, index)
                self._keep(original, result)
                return result

            self._indexing.enter_context(mock.patch.object(torch.Tensor, "__getitem__", get_item))
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> Any:
        self._indexing.close()
        return super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self._keep(func, result)
        return result

    def _keep(self, func: Callable[..., Any], result: Any) -> None:
        name, place = name_of(func), current_place()
        self._results[place, name].append(map_leaves(result, _kept))
        if isinstance(result, torch.Tensor) and result.dtype is torch.float64:
            self.doubles.setdefault(place, name)

    def again(self) -> None:
        """Begin with the first results again, for another trace of the same forward."""
        self._taken.clear()

    def take(self, place: Optional[CodePlace], name: str) -> Any:
        """Return the operator's result of its n-th call in this line, for the n-th request.

        Raises a `LookupError` if it was not called there.
        """
        results = self._results.get((place, name))
        if not results:
            raise LookupError(name)
        position = self._taken[place, name]
        self._taken[place, name] += 1
        return map_leaves(results[min(position, len(results) - 1)], _given)


def _kept(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    with DisableTorchFunction():
        # Of a large tensor only shape and type are worth keeping.
        return value.detach().to("meta") if value.numel() > _LARGEST else value.detach().clone()


def _given(value: Any) -> Any:
    return torch.zeros(value.shape, dtype=value.dtype) if isinstance(value, torch.Tensor) and value.is_meta else value


class Stopped(BaseException):
    """The trace cannot go on; why is noted. No `except Exception` of a model holds it up."""


class Survey(TorchFunctionMode):
    """Notes the findings of a trace, `capture` once it has begun; entered around the user's code.

    It has the user's lines in which each operator was called first, and, by their names in the graph, of its constants
    and nodes. `runs` is whether the user's code runs.
    """

    def __init__(self, notes: Notes, answers: Answers) -> None:
        super().__init__()
        self.notes = notes
        self.answers = answers
        self.capture: Optional[Trace] = None
        self.runs = False
        self.operators: Dict[str, Optional[CodePlace]] = {}
        self.constants: Dict[str, Optional[CodePlace]] = {}
        self.nodes: Dict[str, Optional[CodePlace]] = {}

    def __enter__(self) -> Any:
        self.capture, self.runs = inspection.active(), True
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> Any:
        self.runs = False
        return super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self, func: _Function, types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        kwargs = kwargs or {}
        self.operators.setdefault(name_of(func), current_place())
        known = set() if self.capture is None else set(self.capture.placeholders.constants)
        try:
            result = func(*args, **kwargs)
        except (inspection.Error, LossError, inspection.DynamicOutputShape) as error:
            result = self._refused(func, args, kwargs, error)
        self._watch(name_of(func), args, kwargs, result, known)
        return result

    def _refused(self, func: _Function, args: Tuple[Any, ...], kwargs: Dict[str, Any], error: Exception) -> Any:
        name, place = name_of(func), current_place()
        passing = passing_value(current_line()) if name == "__bool__" else None
        if passing is not None:
            return passing
        text = " ".join(getattr(error, "message", str(error)).split())
        if isinstance(error, LossError):
            self.notes.add("restricted-operator", place, text.rstrip("."))
            raise Stopped from error
        kind: Optional[Refusal] = getattr(error, "kind", None)
        rule, message = _REFUSED.get(kind, ("failed-trace", ""))
        if kind is Refusal.HOST_READ:
            rule, message = _DECIDED if name in _DECISIONS else _HOST if name in _READS else _BY_VALUES
        # The error's own message ends with how the emulator is told to go on.
        text = text.split(f" ({inspection.SWITCH}")[0].rstrip(".")
        reason = message.replace("{name}", _SHOWN.get(name, name)) or text
        self.notes.add(rule, place, reason, None if message else Severity.ERROR)
        if kind in (Refusal.MOVE_TO_HOST, Refusal.MOVE_TO_GPU) and name in ("to", "cpu", "cuda", "xpu"):
            return args[0]
        if kind is Refusal.HOST_TENSOR:
            return self._again(func, *map_leaves((args, kwargs), _onto_ipu))
        if kind in (Refusal.UNSUPPORTED_OPERATOR, Refusal.RESTRICTED_ARGUMENT):
            before = inspection.set_strict(False)
            try:
                return self._again(func, args, kwargs)
            finally:
                inspection.set_strict(before)
        return self._answer(name, error)

    def _again(self, func: _Function, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        try:
            return func(*args, **kwargs)
        except (inspection.Error, inspection.DynamicOutputShape) as error:
            return self._answer(name_of(func), error)

    def _answer(self, name: str, error: Exception) -> Any:
        try:
            native = self.answers.take(current_place(), name)
        except LookupError:
            raise Stopped from error
        return map_leaves(native, _onto_ipu)

    def _watch(self, name: str, args: Tuple[Any, ...], kwargs: Dict[str, Any], result: Any, known: Set[Any]) -> None:
        place = current_place()
        for value in leaves(result):
            if isinstance(value, IpuTensor) and value.node.op == "call_function":
                self.nodes.setdefault(value.node.name, place)
        constants = set(() if self.capture is None else self.capture.placeholders.constants) - known
        for constant in constants:
            self.constants[constant.name] = place
            data = args[0] if args else kwargs.get("data")
            if name == "to" or (name in _FROM_DATA and isinstance(data, (np.ndarray, torch.Tensor))):
                text = "moves a tensor of the host to the device; the program keeps the value it has while compiling"
                self.notes.add("captured-constant", place, f"{{where}} {text}")
        touched = any(isinstance(value, IpuTensor) for value in leaves((args, kwargs, result)))
        drawn = name.rstrip("_") in _RANDOM and isinstance(result, torch.Tensor) and not touched
        if drawn or (constants and name in _RANDOM):
            text = STATE.reason("{where}", f"the host's state of torch.{name}")
            self.notes.add("python-randomness", place, text)


def unsupported_operators(survey: Survey, notes: Notes) -> None:
    """Note the operators of a finished trace that PopTorch does not compile."""
    capture = survey.capture
    if capture is None:
        return
    for use in capture.unsupported:
        part = "" if inspection.canonical(use.name) == use.kind else f", part of {use.name}"
        text = OPERATOR.reason("{where}", f"aten::{use.kind}{part}")
        notes.add("unsupported-operator", survey.operators.get(use.name), text, Severity.ERROR)
    for text, name in capture.warned.items():
        about = text.replace(inspection.DOUBT, "Only PopTorch's sources show this.").rstrip(".")
        notes.add("restricted-operator", survey.operators.get(name), about, Severity.NOTE)


def _onto_ipu(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and not isinstance(value, IpuTensor):
        return value.to(inspection.IPU)
    return value


class Printed(io.TextIOBase):
    """Standard output while a forward is traced: printed text is noted, and goes to another stream."""

    def __init__(self, stream: TextIO, notes: Notes) -> None:
        self._stream, self._notes = stream, notes

    def write(self, text: str) -> int:
        place = current_place()
        if place is not None and inspection.active() is not None:
            message = f"{place.where} calls print(), which runs once, while tracing, and has no values to show"
            self._notes.add("print-in-forward", place, message)
        return self._stream.write(text)

    def flush(self) -> None:
        self._stream.flush()
