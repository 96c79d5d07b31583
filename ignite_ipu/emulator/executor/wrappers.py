"""`trainingModel`, `inferenceModel` and `load`: the ways to a wrapped model."""

from __future__ import annotations

from typing import Any, Callable, Optional, Union

import torch
from torch import nn

from ignite_ipu.emulator import optim
from ignite_ipu.emulator.enums import ConnectionType
from ignite_ipu.emulator.errors import python_error
from ignite_ipu.emulator.executor import saving
from ignite_ipu.emulator.executor.executor import PoplarExecutor
from ignite_ipu.emulator.options import Options, PipelinedExecution, ShardedExecution
from ignite_ipu.emulator.values.wrapping import is_wrapped
from ignite_ipu.emulator.version import __version__


def trainingModel(
    model: Union[nn.Module, PoplarExecutor],
    options: Optional[Options] = None,
    optimizer: Optional[torch.optim.Optimizer] = None,
) -> PoplarExecutor:
    """Wrap a model, which must compute its loss in `forward`, for training.

    Args:
        model: The model; it is changed in place until `destroy()`. An executor stands for the model inside it.
        options: Frozen by this call; None means the defaults.
        optimizer: None means `poptorch.optim.SGD(model.parameters(), lr=0.01)`.

    Raises:
        Error: `options` is no `Options`, or a buffer is no plain tensor.
        RuntimeError: The model is already wrapped for training.
        TypeError: The model is neither a module nor callable.
    """
    options = _frozen(options)
    user_model = _user_model(model)
    if is_wrapped(user_model):
        raise RuntimeError(
            "Model has already been wrapped in 'poptorch.trainingModel'. Use that executor, or call its destroy() "
            "(after it was compiled) before wrapping the model again."
        )
    if optimizer is None:
        optimizer = optim.SGD(user_model.parameters(), lr=0.01)
    return PoplarExecutor(user_model, options, True, __version__, optimizer, user_model)


def inferenceModel(model: Union[nn.Module, PoplarExecutor], options: Optional[Options] = None) -> PoplarExecutor:
    """Wrap a model for inference; the model itself is not changed.

    Args:
        model: The model; an executor stands for the model inside it.
        options: Frozen by this call; None means the defaults.

    Raises:
        Error: `options` is no `Options`, or asks for gradient accumulation.
        TypeError: The model is neither a module nor callable.
    """
    options = _frozen(options)
    user_model = _user_model(model)
    if options is not None and options.Training.gradient_accumulation != 1:
        strategy = options._execution_strategy
        pipelined = isinstance(strategy, PipelinedExecution) and not isinstance(strategy, ShardedExecution)
        raise python_error(
            "You must set Options.Training.gradientAccumulation to 1 for inference, it is "
            f"{options.Training.gradient_accumulation}."
            + (" To fill the pipeline in inference, use Options.deviceIterations instead." if pipelined else "")
        )
    return PoplarExecutor(user_model, options, False, __version__, None, user_model)


def load(filename: str, edit_opts_fn: Optional[Callable[[Options], None]] = None) -> PoplarExecutor:
    """Return a compiled training or inference executor from a file that `save` or `compileAndExport` wrote.

    Args:
        edit_opts_fn: Changes the options before they are used; an offline target is forgotten already.

    Raises:
        AssertionError: The file is of another version, or holds no model.
        Error: The file is damaged, or its model was saved by another user who is not trusted.
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
        executor._life.state.set_random(file.rng_state)
    executor._compile(file.compiled_arguments(), file.give_to)
    return executor


def _user_model(model: Any) -> nn.Module:
    if isinstance(model, PoplarExecutor):
        return model._user_model
    if not isinstance(model, nn.Module) and not callable(model):
        raise TypeError(f"Expected a torch.nn.Module or a callable, got {type(model).__qualname__}: {model!r}.")
    user_model: nn.Module = model
    user_model.training  # noqa: B018  # a plain function fails here, as it does in PopTorch
    return user_model


def _frozen(options: Any) -> Optional[Options]:
    if not options:
        return None
    if not isinstance(options, Options):
        raise python_error(
            f"Invalid type: 'options' must be of type poptorch.Options, got {type(options).__qualname__}. "
            "The optimizer is the third argument; pass it by keyword."
        )
    options._freeze()
    return options
