"""The inference programs of one model, and the options they are compiled with."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from torch import nn

from ignite_ipu import backend
from ignite_ipu.events import IPUEvents
from ignite_ipu.options import check_ipus, evaluation_options
from ignite_ipu.pipeline.request import PipelineRequest
from ignite_ipu.placing import Placing
from ignite_ipu.programs import Program
from ignite_ipu.step import BatchStep
from ignite_ipu.weights import Weights

__all__ = ["Evaluations"]

_PROGRESS_BAR = "compilation_progress_bar_fn"
_Factors = Tuple[Optional[int], Optional[int]]


class Evaluations:
    """What evaluates a model: one program for all evaluators that ask for the same.

    Args:
        weights: Who holds the newest weights.
        fire: Called with what happens.
        on_trace: As for `Program`.

    Attributes:
        programs: The programs there are.
    """

    def __init__(
        self,
        weights: Weights,
        fire: Callable[[IPUEvents], None],
        on_trace: Callable[[Program, Sequence[Any], List[str]], None],
    ) -> None:
        self.programs: List[Program] = []
        self._weights = weights
        self._fire = fire
        self._on_trace = on_trace
        self._training: Optional[Any] = None
        # What options were made from, and they.
        self._derived: Dict[_Factors, Tuple[Any, Any]] = {}
        self._completed: List[Tuple[Any, _Factors, Any]] = []

    def derive_from(self, training: Any) -> None:
        """Derive options from these from now on: those of the newest trainer."""
        self._training = training

    def options(self, given: Optional[Any], device_iterations: Optional[int], replication_factor: Optional[int]) -> Any:
        """Return the options to evaluate with: the given ones, else derived ones; the same object for the same wish.

        Derived options stay the ones of the trainer before as long as all is the same that a program depends on.

        Raises:
            OptionsError: They contradict each other or ask for gradient accumulation.
        """
        factors = device_iterations, replication_factor
        if given is not None:
            for source, wanted, completed in self._completed:
                if source is given and wanted == factors:
                    return completed
            completed = evaluation_options(
                given, device_iterations=device_iterations, replication_factor=replication_factor
            )
            self._completed.append((given, factors, completed))
            return completed
        training, known = self._derived.get(factors, (None, None))
        if known is not None and training is self._training:
            return known
        derived = evaluation_options(
            training=self._training, device_iterations=device_iterations, replication_factor=replication_factor
        )
        if known is not None and _compiled_from(known) == _compiled_from(derived):
            derived = known
        self._derived[factors] = self._training, derived
        return derived

    def prepare(self, step: BatchStep, options: Any, pipeline: Optional[PipelineRequest]) -> Program:
        """Return the program that evaluates so; evaluators that ask for the same share one.

        Args:
            step: The module that evaluates.
            options: `poptorch.Options` for inference.
            pipeline: What puts the model on several IPUs.

        Raises:
            PlanError: The pipeline does not suit the model or the options.
            OptionsError: No IPUs can be had for these options.
        """
        for program in self.programs:
            asked = None if program.placing is None else program.placing.request
            if asked == pipeline and program.options is options and program.step.computes_like(step):
                return program
        check_ipus(options)
        placing = None if pipeline is None else Placing(pipeline, step, options, False)
        program = Program(step, options, _wrap, False, self._weights, self._fire, placing)
        program.on_trace = self._on_trace
        self.programs.append(program)
        return program

    def drop(self, program: Program) -> None:
        """Destroy a program that nobody needs any more."""
        program.destroy()
        if program in self.programs:
            self.programs.remove(program)


def _wrap(step: nn.Module, options: Any) -> Any:
    return backend.poptorch().inferenceModel(step, options=options)


def _compiled_from(options: Any) -> Dict[str, Any]:
    """Return what PopTorch's compiler is told."""
    return {name: value for name, value in options.toDict().items() if name != _PROGRESS_BAR}
