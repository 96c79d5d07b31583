"""Evaluation of a model: its inference programs, the options they are compiled with, and their calls."""

from __future__ import annotations

import dataclasses
import functools
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ignite_ipu.errors import BatchError, RowsError, logger
from ignite_ipu.poptorch_types import Executor, Options
from ignite_ipu.program.config import IPUConfig
from ignite_ipu.program.evaluation_step import EvaluationStep
from ignite_ipu.program.geometry import BatchGeometry
from ignite_ipu.program.layout import BatchLayout
from ignite_ipu.program.micro_batches import (
    NotJoined,
    Signature,
    join,
    join_results,
    joined_or_listed,
    shown,
    signature,
    split,
)
from ignite_ipu.program.options import evaluation_options
from ignite_ipu.program.step import BatchStep
from ignite_ipu.program.tensors.rows import row_count, split_rows, take_rows
from ignite_ipu.program.tensors.strides import with_strides
from ignite_ipu.program.tensors.trees import map_tensors, tensors_in
from ignite_ipu.session.batch_padding import FillingCheck
from ignite_ipu.session.compiled_program import CompiledProgram
from ignite_ipu.session.processes import connected
from ignite_ipu.session.program import ModelProgram
from ignite_ipu.session.program_kinds import InferenceKind
from ignite_ipu.session.programs import Programs
from ignite_ipu.session.resolved import Resolved

if TYPE_CHECKING:
    from ignite_ipu.pipeline import PipelineRequest
    from ignite_ipu.session.placement import MakePlacing, Placing

_LARGER = (
    "Predictions of %s change, or may, when a batch is cut into pieces of the %d rows that the program has: it is "
    "compiled again for batches of %d rows. On IPUs each compilation takes minutes: begin with the largest batch."
)
_DEFAULTS = IPUConfig()
_PROGRESS_BAR = "compilation_progress_bar_fn"


class Evaluation:
    """The program of one evaluator, prepared anew when it was dropped or the model has another trainer."""

    def __init__(self, inference: Inference, step: Callable[[], BatchStep], resolved: Callable[[], Resolved]) -> None:
        self._inference, self._step, self._resolved = inference, step, resolved
        self._program: Optional[ModelProgram] = None
        self._training: Optional[Resolved] = None

    def program(self) -> ModelProgram:
        """Return the program, with the model's modules in evaluation mode."""
        program, inference = self._program, self._inference
        if program is None or self._training is not inference.training or program not in inference.programs.evaluations:
            program = inference.prepare(self._step(), self._resolved(), instead_of=program)
            self._program, self._training = program, inference.training
        program.state.set_modes()
        return program


class Piece(NamedTuple):
    """One micro-batch as a program takes it.

    Attributes:
        batch: Its inputs.
        rows: Rows of its tensors, filling included; 0 if they have different numbers.
        valid: Rows that are no filling; None if none is.
    """

    batch: Any
    rows: int
    valid: Optional[int]


