"""Rehearsal of a script: its executors compile and do not run, and the host computes the results of calls."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import os
import tempfile
from typing import Any, Callable, Iterator, List, Optional

import torch

from ignite_ipu import backend
from ignite_ipu.errors import RunError
from ignite_ipu.poptorch_types import Executor, Options
from ignite_ipu.program.forward.randomness import draws_put_back
from ignite_ipu.program.geometry import BatchGeometry
from ignite_ipu.program.guards.retrace import OperatorRecorder
from ignite_ipu.program.host_call import HostCall
from ignite_ipu.program.step import BatchStep
from ignite_ipu.program.tensors.raw import plain
from ignite_ipu.program.tensors.trees import map_tensors
from ignite_ipu.program.user_code import current_line
from ignite_ipu.running.patches import Patches

_NARROW = {torch.int64: torch.int32, torch.float64: torch.float32}


class RehearsalEnd(SystemExit):
    """End of a script that is rehearsed; no `except Exception` of the script's keeps it."""


class Rehearsal:
    """Programs that have been compiled, in words, and the device calls in a row that needed none before it ends."""

    def __init__(self, most_calls: Optional[int]) -> None:
        self.compiled: List[str] = []
        self._most_calls, self._calls = most_calls, 0

    def note(self, program: str) -> None:
        print(f"compiled: {program}", flush=True)
        self.compiled.append(program)
        self._calls = 0

    def note_call(self) -> None:
        """Note a device call, and end the script if there were enough of them."""
        if self._most_calls is not None and self._calls >= self._most_calls:
            raise RehearsalEnd(f"{self._calls} device calls in a row needed nothing compiled, at {current_line()}")
        self._calls += 1


@contextlib.contextmanager
def rehearsed(most_calls: Optional[int], saves: bool) -> Iterator[Rehearsal]:
    """Have executors compile and not run in the `with` block.

    A call returns the host's result of one of its micro-batches, with the weights at that time, repeated for all
    micro-batches. Later calls return the same. Nothing is trained. `RehearsalEnd` ends the script after `most_calls`
    calls in a
    row that needed nothing compiled, and at the first file with weights unless it `saves` them.
    """
    rehearsal, patches, poptorch = Rehearsal(most_calls), Patches(), backend.poptorch()
    try:
        for name in ("trainingModel", "inferenceModel"):
            wrap = functools.partial(_wrapped, rehearsal, getattr(poptorch, name))
            patches.set(poptorch, name, wrap)
        if not saves:
            patches.set(torch, "save", functools.partial(_save, torch.save))
            if importlib.util.find_spec("safetensors") is not None:
                import safetensors.torch

                for original in (safetensors.torch.save_file, safetensors.torch.save_model):
                    for package in ("safetensors", "accelerate", "transformers"):
                        patches.set_everywhere(package, original, functools.partial(_save, original))
        yield rehearsal
    finally:
        patches.undo()


def _save(original: Callable[..., Any], value: Any, file: Any, *args: Any, **kwargs: Any) -> Any:
    if isinstance(file, io.BytesIO) or _is_temporary(getattr(file, "name", file)):
        return original(value, file, *args, **kwargs)
    raise RehearsalEnd(f"the script would write weights that nothing has trained, at {current_line()}")


def _is_temporary(path: Any) -> bool:
    """Return whether a file is temporary: a learning rate finder keeps previous weights in one."""
    temporary, here = map(os.path.realpath, (tempfile.gettempdir(), os.getcwd()))
    # One that `tempfile` has opened may be known by its number alone.
    place = os.path.realpath(f"/proc/self/fd/{path}" if isinstance(path, int) else path) + os.sep
    return place.startswith(temporary + os.sep) and not place.startswith(here + os.sep)


def _wrapped(rehearsal: Rehearsal, wrap: Callable[..., Executor], step: Any, *given: Any, **arguments: Any) -> Any:
    """Return an executor that compiles and does not run."""
    if not isinstance(step, BatchStep) or given:
        raise RunError(
            None,
            f"{current_line()} wraps a {type(step).__qualname__} by PopTorch itself, which is not rehearsed: call the "
            "compileAndExport() of its executor, with options that have useOfflineIpuTarget().",
        )
    offline: Options = arguments.pop("options").clone()
    offline.useOfflineIpuTarget()
    executor: Any = wrap(step, options=offline, **arguments)
    results: List[Any] = []

    class Rehearsed(type(executor)):  # type: ignore[misc]
        """An executor whose IPUs are elsewhere; values that only they have are not touched."""

        rng_state: Optional[List[int]] = None

        def compile(self, *args: Any, **kwargs: Any) -> None:
            results.clear()
            super().compile(*args, **kwargs)
            kind = "training" if "optimizer" in arguments else "inference"
            shapes = ", ".join(str(tuple(each.shape)) for each in args if isinstance(each, torch.Tensor))
            rehearsal.note(f"{kind} of {step.model.__class__.__name__.replace('Poptorch', '')}: {shapes}")

        def __call__(self, *args: Any) -> Any:
            """Return the host's result of one micro-batch, repeated for all micro-batches."""
            rehearsal.note_call()
            if not results:
                results.append(_on_host(step, args, self.options))
            return map_tensors(results[0], torch.clone)

        def isAttachedToDevice(self) -> bool:
            """Return whether there is a program, which is as good as one on its IPUs here."""
            return bool(self.isCompiled())

        def attachToDevice(self) -> None:
            """Do nothing."""

        detachFromDevice = copyWeightsToDevice = attachToDevice

        def getAnchoredTensor(self, short_name: str) -> torch.Tensor:
            """Return zeros for the gradient of a weight."""
            name = dict(self.options.anchored_tensors)[short_name][0].split("___", 1)[-1]
            return torch.zeros_like(plain(dict(step.named_parameters())[name]))

    executor.__class__ = Rehearsed
    return executor


def _on_host(step: BatchStep, leaves: Any, options: Options) -> Any:
    calls = BatchGeometry.from_options(options, 1)
    mode = backend.poptorch().OutputMode(options.output_mode).name
    times = calls.replication_factor
    if mode != "Sum":
        times = len(calls.returned_micro_batches(mode, options.output_return_period))
    with draws_put_back():
        result = HostCall(step, leaves, calls.input_micro_batches)(OperatorRecorder())
    return map_tensors(result, functools.partial(_returned, times=times))


def _returned(tensor: torch.Tensor, times: int) -> torch.Tensor:
    tensor = tensor.detach().to(_NARROW.get(tensor.dtype, tensor.dtype))
    return tensor.repeat(times, *[1] * (tensor.dim() - 1)) if tensor.dim() or times > 1 else tensor
