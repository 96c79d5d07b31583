"""Records the values that a training script computes, in the process that runs it, by hooks and observers."""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import re
import sys
import threading
from typing import Any, Callable, Dict, List, Optional, Sequence, TextIO, Tuple

import torch
import torch.optim.swa_utils
from ignite.engine import Engine
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.weak import WeakTensorKeyDictionary

from ignite_ipu.deferred.events import LoopObserver, existing_gradients, observe
from ignite_ipu.deferred.tensor.deferred_values import resolved
from ignite_ipu.deferred.tensor.tensor import DeferredTensor
from ignite_ipu.errors import CaptureError, ParityError
from ignite_ipu.optimizers.linked_optimizer import newest_state
from ignite_ipu.optimizers.step_hooks import CallHook
from ignite_ipu.parity.engine_values import EngineValues
from ignite_ipu.parity.fingerprints import fingerprint, fingerprints, leaves
from ignite_ipu.parity.names import ModelNames
from ignite_ipu.program.forward.eager import EAGER
from ignite_ipu.program.module_state import REGISTRATIONS
from ignite_ipu.program.tensors.raw import bring_newest
from ignite_ipu.program.user_code import OURS, Owner, is_users_file, owner_of
from ignite_ipu.running.patches import Patches
from ignite_ipu.torch_names.optimizers import pre_hooks_of

# Names that Python's `tempfile` draws.
_TEMPORARY = re.compile(r"^tmp[a-z0-9_]{8}(?=$|\.)")
_OURS = ("ignite_ipu.", "poptorch.")
_SCALER: Any = getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler)
# Substitutes, through which the script's own calls pass.
_PASSING_ON = tuple(os.path.join(OURS, name) + os.sep for name in ("parity", "running"))

Entry = Dict[str, Any]
"""One recorded value: its `kind`, `name`, `update`, the user's `line`, and its fingerprint as `value`.

Values of engines have the number of `batches` of their iterations, and whether a number is the `mean` over these.

An entry of many values of one kind has `names`, and their fingerprints as `many`. One after a device call of several
updates has their number as `updates`, and the last of them as `update`.
"""


class EnoughUpdates(BaseException):
    """Ends a script after the last update that is compared; no `except Exception` of the script catches it."""


