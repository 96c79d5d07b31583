"""Side effects of a program's calls on the host: buffers that forward writes, and attributes that it computes."""

from __future__ import annotations

import functools
from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch

from ignite_ipu.capabilities.traced import FORMAT
from ignite_ipu.errors import OptionsError, SessionError, listed, logger
from ignite_ipu.poptorch_types import Executor
from ignite_ipu.program.forward.assigned_buffers import Assignments
from ignite_ipu.program.forward.first_call import SetOnce, set_once
from ignite_ipu.program.forward.integer_buffers import CARRIED
from ignite_ipu.program.forward.module_attributes import ModuleAttributes
from ignite_ipu.program.forward.randomness import draw_from, draws_put_back, host_random_state
from ignite_ipu.program.forward.weight_writes import WeightWriteGuard
from ignite_ipu.program.guards.decisions import Decisions
from ignite_ipu.program.guards.retrace import FirstCallRecorder, Operation
from ignite_ipu.program.micro_batches import first_micro_batch
from ignite_ipu.program.step import BatchStep
from ignite_ipu.program.tensors.raw import dtype_of, named_tensors, plain
from ignite_ipu.program.tensors.trees import map_tensors, tensors_in
from ignite_ipu.program.traced_places import changes_in_every_call, refusal_at
from ignite_ipu.session.resolved import Resolved
from ignite_ipu.session.weights.batch_counters import Counted
from ignite_ipu.session.weights.tracker import Weights
from ignite_ipu.torch_names.modules import BUFFERS


