"""Evaluation of a model: its inference programs, the options they are compiled with, and their calls."""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple

from ignite_ipu.errors import RowsError, logger
from ignite_ipu.poptorch_types import Executor, Options
from ignite_ipu.program.config import IPUConfig
from ignite_ipu.program.layout import BatchLayout
from ignite_ipu.program.options import check_ipus, evaluation_options
from ignite_ipu.program.step import BatchStep, EvaluationStep
from ignite_ipu.program.tensors.rows import join_rows, row_count, row_range, split_rows, take_rows
from ignite_ipu.session.batch_padding import FillingCheck
from ignite_ipu.session.processes import connected
from ignite_ipu.session.program import ModelProgram
from ignite_ipu.session.programs import Programs

if TYPE_CHECKING:
    from ignite_ipu.pipeline import PipelineRequest
    from ignite_ipu.session.placement import Placing

_LARGER = (
    "Predictions of %s change, or may, when a batch is cut into pieces of the %d rows that the program has: it is "
    "compiled again for batches of %d rows. On IPUs each compilation takes minutes: begin with the largest batch."
)
_DEFAULTS = IPUConfig()
_PROGRESS_BAR = "compilation_progress_bar_fn"


class Evaluation:
    """The program of one evaluator, prepared anew when it was dropped or the model has another trainer."""

    def __init__(
        self,
        inference: Inference,
        step: Callable[[], BatchStep],
        options: Callable[[], Options],
        pipeline: Optional[PipelineRequest] = None,
    ) -> None:
        self._inference, self._step, self._options, self._pipeline = inference, step, options, pipeline
        self._program: Optional[ModelProgram] = None
        self._training: Optional[Options] = None

    def program(self) -> ModelProgram:
        """Return the program, with the model's modules in evaluation mode."""
        program, inference = self._program, self._inference
        if program is None or self._training is not inference.training or program not in inference.programs.evaluations:
            program = inference.prepare(self._step(), self._options(), self._pipeline, instead_of=program)
            self._program, self._training = program, inference.training
        program.set_modes()
        return program


