"""Learning rates that schedulers will set in a run, worked out before it: nothing is trained, and all is as before."""

from __future__ import annotations

import contextlib
import copy
import itertools
from typing import TYPE_CHECKING, Any, Iterator, List, NamedTuple, Sequence, Tuple

import torch
from ignite.engine import Engine, Events
from torch.optim import Optimizer

from ignite_ipu.engines.counting import CountEvents
from ignite_ipu.engines.schedulers import scheduling_handlers
from ignite_ipu.errors import listed
from ignite_ipu.program.geometry import BatchGeometry
from ignite_ipu.program.ignored_warnings import ignored_warnings
from ignite_ipu.program.tensors.trees import tensors_in

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROWS = 20


class Rate(NamedTuple):
    """Learning rates of one device call: an Ignite iteration, with the weight updates that it makes, from 1."""

    iteration: int
    first_update: int
    last_update: int
    rates: Tuple[float, ...]


class LearningRates:
    """Learning rates of a run, one row for each device call; prints as a table and draws as a picture.

    Attributes:
        rows: The rates, one for each parameter group of the optimizer.
        left_out: Names of handlers that use a scheduler in a way that only a run shows.
    """

    def __init__(self, rows: Sequence[Rate], left_out: Sequence[str] = ()) -> None:
        self.rows, self.left_out = tuple(rows), tuple(left_out)

    def __str__(self) -> str:
        groups = len(self.rows[0].rates) if self.rows else 0
        names = ["learning rate"] if groups == 1 else [f"group {number}" for number in range(groups)]
        cells = [("iteration", "updates", *names), *map(_cells, self._shown())]
        widths = [max(map(len, column)) for column in zip(*cells)]
        lines = ["  ".join(map(str.rjust, row, widths)) for row in cells]
        if len(self.rows) > len(cells) - 1:
            lines.append(f"({len(self.rows)} iterations; every change of direction is shown)")
        if self.left_out:
            lines.append(f"Only a run shows the effect of these handlers: {listed(self.left_out)}.")
        return "\n".join(lines)

    def draw(self) -> Figure:
        """Return a matplotlib figure with the rate of every weight update.

        Raises:
            MissingLibraryError: matplotlib is not installed.
        """
        from ignite_ipu.pipeline.planning.drawing import new_figure

        figure = new_figure(8, 4)
        axes = figure.add_subplot()
        for number, rates in enumerate(zip(*(row.rates for row in self.rows))):
            edges = [self.rows[0].first_update - 1, *(row.last_update for row in self.rows)]
            axes.stairs(rates, edges, label=f"group {number}", baseline=None)
        axes.set_xlabel("weight update")
        axes.set_ylabel("learning rate")
        each = self.rows[-1].last_update / len(self.rows)

        def to_iterations(update: Any) -> Any:
            return update / each

        def to_updates(iteration: Any) -> Any:
            return iteration * each

        above = axes.secondary_xaxis("top", functions=(to_iterations, to_updates))
        above.set_xlabel("iteration (device call)")
        if len(self.rows[0].rates) > 1:
            axes.legend(frameon=False)
        return figure

    def _shown(self) -> List[Rate]:
        """Return the rows of the table: ends, turns, and some between them."""
        rows = self.rows
        if len(rows) <= _ROWS:
            return list(rows)
        kept = {0, len(rows) - 1, *range(0, len(rows), -(-len(rows) // _ROWS))}
        kept.update(i for i in range(1, len(rows) - 1) if _turns(rows[i - 1].rates, rows[i].rates, rows[i + 1].rates))
        return [rows[i] for i in sorted(kept)]


def planned_rates(
    trainer: Engine, optimizer: Optimizer, epoch: Sequence[BatchGeometry], max_epochs: int
) -> LearningRates:
    """Return the rates that the schedulers attached to a trainer will set.

    Schedulers are Ignite's, those of torch in Ignite's wrapper, and functions that do nothing but call `step()` of
    torch's. They are called as in a run, with the trainer's counts. Their state is restored afterwards.

    Args:
        epoch: The arithmetic of each device call of an epoch.
    """
    handlers, left_out = scheduling_handlers(trainer)
    used = [each for handler in handlers for each in handler.schedulers]
    rows: List[Rate] = []
    with _kept(trainer, optimizer, used), ignored_warnings():  # by torch, about an optimizer that has made no step
        state: Any = trainer.state
        counts = {"weight_updates": 0, "micro_batches": 0, "samples": 0}
        vars(state).update(iteration=0, epoch=0, epoch_length=len(epoch), max_epochs=max_epochs, **counts)

        def fire(fired: Any) -> None:
            for handler in handlers:
                if handler.event == fired:
                    trainer.last_event_name = fired
                    handler.call()

        def count(event: Any, name: str, times: int) -> None:
            for _ in range(times):
                setattr(state, name, getattr(state, name) + 1)
                fire(event)

        fire(Events.STARTED)
        for state.epoch in range(1, max_epochs + 1):
            fire(Events.EPOCH_STARTED)
            for call in epoch:
                fire(Events.GET_BATCH_STARTED)
                fire(Events.GET_BATCH_COMPLETED)
                state.iteration += 1
                counted = state.weight_updates, state.micro_batches
                for update in range(call.updates_per_call):
                    count(CountEvents.WEIGHT_UPDATE_STARTED, "weight_updates", 1)
                    each, rest = divmod(call.input_micro_batches, call.updates_per_call)
                    count(CountEvents.MICRO_BATCH_STARTED, "micro_batches", each + (update < rest))
                state.weight_updates, state.micro_batches = counted
                fire(Events.ITERATION_STARTED)
                before = state.weight_updates
                rates = tuple(float(group["lr"]) for group in optimizer.param_groups)
                rows.append(Rate(state.iteration, before + 1, before + call.updates_per_call, rates))
                state.samples_per_call = call.global_batch_size
                state.samples += call.global_batch_size
                count(CountEvents.WEIGHT_UPDATE_COMPLETED, "weight_updates", call.updates_per_call)
                count(CountEvents.MICRO_BATCH_COMPLETED, "micro_batches", call.input_micro_batches)
                fire(CountEvents.SAMPLES_COMPLETED)
                fire(Events.ITERATION_COMPLETED)
            fire(Events.EPOCH_COMPLETED)
    return LearningRates(rows, left_out)


@contextlib.contextmanager
def _kept(trainer: Engine, optimizer: Optimizer, schedulers: Sequence[Any]) -> Iterator[None]:
    """Restore the trainer's state, the optimizer's groups and the schedulers at the end."""
    state, last = dict(vars(trainer.state)), trainer.last_event_name
    groups = [dict(group) for group in optimizer.param_groups]
    # PyTorch's schedulers write a rate that is a tensor in place.
    settings = tensors_in([{**group, "params": ()} for group in groups])
    copies = [each.detach().clone() for each in settings]
    originals = {id(each): (each, dict(vars(each))) for each in schedulers}
    # Schedulers change copies of their own attributes, which lead to the same optimizer and the same tensors.
    shared = [optimizer, trainer, trainer.state, optimizer.param_groups, *optimizer.param_groups, *settings]
    shared += itertools.chain.from_iterable(group["params"] for group in optimizer.param_groups)
    memo = {id(each): each for each in shared}
    try:
        for scheduler, attributes in originals.values():
            vars(scheduler).update(copy.deepcopy(attributes, memo))
        vars(trainer.state).update(param_history=copy.deepcopy(state.get("param_history"), memo))
        yield
    finally:
        for scheduler, attributes in originals.values():
            vars(scheduler).clear()
            vars(scheduler).update(attributes)
        for group, values in zip(optimizer.param_groups, groups):
            group.clear()
            group.update(values)
        with torch.no_grad():
            for setting, value in zip(settings, copies):
                setting.copy_(value)
        vars(trainer.state).clear()
        vars(trainer.state).update(state)
        trainer.last_event_name = last


def _cells(row: Rate) -> Tuple[str, ...]:
    one = row.first_update == row.last_update
    updates = str(row.first_update) if one else f"{row.first_update}-{row.last_update}"
    return (str(row.iteration), updates, *(f"{rate:.6g}" for rate in row.rates))


def _turns(before: Sequence[float], now: Sequence[float], after: Sequence[float]) -> bool:
    return any((b - a) * (c - b) < 0 or (a == b) != (b == c) for a, b, c in zip(before, now, after))
