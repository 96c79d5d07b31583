"""Ignite events of what happens between host and device."""

from __future__ import annotations

from ignite.engine import EventEnum


class IPUEvents(EventEnum):
    """Events of the engines that `create_ipu_trainer` and `create_ipu_evaluator` return.

    - COMPILE_STARTED, COMPILE_COMPLETED: around the first step, which compiles the program.
    - DEVICE_ATTACHING, DEVICE_ATTACHED: around taking a program's IPUs; DEVICE_DETACHED: it gave them back.
    - WEIGHTS_TO_HOST, WEIGHTS_TO_DEVICE: all weights were copied, by our doing; what PopTorch copies by itself when a
      program is loaded, or when a weight is read, is part of that and fires nothing.
    - OPTIMIZER_SENT: changed hyper-parameters went to the device.
    - SNAPSHOT_TAKEN: a `Recovery` handler has copied all that a device call changes.
    - DEVICE_FAULT: a device call failed; `state.recovery` says how and what will be done.
    - DEVICE_RECOVERED: the failed call has been made good.
    - STATE_SAVED: the newest good state was written to a file, because the run is about to end.
    - RUN_FAILED: an exception ends the run; the IPUs have been given back.
    """

    COMPILE_STARTED = "compile_started"
    COMPILE_COMPLETED = "compile_completed"
    DEVICE_ATTACHING = "device_attaching"
    DEVICE_ATTACHED = "device_attached"
    DEVICE_DETACHED = "device_detached"
    WEIGHTS_TO_HOST = "weights_to_host"
    WEIGHTS_TO_DEVICE = "weights_to_device"
    OPTIMIZER_SENT = "optimizer_sent"
    SNAPSHOT_TAKEN = "snapshot_taken"
    DEVICE_FAULT = "device_fault"
    DEVICE_RECOVERED = "device_recovered"
    STATE_SAVED = "state_saved"
    RUN_FAILED = "run_failed"
