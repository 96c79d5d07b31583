"""How a model is evaluated: its inference programs, the options they are compiled with, and their calls."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

from torch import nn

from ignite_ipu import backend
from ignite_ipu.errors import RowsError
from ignite_ipu.pipeline.placing.request import PipelineRequest
from ignite_ipu.program.options import check_ipus, evaluation_options
from ignite_ipu.program.step import BatchStep
from ignite_ipu.program.tensors.rows import join_rows, row_count, split_rows, take_rows
from ignite_ipu.session.batch_padding import FillingCheck
from ignite_ipu.session.placement import Placing
from ignite_ipu.session.program import Program

if TYPE_CHECKING:
    from ignite_ipu.session.session import IPUSession

__all__ = ["Inference"]

_logger = logging.getLogger("ignite_ipu")
_LARGER = (
    "Predictions of %s change, or may, when a batch is cut into pieces of the %d rows that the program has: it is "
    "compiled again for batches of %d rows. On IPUs each compilation takes minutes: begin with the largest batch."
)
_PROGRESS_BAR = "compilation_progress_bar_fn"
_Wishes = Tuple[Tuple[str, Any], ...]


class Inference:
    """What evaluates a model: one program for all evaluators that ask for the same.

    Args:
        session: The model's session, which has the programs.

    Attributes:
        filling: Finds out whether filling up a batch changes the predictions for its samples.
    """

    def __init__(self, session: IPUSession) -> None:
        self.filling = FillingCheck()
        self._session = session
        self._training: Optional[Any] = None
        # What options were made from, and they.
        self._derived: Dict[_Wishes, Tuple[Any, Any]] = {}
        self._completed: List[Tuple[Any, _Wishes, Any]] = []

    def derive_from(self, training: Any) -> None:
        """Derive options from these from now on: those of the newest trainer."""
        self._training = training

    def options(
        self,
        given: Optional[Any] = None,
        **wishes: Any,
    ) -> Any:
        """Return the options to evaluate with: the given ones, else ones derived from the newest trainer's.

        Args:
            given: The user's own.
            wishes: Further arguments of `evaluation_options`; those that are None count for nothing.

        They are the same object for the same wish, until the given ones are changed, or a trainer has options that
        compile to another program.

        Raises:
            OptionsError: They contradict each other or ask for gradient accumulation.
        """
        key = tuple(sorted((name, value) for name, value in wishes.items() if value is not None))
        if given is not None:
            completed = evaluation_options(given, **wishes)
            for source, wanted, known in self._completed:
                if source is given and wanted == key and _compiled_from(known) == _compiled_from(completed):
                    return known
            self._completed.append((given, key, completed))
            return completed
        training, known = self._derived.get(key, (None, None))
        if known is not None and training is self._training:
            return known
        derived = evaluation_options(training=self._training, **wishes)
        if known is not None and _compiled_from(known) == _compiled_from(derived):
            derived = known
        self._derived[key] = self._training, derived
        return derived

    def prepare(
        self,
        step: BatchStep,
        options: Any,
        pipeline: Optional[PipelineRequest] = None,
        instead_of: Optional[Program] = None,
    ) -> Program:
        """Return the program that evaluates the model so; evaluators that ask for the same share one.

        Args:
            step: The module that evaluates.
            options: `poptorch.Options` for inference.
            pipeline: What puts the model on several IPUs; the trainer's layers are put where they train when None.
            instead_of: What has evaluated for the caller so far, and is destroyed if another program does from now on.

        Raises:
            PlanError: The pipeline does not suit the model or the options.
            OptionsError: No IPUs can be had for these options.
        """
        session = self._session
        session.follow_states()
        if pipeline is None and session.training is not None and session.training.placing is not None:
            pipeline = session.training.placing.inference
        program = self._known(step, options, pipeline)
        if program is None:
            check_ipus(options)
            placing = None if pipeline is None else Placing(pipeline, step, options, False)
            program = Program(step, options, _wrap, False, session.weights, session.fire, placing)
            program.on_trace = session.report_frozen
            session.evaluations.append(program)
        if instead_of is not None and instead_of is not program:
            self.drop(instead_of)
        return program

    def _known(self, step: BatchStep, options: Any, pipeline: Optional[PipelineRequest]) -> Optional[Program]:
        for program in self._session.evaluations:
            asked = None if program.placing is None else program.placing.request
            if asked == pipeline and program.asked is options and program.step.computes_like(step):
                return program
        return None

    def drop(self, program: Program) -> None:
        """Destroy a program that nobody needs any more."""
        session = self._session
        program.destroy()
        if session.active is program:
            session.active = None
        if program in session.evaluations:
            session.evaluations.remove(program)

    def evaluate(self, program: Program, x: Any, y: Any = None) -> Tuple[Any, Any, Any]:
        """Evaluate a batch by the newest weights.

        Returns:
            Inputs, targets and predictions of the samples whose outputs come back; of all unless the options say less.

        Raises:
            BatchError: The inputs are not like the first ones.
            RowsError: The batch has to be filled up, and an output has not one row per sample, or is changed by that,
                or not all outputs come back.
        """
        if program.mode == "All":
            return x, y, self.predictions(program, x)
        samples = row_count(x)
        rows = program.rows_for(samples)
        if samples % rows:
            raise RowsError(
                f"A batch of {samples} samples does not fill device calls of {rows} rows, and with OutputMode."
                f"{program.mode} the outputs that come back would be those of filling. Leave incomplete batches out, "
                "or evaluate with output_mode='All', which counts every sample."
            )
        pieces = [piece for piece, _ in split_rows((x, y), rows)]
        predictions = join_rows([self.infer(program, piece) for piece, _ in pieces])
        x, y = join_rows([program.returned_rows(piece) for piece in pieces])
        return x, y, predictions

    def predictions(self, program: Program, x: Any) -> Any:
        """Return the predictions for a batch of any number of samples, one row each, by the newest weights.

        More samples than the program's are evaluated in pieces, where that does not change the predictions; where it
        does, the program is compiled again for all of them.

        Raises:
            BatchError: The inputs are not like the first ones.
            RowsError: The batch has to be filled up, and an output has not one row per sample, or is changed by that.
        """
        samples = row_count(x)
        rows = program.rows_for(samples)
        if samples > rows:
            first, _ = next(split_rows(x, rows))
            if not self.filling.may_cut(program, first, functools.partial(self.infer, program)):
                _logger.warning(_LARGER, type(program.step.model).__qualname__, rows, samples)
                program.outgrow()
                rows = samples
        predictions = []
        for piece, valid in split_rows(x, rows):
            call = functools.partial(self._samples, program, valid, rows)
            predictions.append(self.filling.checked(program, piece, valid, call))
        return join_rows(predictions)

    def _samples(self, program: Program, valid: int, rows: int, piece: Any) -> Any:
        return take_rows(self.infer(program, piece), valid, rows)

    def infer(self, program: Program, *parts: Any) -> Any:
        """Return what an inference program returns for the parts of one batch, by the newest weights.

        Raises:
            BatchError: The inputs are not like the first ones.
        """
        guard = self._session.guard
        if guard is None:
            return self._infer(program, parts)
        return guard.evaluate(program, functools.partial(self._infer, program, parts))

    def _infer(self, program: Program, parts: Tuple[Any, ...]) -> Any:
        self._session.check_evaluation()
        self._session.weights.notice_edits()
        self._session.changes.follow(program)
        leaves = program.arguments(*parts)
        return self.call(program, leaves, parts[0] if len(parts) == 1 else parts)

    def call(self, program: Program, leaves: Sequence[Any], x: Any) -> Any:
        """Make one call of an inference program by the newest weights; `x` is what the leaves were taken from."""
        session = self._session
        session.shared.take_over()
        if not program.ready:
            session.make_room_for(program)
            session.weights.to_host()  # loading uploads the host's
            with session.while_loading():
                program.load(leaves, x)
        assert program.executor is not None
        session.active = program
        session.weights.to_inference(program.executor)
        return program.executor(*leaves)


def _wrap(step: nn.Module, options: Any) -> Any:
    return backend.poptorch().inferenceModel(step, options=options)


def _compiled_from(options: Any) -> Dict[str, Any]:
    """Return what PopTorch's compiler is told."""
    return {name: value for name, value in options.toDict().items() if name != _PROGRESS_BAR}
