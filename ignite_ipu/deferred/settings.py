"""Settings of captured steps."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional, Tuple

from ignite_ipu import backend
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.options import training_options

__all__ = ["CaptureObserver", "CaptureSettings"]


class CaptureObserver:
    """Follows captured models. Its methods do nothing; subclasses override them, and may raise to refuse."""

    def captured(self, model: Any) -> None:
        """Note that a `CapturedModel` captures its model's calls from now on."""

    def called(self, model: Any, recorded: bool) -> None:
        """Note a call of a captured model, which is recorded for the device's step or runs an inference program."""

    def went_backward(self, model: Any) -> None:
        """Note that a loss of a captured model went backward."""


@dataclasses.dataclass(frozen=True)
class CaptureSettings:
    """Settings by which captured steps are compiled.

    Attributes:
        options: `poptorch.Options` for training. deviceIterations and gradientAccumulation stay 1: the loop says them.
        replication_factor: Replicas that share the micro-batches of an update.
        variable, constant: Hyper-parameters of the optimizer that may change, and that may not.
        max_grad_norm: Clip gradients to this global norm.
        loss_scaling: Factor on the loss gradient, for half precision.
        seed: Of the device's random numbers; seeds the host's torch, too.
        share_ipus: Let training and evaluation take turns on the same IPUs.
        half_products: Compute matrix products and convolutions in half precision.
        observer: Follows the captured models.
    """

    options: Optional[Any] = None
    replication_factor: Optional[int] = None
    variable: Tuple[str, ...] = ()
    constant: Tuple[str, ...] = ()
    max_grad_norm: Optional[float] = None
    loss_scaling: Optional[float] = None
    seed: Optional[int] = None
    share_ipus: bool = False
    half_products: bool = False
    observer: Optional[CaptureObserver] = None

    def base_options(self) -> Any:
        """Return the training options that every program's own are derived from.

        Raises:
            CaptureError: They say what only the loop can say.
            OptionsError: They cannot run.
        """
        modes = backend.poptorch().OutputMode
        if self.options is not None and not self.options.defaultOutputMode():
            mode = modes(self.options.output_mode)
            if mode is not modes.All:
                raise CaptureError(
                    f"The output mode is {mode.name} in the options, but the loop reads the values of every "
                    "micro-batch: leave the output mode alone, or set it to All."
                )
        result = training_options(
            self.options, replication_factor=self.replication_factor, output_mode="All", seed=self.seed
        )
        for name, value in (
            ("deviceIterations", result.device_iterations),
            ("Training.gradientAccumulation", result.Training.gradient_accumulation),
        ):
            if value != 1:
                raise CaptureError(
                    f"{name} is {value} in the options, but in a captured step the loop decides: every "
                    "optimizer.step() is one device call, with as many micro-batches as went backward. Leave it at 1, "
                    "and set gradient_accumulation_steps."
                )
        return result