class Recorder:
    """Records losses, optimizers, weights, evaluations, engines, files and printed lines until `stop`.

    Args:
        updates: Number of calls of `optimizer.step()` to record; the script ends before the next one.
        everything: Whether large tensors are kept whole.

    Attributes:
        entries: The recorded values, in order.
    """

    def __init__(self, updates: int, everything: bool = False) -> None:
        self.entries: List[Entry] = []
        self._updates, self._everything = updates, everything
        self._made = 0
        self._patches = Patches()
        self._names, self._engines = ModelNames(), EngineValues(self)
        self._calls = _Calls()
        self._scaled = _ScaledLosses()
        # Deferred values, and whether their sums are recorded.
        self._pending: List[Tuple[Entry, torch.Tensor, bool]] = []

    def start(self) -> None:
        """Observe from now on. Substitutes of `ignite-ipu run` are made before."""
        REGISTRATIONS.follow()
        patches = self._patches
        hooks = [register_optimizer_step_pre_hook(_Hook(self._before_step))]
        hooks.append(register_optimizer_step_post_hook(_Hook(self._after_step)))
        for hook in hooks:
            patches.on_undo(hook.remove)
        patches.on_undo(observe(_DeviceObserver(self)))
        self._wrap(torch.Tensor, "backward", self._backward)
        self._wrap(torch.autograd, "backward", self._autograd_backward)
        self._wrap(_SCALER, "scale", self._scaled.scale)
        self._wrap(nn.Module, "named_parameters", self._named_parameters)
        self._wrap(nn.Module, "__call__", self._call)
        self._wrap(Engine, "run", self._engines.run)
        self._wrap(torch, "save", self._save)
        self._wrap(torch.optim.swa_utils, "update_bn", self._update_bn)
        printed = functools.partial(self.record, "printed line", "standard output")
        patches.set(sys, "stdout", _Lines(sys.stdout, printed))

    def stop(self) -> None:
        """Stop observing, and resolve deferred values."""
        stdout = sys.stdout
        if isinstance(stdout, _Lines):
            stdout.end()
        self._patches.undo()
        self._resolve()

    def _wrap(self, owner: Any, name: str, observer: Callable[..., Any]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return observer(original, *args, **kwargs)

        self._patches.set(owner, name, wrapped)

    def record(self, kind: str, name: str, value: Any, line: Optional[str] = None) -> Entry:
        """Record a value, None for one that is not known, at the user's line, which is looked for if not given."""
        line = users_line() if line is None else line
        entry: Entry = {"kind": kind, "name": name, "update": self._made, "line": line, "value": None}
        self.entries.append(entry)
        if value is not None:
            known = resolved(value, "a record of it") if isinstance(value, DeferredTensor) else value
            entry["value"] = fingerprint(known, self._everything)
        return entry

    def defer(self, entry: Entry, tensor: torch.Tensor, summed: bool = False) -> None:
        """Record a deferred value, or its sum, for an entry once its update has run."""
        self._pending.append((entry, tensor, summed))

    def _record_all(self, kind: str, names: Sequence[str], values: Sequence[Any], line: Optional[str]) -> None:
        """Record many values; of tensors that a device has, all are brought to the host by one of their class."""
        for value in {type(value): value for value in values}.values():
            if isinstance(value, torch.Tensor):
                bring_newest(value)
        many = fingerprints(values, self._everything)
        self.entries.append({"kind": kind, "names": names, "update": self._made, "line": line, "many": many})

    def loss(self, tensor: torch.Tensor, deferred: bool) -> None:
        """Record a loss that goes backward; a deferred one is read once its update has run."""
        self._refuse_more()
        tensor = self._scaled.unscaled(tensor)
        entry = self.record("loss", "loss", None if deferred else tensor.detach().sum())
        if deferred:
            self.defer(entry, tensor.detach(), summed=True)

    def evaluated(self, module: Any, output: Any) -> None:
        """Record the output of a call of a model without training, unless it is a part of another such call."""
        if not self._calls.depth and not _is_called_by_ignite():
            self._record_output(module, output)

    def _record_output(self, module: Any, output: Any) -> None:
        for place, value in leaves(output):
            if isinstance(value, torch.Tensor):
                self.record("evaluation", f"{type(module).__name__}(){place}", value)

    def _refuse_more(self, updates: int = 1) -> None:
        """End the script before the updates to come, if those that are to be recorded have been made."""
        if self._made >= self._updates:
            raise EnoughUpdates
        if self._made + updates > self._updates:
            raise ParityError(
                f"Each device call makes {updates} updates, and the comparison of {self._updates} ends within one. "
                f"Set --updates to a multiple of {updates}."
            )

    def _backward(self, original: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        self.loss(tensor, deferred=False)
        return original(tensor, *args, **kwargs)

    def _autograd_backward(self, original: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if users_frame_calls():
            for tensor in [tensors] if isinstance(tensors, torch.Tensor) else list(tensors):
                self.loss(tensor, deferred=False)
        return original(tensors, *args, **kwargs)

    def _named_parameters(self, original: Any, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        # This library calls copies of models, and modules around them, for their parameters, too.
        if not _is_called_by_us():
            self._names.note(module)
        return original(module, *args, **kwargs)

    def _call(self, original: Any, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        # Within a call of a model, or in a trace of it by this library.
        if self._calls.depth:
            return original(module, *args, **kwargs)
        ours = type(module).__module__.startswith(_OURS)
        if ours or next(itertools.chain(module.parameters(), module.buffers()), None) is None:
            return original(module, *args, **kwargs)
        self._names.note(module)
        if EAGER.is_on:
            return original(module, *args, **kwargs)
        self._calls.depth += 1
        try:
            output = original(module, *args, **kwargs)
        finally:
            self._calls.depth -= 1
        if not (module.training and torch.is_grad_enabled()) and not _is_called_by_ignite():
            self._record_output(module, output)
        return output

    def _update_bn(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        # On a device these calls of the model run on the host: the buffers that they write are compared.
        self._calls.depth += 1
        try:
            return original(*args, **kwargs)
        finally:
            self._calls.depth -= 1

    def _before_step(self, optimizer: torch.optim.Optimizer, updates: int) -> None:
        self._refuse_more(updates)
        name = self._names.of_optimizer(optimizer)
        line = users_line()
        for number, group in enumerate(optimizer.param_groups):
            for key, value in group.items():
                if key not in ("params", "param_names") and isinstance(value, (int, float, bool, tuple, torch.Tensor)):
                    for place, part in leaves(value):
                        self.record("hyper-parameter", f"{name}, group {number}, {key}{place}", part, line)

    def _after_step(self, optimizer: torch.optim.Optimizer, updates: int) -> None:
        self._resolve()
        first = len(self.entries)
        self._made += updates - 1
        line = users_line()
        order = [each for group in optimizer.param_groups for each in group["params"]]
        names = self._names.of_weights(optimizer, order)
        # Of a trainer whose steps are device calls it is not known.
        missing = None if _is_updated_by_calls(optimizer) else "is None"
        gradients = existing_gradients(order)
        existing = ["exists" if each else missing if each is None else "is None" for each in gradients]
        if None in existing:
            for name, known in zip(names.parameters, existing):
                self.record("gradient", name, known, line)
        else:
            self._record_all("gradient", names.parameters, existing, line)
        self._record_all("parameter", names.parameters, order, line)
        counted = not isinstance(optimizer, torch.optim.RMSprop)
        called: List[str] = []
        states: List[Any] = []
        called_by = dict(zip(map(id, order), names.parameters))
        for key, state in newest_state(optimizer):
            name = called_by.get(id(key), "a parameter of no group") if isinstance(key, torch.Tensor) else str(key)
            for place, part in leaves(state, name):
                # RMSprop computes nothing from its count of steps, and a device counts for all parameters together.
                if isinstance(part, (int, float, torch.Tensor)) and (counted or place != f"{name}['step']"):
                    called.append(place)
                    states.append(part)
        self._record_all("optimizer state", called, states, line)
        buffers = [(name, table[key]) for name, table, key in names.buffers if table.get(key) is not None]
        self._record_all("buffer", [name for name, _ in buffers], [buffer for _, buffer in buffers], line)
        self.record("random numbers", "the CPU generator", _digest(torch.get_rng_state()), line)
        for entry in self.entries[first:] if updates > 1 else ():
            entry["updates"] = updates
        self._made += 1

    def _resolve(self) -> None:
        pending, self._pending = self._pending, []
        for entry, tensor, summed in pending:
            try:
                known = resolved(tensor.sum() if summed and tensor.dim() else tensor, "a record of it")
                entry["value"] = fingerprint(known, self._everything)
            except CaptureError:
                pass  # no update came of it, so no device computes it, and the host cannot any more
            except Exception as error:
                entry["value"] = fingerprint(f"is not known: {type(error).__name__}")

    def _save(self, original: Any, obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        name = f if isinstance(f, str) else getattr(f, "name", type(f).__name__)
        name = _TEMPORARY.sub("a temporary file", os.path.basename(str(name)))
        if users_line() is not None:
            for place, part in leaves(obj):
                # Of an SGD without momentum PyTorch 2.0 saves None for each parameter, and later versions nothing.
                if part is not None or "['state']" not in place:
                    self.record("saved file", f"{name}{place}", "None" if part is None else part)
        return original(obj, f, *args, **kwargs)


class _ScaledLosses:
    """Losses by those that a `GradScaler` has scaled. It scales on the host alone."""

    def __init__(self) -> None:
        self._unscaled: Any = WeakTensorKeyDictionary()

    def scale(self, original: Any, scaler: Any, outputs: Any) -> Any:
        """Scale losses by the `original` method of a scaler."""
        scaled = original(scaler, outputs)
        if isinstance(outputs, torch.Tensor) and scaled is not outputs:
            self._unscaled[scaled] = outputs.detach()
        return scaled

    def unscaled(self, loss: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self._unscaled.get(loss, loss)
        return found


class _Calls(threading.local):
    """Depth of observed calls of modules in a thread."""

    depth = 0


class _Hook(CallHook):
    """A hook around `optimizer.step()`; hooks of this library's modules are not called around a device's update."""

    def __init__(self, call: Callable[[torch.optim.Optimizer, int], None]) -> None:
        self._call = call
        # Its name in refusals.
        self.__module__, self.__qualname__ = "parity", "parity"

    def of_call(self, optimizer: torch.optim.Optimizer, updates: int) -> None:
        self._call(optimizer, updates)


class _DeviceObserver(LoopObserver):
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def went_backward(self, loss: torch.Tensor) -> None:
        self._recorder.loss(loss, deferred=True)

    def evaluated(self, module: nn.Module, output: Any) -> None:
        self._recorder.evaluated(module, output)


class _Lines:
    """A text stream that hands every complete line on, besides writing it."""

    def __init__(self, stream: TextIO, printed: Callable[[str], object]) -> None:
        self._stream, self._printed = stream, printed
        self._begun = ""

    def write(self, text: str) -> int:
        *complete, self._begun = (self._begun + text).split("\n")
        for line in complete:
            self._printed(line.rpartition("\r")[2])
        return self._stream.write(text)

    def end(self) -> None:
        if self._begun:
            self._printed(self._begun)
        self._begun = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def users_line() -> Optional[str]:
    """Return the innermost line of the user's own code that is running, None outside of it."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users_file(file) and not file.startswith("<"):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def _is_called_by_us() -> bool:
    """Return whether this library made the observed call, and neither the script nor another package."""
    frame: Any = sys._getframe(3)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(OURS) and not file.startswith(_PASSING_ON):
            return True
        if owner_of(file) is not Owner.LIBRARY:
            return False
        frame = frame.f_back
    return False


def _is_updated_by_calls(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an update is a part of each device call, for which this library refuses `optimizer.step()`."""
    hooks = pre_hooks_of(optimizer).values()
    return any(getattr(hook, "__module__", "").startswith(_OURS[0]) for hook in hooks)


def _is_called_by_ignite() -> bool:
    """Return whether an evaluator of Ignite's own made the observed call: it is compared by its engine's output."""
    frame: Any = sys._getframe(1)
    while frame is not None and owner_of(frame.f_code.co_filename) is Owner.LIBRARY:
        if str(frame.f_globals.get("__name__", "")).startswith("ignite.engine"):
            return True
        frame = frame.f_back
    return False


def users_frame_calls() -> bool:
    """Return whether the user's own code made the observed call, and no function of a library."""
    file = sys._getframe(3).f_code.co_filename
    return is_users_file(file) and not file.startswith("<")


def _digest(state: torch.Tensor) -> str:
    return hashlib.sha256(state.numpy().tobytes()).hexdigest()[:16]