class Inference:
    """Evaluates a model: by one program for all evaluators that ask for the same.

    Options are derived from those of the newest trainer (`training`), but the number of batches in a call where one
    asks for them one by one (`by_batch`), as a captured loop does.
    """

    def __init__(self, programs: Programs) -> None:
        self.filling = FillingCheck()
        self.programs = programs
        self.training: Optional[Resolved] = None
        self.by_batch = False
        # The programs for other shapes, by the one for the first, which they begin with.
        self._kinds: weakref.WeakKeyDictionary[ModelProgram, List[ModelProgram]] = weakref.WeakKeyDictionary()
        # Programs for one micro-batch, by those for several.
        self._singles: weakref.WeakKeyDictionary[ModelProgram, ModelProgram] = weakref.WeakKeyDictionary()
        # Each with its source.
        self._made: List[Tuple[Tuple[IPUConfig, Optional[PipelineRequest]], Optional[Resolved], Resolved]] = []

    def resolved(self, config: IPUConfig = _DEFAULTS, pipeline: Optional[PipelineRequest] = None) -> Resolved:
        """Resolve the settings of an evaluator: a config's own options, else ones derived from the newest trainer's.

        The result is the same object for the same settings, until the options in them are changed, or a trainer has
        options that compile to another program.

        Args:
            config: The settings.
            pipeline: The placement on several IPUs; None takes that of the trainer.
        """
        if self.by_batch and config.options is None and config.device_iterations is None:
            config = dataclasses.replace(config, device_iterations=1)
        trained, training = self.programs.trainers.current, self.training
        if pipeline is None and trained is not None and trained.program.placing is not None:
            pipeline = trained.program.placing.inference
        key = config, pipeline
        before = next((entry for entry in self._made if entry[0] == key), None)
        if before is not None and config.options is None and before[1] is training:
            return before[2]
        options = evaluation_options(config, training=None if training is None else training.options)
        if before is not None and _compiled_from(before[2].options) == _compiled_from(options):
            made = before[2]
        else:
            made = Resolved.of(options, False, pipeline)
        if before is not None:
            self._made.remove(before)
        self._made.append((key, training, made))
        return made

    def prepare(
        self,
        step: BatchStep,
        resolved: Resolved,
        instead_of: Optional[ModelProgram] = None,
        refuses_frozen: bool = True,
        place: Optional[MakePlacing] = None,
    ) -> ModelProgram:
        """Return the program that evaluates the model so; evaluators that ask for the same share one.

        Args:
            step: The module that evaluates.
            resolved: The options, and the placement on several IPUs.
            instead_of: The previous program of the caller, destroyed if another one replaces it.
            place: Makes the placement; `Placing` when None.
            refuses_frozen: Whether to refuse a forward that changes Python values in every call.
        """
        programs = self.programs
        programs.states.follow()
        program = next((each for each in programs.evaluations if _serves(each, step, resolved)), None)
        if program is None:
            placing: Optional[Placing] = None
            if resolved.pipeline is not None:
                from ignite_ipu.session.placement import Placing

                placing = (place or Placing)(resolved, step, None)
            on_trace = programs.changes.refuse_frozen if refuses_frozen else None
            kind = InferenceKind()
            program = ModelProgram(step, resolved, kind, programs.weights, programs.hooks, placing, on_trace)
            programs.evaluations.append(program)
        if instead_of is not None and instead_of is not program:
            self.drop(instead_of)
        return program

    def drop(self, program: ModelProgram) -> None:
        """Destroy an unused program, with those for other shapes."""
        programs = self.programs
        if program in self._singles:
            self.drop(self._singles.pop(program))
        for each in self._kinds.pop(program, [program]):
            each.destroy()
            if programs.active is each:
                programs.active = None
            if each in programs.evaluations:
                programs.evaluations.remove(each)

    def evaluate(
        self, program: ModelProgram, batches: Sequence[Tuple[Any, Any]], whole: Optional[Tuple[Any, Any]] = None
    ) -> Tuple[Any, Any, Any]:
        """Return inputs, targets and predictions of the micro-batches whose outputs come back, joined.

        Args:
            program: The program.
            batches: Inputs and targets of each micro-batch.
            whole: Those of all, where they have been joined already.

        Raises:
            RowsError: Filling would change the predictions, or the outputs that come back would be those of filling.
            BatchError: Targets or predictions cannot be joined, for their shapes differ.
        """
        if program.resolved.output_mode != "All":
            return self._evaluate_some(program, batches)
        inputs = [x for x, _ in batches]
        predictions = self.predictions(program, inputs, None if whole is None else whole[0])
        if whole is not None:
            return (*whole, predictions)
        return joined_or_listed(inputs), _joined([y for _, y in batches], "y"), predictions

    def _evaluate_some(self, program: ModelProgram, batches: Sequence[Tuple[Any, Any]]) -> Tuple[Any, Any, Any]:
        results: List[Tuple[Any, Any, Any]] = []
        rows = {signature(batch) for batch in batches}
        count, size = len(batches), program.resolved.micro_batches
        if count % size or len(rows) > 1:
            raise RowsError(
                f"{count} micro-batches of {len(rows)} shapes do not fill calls of {size} of one shape, and with "
                f"OutputMode.{program.resolved.output_mode} the outputs that come back would be those of filling. "
                "Leave incomplete batches out, or evaluate with output_mode='All', which counts every sample."
            )
        for start in range(0, count, size):
            x, y = (join(parts) for parts in zip(*batches[start : start + size]))
            results.append((*program.resolved.returned((x, y)), self.infer(program, x)))
        x, y, predictions = (_joined(parts, "The batch", join_results) for parts in zip(*results))
        return x, y, predictions

    def predictions(self, program: ModelProgram, inputs: Sequence[Any], whole: Optional[Any] = None) -> Any:
        """Return the predictions for the micro-batches with these inputs, joined, by the newest weights.

        See `calls`. Inputs that have been joined already are `whole`.
        """
        if not _fills_calls(program, inputs) and program.effects.buffers(inputs[0]):
            return self._without_filling(program, inputs)
        results: List[Any] = []
        for call in self.calls(program, inputs):
            uncut = len(inputs) == len(call) and all(piece.batch is each for piece, each in zip(call, inputs))
            as_they_are = whole is not None and uncut and call[-1].valid is None
            output = self.infer(program, whole if as_they_are else join([piece.batch for piece in call], "x"))
            results += self._kept(program, call, output)
        compiled, joined = program.compiled, _joined(results, "The prediction", join_results)
        return joined if compiled is None else _in_order(joined, compiled.trace.shapes)

    def calls(self, program: ModelProgram, inputs: Sequence[Any]) -> Iterator[List[Piece]]:
        """Yield the inputs of device calls for these micro-batches: as many pieces as a program takes.

        A micro-batch with fewer rows than the program's is padded. One with more is cut if that does not change the
        predictions; otherwise the program is compiled again for it.
        """
        size, count = self._size(program, inputs), program.resolved.micro_batches
        group: List[Piece] = []
        shapes: Optional[Signature] = None
        for batch in inputs:
            for piece in _pieces(batch, size):
                alike = signature(piece.batch) if count > 1 else None
                if group and (len(group) == count or alike != shapes):
                    yield _filled(group, count)
                    group = []
                shapes = alike
                group.append(piece)
        yield _filled(group, count)

    def _size(self, program: ModelProgram, inputs: Sequence[Any]) -> Optional[int]:
        """Return how many rows a micro-batch is filled up to or cut to, None where rows are no samples."""
        layout = program.step.layout.decided
        if layout is not None and layout.rows is None:
            return None
        rows = [_rows(batch) or 0 for batch in inputs]
        largest = max(rows)
        if layout is None or layout.rows is None:
            return largest or None
        size = layout.rows // program.resolved.micro_batches
        if largest > size:
            first, _ = next(split_rows(inputs[rows.index(largest)], size))
            of_one = functools.partial(self._of_one, program, size)
            if type(program.step) is not EvaluationStep or not self.filling.may_cut(program, first, of_one):
                logger.warning(_LARGER, type(program.step.model).__qualname__, size, largest)
                program.destroy()
                return largest
        return size

    def _without_filling(self, program: ModelProgram, inputs: Sequence[Any]) -> Any:
        """Return the predictions by calls of one micro-batch each: filling would count in written buffers."""
        if program.resolved.micro_batches > 1:
            single = self._singles.get(program)
            if single is None:
                one = program.resolved.with_factors(BatchGeometry(1))
                single = self._singles[program] = program.like(program.step.again(), one)
                self.programs.evaluations.append(single)
            program = single
        return _joined([self.infer(program, batch) for batch in inputs], "The prediction", join_results)

    def _kept(self, program: ModelProgram, call: Sequence[Piece], output: Any) -> List[Any]:
        """Return the results of a call for samples, without those of padding."""
        group = program.resolved.geometry.input_group_size
        if call[0].valid is None and call[0].rows:
            self.filling.keep_sample(program, call[0].batch)
        if group == 1 and call[-1].valid is None and all(piece.valid is None for piece in call):
            return [output]
        parts = split(output, program.resolved.geometry.micro_batches)
        kept = []
        for number, piece in enumerate(call):
            if piece.valid != 0:
                part = parts[number * group]
                if piece.valid is not None:
                    part = take_rows(part, piece.valid, piece.rows)
                    one = functools.partial(self._of_one, program, piece.valid)
                    self.filling.check(program, piece.batch, piece.valid, part, one)
                kept.append(part)
        return kept

    def _of_one(self, program: ModelProgram, valid: int, batch: Any) -> Any:
        """Return the program's results for the first `valid` rows of one micro-batch."""
        output = self.infer(program, join([batch] * program.resolved.micro_batches, "x"))
        return take_rows(split(output, program.resolved.geometry.micro_batches)[0], valid, row_count(batch))

    def infer(self, program: ModelProgram, *parts: Any) -> Any:
        """Return the results of an inference program for the parts of one batch, by the newest weights."""
        guard = self.programs.hooks.guard
        layout, leaves = program.step.layout.flattened(parts, program.resolved.micro_batches)
        program = self._for_shapes(program, layout)

        def call() -> Any:
            self._follow(program, layout)
            return self.call(program, leaves, parts[0] if len(parts) == 1 else parts)

        return call() if guard is None else guard.evaluate(program, call)

    def _follow(self, program: ModelProgram, layout: BatchLayout) -> None:
        programs = self.programs
        programs.hooks.follower.check_evaluation()
        programs.weights.notice_edits()
        programs.changes.follow(program)
        program.step.layout.settle(layout)

    def compile(self, program: ModelProgram, *parts: Any) -> ModelProgram:
        """Compile the program for calls with these inputs, before the first `infer`; returns it.

        It comes to its IPUs with the newest weights, unless its target is an offline one.
        """
        layout, leaves = program.step.layout.flattened(parts, program.resolved.micro_batches)
        program = self._for_shapes(program, layout)
        self._follow(program, layout)
        self._loaded(program, leaves, parts[0] if len(parts) == 1 else parts)
        return program

    def _for_shapes(self, program: ModelProgram, layout: BatchLayout) -> ModelProgram:
        """Return the program for batches of a layout, for which the others of its kind give their IPUs back."""
        step, kind = program.step, self._kinds.get(program, [program])
        if step.layout.decided is None or type(step) is not EvaluationStep or connected()[1] > 1:
            return program
        found = next((each for each in kind if each.step.layout.decided in (None, layout)), None)
        if found is None:
            if not step.layout.decided.differs_in_shapes(layout):
                return program
            self.programs.check_another_shape(len(kind), layout)
            found = program.like(step.again(), program.resolved)
            self._kinds[program] = kind = [*kind, found]
            self.programs.evaluations.append(found)
        if not found.ready:
            for each in kind:
                each.detach()
        return found

    def call(self, program: ModelProgram, leaves: Sequence[Any], x: Any) -> Any:
        """Make one call of an inference program by the newest weights; the leaves were taken from `x`."""
        programs, executor = self.programs, self._loaded(program, leaves, x)
        programs.active = program
        programs.weights.to_inference(executor)
        program.state.calls += 1
        output = executor(*leaves)
        compiled = program.state
        if isinstance(compiled, CompiledProgram):
            output = program.effects.take(executor, output, compiled.trace.counted)
        program.effects.show_attributes(leaves)
        return output

    def _loaded(self, program: ModelProgram, leaves: Sequence[Any], x: Any) -> Executor:
        programs, executor = self.programs, program.state.executor
        if programs.shared.others:
            programs.shared.take_over()
        if executor is None or not executor.isAttachedToDevice():
            with programs.loading(program):
                programs.weights.to_host()  # loading uploads the host's
                executor = program.load(leaves, x)
        return executor


