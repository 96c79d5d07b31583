"""Executables in files: programs that were compiled ahead, for other processes and for machines that have the IPUs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, Optional, Union

from ignite_ipu.checkpoints.atomic_files import whole_file
from ignite_ipu.errors import SessionError, listed
from ignite_ipu.optimizers.host_link import Link
from ignite_ipu.poptorch_types import Executor
from ignite_ipu.program.step import BatchStep
from ignite_ipu.program.tensors.raw import dtype_of, named_tensors, requires_grad, shape_of
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

PathLike = Union[str, "os.PathLike[str]"]
_LARGEST_CONTRACT = 1 << 24
_COMPUTED = "what forward computes"
# Options for the place of compilation, storage and execution, and for reports.
_OF_THE_MACHINE = frozenset(
    (
        *("compilation_progress_bar_fn", "connection_type", "ipu_id", "ipu_version", "use_model", "random_seed"),
        *("cachePath", "enableEngineCaching", "engineOptions", "log_dir", "max_repeat_logs", "model_name"),
        *("distributed_process_id", "ipuof_configs"),
    )
)


def export(path: PathLike, executor: Executor, step: BatchStep, link: Optional[Link], computed: Optional[str]) -> None:
    """Write a compiled program to a file, and its source to another one with the suffix `.json`.

    `computed` stands for the operators of forward, and is None where it is not known.
    """
    executor.save(os.fspath(path), export_model=False, save_rng_state=False)
    with whole_file(_beside(path)) as file:
        file.write(json.dumps({**_contract(executor, step, link), _COMPUTED: computed}, indent=1).encode())


class ExportedProgram:
    """A compiled program that `export` wrote, for a program of the same model to take instead of being compiled."""

    def __init__(self, path: PathLike) -> None:
        self.path = os.fspath(path)
        try:
            with open(_beside(path), "rb") as file:
                contract = json.loads(file.read(_LARGEST_CONTRACT))
            if not os.path.isfile(path):
                raise FileNotFoundError(f"there is no file {self.path}")
            if not isinstance(contract, dict) or _COMPUTED not in contract:
                raise ValueError(f"{_beside(path)} does not describe the source of the executable")
        except (OSError, ValueError, RecursionError) as error:
            raise SessionError(
                f"{self.path} is no executable that compile_and_export has written, with the file {_beside(path).name} "
                f"beside it: {error}."
            ) from error
        self._computed = contract.pop(_COMPUTED)
        self._contract: Dict[str, Any] = contract

    def give_to(self, executor: Executor, step: BatchStep, link: Optional[Link]) -> None:
        """Let an executor take the program over."""
        wanted = _contract(executor, step, link)
        names = [name for name in {**self._contract, **wanted} if self._contract.get(name) != wanted.get(name)]
        if names:
            differences = [
                f"{name} is {wanted.get(name, 'not there')} and was {self._contract.get(name, 'not there')}"
                for name in names
            ]
            raise self._refusal(listed(differences))
        try:
            executor.loadExecutable(self.path)
        except Exception as error:
            raise self._refusal(f"PopTorch says: {error}") from error

    def check(self, computed: Optional[str]) -> None:
        """Refuse a program whose forward calls other operators than the compiled one."""
        if None not in (computed, self._computed) and computed != self._computed:
            raise self._refusal("forward calls other operators, or computes with other constants")

    def _refusal(self, reason: str) -> SessionError:
        return SessionError(
            f"{self.path} is not the executable of this program: {reason}. Export it again by compile_and_export, or "
            "compile without it."
        )


def _beside(path: PathLike) -> Path:
    return Path(f"{os.fspath(path)}.json")


def _contract(executor: Executor, step: BatchStep, link: Optional[Link]) -> Dict[str, str]:
    """Return in words all dependencies of a compiled program, beside the operations of forward."""
    found = {"the kind": "inference" if link is None else "training", **step.layout.describe()}
    with DisableTorchFunctionSubclass():
        for name, tensor in named_tensors(step).items():
            trained = ", trained" if link is not None and requires_grad(tensor) else ""
            found[name] = f"{dtype_of(tensor)} of shape {tuple(shape_of(tensor))}{trained}"
    for name, value in executor.options.toDict().items():
        if name not in _OF_THE_MACHINE:
            found[f"option {name}"] = repr(value)
    if link is not None:
        found.update(link.conversion.compiled_in())
    return found
