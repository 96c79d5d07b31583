"""Event handlers for engines that run on IPUs; each is usable alone, with hand-written PopTorch loops too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ignite_ipu.exports import exports

if TYPE_CHECKING:
    from ignite_ipu.handlers.compilation import CompilationProgress as CompilationProgress
    from ignite_ipu.handlers.devices import DeviceRelease as DeviceRelease
    from ignite_ipu.handlers.devices import DeviceSwap as DeviceSwap
    from ignite_ipu.handlers.gradients import Gradients as Gradients
    from ignite_ipu.handlers.moving_average import EMA as EMA
    from ignite_ipu.handlers.optimizer_sync import OptimizerSync as OptimizerSync
    from ignite_ipu.handlers.preemption import Preemption as Preemption
    from ignite_ipu.handlers.profiler import PopVisionProfiler as PopVisionProfiler
    from ignite_ipu.handlers.recompilation import Recompilation as Recompilation
    from ignite_ipu.handlers.recompilation import RecompileWatch as RecompileWatch
    from ignite_ipu.handlers.recovery import Decision as Decision
    from ignite_ipu.handlers.recovery import Recovery as Recovery
    from ignite_ipu.handlers.recovery import RecoveryStatus as RecoveryStatus
    from ignite_ipu.handlers.stats import IPUStats as IPUStats
    from ignite_ipu.handlers.weight_sync import WeightSync as WeightSync

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "compilation": "CompilationProgress",
        "devices": "DeviceRelease DeviceSwap",
        "gradients": "Gradients",
        "moving_average": "EMA",
        "optimizer_sync": "OptimizerSync",
        "preemption": "Preemption",
        "profiler": "PopVisionProfiler",
        "recompilation": "Recompilation RecompileWatch",
        "recovery": "Decision Recovery RecoveryStatus",
        "stats": "IPUStats",
        "weight_sync": "WeightSync",
    },
)
