"""Calls of a captured model that train nothing: they run on the device at once, with the newest weights."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from typing import Any, Callable, Dict, Hashable, List, Optional, Sequence, Tuple

import torch
from torch import nn

from ignite_ipu.deferred.compiled.first_call import call_first
from ignite_ipu.deferred.compiled.host_calls import NO_CONTEXT
from ignite_ipu.deferred.compiled.memory import refuse_shared_between
from ignite_ipu.deferred.compiled.modes import Modes
from ignite_ipu.deferred.compiled.places import Places, execution_of, one_after_another
from ignite_ipu.deferred.compiled.step import CalledStep
from ignite_ipu.deferred.graph.modes_then import ModesThen
from ignite_ipu.deferred.graph.structure import Structure, flatten, is_bare_tensor, leaves_in, refuse_sparse
from ignite_ipu.deferred.tensor.deferred_values import resolved
from ignite_ipu.deferred.tensor.outside import OutsideTensors
from ignite_ipu.errors import ForwardError, IPUError, RowsError, logger
from ignite_ipu.poptorch_types import Options
from ignite_ipu.program.config import IPUConfig
from ignite_ipu.program.forward.eager import EAGER
from ignite_ipu.program.forward.left_behind import LeftPlaces, may_leave_others
from ignite_ipu.program.forward.model_libraries import without_generation_cache
from ignite_ipu.program.forward.state_before import StateBefore
from ignite_ipu.program.options import own_options
from ignite_ipu.program.tensors.iterators import with_items
from ignite_ipu.program.tensors.raw import requires_grad
from ignite_ipu.program.tensors.rows import split_rows, take_rows
from ignite_ipu.program.traced_places import changes_in_every_call
from ignite_ipu.program.user_code import Line, current_line
from ignite_ipu.session.gradients import WordsRead
from ignite_ipu.session.program import ModelProgram
from ignite_ipu.session.session import IPUSession
from ignite_ipu.torch_names.modules import DROPOUT, AnyBatchNorm, all_modules, all_parameters
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

_OPTIONS = IPUConfig(device_iterations=1, replication_factor=1)
_MANY = 4
_MOST_PROGRAMS = 8
_DRAWS = DROPOUT
_COUNTS = AnyBatchNorm


class CapturedEvaluation:
    """The inference programs of one captured model, one for each kind of call; up to eight are kept."""

    def __init__(self, session: IPUSession, config: IPUConfig, places: Places) -> None:
        self._session = session
        self._config = config
        self._places = places
        # Beginning with the one that was not used for longest.
        self._programs: OrderedDict[Tuple[Hashable, Hashable], ModelProgram] = OrderedDict()
        self._row_wise: Dict[ModelProgram, bool] = {}
        self._modes: Dict[nn.Module, Modes] = {}
        self._encoders: Dict[nn.Module, List[nn.Module]] = {}
        self._known_modes: List[ModesThen] = []
        self._has_given_up = self._told_of_host_runs = False

    def run(
        self,
        args: Tuple[Any, ...],
        kwargs: Dict[str, Any],
        model: nn.Module,
        show: Callable[[Any], Any] = lambda output: output,
        grad: bool = False,
        failed: Optional[Dict[str, torch.Tensor]] = None,
        outside: Optional[OutsideTensors] = None,
        left: Optional[LeftPlaces] = None,
    ) -> Any:
        """Return the output of the model or of a part of it, on the host; the user gets the result of `show` for it.

        `grad` is whether the loop had gradients enabled at the call. If the model's code raises an error, `failed` gets
        the buffers that it has written until then. `outside` gets the tensors that it has from elsewhere,
        and `left` the places where it leaves tensors.

        Raises:
            ComposedError: Some of these are another captured model's.
        """
        grad = grad and self._has_trained_encoder(model)
        given = leaves_in((args, kwargs), is_bare_tensor)
        args, kwargs = resolved((args, kwargs))
        if _draws_or_counts(model):
            return show(self.run_on_host(model, args, kwargs, current_line()))
        tensors: List[torch.Tensor] = []
        structure = flatten((args, kwargs), tensors, is_bare_tensor)
        if not tensors:
            # It computes from weights alone, as parametrizations do, and no program runs without an input.
            self._session.weights.to_host()
            with EAGER, torch.no_grad(), DisableTorchFunctionSubclass():
                return show(with_items(model(*args, **kwargs)))
        shapes = tuple([(tuple(tensor.shape), tensor.dtype) for tensor in tensors])
        kind = self._kind(model, structure, shapes, grad)
        program = self._programs.get((kind, shapes))
        if program is not None and _may_leave_others(program):
            self._destroy((kind, shapes))
            program = None
        if program is None:
            like = [(key, each) for key, each in reversed(self._programs.items()) if key[0] == kind]
            fits = (key for key, each in like if self._fits(each, tensors) and not _may_leave_others(each))
            key = next(fits, None)
            if key is not None:
                larger = self._programs[key]
                self._programs.move_to_end(key)
                try:
                    return self._filled_up(larger, tensors, show, given)
                except RowsError:  # the forward mixes the rows of a batch
                    self._row_wise[larger] = False
            for tensor in tensors:
                refuse_sparse(tensor, current_line())
            self._session.weights.to_host()
            with (
                outside.composed.found_out((args, kwargs)) if outside else contextlib.nullcontext(StateBefore(model))
            ) as before:
                operands: Any = outside.reads() if outside else NO_CONTEXT
                grows = call_first(model, args, kwargs, self._session, before, failed, operands)
                if outside:
                    outside.check(operands.tensors.values())
                kind = self._kind(model, structure, shapes, grad)
                program = self._new(model, structure, tensors, grows, grad)
                self._programs[kind, shapes] = program
                outputs = self._first(program, tensors, (kind, shapes))
            # The trace may have set something up, such as a cache.
            del self._programs[kind, shapes]
            kind = self._kind(model, structure, shapes, grad)
            self._programs[kind, shapes] = program
            if left is not None:
                left.learn(_step_of(program))
            if failed:  # in a first call of which the device makes more than the host
                failed.clear()
        else:
            self._programs.move_to_end((kind, shapes))
            outputs = self._call(program, tensors)
        return _step_of(program).take(outputs, show, given)

    def _first(self, program: ModelProgram, tensors: Sequence[torch.Tensor], key: Tuple[Hashable, Hashable]) -> Any:
        """Return the outputs of the first call of a program."""
        try:
            outputs = self._call(program, tensors)
            compiled = program.compiled
            if compiled is not None and compiled.trace.varying:
                raise ForwardError(changes_in_every_call(program.step.model, compiled.trace.varying))
        except Exception as error:
            # Of the model's code: the next call is a first one, too.
            if isinstance(error, ForwardError) or not isinstance(error, IPUError):
                self._destroy(key)
            raise
        return outputs

    def run_on_host(self, model: nn.Module, args: Tuple[Any, ...], kwargs: Dict[str, Any], line: Line) -> Any:
        """Return the result of a call in training mode, made on the host.

        No inference program updates statistics, or draws.
        """
        weights = self._session.weights
        if not self._told_of_host_runs:
            self._told_of_host_runs = True
            logger.warning(
                "The model is called at %s in training mode, without a loss or gradients, where it draws random "
                "numbers or counts batches, as no inference program does. Such calls run on the host, with a copy "
                "of the weights each way. Call model.eval() and use torch.no_grad() to save both.",
                line,
            )
        weights.to_host()
        try:
            with EAGER, without_generation_cache(all_modules(model)), torch.no_grad(), DisableTorchFunctionSubclass():
                return with_items(model(*args, **kwargs))
        finally:
            weights.host_changed()

    def _kind(self, model: nn.Module, structure: Structure, shapes: Sequence[Tuple[Any, Any]], grad: bool) -> Hashable:
        """Return the dependencies of a program besides the number of rows, in a comparable form."""
        if model not in self._modes:
            self._modes[model] = Modes(model, self._session.weights, self._session.model)
        modes = self._modes[model].now()._replace(trained=[])  # nothing is trained
        if modes not in self._known_modes:
            self._known_modes.append(modes)
        number = self._known_modes.index(modes)
        return (
            model,
            structure.key,
            number,
            grad,
            tuple([(size[1:], dtype) for size, dtype in shapes]),
        )

    def _has_trained_encoder(self, model: nn.Module) -> bool:
        """Return whether autograd would record an encoder's call in PyTorch, which then computes padding, too."""
        if model not in self._encoders:
            self._encoders[model] = [each for each in model.modules() if isinstance(each, nn.TransformerEncoder)]
        with DisableTorchFunctionSubclass():
            return any(requires_grad(weight) for each in self._encoders[model] for weight in all_parameters(each))

    def _new(
        self, model: nn.Module, structure: Any, tensors: Sequence[torch.Tensor], grows: bool, grad: bool
    ) -> ModelProgram:
        refuse_shared_between(model)
        shapes = [tuple(tensor.shape) for tensor in tensors]
        step = CalledStep(model, structure, shapes, self._config.half_products, WordsRead(), grows)
        step.is_recorded = grad
        if len(self._programs) == _MANY:
            logger.warning(
                "The model is evaluated with %d different shapes or arguments, and each is a program of its own that "
                "takes minutes to compile for IPUs. Pad inputs to one length, keep the batch size the same, and pass "
                "numbers that change, such as timesteps, as tensors.",
                len(self._programs) + 1,
            )
        while len(self._programs) >= _MOST_PROGRAMS:
            if not self._has_given_up:
                self._has_given_up = True
                logger.warning(
                    "The model is evaluated with more than %d different shapes or arguments. The program that was not "
                    "used for longest is given up for another, and compiled again when it is needed.",
                    _MOST_PROGRAMS,
                )
            self._destroy(next(iter(self._programs)))
        # With other attributes the next call is another program's.
        pipeline, make = self._places.evaluation(model)
        resolved = self._session.inference.resolved(_OPTIONS, pipeline).changed(self._run_in_turn)
        return self._session.inference.prepare(step, resolved, refuses_frozen=False, place=make)

    def _run_in_turn(self, options: Options) -> None:
        """Let stages of the model's own blocks run one after another: a loop evaluates one batch at a time."""
        if self._session.inference.training is None:
            options.setExecutionStrategy(execution_of(own_options(self._config)))
        one_after_another(options)

    def _destroy(self, key: Tuple[Hashable, Hashable]) -> None:
        program = self._programs.pop(key)
        self._row_wise.pop(program, None)
        self._session.inference.drop(program)

    def _filled_up(
        self, program: ModelProgram, tensors: List[torch.Tensor], show: Callable[[Any], Any], given: Sequence[Any]
    ) -> Any:
        assert program.geometry is not None
        rows = program.geometry.global_batch_size
        piece, valid = next(split_rows(tensors, rows))
        outputs = self._session.inference.filling.checked(
            program, piece, valid, lambda batch: take_rows(list(self._call(program, batch)), valid, rows)
        )
        return _step_of(program).take(outputs, show, given)

    def _fits(self, program: ModelProgram, tensors: Sequence[torch.Tensor]) -> bool:
        """Return whether a batch can be filled up for a program: everything in it has one row per sample."""
        sizes = {tensor.shape[:1] for tensor in tensors}
        geometry = program.geometry
        if geometry is None or not self._row_wise.get(program, False) or len(sizes) != 1:
            return False
        return 0 < sizes.pop()[0] < geometry.global_batch_size

    def _call(self, program: ModelProgram, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        leaves = [tensor.contiguous() if tensor.dim() else tensor.reshape(1) for tensor in tensors]
        self._session.weights.notice_edits()
        self._session.changes.follow(program, compares_code=False)
        if not program.ready:
            for other in self._programs.values():
                if other is not program:
                    # One at a time is on IPUs: a loop evaluates one kind of batch after another.
                    other.detach()
        outputs: Sequence[torch.Tensor] = self._session.inference.call(program, leaves, leaves[0])
        if program not in self._row_wise:
            rows = tensors[0].shape[:1]
            same = all(tensor.shape[:1] == rows for tensor in (*tensors, *outputs))
            # Padding would count in the written values.
            step = _step_of(program)
            self._row_wise[program] = same and bool(rows) and not (step.written.names or step.returns_views)
            if self._row_wise[program]:
                self._session.inference.filling.keep_sample(program, tensors)
        return outputs


def _step_of(program: ModelProgram) -> CalledStep:
    assert isinstance(program.step, CalledStep)
    return program.step


def _may_leave_others(program: ModelProgram) -> bool:
    """Return whether it is unknown if the program's calls put something in the place of tensors that are there now."""
    return may_leave_others(_step_of(program))


def _draws_or_counts(model: nn.Module) -> bool:
    """Return whether a call draws random numbers, or updates statistics by the number of batches, in training mode."""
    for module in model.modules():
        counts = isinstance(module, _COUNTS) and bool(module.track_running_stats) and module.momentum is None
        draws = model.training and isinstance(module, _DRAWS) and module.p > 0
        if module.training and (counts or draws):
            return True
    return False
