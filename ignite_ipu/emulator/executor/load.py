"""`poptorch.load`: a compiled executor from a file."""

from __future__ import annotations

from typing import Callable, Optional

from ignite_ipu.emulator.enums import ConnectionType
from ignite_ipu.emulator.executor import saving
from ignite_ipu.emulator.executor.executor import PoplarExecutor
from ignite_ipu.emulator.executor.wrappers import inferenceModel, trainingModel
from ignite_ipu.emulator.options import Options
from ignite_ipu.emulator.version import __version__


def load(filename: str, edit_opts_fn: Optional[Callable[[Options], None]] = None) -> PoplarExecutor:
    """Return a compiled training or inference executor from a file that `save` or `compileAndExport` wrote.

    Args:
        edit_opts_fn: Changes the options before they are used; an offline target is forgotten already.

    Raises:
        AssertionError: The file is of another version, or holds no model.
        Error: The file is damaged, or its model was saved by somebody else who is not trusted.
    """
    file = saving.read(filename)
    if file.version != __version__:
        raise AssertionError(f"Invalid file {filename}: version mismatch, {file.versions}.")
    if saving.MODEL not in file.signed:
        raise AssertionError(
            f"{filename} is a valid PopTorch file but holds no model (export_model=False): wrap the model and call "
            "the executor's loadExecutable()."
        )
    saved = file.pickled(saving.MODEL)
    options: Options = saved["options"]
    options.deleteIfExists("ipu_version")
    if options.connection_type == ConnectionType.Never:
        options.connectionType(ConnectionType.Always)
    if edit_opts_fn is not None:
        edit_opts_fn(options)
    if file.training:
        executor = trainingModel(saved["model"], options, saved["optimizer"])
    else:
        executor = inferenceModel(saved["model"], options)
    if file.rng_state is not None:
        executor._device_state.set_random(file.rng_state)
    executor._compile(file.compiled_arguments(), file.give_to)
    return executor
