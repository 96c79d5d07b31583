"""Places of a model's weights, host, training program and inference programs, and which of them has the newest."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Callable, Container, Iterator, List, Optional, Sequence, Set, Tuple

import torch
from torch import nn

from ignite_ipu.errors import LostEditError, listed, logger
from ignite_ipu.poptorch_types import Executor
from ignite_ipu.program.tensors.raw import plain
from ignite_ipu.session.hooks import Edited, IPUEvents, SessionHooks
from ignite_ipu.session.weights.access import (
    AccessTracker,
    is_kept,
    is_watched,
    unwatch_tensors,
    watch_tensors,
)
from ignite_ipu.session.weights.batch_counters import BatchCounters
from ignite_ipu.session.weights.held_tensors import HeldTensors
from ignite_ipu.torch_names.dispatch import jit_trace_left
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass, version_of


@dataclasses.dataclass
class _Copy:
    """One program's weights."""

    executor: Executor
    stale: bool = False


class Weights:
    """The weights of one model in all their places, each copied only when it is stale.

    The model's parameters and buffers are the host's copy.

    Attributes:
        held: The tensors whose newest values it follows.
        updates: Number of calls of the training program; a list of one number, for objects that outlive this one.
        looks: How often `notice_edits` looked at every tensor.
        edits: How often the host's weights were found, or reported, to be set.
        host_is_stale: Whether training took place since the host's copy was downloaded or written.
        in_graphs: Whether autograd has recorded functions of weights on the host, by which gradients may come later.
        watched: The accesses to tensors, which all edits go through, while there is a training program; None without.

    PopTorch refreshes an inference executor by itself only when it wraps the same module object as the training one and
    was made after it, and then copies twice the first time. Our executors wrap different modules on purpose, so that
    every copy is one of ours.
    """

    def __init__(self, model: nn.Module, hooks: Optional[SessionHooks] = None) -> None:
        self._hooks = hooks or SessionHooks()
        self.held = HeldTensors(model)
        self._tensors = self.held.tensors
        self._training: Optional[_Copy] = None
        self._inference: List[_Copy] = []
        self.host_is_stale = self.in_graphs = False
        self.looks = self.edits = 0
        self._accesses: Optional[AccessTracker] = None
        self.watched: Optional[AccessTracker] = None
        self._silent: List[int] = []  # without training: positions of tensors whose writes go undetected
        self._lost: List[str] = []
        self._versions = _count_edits(self._tensors)
        self.updates = [0]
        self._warned_of_aliases = False
        self.counters = BatchCounters()
        self._steps = False  # while an optimizer steps on the host, which finds parameters of PyTorch's own class

    @property
    def tensors(self) -> Sequence[torch.Tensor]:
        """The host's copy: parameters and buffers, the model's first."""
        return self._tensors

    @property
    def training_is_stale(self) -> bool:
        """True if the host has weights that the training program has not."""
        return self._training is not None and self._training.stale

    def add(self, executor: Executor, training: bool, stale: bool = False) -> None:
        """Take charge of an executor's weights; loading its program uploads the host's, unless it has `stale` ones."""
        copy = _Copy(executor, stale)
        if training:
            self._training = copy
            self._forget_accesses()
            self.watched = self._accesses = AccessTracker(self._tensors, self._note_first_access, self._hooks)
        else:
            self._inference = [*(each for each in self._inference if each.executor is not executor), copy]
            if self._training is None:
                self.watch_parameters()

    def watch_parameters(self) -> bool:
        """Detect accesses to parameters outside of training; return whether writes may have been missed so far.

        With recorded calls, also accesses to buffers, which these write later.
        """
        watch_tensors(self._tensors, buffers=self._hooks.follower.records)
        if self._accesses is not None and self._accesses.watches(self._tensors):
            return False
        self._forget_accesses()
        self._accesses = AccessTracker(self._tensors, self._note_first_access, self._hooks, on_host=True)
        self._silent = [number for number, tensor in enumerate(self._tensors) if type(tensor) is torch.Tensor]
        return True

    def unwatch(self, always: bool = True) -> None:
        """Make parameters ordinary ones, for PopTorch to wrap or for further use on the host.

        `always` also with other watchers.
        """
        if self._training is None:
            self._forget_accesses()
            unwatch_tensors(self._tensors, always)

    def _forget_accesses(self) -> None:
        if self._accesses is not None:
            self._accesses.ended = True
            self.in_graphs |= self._accesses.in_graphs
        self._accesses = self.watched = None

    def include(self, step: nn.Module) -> bool:
        """Include the tensors of a training program's module beside the model: a loss's buffers and parameters.

        Call it before the executor is added. Returns whether there are new ones.
        """
        new = self.held.include(step)
        self._versions += _count_edits(new)
        return bool(new)

    def remove(self, executor: Executor) -> None:
        """Forget an executor that was destroyed, which brings the newest weights to the host."""
        self._inference = [copy for copy in self._inference if copy.executor is not executor]
        if self._training is not None and self._training.executor is executor:
            self._training = None
            self._forget_accesses()
            self.host_is_stale = False
            self.counters.advance()
        if self._training is None and self._hooks.follower.records:
            self.watch_parameters()
        elif not self._inference:
            self.unwatch()

    def trained(self) -> None:
        """Remember that a training call has changed the weights on the device."""
        self.host_is_stale = True
        self.updates[0] += 1
        self.counters.calls += 1
        if self._accesses is not None:
            self._accesses.read = False
        for copy in self._inference:
            copy.stale = True
        if is_kept(self._places):
            if not self._warned_of_aliases:
                self._warned_of_aliases = True
                logger.warning(
                    "The loop keeps tensors that share the memory of weights (parameter.data, parameter.detach(), or "
                    "taken out of a state_dict()) over updates. In eager PyTorch they change with the weights, so "
                    "these are copied to the host after each update. A clone() keeps the values, and saves the copies."
                )
            self.to_host()

    def called(self, executor: Executor, writes_buffers: bool, spoils: bool) -> None:
        """Remember a call of a program that brings gradients back, and maybe buffers that it has written.

        It `spoils` the weights on the device if gradients were not finite.
        """
        self.updates[0] += 1
        self.counters.calls += 1
        if self.counters.counted:
            self.counters.advance()
        for copy in self._inference:
            copy.stale |= spoils if copy.executor is executor else writes_buffers

    def is_stale(self, executor: Executor) -> bool:
        """Return whether the host has weights that a program has not."""
        return any(copy.stale for copy in self._inference if copy.executor is executor)

    def spoil(self, executor: Executor) -> None:
        """Have the weights of a program uploaded before its next call."""
        for copy in self._inference:
            copy.stale |= copy.executor is executor

    def look(self) -> bool:
        """Do as `notice_edits` after a step on the host, which nothing has watched."""
        if self._accesses is not None:
            self._accesses.any = True
        return self.notice_edits()

    @contextlib.contextmanager
    def stepping(self) -> Iterator[Callable[[Callable[[], Any]], Callable[[], Any]]]:
        """Have parameters of PyTorch's own class in the `with` block, in which an optimizer steps on the host.

        PyTorch updates them all at once then. Gives a function that wraps a closure, which finds them as before.
        """
        watched: List[Tuple[torch.Tensor, Any]] = []

        def make_ordinary() -> None:
            self._steps = True
            kinds = [(tensor, type(tensor)) for tensor in self._tensors]  # which a closure may change
            watched[:] = [each for each in kinds if is_watched(each[1]) and issubclass(each[1], nn.Parameter)]
            for tensor, _ in watched:
                object.__setattr__(tensor, "__class__", nn.Parameter)

        def put_back() -> None:
            self._steps = False
            for tensor, tensor_class in watched:
                tensor.__class__ = tensor_class

        def as_before(closure: Callable[[], Any]) -> Callable[[], Any]:
            def call() -> Any:
                put_back()
                try:
                    return closure()
                finally:
                    make_ordinary()

            return call

        make_ordinary()
        try:
            yield as_before
        finally:
            put_back()

    def _places(self) -> Set[int]:
        with DisableTorchFunctionSubclass():
            return {tensor.untyped_storage().data_ptr() for tensor in self._tensors}

    def host_changed(self) -> None:
        """Remember that the host's weights were set, for example by `load_state_dict`: they are now the newest."""
        self.host_is_stale = False
        self.edits += 1
        for copy in self._copies():
            copy.stale = True
        self._versions = _count_edits(self._tensors)

    def put_written(self, executor: Optional[Executor], values: Sequence[Tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Put buffers on the host that a call of an inference program has written, which has the newest weights.

        The other programs get them before their next call.
        """
        self._hooks.follower.before_buffers_written([tensor for tensor, _ in values])
        self._put(values, but=executor)
        self.updates[0] += 1

    def untouched_since(self, looks: int) -> bool:
        """Return whether no code had a tensor, to write into it or to set its gradient, since `looks` was a number.

        False also if accesses do not show it: without a training program, and where autograd has recorded weights.
        """
        accesses = self._accesses
        if accesses is None or self._training is None or self.looks != looks:
            return False
        return not (accesses.any or accesses.in_graphs or self.in_graphs)

    def notice_edits(self) -> bool:
        """Find out whether the host's weights were written, and return it.

        Looks at every tensor if one was accessed since the last time. Otherwise it looks at the buffers if there is no
        training program, and at nothing if there is one.
        """
        accesses = self._accesses
        untouched = accesses is not None and not accesses.any
        if untouched and (self._training is not None or not self._silently_edited()):
            return False
        self.looks += 1
        edited = self._differ()
        found = self._edited() if edited else ()
        if accesses is not None:
            accesses.forget()
        if self._training is None and not self._steps and (self._inference or self._hooks.follower.records):
            edited |= self.watch_parameters()
        if self._lost:
            names, self._lost = self._lost, []
            self._versions = _count_edits(self._tensors)
            raise LostEditError(
                f"{listed(names)} of the model was written through a tensor that shares its memory, while the newest "
                "weights were on the device: the write is lost. Such tensors are results of detach(), a view or an "
                "index before the last training step. Write into the parameter itself, or take the sharing tensor "
                "again after each step."
            )
        if not edited:
            return False
        self.host_changed()
        self._hooks.follower.after_edits(found)
        return True

    @contextlib.contextmanager
    def put_back_unnoticed(self) -> Iterator[None]:
        """Ignore writes in the `with` block, which have to be undone at its end: they are no edits."""
        self.notice_edits()
        try:
            yield
        finally:
            self._versions = _count_edits(self._tensors)
            if self._accesses is not None:
                self._accesses.forget()

    def has_unsent(self) -> bool:
        """Return whether the host has weights that the training program lacks, without recording edits.

        For use during an access to a weight, whose write is still to come.
        """
        accesses = self._accesses
        return self.training_is_stale or (accesses is not None and accesses.any and not self._lost and self._differ())

    def _differ(self) -> bool:
        """Return whether a tensor was written since edits were noticed last."""
        accesses = self._accesses
        return _count_edits(self._tensors) != self._versions or (accesses is not None and accesses.uncounted_write())

    def _edited(self) -> Edited:
        """Return the tensors that were written since edits were noticed last, with their values before, if kept."""
        versions = zip(self._tensors, self._versions, _count_edits(self._tensors))
        found = {id(tensor): tensor for tensor, before, now in versions if before != now}
        accesses = self._accesses
        if accesses is None:
            return [(tensor, None) for tensor in found.values()]
        found.update({id(tensor): tensor for tensor in accesses.written_uncounted()})
        return [(tensor, accesses.value_before(tensor)) for tensor in found.values()]

    def keep(self, tensors: Sequence[torch.Tensor]) -> None:
        """Keep the values of tensors that are about to be written, for those who are told of edits."""
        for tensor in tensors if self._accesses is not None else ():
            assert self._accesses is not None
            self._accesses.keep(tensor)

    def _silently_edited(self) -> bool:
        """Return whether an undetectable write may have occurred: to a buffer, without a training program."""
        if self._accesses is None or not self._accesses.watches(self._tensors):
            return True
        now = _count_edits([self._tensors[number] for number in self._silent])
        return now != [self._versions[number] for number in self._silent]

    def to_host(self) -> bool:
        """Make the host's copy the newest; returns whether that took a copy."""
        if not self.host_is_stale or self._training is None:
            return False
        self._hooks.check_shown()
        if self._accesses is not None:
            # From now on, who has a tensor with the memory of a weight may write into the newest values.
            self._accesses.note(reads=True, brings=False)
        copied = self._download()
        self.host_is_stale = False
        if copied:
            self._hooks.fire(IPUEvents.WEIGHTS_TO_HOST)
        return copied

    def _download(self) -> bool:
        """Copy the newest weights, with retries, and count batches; returns whether PopTorch made a copy."""
        with jit_trace_left(), self.held.put_back():
            # After a retry it may be another executor.
            copied = self._hooks.copy(
                lambda: self._training is not None and self._training.executor.copyWeightsToHostIfNeeded()
            )
            self.counters.advance()
        return copied

    def show(self) -> None:
        """Make the host's copy the newest for a caller who may also write into it through shared memory."""
        self._hooks.follower.before_buffer_read()
        self.to_host()
        if self._accesses is not None:
            self._accesses.note(reads=False)

    def read(self) -> List[torch.Tensor]:
        """Return copies of the newest weights and buffers, parameters first, for `put_back`."""
        self.to_host()
        return [plain(tensor).clone() for tensor in self._tensors]

    def put_back(self, copies: Sequence[torch.Tensor]) -> None:
        """Make copies that `read` returned the newest weights, when those on the device are lost."""
        self.counters.forget()
        self._put(list(zip(map(plain, self._tensors), copies)))
        self.host_changed()

    @contextlib.contextmanager
    def with_others(
        self, values: Sequence[Tuple[torch.Tensor, Optional[torch.Tensor]]], kept: Optional[Container[int]] = None
    ) -> Iterator[None]:
        """Call the training program with other values of some tensors in the `with` block; None keeps a tensor's value.

        Their previous values are restored afterwards. If `kept` is given, only those of the tensors with these ids are,
        unless the call fails.
        """
        self.to_host()
        newest = [(tensor, plain(tensor).clone()) for tensor, _ in values]
        self._put([(tensor, value) for tensor, value in values if value is not None])
        failed, accesses = True, self._accesses
        try:
            with contextlib.nullcontext() if accesses is None else accesses.keeping_none():
                yield
            failed = False
        finally:
            self.to_host()
            self._put([pair for pair in newest if failed or kept is None or id(pair[0]) in kept])

    def _put(self, values: Sequence[Tuple[torch.Tensor, torch.Tensor]], but: Optional[Executor] = None) -> None:
        """Write values on the host that are no edits of anybody's; all programs `but` one lack them."""
        with torch.no_grad(), DisableTorchFunctionSubclass():
            for tensor, value in values:
                plain(tensor).copy_(value)
        for copy in self._copies():
            copy.stale |= copy.executor is not but
        self._versions = _count_edits(self._tensors)

    def to_training(self) -> bool:
        """Make the training program's copy the newest; returns whether that took a copy."""
        copy = self._training
        return copy is not None and copy.stale and self._upload(copy)

    def to_inference(self, executor: Optional[Executor] = None) -> bool:
        """Make the copy of an inference program, or of all of them, the newest; returns whether that took a copy."""
        copied = False
        for copy in self._inference:
            if copy.stale and (executor is None or copy.executor is executor):
                self.to_host()
                copied |= self._upload(copy)
        return copied

    def loaded(self, executor: Executor) -> None:
        """Remember that a program was loaded, which uploaded the host's weights."""
        for copy in self._copies():
            if copy.executor is executor:
                copy.stale = False

    def _copies(self) -> Sequence[_Copy]:
        return self._inference if self._training is None else (*self._inference, self._training)

    def _upload(self, copy: _Copy) -> bool:
        if not copy.executor.isAttachedToDevice():
            return False  # loading the program uploads them
        copy.stale = False
        copy.executor.copyWeightsToDevice()
        self._hooks.fire(IPUEvents.WEIGHTS_TO_DEVICE)
        return True

    def _note_first_access(self, brings: bool) -> None:
        """Detect writes without an access now: an access downloads, and so overwrites them."""
        if self.host_is_stale:
            pairs = zip(self.held.names, self._versions, _count_edits(self._tensors))
            self._lost += [name for name, before, after in pairs if before != after]
            if brings:
                self._download()  # PopTorch would do so by itself, without retries


def _count_edits(tensors: Sequence[torch.Tensor]) -> List[Tuple[int, int]]:
    # PyTorch counts the writes to each tensor, but not `tensor.data = other`, which is other memory.
    with DisableTorchFunctionSubclass():
        return list(zip(map(version_of, tensors), map(torch.Tensor.data_ptr, tensors)))
