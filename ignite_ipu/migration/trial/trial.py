"""One model compiled on the emulator for training and for inference, and the resulting notes."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import sys
import warnings
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator, List, Optional, Tuple
from unittest import mock

import torch
from torch import fx, nn

from ignite_ipu import backend
from ignite_ipu.cli.targets import blamed_on, load_factory
from ignite_ipu.emulator.inspection import Error, IpuTensor, Refusal, Trace, leaves
from ignite_ipu.errors import BatchError, LossError, OptimizerError, OutputError
from ignite_ipu.migration.findings import Severity
from ignite_ipu.migration.trial.notes import CodePlace, Note, Notes, definition_of, library_line, raised_at
from ignite_ipu.migration.trial.python_state import watched_lines
from ignite_ipu.migration.trial.setup import Subject
from ignite_ipu.migration.trial.survey import Answers, Printed, Stopped, Survey, unsupported_operators
from ignite_ipu.operators.words import word_set
from ignite_ipu.optimizers.conversion import convert_optimizer
from ignite_ipu.program.evaluation_step import EvaluationStep
from ignite_ipu.program.forward.assigned_buffers import Assignments
from ignite_ipu.program.step import BatchStep
from ignite_ipu.program.tensors.trees import tensors_in
from ignite_ipu.program.training_step import TrainingStep

_STOPPING = word_set(
    "cuda-device data-dependent-control-flow dynamic-shape failed-trace gradient-in-forward host-value-in-forward "
    "rebound-buffer restricted-operator unregistered-tensor"
)


@dataclass
class Trial:
    """Result of compiling a target's model: for which of "training" and "inference" it was tried, and has a program.

    A finding without a line of the model is at the place of the factory.
    """

    target: str
    factory: Optional[CodePlace]
    notes: List[Note] = field(default_factory=list)
    compiled: List[str] = field(default_factory=list)
    tried: List[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """One line that lists which of them work."""
        failed = [what for what in self.tried if what not in self.compiled]
        parts = [f"compiles for {' and '.join(self.compiled)}"] if self.compiled else []
        parts += [f"does not compile for {' or '.join(failed)}"] if failed else []
        return f"{self.target}: {', '.join(parts)}"


def try_out(target: str) -> Trial:
    """Run the factory of a target, compile its model on the emulator, and return the findings.

    Raises a `UserError` if there is no factory, it fails, or returns something else than a model with example batches.
    """
    with _apart(target):
        with blamed_on(target):
            factory = load_factory(target)
            native, subject = Subject.of(factory()), Subject.of(factory())
        trial = Trial(target, definition_of(factory))
        notes = Notes(trial.notes)
        _look_at_batches(subject, notes)
        for training in (True, False) if subject.optimizer is not None else (False,):
            what = "training" if training else "inference"
            trial.tried.append(what)
            answers = _answers(native, subject, notes, training)
            if answers is not None and _compiles(subject, answers, notes, training):
                trial.compiled.append(what)
    return trial


def _answers(native: Subject, subject: Subject, notes: Notes, training: bool) -> Optional[Answers]:
    """Set the mode of both models and run one on the host once; None if that fails already."""
    for each in (native, subject):
        each.model.train(training)
    x, y = native.batches[0]
    answers, assignments = Answers(), Assignments(native.model)
    try:
        with torch.set_grad_enabled(training), answers:
            output = native.how.call(native.model, x)
            if training and native.loss_fn is not None:
                native.loss_fn(output, y)
            assignments.find(lambda: tensors_in(native.how.call(native.model, x)), registers=False)
    except Exception as error:
        place = raised_at(error) or definition_of(native.model.forward)
        notes.add("failed-trace", place, f"on the host already: {type(error).__name__}: {_line(error)}")
        return None
    given = [*tensors_in((x, y)), *native.model.parameters(), *native.model.buffers()]
    if not any(tensor.dtype is torch.float64 for tensor in given):
        for place, name in answers.doubles.items():
            notes.add(
                "unsupported-dtype", place, f"{{where}} computes {name} in double precision, the device in single"
            )
    return answers


def _compiles(subject: Subject, answers: Answers, notes: Notes, training: bool) -> bool:
    """Compile, and trace once more to see which constants change from call to call; returns whether it compiled."""
    optimizer, refused = _optimizer(subject, notes) if training else (None, False)
    compiled, before = False, len(notes.broken)
    surveys = [Survey(notes, answers), Survey(Notes(), answers)]
    for survey in surveys:
        answers.again()
        try:
            step, executor = _made(subject, survey, notes, optimizer)
        except LossError as error:
            notes.add("restricted-operator", None, _line(error))
            return False
        # Findings of a second trace about state that the first one changed concern the second alone.
        compiled = _compile(subject, step, executor, survey, notes if survey is surveys[0] else Notes())
    first, second = (survey.capture for survey in surveys)
    if first is None or second is None:
        return False
    for name, change in _differences(first, second):
        place = surveys[0].nodes.get(name) or surveys[0].constants.get(name)
        if not notes.has("python-randomness", place):
            text = f"{{where}} computes with {change}; the compiled program stays with the first"
            notes.add("captured-constant", place, text, Severity.ERROR, about="change")
    # Refused calls were answered, so that the trace could go on.
    return compiled and not refused and not {*_STOPPING, "unsupported-operator"} & {*notes.broken[before:]}


def _optimizer(subject: Subject, notes: Notes) -> Tuple[Any, bool]:
    """Return PopTorch's optimizer, or another one that it has, and whether the subject's is refused."""
    try:
        return convert_optimizer(subject.optimizer).optimizer, False
    except OptimizerError as error:
        # There is a receipt where it is the arguments that cannot be converted.
        rule = "unsupported-optimizer" if error.receipt is None else "unsupported-optimizer-argument"
        notes.add(rule, None, str(error).rstrip("."))
    parameters = [parameter for parameter in subject.model.parameters() if parameter.requires_grad]
    return convert_optimizer(torch.optim.SGD(parameters, lr=0.1)).optimizer, True


def _made(subject: Subject, survey: Survey, notes: Notes, optimizer: Any) -> Tuple[BatchStep, Any]:
    """Return a step under a survey and its executor: for inference without an optimizer."""
    poptorch, model_fn = backend.poptorch(), _watching(subject, survey, notes)
    # Nothing runs, so no IPU is taken.
    options = poptorch.Options().showCompilationProgressBar(False).connectionType(poptorch.ConnectionType.Never)
    if optimizer is None:
        evaluation = EvaluationStep(subject.model, model_fn=model_fn)
        return evaluation, poptorch.inferenceModel(evaluation, options=options)
    loss_fn = None if subject.loss_fn is None else _Watched(subject.loss_fn, survey)
    step = TrainingStep(subject.model, loss_fn, model_fn=model_fn)
    return step, poptorch.trainingModel(step, options=options, optimizer=optimizer)


def _compile(subject: Subject, step: BatchStep, executor: Any, survey: Survey, notes: Notes) -> bool:
    x, y = subject.batches[0]
    failed = True
    try:
        leaves_of_batch = step.arguments(*((x, y) if isinstance(step, TrainingStep) else (x,)), micro_batches=1)
        with watched_lines(subject.model, survey), contextlib.redirect_stdout(Printed(sys.stderr, notes)):
            executor.compile(*leaves_of_batch)
        failed = False
    except Stopped:
        pass
    except BatchError as error:
        notes.add("failed-trace", None, _line(error))
    except Exception as error:
        kind, place = getattr(error, "kind", None), raised_at(error)
        text = _line(error)
        if not isinstance(error, (Error, LossError, OutputError)):
            inside = "" if place is not None else f" (in {library_line(error)})"
            text = f"the trace stops with {type(error).__name__}: {text}{inside}"
        # A consequence of another note is not worth a line of its own.
        explained = any(note.rule in _STOPPING and note.severity is not Severity.NOTE for note in notes.found)
        if kind is not Refusal.UNSUPPORTED_OPERATOR and not explained:
            rule = "rebound-buffer" if kind is Refusal.REPLACED_TENSOR else "failed-trace"
            notes.add(rule, place or definition_of(subject.model.forward), text)
    finally:
        with contextlib.suppress(Error):
            executor.destroy()
    if survey.capture is not None:
        unsupported_operators(survey, notes)
    return not failed


def _watching(subject: Subject, survey: Survey, notes: Notes) -> Callable[[nn.Module, Any], Any]:
    def call(model: nn.Module, x: Any) -> Any:
        with survey:
            output = subject.how.call(model, x)
        place, forward = definition_of(model.forward), f"{type(model).__name__}.forward"
        for value in tensors_in(output):
            if not isinstance(value, IpuTensor):
                text = f"{forward} returns a tensor of the host; each call gives back the same"
                notes.add("captured-constant", place, text, about="output")
            elif value.meta.dtype is torch.int64:
                text = f"{forward} returns int64, which comes back as int32"
                notes.add("narrowed-dtype", place, text, about="output")
        return output

    return call


class _Watched(nn.Module):
    def __init__(self, loss_fn: Callable[[Any, Any], torch.Tensor], survey: Survey) -> None:
        super().__init__()
        self.loss_fn = loss_fn
        self._survey = survey

    def forward(self, output: Any, y: Any) -> torch.Tensor:
        with self._survey:
            return self.loss_fn(output, y)


def _look_at_batches(subject: Subject, notes: Notes) -> None:
    """Note the parts of the example batches that a compiled program does not take, or takes otherwise."""
    shapes = [[tuple(tensor.shape) for tensor in tensors_in(batch)] for batch in subject.batches]
    for number, later in enumerate(shapes[1:], start=2):
        if later == shapes[0]:
            continue
        trimmed = [shape[1:] for shape in later] == [shape[1:] for shape in shapes[0]]
        if number == len(shapes) and trimmed:
            notes.add("ragged-last-batch", None, f"the last of the {number} batches has {later[0][0]} samples")
        else:
            text = f"batch {number} has the shapes {_described(later)}, the first one {_described(shapes[0])}"
            notes.add("changing-batch-shape", None, text)
        break
    for tensor in tensors_in(subject.batches[0]):
        if tensor.dtype is torch.float64:
            notes.add("narrowed-dtype", None, "a batch has float64, of which the device makes float32", about="float")
    for tensor in (tensor for batch in subject.batches for tensor in tensors_in(batch)):
        if tensor.dtype is torch.int64 and tensor.numel() and not torch.equal(tensor, tensor.int().long()):
            text = f"a batch has the int64 value {int(tensor.max())}, and the device's integers have 32 bits"
            notes.add("narrowed-dtype", None, text, Severity.ERROR, about="overflow")
    for name, parameter in subject.model.named_parameters():
        if parameter.dtype is torch.float64:
            notes.add("unsupported-dtype", None, f"{name} is float64, of which the device makes float32", about="model")


def _described(shapes: List[Tuple[int, ...]]) -> str:
    return ", ".join(str(shape) for shape in shapes)


def _line(error: BaseException) -> str:
    return " ".join(str(getattr(error, "message", error)).split()).rstrip(".")


def _differences(first: Trace, second: Trace) -> Iterator[Tuple[str, str]]:
    """Yield the name of each node or constant that differs between the traces, and the difference.

    Traces that diverge are compared up to the point where they do.
    """
    for (constant, one), other in zip(first.placeholders.constants.items(), second.placeholders.constants.values()):
        if one.shape != other.shape or one.dtype != other.dtype:
            yield constant.name, f"a tensor of shape {tuple(one.shape)} and then of shape {tuple(other.shape)}"
        elif not torch.equal(torch.nan_to_num(one), torch.nan_to_num(other)):
            yield constant.name, "one tensor and then another"
    last: Optional[fx.Node] = None
    for node, twin in itertools.zip_longest(_operators(first), _operators(second)):
        if node is None or twin is None:
            place = node if node is not None else last if last is not None else twin
            yield place.name, f"{_operator(node or twin)} in one call and not in the other"
            return
        if _operator(node) != _operator(twin):
            yield node.name, f"{_operator(node)} and then {_operator(twin)}: forward takes another way"
            return
        changed = ((mine, theirs) for mine, theirs in zip(_arguments(node), _arguments(twin)) if mine != theirs)
        for mine, theirs in itertools.islice(changed, 1):
            yield node.name, f"{_shown(mine)} and then {_shown(theirs)}"
        last = node


def _operators(trace: Trace) -> List[Any]:
    for number, node in enumerate(trace.graph.nodes):
        node.meta["number"] = number
    return [node for node in trace.graph.nodes if node.op == "call_function"]


def _operator(node: fx.Node) -> str:
    return str(node.meta.get("operator", node.name))


def _arguments(node: fx.Node) -> List[Any]:
    return [_comparable(leaf) for leaf in leaves((list(node.args), dict(node.kwargs)))]


def _comparable(value: Any) -> Any:
    if isinstance(value, fx.Node):
        return ("node", value.meta["number"])
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    # Generators, functions and the like are compared by their type, not by their identity.
    return value if isinstance(value, (int, float, bool, str, type(None))) else type(value).__name__


def _shown(value: Any) -> str:
    return "another tensor" if isinstance(value, tuple) else repr(value)


_LOGGERS = ("poptorch::python", "poptorch::cpp", "ignite_ipu")


@contextlib.contextmanager
def _apart(target: str) -> Iterator[None]:
    """Use the emulator, keep standard output for the report and messages out of sight, and hide this command's line.

    A module that reads the command line when it is imported sees one without arguments.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, {backend.VARIABLE: "emulator"}))
        stack.enter_context(mock.patch.object(sys, "argv", [target.rpartition(":")[0]]))
        for logger in map(logging.getLogger, _LOGGERS):
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.CRITICAL)
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        yield
