"""The options of a loop's training programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from ignite_ipu import backend
from ignite_ipu.deferred.compiled.places import Places, placed_options
from ignite_ipu.deferred.compiled.update import CompiledUpdate
from ignite_ipu.poptorch_types import Options
from ignite_ipu.program.config import IPUConfig
from ignite_ipu.program.options import set_replicas
from ignite_ipu.session.resolved import Resolved

if TYPE_CHECKING:
    from ignite_ipu.pipeline import PipelineRequest


class ProgramOptions:
    """Resolves the options of each training program.

    Attributes:
        places: The places of the models.
        replicas: Replicas that share the micro-batches of an update.
    """

    def __init__(self, config: IPUConfig, places: Places) -> None:
        self._config, self.places = config, places
        self._base = Resolved.of(placed_options(config, places), True)
        self.replicas = self._base.replicas

    def of(self, wanted: CompiledUpdate, pipeline: Optional[PipelineRequest]) -> Resolved:
        """Return the options of a program, which is of this process alone or of all."""

        def change(options: Options) -> None:
            set_replicas(options, wanted.replicas)
            options.Training.gradientAccumulation(wanted.micro_batches)
            # Several backward calls add their gradients up in PyTorch; loops that want the mean divide the loss.
            options.Training.accumulationAndReplicationReductionType(backend.poptorch().ReductionType.Sum)

        base, alone = self._base, wanted.processes == 1
        if alone and base.geometry.processes > 1:
            base = Resolved.of(placed_options(self._config, self.places, alone), True)
        return Resolved.for_training(base.copied(change), pipeline, alone)
