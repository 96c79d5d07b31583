"""The process that loads items and copies them into the ring, ahead of the reader."""

from __future__ import annotations

import contextlib
import enum
import faulthandler
import itertools
import multiprocessing.process
import os
import pickle
import select
import signal
import sys
import time
import traceback
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch

from ignite_ipu.emulator.data.worker.item import ItemStructure
from ignite_ipu.emulator.data.worker.memory import Ring, SharedFile, TensorSpec
from ignite_ipu.emulator.data.worker.orphans import end_with_parent
from ignite_ipu.emulator.data.worker.rows import take_rows_at_once
from ignite_ipu.emulator.data.worker.seeding import RandomState, adopt_state
from ignite_ipu.emulator.data.worker.server import mended_workers
from ignite_ipu.emulator.values.structures import registerCustomArgParser
from ignite_ipu.torch_names.loaders import iterator_of, set_iterator, shut_down_workers

_LONGEST_REPORT = 64 * 1024
_NO_REQUEST = -2
_DEATH_SECONDS = 0.05

# Iterators inherited by a fork belong to the parent's worker processes: destroying one here would stop those.
_inherited: List[Any] = []


class MessageKind(enum.IntEnum):
    """Kind of a message: the first three go to the worker, the others come from it."""

    FREED = 0  # `number` items in all have been given back.
    ITERATE = 1  # Deliver an epoch numbered above `number`; `body`, if any, is the random state to begin it with.
    STOP = 2  # Finish.
    LAYOUT = 3  # `body` is the structure of items, their tensors, and the rows of the first item.
    ITEM = 4  # The next slot holds `rows` rows (-1: all of them) of epoch `number`.
    END = 5  # Epoch `number` is complete.
    FAILED = 6  # The worker stops; `body` has the reason.


class Message(NamedTuple):
    """One message between an accessor and its worker."""

    kind: MessageKind
    number: int = 0
    rows: int = -1
    body: Any = b""


def is_ready(connection: Connection, event: int = select.POLLIN, wait: bool = False) -> bool:
    """Return whether a message has arrived or the other end is closed; with `POLLOUT`, whether one has room."""
    poll = select.poll()
    poll.register(connection, event)
    return bool(poll.poll(None if wait else 0))


@dataclass(frozen=True)
class WorkerSettings:
    """Settings of a worker process: the accessor's arguments and derived values."""

    buffer_size: int
    slots: int
    load_indefinitely: bool
    early_preload: bool
    rebatched_size: Optional[int]
    keep_tail: bool  # An epoch's last rows are delivered even if they are fewer.
    random_state: Optional[RandomState]  # None keeps the inherited setting of a fork.
    parsers: Tuple[bytes, ...]  # Pickled pairs of a type and its parser.


class _Stop(BaseException):
    """The accessor wants no more."""


class _Abandoned(BaseException):
    """The accessor wants no more of this epoch."""


def run(
    connection: Connection,
    inherited: Optional[Connection],
    source: Any,
    memory: SharedFile,
    stack: SharedFile,
    settings: WorkerSettings,
) -> None:
    """Serve one accessor until it says stop or goes away; this is the main function of the process.

    A fork has `inherited` the accessor's end of the connection. `source` is the data set, or a `SharedFile` with its
    pickle; `memory` becomes the ring, and `stack` gets this process's stack when it is asked for.
    """
    if inherited is not None:
        inherited.close()
    # A group of its own: Ctrl-C in a terminal is for the program, and all of the group can be killed in one go.
    os.setpgid(0, 0)
    end_with_parent()
    # This process has imported the modules that loader processes need, so these are forked from it, however it was
    # started.
    multiprocessing.set_start_method("fork", force=True)
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # OpenMP's threads do not survive a fork; a parallel loop would wait for them for ever.
    torch.set_num_threads(1)
    faulthandler.register(signal.SIGUSR1, file=stack.fileno(), all_threads=True, chain=False)
    worker = _Worker(connection, memory, settings)
    has_failed = False
    try:
        try:
            worker.serve(source)
        finally:
            # Inside of the outer `try`: torch's handler may raise at this line, too.
            _disarm_loader()
    except (_Stop, KeyboardInterrupt):
        pass
    except BaseException as error:
        has_failed = True
        _disarm_loader()
        # Its reader may be gone, or look at the output alone.
        traceback.print_exc()
        sys.stderr.flush()
        with contextlib.suppress(OSError):
            trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            text = f"{type(error).__qualname__} while {worker.doing}: {error}{_dead_children()}"
            text = f"{text}\n\nTraceback of the worker:\n{trace}"[:_LONGEST_REPORT]
            connection.send(Message(MessageKind.FAILED, body=text))
    _disarm_loader()
    # Only here, where no traceback holds an iterator any more. multiprocessing would terminate loader processes in the
    # middle of making shared memory.
    worker.end_loader_processes()
    if has_failed:
        sys.exit(1)


