"""Sizes of micro-batches that were found to fit, kept in the directory of cached executables for the next run.

An entry is a JSON file below `fit_batch/`. Its name is a digest of all that the size depends on: the model, the update,
the options and the machine. The file has the same in words, for a reader.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Optional

from torch import nn

from ignite_ipu import backend
from ignite_ipu.checkpoints.atomic_files import whole_file
from ignite_ipu.errors import logger
from ignite_ipu.optimizers.conversion import Conversion
from ignite_ipu.poptorch_types import Options
from ignite_ipu.program.tensors.raw import dtype_of, named_tensors, requires_grad, shape_of
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

_VARIABLE = "POPTORCH_CACHE_DIR"
_FOLDER = "fit_batch"
_FORMAT = 1
_LARGEST_FILE = 1 << 20
# Options that the search chooses, and those that change no program.
_IRRELEVANT = frozenset(
    (
        *("gradient_accumulation", "cachePath", "enableEngineCaching", "compilation_progress_bar_fn", "log_dir"),
        *("max_repeat_logs", "random_seed", "ipu_id", "model_name", "distributed_process_id"),
    )
)


class RememberedSize:
    """The place of one answer, for everything that it depends on; without a cache directory it holds nothing."""

    def __init__(self, directory: Optional[str], about: Dict[str, str]) -> None:
        self._about = {**about, **_machine()}
        digest = hashlib.sha256(json.dumps(self._about, sort_keys=True).encode()).hexdigest()
        self.path = None if directory is None else Path(directory) / _FOLDER / f"{digest[:32]}.json"

    def read(self) -> Optional[int]:
        """Return the size that was found, None where there is none; a damaged file counts as none."""
        if self.path is None or not self.path.is_file():
            return None
        try:
            with open(self.path, "rb") as file:
                content = json.loads(file.read(_LARGEST_FILE))
            size = content["micro_batch_size"] if content["format"] == _FORMAT else None
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            logger.warning("%s cannot be read (%s): the largest micro-batch is searched again.", self.path, error)
            return None
        return size if isinstance(size, int) and not isinstance(size, bool) else None

    def write(self, size: int) -> None:
        """Keep a size; where it cannot be written, log that."""
        if self.path is None:
            return
        content = {"format": _FORMAT, "micro_batch_size": size, "about": self._about}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(self.path) as file:
                file.write(json.dumps(content, indent=1).encode())
        except OSError as error:
            logger.warning("The size of micro-batches is not remembered: %s", error)


def of_training(
    step: nn.Module, conversion: Conversion, options: Options, sample: Dict[str, str], pipeline: str
) -> RememberedSize:
    """Return the place for a trainer's model, optimizer, options and machine.

    Args:
        sample: The samples of an update, and the shapes of one.
        pipeline: The placement that was asked for.
    """
    about = {**sample, "pipeline": pipeline, **conversion.compiled_in(), "code": _digest(_code(step))}
    with DisableTorchFunctionSubclass():
        for name, tensor in named_tensors(step).items():
            trained = ", trained" if requires_grad(tensor) else ""
            about[name] = f"{dtype_of(tensor)} of shape {tuple(shape_of(tensor))}{trained}"
    given = options.toDict()
    about.update((f"option {name}", repr(value)) for name, value in given.items() if name not in _IRRELEVANT)
    return RememberedSize(given.get("cachePath") if given.get("enableEngineCaching") else None, about)


def of_function(function: Callable[..., Any], samples: int) -> RememberedSize:
    """Return the place for a function that trains, by its name, its code and the samples of an update."""
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__qualname__)}"
    about = {"function": name, "code": _digest(_bytecode(function)), "samples": str(samples)}
    return RememberedSize(os.environ.get(_VARIABLE) or None, about)


def _machine() -> Dict[str, str]:
    poptorch = backend.poptorch()
    hardware = poptorch.ipuHardwareVersion() if poptorch.ipuHardwareIsAvailable() else None
    return {"machine": f"{backend.name()} {poptorch.__version__}, IPU version {hardware}"}


def _code(step: nn.Module) -> bytes:
    """Return the compiled code of all modules' forward, and their settings as they print."""
    kinds = {type(module) for module in step.modules()}
    parts = sorted(f"{kind.__module__}.{kind.__qualname__}".encode() + _bytecode(kind.forward) for kind in kinds)
    return b"".join([repr(step).encode(), *parts])


def _bytecode(function: Any) -> bytes:
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return b"" if code is None else b"".join(_code_parts(code))


def _code_parts(code: Any) -> Iterator[bytes]:
    yield code.co_code
    yield repr(code.co_names).encode()
    for constant in code.co_consts:
        if hasattr(constant, "co_code"):
            yield from _code_parts(constant)
        else:
            yield repr(constant).encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
