"""Places of a model's weights, host, training program and inference programs, and which of them has the newest."""

from __future__ import annotations

import contextlib
import weakref
from typing import Container, Iterator, List, Optional, Sequence, Set, Tuple

import torch
from torch import nn

from ignite_ipu.poptorch_types import Executor
from ignite_ipu.program.tensors.raw import plain
from ignite_ipu.program.tensors.sharing import address_of
from ignite_ipu.session.hooks import IPUEvents, SessionHooks
from ignite_ipu.session.weights.edit_detector import EditDetector
from ignite_ipu.session.weights.host_copy import HostCopy
from ignite_ipu.session.weights.program_copies import ProgramCopies
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass


class Weights:
    """The weights of one model in all their places, each copied only when it is stale.

    Attributes:
        programs: The copies of the programs.
        host: The host's copy: the model's parameters and buffers.
        held: The tensors of the host's copy.
        detector: Finds the tensors of the host's copy that were written.
        updates: Number of calls of the training program; a list of one number, for objects that outlive this one.
        integers: The ids of the buffers of integers that programs write.
        sharing: The weights of other models that have memory in common with these.
    """

    def __init__(self, model: nn.Module, hooks: Optional[SessionHooks] = None) -> None:
        self._hooks = hooks or SessionHooks()
        self.programs = ProgramCopies(self._hooks)
        self.host = HostCopy(model, self.programs, self._hooks)
        self.held = self.host.held
        self.detector = EditDetector(self.host, self.programs, self._hooks)
        self.updates = [0]
        self.integers: Set[int] = set()
        self.sharing: weakref.WeakSet[Weights] = weakref.WeakSet()

    def add(self, executor: Executor, training: bool, stale: bool = False) -> None:
        """Take charge of an executor's weights; loading its program uploads the host's, unless it has `stale` ones."""
        self.programs.add(executor, training, stale)
        if training:
            self.detector.watch_training()
        elif self.programs.training is None:
            self.detector.watch_evaluation()

    def include(self, step: nn.Module) -> bool:
        """Include the tensors of a training program's module beside the model: a loss's buffers and parameters.

        Call it before the executor is added. Returns whether there are new ones.
        """
        new = self.held.include(step)
        self.detector.counts.include(new)
        return bool(new)

    def remove(self, executor: Executor) -> None:
        """Forget an executor that was destroyed, which brings the newest weights to the host."""
        if self.programs.remove(executor):
            self.detector.end()
            self.host.is_stale = False
            self.host.counters.advance()
        if self.programs.training is None and self._hooks.follower.records:
            self.detector.watch_evaluation()
        elif not self.programs.inference:
            self.detector.unwatch()

    def trained(self) -> None:
        """Remember that a training call has changed the weights on the device."""
        host, accesses = self.host, self.detector.accesses
        host.is_stale = True
        self.updates[0] += 1
        host.counters.calls += 1
        if accesses is not None:
            accesses.read = False
        for copy in self.programs.inference:
            copy.stale = True
        aliases = None if accesses is None else accesses.aliases
        if aliases is not None and (aliases.handed_out or aliases.found) and aliases.among(host.held.tensors):
            assert accesses is not None
            host.warn_of_aliases()
            self.to_host()
            accesses.keep_aliased()

    def called(self, executor: Executor, writes_buffers: bool, spoils: bool) -> None:
        """Remember a call of a program that brings gradients back, and maybe buffers that it has written.

        It `spoils` the weights on the device if gradients were not finite.
        """
        counters = self.host.counters
        self.updates[0] += 1
        counters.calls += 1
        if counters.counted:
            counters.advance()
        for copy in self.programs.inference:
            copy.stale |= spoils if copy.executor is executor else writes_buffers

    def host_changed(self) -> None:
        """Remember that the host's weights were set, for example by `load_state_dict`: they are now the newest."""
        self._note_host_changed()
        self.detector.counts.mark_seen()

    def _note_host_changed(self) -> None:
        self.host.is_stale = False
        self.detector.edits += 1
        self.programs.mark_stale()

    def notice_edits(self) -> bool:
        """Find out whether the host's weights were written, and return it.

        Looks at every tensor if one was accessed since the last time, and at nothing otherwise.
        """
        detector = self.detector
        untouched = detector.accesses is not None and not detector.accesses.any
        if untouched and (self.programs.training is not None or not detector.is_blind()):
            return False
        found = detector.find()
        if found is None:
            return False
        self._note_host_changed()
        self._hooks.follower.after_edits(found)
        return True

    @contextlib.contextmanager
    def put_back_unnoticed(self) -> Iterator[None]:
        """Ignore writes in the `with` block, which have to be undone at its end: they are no edits."""
        everyone = [self, *self.sharing]
        for each in everyone:
            each.notice_edits()
        try:
            yield
        finally:
            for each in everyone:
                each.detector.counts.mark_seen()
                if each.detector.accesses is not None:
                    each.detector.accesses.forget()

    def to_host(self, hands_out: bool = True) -> bool:
        """Make the host's copy the newest; returns whether that took a copy.

        If the caller `hands_out` no memory of it, no tensors are looked for that share it.
        """
        host, accesses = self.host, self.detector.accesses
        if not host.is_stale or self.programs.training is None:
            return False
        self._hooks.check_shown()
        if accesses is not None:
            # From now on, who has a tensor with the memory of a weight may write into the newest values.
            accesses.any = True
            accesses.aliases.handed_out |= hands_out
            accesses.bring(brings=False)
        copied = host.download()
        host.is_stale = False
        if copied:
            self._hooks.fire(IPUEvents.WEIGHTS_TO_HOST)
        return copied

    def show(self) -> None:
        """Make the host's copy the newest for a caller who may also write into it through shared memory."""
        self._hooks.follower.before_buffer_read()
        self.to_host()
        if self.detector.accesses is not None:
            self.detector.accesses.note(reads=False)
            self.detector.accesses.aliases.handed_out = True

    def read(self) -> List[torch.Tensor]:
        """Return copies of the newest weights and buffers, parameters first, for `put_back`."""
        self.to_host(hands_out=False)
        return [plain(tensor).clone() for tensor in self.held.tensors]

    def put_back(self, copies: Sequence[torch.Tensor]) -> None:
        """Make copies that `read` returned the newest weights, when those on the device are lost."""
        self.host.counters.forget()
        self._put(list(zip(map(plain, self.held.tensors), copies)))
        self.host_changed()

    def put_written(self, executor: Optional[Executor], values: Sequence[Tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Put buffers on the host that a call of an inference program has written, which has the newest weights.

        The other programs get them before their next call.
        """
        self._hooks.follower.before_buffers_written([tensor for tensor, _ in values])
        self._put(values, but=executor)
        self.updates[0] += 1

    @contextlib.contextmanager
    def with_others(
        self, values: Sequence[Tuple[torch.Tensor, Optional[torch.Tensor]]], kept: Optional[Container[int]] = None
    ) -> Iterator[None]:
        """Call the training program with other values of some tensors in the `with` block; None keeps a tensor's value.

        Their previous values are restored afterwards. If `kept` is given, only those of the tensors with these ids are,
        unless the call fails. To models that share the memory of restored tensors these have not changed.
        """
        for other in list(self.sharing):
            other.notice_edits()
        self.to_host()
        newest = [(tensor, plain(tensor).clone()) for tensor, _ in values]
        self._put([(tensor, value) for tensor, value in values if value is not None])
        failed, accesses = True, self.detector.accesses
        with contextlib.nullcontext() if accesses is None else accesses.keeping_none():
            try:
                yield
                failed = False
            finally:
                self.to_host()
                restored = [pair for pair in newest if failed or kept is None or id(pair[0]) in kept]
                self._put(restored)
                if self.sharing:
                    with DisableTorchFunctionSubclass():
                        memories = {address_of(tensor) for tensor, _ in restored}
                        for other in self.sharing:
                            other.detector.counts.mark_restored(memories)

    def to_training(self) -> bool:
        """Make the training program's copy the newest; returns whether that took a copy."""
        copy = self.programs.training
        return copy is not None and copy.stale and self.programs.upload(copy)

    def to_inference(self, executor: Optional[Executor] = None) -> bool:
        """Make the copy of an inference program, or of all of them, the newest; returns whether that took a copy."""
        copied = False
        for copy in self.programs.inference:
            if copy.stale and (executor is None or copy.executor is executor):
                self.to_host()
                copied |= self.programs.upload(copy)
        return copied

    def _put(self, values: Sequence[Tuple[torch.Tensor, torch.Tensor]], but: Optional[Executor] = None) -> None:
        """Write values on the host that are no edits of anybody's; all programs `but` one lack them."""
        self.host.write(values)
        self.programs.mark_stale(but)
        self.detector.counts.mark_seen()
