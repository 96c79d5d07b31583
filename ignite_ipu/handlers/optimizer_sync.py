"""`OptimizerSync`: hyper-parameters that were changed on the host reach the device, once, before the next step."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, List, Tuple

import torch
from ignite.engine import Engine, Events

from ignite_ipu.errors import OptimizerError
from ignite_ipu.poptorch_types import Executor

__all__ = ["OptimizerSync"]

# By group, and then the loss scaling: the value under each name, and a copy of it to compare with.
_Values = List[Dict[str, Tuple[Any, Any]]]


class OptimizerSync:
    """Calls `setOptimizer` when something in an optimizer has changed, for PopTorch loops of your own.

    The engines of this library do this by themselves. With a hand-written step, schedulers and your own code change
    `optimizer.param_groups` and PopTorch notices nothing until it is told::

        training_model = poptorch.trainingModel(model, options, optimizer)
        OptimizerSync(training_model, optimizer).attach(trainer)

    Args:
        executor: The `poptorch.PoplarExecutor` that trains.
        optimizer: The optimizer it was made with.
        on_change: Called after each `setOptimizer`.
    """

    def __init__(
        self, executor: Executor, optimizer: torch.optim.Optimizer, on_change: Callable[[], None] = lambda: None
    ) -> None:
        self._executor, self._optimizer, self._on_change = executor, optimizer, on_change
        self._sent = self._values()

    def attach(self, engine: Engine) -> None:
        """Look for changes before each step of this engine.

        Attach it after the schedulers of `ITERATION_STARTED`: handlers of one event run in their order of attaching.
        """
        engine.add_event_handler(Events.ITERATION_STARTED, self.sync)

    def sync(self) -> bool:
        """Send changes to the device now; returns whether there were any.

        Raises:
            Exception: PopTorch refuses, for example because a value was compiled in as a constant. The optimizer then
                has the values it had before, in the same tensors and lists.
            OptimizerError: The loss scaling has changed, and the device holds a momentum that is multiplied by it.
        """
        values = self._values()
        if _copies(values) == _copies(self._sent):
            return False
        try:
            self._check_loss_scaling(values[-1]["loss_scaling"][1])
            self._executor.setOptimizer(self._optimizer)
        except BaseException:
            # PopTorch keeps a refused value, and cannot read the state until it accepts another one.
            self._restore()
            with contextlib.suppress(Exception):
                self._executor.setOptimizer(self._optimizer)
            raise
        self._sent = values
        self._on_change()
        return True

    def _check_loss_scaling(self, scaling: Any) -> None:
        sent = self._sent[-1]["loss_scaling"][1]
        velocities = isinstance(self._optimizer, torch.optim.SGD) and any(
            group["momentum"] for group in self._optimizer.param_groups
        )
        combined = getattr(self._optimizer, "use_combined_accum", False)
        if scaling != sent and velocities and not combined and self._executor.isCompiled():
            raise OptimizerError(
                f"loss_scaling of the SGD changed from {sent} to {scaling}, but the device holds its momentum times "
                f"{sent}, which PopTorch leaves as it is and would misread. Keep the loss scaling, change it before "
                "the model is compiled, or train with create_ipu_trainer, which rescales the momentum."
            )

    def _values(self) -> _Values:
        whole = {"loss_scaling": getattr(self._optimizer, "loss_scaling", None)}
        groups = (*self._optimizer.param_groups, whole)
        return [{name: (value, _copied(value)) for name, value in each.items() if name != "params"} for each in groups]

    def _restore(self) -> None:
        *groups, whole = self._sent
        for group, values in zip(self._optimizer.param_groups, groups):
            group.update((name, _put_back(value, copy)) for name, (value, copy) in values.items())
        if whole["loss_scaling"][1] is not None:
            self._optimizer.loss_scaling = whole["loss_scaling"][1]  # type: ignore[attr-defined]


def _copies(values: _Values) -> List[Dict[str, Any]]:
    return [{name: copy for name, (_, copy) in each.items()} for each in values]


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return float(value) if value.numel() == 1 else tuple(value.tolist())
    return tuple(value) if isinstance(value, list) else value


def _put_back(value: Any, sent: Any) -> Any:
    """Return an object with the values that were sent; code may have written into it since."""
    if isinstance(value, torch.Tensor):
        with torch.no_grad():
            value.copy_(torch.tensor(sent, dtype=value.dtype).reshape(value.shape))
    elif isinstance(value, list):
        value[:] = sent
    return value
