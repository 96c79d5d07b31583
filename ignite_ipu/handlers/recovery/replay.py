"""Device calls that can be made again, from a copy of all that they change."""

from __future__ import annotations

import dataclasses
import time
from typing import Any, List, Optional, Sequence, Tuple

import torch

from ignite_ipu.optimizers.host_link import HostLink
from ignite_ipu.poptorch_types import Executor
from ignite_ipu.session.program import ModelProgram
from ignite_ipu.session.program_kinds import GradientKind
from ignite_ipu.session.random_streams import started_stream
from ignite_ipu.session.training import Trained
from ignite_ipu.session.weights.tracker import Weights


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """All that a training call changes, on the host: weights and buffers in the session's order, and random streams.

    `random_state` is None before the program was compiled.
    """

    weights: List[torch.Tensor]
    optimizer: Any
    random_state: Optional[List[int]]


@dataclasses.dataclass(frozen=True)
class _Call:
    leaves: List[Any]
    settings: Any


class Replay:
    """Goes back to a snapshot and makes the calls since then once more, which ends where they ended.

    `snapshot` is the newest one; None before the first call, and when the host has set something since.
    """

    def __init__(self, trained: Trained, weights: Weights) -> None:
        self._trained, self._weights = trained, weights
        self._calls: List[_Call] = []
        self._set_by_host: Optional[Tuple[Optional[List[torch.Tensor]], Any]] = None
        # A call's arguments, for compiling, should the program be lost.
        self.example: Tuple[Sequence[Any], Any] = ((), ())
        self.snapshot: Optional[Snapshot] = None
        self.held_bytes = 0
        self.taken_at = 0.0

    @property
    def calls(self) -> int:
        return len(self._calls)

    def forget(self) -> None:
        """Drop the snapshot: something has changed that making the calls again would not change."""
        self.snapshot = None
        self._drop_calls()

    def take(self) -> Snapshot:
        """Take a snapshot; the calls before it need not be kept any more.

        It costs one download of the weights, if they are newer on the device, and one of the rest.
        """
        trained = self._trained
        random_state = started_stream(trained.program)
        self.snapshot = Snapshot(self._weights.read(), trained.link.read(), random_state)
        self._drop_calls()
        self.taken_at = time.monotonic()
        return self.snapshot

    def made(self, leaves: Sequence[Any]) -> None:
        """Keep a call that has succeeded; its batch is copied, since loaders and handlers reuse theirs."""
        copies = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self._calls.append(_Call(copies, self._trained.link.settings))
        self.held_bytes += sum(leaf.numel() * leaf.element_size() for leaf in copies if isinstance(leaf, torch.Tensor))

    def put_back(self, steps: Optional[int] = None) -> None:
        """Set the host to the snapshot, and release the IPUs of the training program; `steps` replaces its count."""
        snapshot = self.snapshot
        assert snapshot is not None  # callers check that first
        self._trained.program.abandon(snapshot.random_state)
        self._weights.put_back(snapshot.weights)
        self._trained.link.put_back(snapshot.optimizer, steps)

    def run(self) -> int:
        """Bring the device to where it was after the last call that succeeded; returns how many calls that took.

        Values that the host has set since then and not sent yet are kept.
        """
        snapshot, weights, link, program = self.snapshot, self._weights, self._trained.link, self._trained.program
        assert snapshot is not None
        if isinstance(link, HostLink):
            return self._run_for_host(snapshot.random_state)
        if self._set_by_host is None:
            # Once, should this fail and be tried again: going back sets the host, too.
            self._set_by_host = (
                weights.read() if weights.detector.has_unsent() else None,
                link.read() if link.has_unsent() else None,
            )
        self.put_back(link.steps)
        newest = link.settings
        if program.executor is not None:
            link.tell(program.executor, snapshot.optimizer.settings)
        executor = self._load(program)
        for call in self._calls:
            link.tell(executor, call.settings)
            executor(*call.leaves)
            weights.trained()
        link.tell(executor, newest)
        values, optimizer = self._set_by_host
        if values is not None:
            weights.to_host()  # or the next read would have PopTorch overwrite the host's values
            weights.put_back(values)
        if optimizer is not None:
            link.put_back(optimizer)
        self._set_by_host = None
        return len(self._calls)

    def _run_for_host(self, random_state: Optional[List[int]]) -> int:
        """Do as `run` where the host has the newest weights: a device has random numbers, and buffers of one call."""
        program, weights, calls = self._trained.program, self._weights, self._calls
        program.abandon(random_state)
        executor = self._load(program)
        fetching = isinstance(program.kind, GradientKind) and program.kind.fetching
        known = len(calls) - fetching
        for number, call in enumerate(calls):
            if number == known:
                # The results of this one are not on the host yet, which has its initial values.
                executor.copyWeightsToDevice()
            executor(*call.leaves)
        if known == len(calls):
            weights.programs.spoil(executor)
        return len(calls)

    def _load(self, program: ModelProgram) -> Executor:
        leaves, batch = self.example
        if not program.compiled:  # a failed compilation has forgotten the layout
            leaves = program.step.arguments(*batch, micro_batches=program.resolved.micro_batches)
        return program.load(leaves, batch)

    def _drop_calls(self) -> None:
        self._set_by_host = None
        self._calls.clear()
        self.held_bytes = 0