def _serves(program: ModelProgram, step: BatchStep, resolved: Resolved) -> bool:
    """Return whether this is the program for a module, with the same options object and placement."""
    own = program.resolved
    same = own.pipeline == resolved.pipeline and own.options is resolved.options
    return same and program.step.computes_like(step)


def _in_order(predictions: Any, shapes: Sequence[Tuple[Sequence[int], Sequence[int]]]) -> Any:
    """Return predictions with their elements in the order in memory in which PyTorch has them on the host."""
    if len(tensors_in(predictions)) != len(shapes):
        return predictions
    following = iter(shapes)
    return map_tensors(predictions, lambda tensor: with_strides(tensor, *next(following)))


def _fills_calls(program: ModelProgram, inputs: Sequence[Any]) -> bool:
    """Return whether micro-batches fill device calls as they are."""
    if len(inputs) % program.resolved.micro_batches or (len(inputs) > 1 and len(set(map(signature, inputs))) > 1):
        return False
    layout = program.step.layout.decided
    if layout is None or layout.rows is None:
        return True
    return _rows(inputs[0]) in (None, layout.rows // program.resolved.micro_batches)


def _pieces(batch: Any, size: Optional[int]) -> Iterator[Piece]:
    """Yield a micro-batch in pieces of a size, the last one filled up."""
    rows = _rows(batch)
    if rows is None or size is None or rows == size:
        yield Piece(batch, rows or 0, None)
        return
    for piece, valid in split_rows(batch, size):
        yield Piece(piece, size, None if valid == size else valid)


def _rows(batch: Any) -> Optional[int]:
    counts = {tensor.shape[0] for tensor in tensors_in(batch) if tensor.dim()}
    return int(counts.pop()) if len(counts) == 1 else None


def _filled(group: Sequence[Piece], count: int) -> List[Piece]:
    """Return the pieces of a whole call, filled up with the last one."""
    return [*group, *[group[-1]._replace(valid=0)] * (count - len(group))]


def _joined(parts: Sequence[Any], name: str, joining: Callable[[Sequence[Any], str], Any] = join) -> Any:
    """Return the joined micro-batches, for the code that gets the outputs of a call."""
    try:
        return shown(joining(parts, name))
    except NotJoined as error:
        raise BatchError(
            f"The micro-batches of one device call cannot be handed on together: {error}. Evaluate with "
            "device_iterations=1 and replication_factor=1, so that a call is one micro-batch, or pad to one shape."
        ) from error


def _compiled_from(options: Options) -> Dict[str, Any]:
    """Return the compiler options of PopTorch."""
    return {name: value for name, value in options.toDict().items() if name != _PROGRESS_BAR}
