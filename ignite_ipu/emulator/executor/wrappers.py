"""`trainingModel` and `inferenceModel`: the two ways to wrap a model."""

from __future__ import annotations

from typing import Any, Optional, Union

import torch
from torch import nn

from ignite_ipu.emulator import optim
from ignite_ipu.emulator.errors import python_error
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
    accumulation = 1 if options is None else options.Training.gradient_accumulation
    if accumulation != 1:
        raise python_error(
            f"You must set Options.Training.gradientAccumulation to 1 for inference, it is {accumulation}."
            + _pipelining_hint(options)
        )
    return PoplarExecutor(user_model, options, False, __version__, None, user_model)


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


def _pipelining_hint(options: Any) -> str:
    strategy = options._execution_strategy
    if isinstance(strategy, PipelinedExecution) and not isinstance(strategy, ShardedExecution):
        return " To fill the pipeline in inference, use Options.deviceIterations instead."
    return ""
