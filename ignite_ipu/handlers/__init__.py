"""Event handlers for engines that run on IPUs; each is usable alone, with hand-written PopTorch loops too."""

from __future__ import annotations

from ignite_ipu.handlers.compilation import CompilationProgress
from ignite_ipu.handlers.device_swap import DeviceSwap
from ignite_ipu.handlers.gradients import Gradients
from ignite_ipu.handlers.moving_average import EMA
from ignite_ipu.handlers.optimizer_sync import OptimizerSync
from ignite_ipu.handlers.preemption import Preemption
from ignite_ipu.handlers.profiler import PopVisionProfiler
from ignite_ipu.handlers.recompilation import Recompilation, RecompileWatch
from ignite_ipu.handlers.recovery import Decision, Recovery, RecoveryStatus
from ignite_ipu.handlers.release import DeviceRelease
from ignite_ipu.handlers.stats import IPUStats
from ignite_ipu.handlers.weight_sync import WeightSync

__all__ = [
    "EMA",
    "CompilationProgress",
    "Decision",
    "DeviceRelease",
    "DeviceSwap",
    "Gradients",
    "IPUStats",
    "OptimizerSync",
    "PopVisionProfiler",
    "Preemption",
    "Recompilation",
    "RecompileWatch",
    "Recovery",
    "RecoveryStatus",
    "WeightSync",
]