class _Worker:
    """Loads epochs one after the other, never further ahead than it may."""

    def __init__(self, connection: Connection, memory: SharedFile, settings: WorkerSettings) -> None:
        self.doing = "starting"
        self._connection = connection
        self._memory = memory
        self._settings = settings
        # The accessor is reading an epoch numbered above this; smaller ones are of no use to it.
        self._requested_above = _NO_REQUEST
        self._state = b""
        self._published = 0
        self._freed = 0
        # Rows already in the slot being filled, when rebatching.
        self._filled = 0
        self._tail_skeleton = b""
        # Of the first item: the layout of all others.
        self._structure: ItemStructure
        self._specs: List[TensorSpec] = []
        self._ring: Ring
        self._dataset: Iterable[Any] = ()

    def serve(self, source: Any) -> None:
        """Load epoch after epoch, until an exception ends it."""
        for pair in self._settings.parsers:
            registerCustomArgParser(*pickle.loads(pair))
        self.doing = "unpickling the data set"
        dataset = self._dataset = source.unpickle() if isinstance(source, SharedFile) else source
        if isinstance(dataset, torch.utils.data.DataLoader) and iterator_of(dataset) is not None:
            _inherited.append(iterator_of(dataset))
            set_iterator(dataset, None)
        take_rows_at_once(dataset)
        if self._settings.random_state is not None:
            self._settings.random_state.restore()
        number = 0
        while True:
            self._handle_messages()
            while number > max(0, self._requested_above + 1 + self._settings.load_indefinitely):
                self._handle_messages(wait=True)
            number = max(number, self._requested_above + 1)
            if self._state:
                adopt_state(dataset, self._state)
                self._state = b""
            with contextlib.suppress(_Abandoned):
                self._load_epoch(number, dataset)
            number += 1

    def end_loader_processes(self) -> None:
        """Let the persistent processes of a torch loader finish their work, and end."""
        shut_down_workers(iterator_of(self._dataset))

    def _load_epoch(self, number: int, dataset: Iterable[Any]) -> None:
        self.doing = f"starting epoch {number}"
        self._filled = 0
        short_item = None
        for index, item in enumerate(self._items(number, dataset)):
            if short_item is not None:
                raise AssertionError(
                    f"Item {short_item} has fewer rows than the first one, which only the last of an epoch may have."
                )
            if not self._specs:
                self._lay_out(item)
            tensors, skeleton = self._structure.tensors(item), self._structure.skeleton(item)
            if self._settings.rebatched_size is not None:
                self._publish_cut(number, tensors, skeleton, self._settings.rebatched_size)
            elif self._publish_whole(number, tensors, skeleton):
                short_item = index
        if self._filled and self._settings.keep_tail:
            self._publish(number, self._filled, self._tail_skeleton)
        if self._published == 0 and (self._settings.rebatched_size is None or not self._specs):
            raise AssertionError("The Dataset is empty: it yielded no complete item.")
        self._send(Message(MessageKind.END, number))

    def _items(self, number: int, dataset: Iterable[Any]) -> Iterator[Any]:
        """Yield the items of one epoch, and say in `doing` which one is being waited for."""
        with mended_workers(dataset):
            iterator = iter(dataset)
        for index in itertools.count():
            self._handle_messages(number)
            self.doing = f"loading item {index} of epoch {number}"
            try:
                item = next(iterator)
            except StopIteration:
                return
            self.doing = f"sharing item {index} of epoch {number}"
            yield item

    def _lay_out(self, item: Any) -> None:
        """Make the ring for items like this first one, and announce it."""
        self._structure = ItemStructure.of(item)
        tensors, size = self._structure.tensors(item), self._settings.rebatched_size
        rows = 0 if size is None else self._common_rows(tensors)
        self._specs = [TensorSpec(tuple(t.shape) if size is None else (size, *t.shape[1:]), t.dtype) for t in tensors]
        self._ring = Ring(self._specs, self._settings.slots, self._memory)
        self._send(Message(MessageKind.LAYOUT, body=(self._structure, self._specs, rows)))

    def _publish_whole(self, number: int, tensors: List[torch.Tensor], skeleton: bytes) -> bool:
        """Copy an item into the next slot; return whether it is shorter than the first."""
        rows = self._rows_if_short(tensors)
        slot = self._free_slot(number)
        with torch.no_grad():
            for target, tensor in zip(slot, tensors):
                (target if rows < 0 else target[:rows]).copy_(tensor)
        self._publish(number, rows, skeleton)
        return rows >= 0

    def _publish_cut(self, number: int, tensors: List[torch.Tensor], skeleton: bytes, size: int) -> None:
        """Append the rows of an item to the slot being filled, and to as many further ones as they fill."""
        rows, start = self._common_rows(tensors), 0
        self._check_shapes(tensors, first=1)
        while start < rows:
            slot = self._free_slot(number)
            count = min(size - self._filled, rows - start)
            with torch.no_grad():
                for target, tensor in zip(slot, tensors):
                    target[self._filled : self._filled + count].copy_(tensor[start : start + count])
            self._filled += count
            self._tail_skeleton = skeleton
            start += count
            if self._filled == size:
                self._filled = 0
                self._publish(number, -1, skeleton)

    def _common_rows(self, tensors: Sequence[torch.Tensor]) -> int:
        shapes = {name: tuple(tensor.shape) for name, tensor in zip(self._structure.names, tensors)}
        rows = {shape[0] if shape else None for shape in shapes.values()}
        if None in rows or len(rows) > 1:
            raise AssertionError(
                f"Items with shapes {shapes} cannot be cut and joined to batches of {self._settings.rebatched_size}: "
                "all tensors need the same first dimension. Load without rebatching, or batch every tensor."
            )
        return int(tensors[0].shape[0])

    def _rows_if_short(self, tensors: Sequence[torch.Tensor]) -> int:
        """Return the number of rows of an item shorter than the first, -1 if it fills a slot."""
        if all([t.shape == spec.shape for t, spec in zip(tensors, self._specs)]):
            return -1
        shapes = [(tuple(t.shape), spec.shape) for t, spec in zip(tensors, self._specs)]
        if self._settings.keep_tail and all(
            0 < len(shape) == len(first) and shape[1:] == first[1:] and shape[0] <= first[0] for shape, first in shapes
        ):
            return self._common_rows(tensors)
        self._check_shapes(tensors, first=0)
        return -1

    def _check_shapes(self, tensors: Sequence[torch.Tensor], first: int) -> None:
        """Refuse tensors that `copy_` does not take, from dimension `first` on: it repeats those of length 1."""
        for name, spec, tensor in zip(self._structure.names, self._specs, tensors):
            shape, target = tensor.shape[first:], spec.shape[first:]
            pairs = zip(reversed(shape), reversed(target))
            if len(shape) > len(target) or any(length not in (1, wanted) for length, wanted in pairs):
                extent = " from the second dimension on" if first else ""
                raise AssertionError(
                    f"{name} has shape {tuple(tensor.shape)}, but the first item fixed {spec.shape}{extent}: it cannot "
                    "be copied into that. All items must match the first: pad them, set drop_last=True, or use "
                    "rebatching."
                )

    def _free_slot(self, number: int) -> List[torch.Tensor]:
        """Return the next slot as soon as the accessor has given it back."""
        while self._published - self._freed >= self._settings.buffer_size:
            self._handle_messages(number, wait=True)
        return self._ring.slots[self._published % self._settings.slots]

    def _publish(self, number: int, rows: int, skeleton: bytes) -> None:
        self._send(Message(MessageKind.ITEM, number, rows, skeleton))
        self._published += 1
        # The first item fixes the layout; the rest is loaded on demand.
        while self._requested_above == _NO_REQUEST and not self._settings.early_preload:
            self._handle_messages(number, wait=True)

    def _send(self, message: Message) -> None:
        try:
            self._connection.send(message)
        except (BrokenPipeError, ConnectionResetError):
            raise _Stop from None

    def _handle_messages(self, number: Optional[int] = None, wait: bool = False) -> None:
        """Read arrived messages; stop if the accessor has finished, or no longer needs epoch `number`."""
        while is_ready(self._connection, wait=wait):
            wait = False
            try:
                message: Message = self._connection.recv()
            except (EOFError, ConnectionResetError):
                raise _Stop from None
            if message.kind == MessageKind.STOP:
                raise _Stop
            if message.kind == MessageKind.FREED:
                self._freed = message.number
            elif message.kind == MessageKind.ITERATE:
                self._requested_above = message.number
                self._state = message.body or self._state
        if number is not None and number <= self._requested_above:
            raise _Abandoned


def _dead_children() -> str:
    """Name the loader processes that have died: torch often just reports the connection that broke with one."""
    children: Any = getattr(multiprocessing.process, "_children", ())
    if not children:
        return ""
    # A connection breaks a moment before its process can be waited for.
    time.sleep(_DEATH_SECONDS)
    dead = [f"{child.pid} (exit code {child.exitcode})" for child in list(children) if child.exitcode]
    return f". DataLoader worker process {', '.join(dead)} had died" if dead else ""


def _disarm_loader() -> None:
    """Undo torch's handler, which raises wherever this program happens to be when a loader process has died.

    Python calls the handler of a signal that has just arrived before it replaces this handler: the call then raises,
    and has replaced nothing.
    """
    while True:
        try:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        except RuntimeError:
            continue
        return