class SideEffects:
    """Finds the buffers and attributes that one program's forward sets, and sets them on the host after its calls."""

    def __init__(self, step: BatchStep, resolved: Resolved, weights: Weights) -> None:
        self._step, self._resolved, self._weights = step, resolved, weights
        # PopTorch's class of the step makes each look-up of a part of it a search.
        self.computed = step.computed
        self._buffers: List[Sequence[str]] = []  # empty until they are known
        # Those of the first call, if it has changed nothing and is to be compared with the next one.
        self._operations: Optional[List[Operation]] = None
        self._decisions: Optional[Decisions] = None  # before the first call
        self._computed_from: Tuple[int, int] = (-1, -1)  # the weights that attributes were computed from last

    def set_up(self, leaves: Sequence[Any], refuse: Callable[[str], None], ahead: bool = False) -> None:
        """Set weights, buffers and attributes that the first call of a model alone sets, by a call on the host.

        `refuse` raises an error for a reason: forward counts its calls.

        Raises:
            SessionError: As of `set_once`; or there are some, and the leaves are those of a batch that is not
                the first one, since the program is compiled `ahead`.
        """
        step = self._step
        if step.is_tried or self._weights.updates[0]:
            return
        kept = ModuleAttributes(step)
        found = SetOnce({}, [])
        made: List[str] = []
        inputs = first_micro_batch(leaves, self._resolved.micro_batches)
        state = host_random_state()
        keeps: List[bool] = []

        recorder = FirstCallRecorder()

        def call() -> Any:
            given = map_tensors(inputs, torch.Tensor.clone)
            recorder.begin(tensors_in(given), variable)
            with recorder:
                result = step.forward(*given)
            keeps.append(assignments.are_possible)
            return result

        try:
            # With the model's own weights, so that it may be of use to later ones.
            self._decisions = Decisions(step.model, *step.beside)
            with step.host_weights.put_into(step) as (variable, _, _):
                known, assignments = named_tensors(step.model).keys(), Assignments(step.model)
                found = set_once(step.model, call, recorder, self._decisions)
                made = [
                    name
                    for name, each in named_tensors(step.model).items()
                    if name not in known and recorder.depends(each)
                ]
                self._operations = recorder.operations if len(keeps) == 1 and not found.values else None
        except SessionError:
            raise
        except Exception as error:
            logger.info("%s cannot be called on the host: %s", type(step.model).__qualname__, error)
        finally:
            if ahead or not found.values:
                kept.put_back(always=True)
                draw_from(state)
        # A call that has put no tensors into attributes has computed none of them.
        step.computed.is_searched |= keeps[:1] == [False]
        if made:
            raise SessionError(
                f"The first call of {type(step.model).__qualname__} registers {listed(made)} with values of its batch. "
                "A compiled program has the buffers that the model has before. Register them in the constructor, and "
                "write into them in place."
            )
        if found.counters:
            refuse(changes_in_every_call(step.model, found.counters))
        if found.values and ahead:
            raise SessionError(
                f"The first call of {type(step.model).__qualname__} sets {listed(list(found.values))} by its batch, so "
                "nothing can be compiled ahead of it. Set them before, or let the first training call compile."
            )
        if found.values:
            found.put(step.model)
            self._weights.host_changed()

    def first_operations(self) -> Optional[List[Operation]]:
        """Return the operators of the call of `set_up`, once, if it has changed nothing; None otherwise."""
        operations, self._operations = self._operations, None
        return operations

    def decisions(self) -> Decisions:
        """Return the values that the code reads now: those from before the call of `set_up`, once, if none changed."""
        known, self._decisions = self._decisions, None
        return known if known is not None and known.are_current else Decisions(self._step.model, *self._step.beside)

    def carry_integers(self, leaves: Sequence[Any], several_ipus: bool) -> None:
        """Have the buffers of integers carried that a call writes, before PopTorch wraps the step.

        Those that other programs of the model write are carried, too.

        Raises:
            SessionError: There are some, and an IPU lacks their type.
            OptionsError: There are some, and each replica would have its own.
        """
        step, resolved = self._step, self._resolved
        names = step.written.integers(step, leaves, resolved.micro_batches)
        if resolved.training and resolved.own_buffers:
            refuse_own_buffers(names, resolved.replicas)
        known = self._weights.integers
        buffers = named_tensors(step, BUFFERS) if names or known else {}
        types = {name: dtype_of(buffers[name]) for name in names}
        lacked = [f"{name} of type {kind}" for name, kind in types.items() if kind not in CARRIED]
        if lacked:
            raise SessionError(refusal_at(FORMAT, None, f"{type(step.model).__qualname__}.forward", listed(lacked)))
        read = [name for name, buffer in buffers.items() if id(buffer) in known]
        known.update(id(buffers[name]) for name in names)
        step.integers.carry(step, names, read, several_ipus)

    def buffers(self, *parts: Any) -> Sequence[str]:
        """Return the names of the buffers that a call for a batch writes, by a call on the host if they are unknown."""
        if not self._buffers:
            step = self._step.again()
            layout, leaves = step.layout.flattened(parts, 1)
            step.layout.settle(layout)
            self._find_buffers(step, leaves, 1)
        return self._buffers[0]

    def check_buffers(self, leaves: Sequence[Any]) -> None:
        """Refuse buffers that forward writes in inference, where their values of the last micro-batch cannot return."""
        resolved = self._resolved
        names = self._find_buffers(self._step, leaves, resolved.micro_batches)
        if not names:
            return
        if resolved.replicas > 1:
            raise OptionsError(
                f"The model writes {listed(names)} in evaluation, and each of its {resolved.replicas} "
                "replicas (replicationFactor) would write a copy of its own. Evaluate with replication_factor=1."
            )
        iterations = resolved.geometry.device_iterations
        if resolved.output_mode == "Sum" and iterations > 1:
            raise OptionsError(
                f"The model writes {listed(names)} in evaluation, and the output mode Sum would add its values of "
                f"{iterations} micro-batches (deviceIterations) up. Evaluate with device_iterations=1, or "
                "with another output mode."
            )

    def _find_buffers(self, step: BatchStep, leaves: Sequence[Any], micro_batches: int) -> Sequence[str]:
        self._buffers[:] = [step.written.find(step, leaves, micro_batches)]
        return self._buffers[0]

    def take(self, executor: Executor, outputs: Any, counted: Counted) -> Any:
        """Return the output of an inference call, after copying the written buffers to PyTorch's.

        Batches are added to the `counted` counters.
        """
        names = self._step.written.names
        if names:
            outputs, *written = outputs
            buffers = named_tensors(self._step.model, BUFFERS)
            values = [(buffers[name], value[-1]) for name, value in zip(names, written)]
            self._weights.put_written(executor, values)
        for counter, count in counted:
            if count:
                # PyTorch takes it for no edit.
                plain(counter).numpy()[...] += count * self._resolved.micro_batches
        return outputs

    def find_attributes(self, leaves: Sequence[Any]) -> bool:
        """Have attributes kept that forward computes from weights alone; return whether there are any."""
        step, resolved = self._step, self._resolved
        if not step.computed.is_searched:
            self._search_attributes(step, first_micro_batch(leaves, resolved.micro_batches))
        found = bool(step.computed.places)
        if found and resolved.training:
            self._weights.include(step)
        return found

    def _search_attributes(self, step: BatchStep, inputs: Sequence[Any]) -> None:
        """Search them by calls on the host, before PopTorch wraps the step, and store the results in them."""
        values: List[torch.Tensor] = []
        try:
            with step.host_weights.tried_in(step, step.model), WeightWriteGuard(step.model):
                call, assignments = functools.partial(step.forward, *inputs), Assignments(step.model)
                values = step.computed.find(step.model, tensors_in(inputs), call, self._resolved.training)
                assignments.find(lambda: tensors_in(call()), registers=False)
        except Exception as error:
            logger.info("%s cannot be called on the host: %s", type(step.model).__qualname__, error)
        step.computed.show(values)

    def show_attributes(self, leaves: Sequence[Any]) -> None:
        """Set these attributes to their values after a call."""
        step, resolved = self._step, self._resolved
        if not self.computed.places:
            return
        if resolved.training:
            step.computed.show()
            return
        weights = self._weights.updates[0], self._weights.detector.edits
        if weights != self._computed_from:
            self._computed_from = weights
            inputs = first_micro_batch(leaves, resolved.micro_batches)
            with draws_put_back(), step.host_weights.put_into(step):
                values = step.computed.computed(step.model, functools.partial(step.forward, *inputs))
            step.computed.show(values)


def refuse_own_buffers(written: Sequence[str], replicas: int) -> None:
    """Refuse buffers that a model writes, of which each replica would have its own values.

    Raises:
        OptionsError: There are some.
    """
    if written:
        raise OptionsError(
            f"The model writes {listed(written)}, and its {replicas} replicas (replicationFactor) would each have "
            "their own values, of which those of the first one come back. If that is acceptable, pass options with "
            "broadcastBuffers(False); it is set by itself for the statistics of normalisations alone."
        )
