"""`guarded`: refusals of operations that no IPU computes, while a step is traced."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, Sequence, Tuple
from unittest import mock

from torch import nn

from ignite_ipu import backend
from ignite_ipu.errors import UnsupportedArgumentError
from ignite_ipu.program.forward.eager import EAGER
from ignite_ipu.program.forward.equivalents import Equivalents
from ignite_ipu.program.forward.gradients import GradientHookGuard, own_backwards_refused
from ignite_ipu.program.forward.host_tensors import HostTensorsMovedIn
from ignite_ipu.program.forward.model_libraries import (
    declared_as_tracing,
    without_checkpointing,
    without_generation_cache,
)
from ignite_ipu.program.forward.statistics import StatisticsWritten
from ignite_ipu.program.function_mode import FunctionContext, FunctionContexts
from ignite_ipu.program.step import BatchStep
from ignite_ipu.torch_names.modules import AnyBatchNorm, all_named_modules


@contextlib.contextmanager
def guarded(step: BatchStep, training: bool = False, beside: Sequence[FunctionContext] = ()) -> Iterator[bool]:
    """Refuse operations that no IPU computes, while a step is traced; yields whether it is traced.

    `beside` has further contexts of the trace.
    """
    traced: bool = backend.poptorch().isRunningOnIpu()
    if traced:
        with contextlib.ExitStack() as stack:
            stack.enter_context(EAGER)
            modules = all_named_modules(step.model)
            _refuse_counting(modules)
            stack.enter_context(step.integers.on_device(step))
            if training:
                stack.enter_context(own_backwards_refused())
            # The loss, and other operations after the model, belong to the last block of a model annotated by hand.
            stack.enter_context(mock.patch.object(backend.poptorch().Block, "__exit__", _stay_open))
            constants = step.shown.constants(step)
            declared = declared_as_tracing(None if training else step.is_recorded)
            last = GradientHookGuard() if training else StatisticsWritten()
            with FunctionContexts(constants, Equivalents(), HostTensorsMovedIn(), last, *beside), declared:
                with without_checkpointing(training), without_generation_cache([each for _, each in modules]):
                    yield True
            if constants.refusal is not None:
                raise constants.refusal  # PyTorch has the value, and runs no handler of the error
    else:
        # On the host PyTorch computes every loss.
        yield False


def _refuse_counting(modules: Sequence[Tuple[str, nn.Module]]) -> None:
    for path, module in modules:
        counts = isinstance(module, AnyBatchNorm) and module.momentum is None and module.running_mean is not None
        if counts and module.training:
            raise UnsupportedArgumentError(
                f"{path or 'The model'} is a {type(module).__qualname__} with momentum=None: its statistics are "
                "averages over all batches that it has seen, whose number no compiled program reads. Give it a "
                "momentum, a number, such as PyTorch's 0.1."
            )


def _stay_open(block: Any, *error: Any) -> None:
    """Leave a `poptorch.Block` open until the next one begins, as `poptorch.BeginBlock` does."""
