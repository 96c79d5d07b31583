"""Settings of captured steps: those that a loop cannot honour, and the options of its programs."""

from __future__ import annotations

import dataclasses
from typing import Optional

from ignite_ipu import backend
from ignite_ipu.errors import CaptureError
from ignite_ipu.poptorch_types import Options
from ignite_ipu.program.config import IPUConfig
from ignite_ipu.program.options import own_options, training_options, with_replicas

_OF_THE_LOOP = (
    "in a captured step the loop decides: every optimizer.step() is one device call, with as many micro-batches as "
    "went backward. Leave it at 1, and call backward() several times before optimizer.step()."
)
_REFUSED = {
    "device_iterations": _OF_THE_LOOP,
    "output_return_period": "a captured loop reads the values of every micro-batch. Leave it out.",
    "loader_mode": "a captured loop has loaders of its own, which are left as they are. Leave it out.",
    "weight_sync": "weights of a captured loop are copied when they are read. Leave it out.",
}


def capture_refusal(config: IPUConfig, accumulates: bool = False) -> Optional[str]:
    """Return the reason why a captured loop cannot honour a setting, None if it honours all.

    `accumulates` is True for a caller that gives `gradient_accumulation_steps` to the loop, as `IPUAccelerator` does.
    """
    reasons = dict(_REFUSED) if accumulates else {**_REFUSED, "gradient_accumulation_steps": _OF_THE_LOOP}
    if not accumulates and config.replication_factor == "auto":
        reasons["replication_factor"] = "how many micro-batches replicas share is known after a step. Say a number."
    for name, value in config.said().items():
        if name in reasons and value != "on demand":
            return f"{name} is {value!r}, but {reasons[name]}"
    return None


def leaving_device(config: IPUConfig) -> IPUConfig:
    """Return a configuration with `update="auto"` unless it names a kind of update.

    It is the default where a loop was not written for IPUs: such a loop may do anything that PyTorch can.
    """
    return config if config.update is not None else dataclasses.replace(config, update="auto")


def refuse_for_capture(config: IPUConfig, accumulates: bool = False) -> None:
    """Raise a `CaptureError` for a setting that a captured loop cannot honour; arguments as of `capture_refusal`."""
    reason = capture_refusal(config, accumulates)
    if reason is not None:
        raise CaptureError(reason)


def captured_options(config: IPUConfig, ipus_per_replica: Optional[int] = None, alone: bool = False) -> Options:
    """Return the training options that every program's own are derived from; if `alone`, of this process alone.

    A `CaptureError` if they set values that only the loop can set, an `OptionsError` if they cannot run.
    """
    refuse_for_capture(config, accumulates=True)
    modes, own = backend.poptorch().OutputMode, own_options(config)
    mode = config.output_mode or (None if own.defaultOutputMode() else modes(own.output_mode).name)
    if mode not in (None, "All"):
        raise CaptureError(
            f"The output mode is {mode} in the options, but the loop reads the values of every micro-batch: leave the "
            "output mode alone, or set it to All."
        )
    shared = (config.gradient_accumulation_steps or 1) * (config.split_batch or 1)
    config = with_replicas(config, ipus_per_replica, shared=shared)
    config = dataclasses.replace(config, output_mode="All", gradient_accumulation_steps=None)
    result = training_options(config, ipus_per_replica=ipus_per_replica, alone=alone)
    for name, value in (
        ("deviceIterations", result.device_iterations),
        ("Training.gradientAccumulation", result.Training.gradient_accumulation),
    ):
        if value != 1:
            raise CaptureError(f"{name} is {value} in the options, but {_OF_THE_LOOP}")
    return result