class Inference:
    """Evaluates a model: by one program for all evaluators that ask for the same.

    Options are derived from those of the newest trainer (`training`).
    """

    def __init__(self, programs: Programs) -> None:
        self.filling = FillingCheck()
        self.programs = programs
        self.training: Optional[Options] = None
        # The programs for other shapes, by the one for the first, which they begin with.
        self._kinds: weakref.WeakKeyDictionary[ModelProgram, List[ModelProgram]] = weakref.WeakKeyDictionary()
        # Programs for one micro-batch, by those for several.
        self._singles: weakref.WeakKeyDictionary[ModelProgram, ModelProgram] = weakref.WeakKeyDictionary()
        # Each with what it was made from.
        self._made: List[Tuple[IPUConfig, Optional[Options], Options]] = []

    def options(self, config: IPUConfig = _DEFAULTS) -> Options:
        """Return the options to evaluate with: a config's own, else ones derived from the newest trainer's.

        They are the same object for the same wish, until its own options are changed, or a trainer has options that
        compile to another program.
        """
        before = next((entry for entry in self._made if entry[0] == config), None)
        if before is not None and config.options is None and before[1] is self.training:
            return before[2]
        made = evaluation_options(config, training=self.training)
        if before is not None:
            if _compiled_from(before[2]) == _compiled_from(made):
                made = before[2]
            self._made.remove(before)
        self._made.append((config, self.training, made))
        return made

    def prepare(
        self,
        step: BatchStep,
        options: Options,
        pipeline: Optional[PipelineRequest] = None,
        instead_of: Optional[ModelProgram] = None,
        reports_frozen: bool = True,
    ) -> ModelProgram:
        """Return the program that evaluates the model so; evaluators that ask for the same share one.

        Args:
            pipeline: What puts the model on several IPUs; the trainer's layers are put where they train when None.
            instead_of: What has evaluated for the caller so far, destroyed if another does from now on.
            reports_frozen: Whether to say that forward changes Python values, which a program does not do again.
        """
        programs = self.programs
        programs.states.follow()
        if pipeline is None and programs.trained is not None and programs.trained.program.placing is not None:
            pipeline = programs.trained.program.placing.inference
        program = next((each for each in programs.evaluations if each.evaluates(step, options, pipeline)), None)
        if program is None:
            check_ipus(options)
            placing: Optional[Placing] = None
            if pipeline is not None:
                from ignite_ipu.session.placement import Placing

                placing = Placing(pipeline, step, options, False)
            on_trace = programs.changes.report_frozen if reports_frozen else None
            program = ModelProgram(step, options, programs.weights, programs.hooks, placing, on_trace=on_trace)
            programs.evaluations.append(program)
        if instead_of is not None and instead_of is not program:
            self.drop(instead_of)
        return program

    def drop(self, program: ModelProgram) -> None:
        """Destroy a program that nobody needs any more, with those for other shapes."""
        programs = self.programs
        if program in self._singles:
            self.drop(self._singles.pop(program))
        for each in self._kinds.pop(program, [program]):
            each.destroy()
            if programs.active is each:
                programs.active = None
            if each in programs.evaluations:
                programs.evaluations.remove(each)

    def evaluate(self, program: ModelProgram, x: Any, y: Any = None) -> Tuple[Any, Any, Any]:
        """Return inputs, targets and predictions, by the newest weights, of the samples whose outputs come back."""
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

    def predictions(self, program: ModelProgram, x: Any) -> Any:
        """Return the predictions for a batch of any number of samples, one row each, by the newest weights.

        More samples than the program's are evaluated in pieces, where that does not change the predictions; where it
        does, the program is compiled again for all of them.
        """
        samples = row_count(x)
        rows = program.rows_for(samples)
        if samples != rows and program.writes(x):
            return self._without_filling(program, x)
        if samples > rows:
            first, _ = next(split_rows(x, rows))
            if not self.filling.may_cut(program, first, functools.partial(self.infer, program)):
                logger.warning(_LARGER, type(program.step.model).__qualname__, rows, samples)
                program.destroy()
                program.geometry = None
                rows = samples
        predictions = []
        for piece, valid in split_rows(x, rows):
            call = functools.partial(self._samples, program, valid, rows)
            predictions.append(self.filling.checked(program, piece, valid, call))
        return join_rows(predictions)

    def _without_filling(self, program: ModelProgram, x: Any) -> Any:
        """Return the predictions for a batch by calls of its own rows alone, in their order.

        Filling would count in the buffers that forward writes. Whole micro-batches are calls of their own, and so is
        the rest.
        """
        samples, count = row_count(x), program.micro_batches
        if count > 1:
            rows = program.rows_for(samples) // count
            single = self._singles.get(program)
            if single is None:
                options = program.asked.clone()
                options.deviceIterations(1)
                options.replicationFactor(1)
                single = self._singles[program] = program.like(program.step.again(), options)
                self.programs.evaluations.append(single)
            program = single
        else:
            rows = samples
        pieces = [row_range(x, start, min(start + rows, samples)) for start in range(0, samples, rows)]
        return join_rows([self.infer(program, piece) for piece in pieces])

    def _samples(self, program: ModelProgram, valid: int, rows: int, piece: Any) -> Any:
        return take_rows(self.infer(program, piece), valid, rows)

    def infer(self, program: ModelProgram, *parts: Any) -> Any:
        """Return what an inference program returns for the parts of one batch, by the newest weights."""
        guard = self.programs.hooks.guard
        layout, leaves = program.step.flattened(parts, program.micro_batches)
        program = self._for_shapes(program, layout)

        def call() -> Any:
            self._follow(program, layout)
            return self.call(program, leaves, parts[0] if len(parts) == 1 else parts)

        return call() if guard is None else guard.evaluate(program, call)

    def _follow(self, program: ModelProgram, layout: BatchLayout) -> None:
        programs = self.programs
        programs.hooks.check_evaluation()
        programs.weights.notice_edits()
        programs.changes.follow(program)
        program.step.settle(layout)

    def compile(self, program: ModelProgram, *parts: Any) -> ModelProgram:
        """Compile the program for batches like this one, filled up if need be, before the first `infer`; returns it.

        It comes to its IPUs with the newest weights, unless its target is an offline one.
        """
        piece, _ = next(split_rows(parts, program.rows_for(row_count(parts))))
        layout, leaves = program.step.flattened(piece, program.micro_batches)
        program = self._for_shapes(program, layout)
        self._follow(program, layout)
        self._loaded(program, leaves, piece)
        return program

    def _for_shapes(self, program: ModelProgram, layout: BatchLayout) -> ModelProgram:
        """Return the program for batches of a layout, for which the others of its kind give their IPUs back."""
        step, kind = program.step, self._kinds.get(program, [program])
        if step.layout is None or type(step) is not EvaluationStep or connected()[1] > 1:
            return program
        found = next((each for each in kind if each.step.layout in (None, layout)), None)
        if found is None:
            if not step.layout.differs_in_shapes(layout):
                return program
            self.programs.check_another_shape(len(kind), layout)
            found = program.like(step.again(), program.asked)
            self._kinds[program] = kind = [*kind, found]
            self.programs.evaluations.append(found)
        if not found.ready:
            for each in kind:
                each.detach()
        return found

    def call(self, program: ModelProgram, leaves: Sequence[Any], x: Any) -> Any:
        """Make one call of an inference program by the newest weights; `x` is what the leaves were taken from."""
        programs, executor = self.programs, self._loaded(program, leaves, x)
        programs.active = program
        programs.weights.to_inference(executor)
        program.note_call()
        return program.take_writes(executor(*leaves))

    def _loaded(self, program: ModelProgram, leaves: Sequence[Any], x: Any) -> Executor:
        programs, executor = self.programs, program.executor
        programs.shared.take_over()
        if executor is None or not executor.isAttachedToDevice():
            with programs.loading(program):
                programs.weights.to_host()  # loading uploads the host's
                executor = program.load(leaves, x)
        return executor


def _compiled_from(options: Options) -> Dict[str, Any]:
    """Return what PopTorch's compiler is told."""
    return {name: value for name, value in options.toDict().items() if name != _PROGRESS_BAR}
