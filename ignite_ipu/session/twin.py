"""A training program over tensors that share the memory of a module's own, which stay ordinary ones.

PopTorch changes the classes of the tensors of a module that it wraps, and an access to one downloads all weights. If
PyTorch updates the weights on the host, they have to stay plain. So the executor is made over twins of them. The twins
replace the tensors only while PopTorch reads the module.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple

import torch
from torch import nn

from ignite_ipu.poptorch_types import Executor
from ignite_ipu.program.module_tables import CHANGES, follow_tables, replace_for_a_while
from ignite_ipu.program.tensors.raw import plain, requires_grad
from ignite_ipu.session.weights.aliases import mark_own
from ignite_ipu.torch_names.modules import BUFFERS, PARAMETERS
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

_DATA: Any = torch.Tensor.data


class Twins:
    """Twins of the parameters and buffers of a module.

    Attributes:
        trained: The twins of the parameters that require gradients.
    """

    def __init__(self, module: nn.Module) -> None:
        follow_tables(module.modules())
        self._tables: List[Tuple[Dict[str, Any], Dict[str, torch.Tensor]]] = []
        self._pairs: List[Tuple[torch.Tensor, torch.Tensor]] = []
        twins: Dict[int, torch.Tensor] = {}
        with DisableTorchFunctionSubclass():
            for each in module.modules():
                for tensors in (each.__dict__[PARAMETERS], each.__dict__[BUFFERS]):
                    own: Dict[str, torch.Tensor] = {}
                    for name, tensor in tensors.items():
                        if tensor is None:
                            continue
                        if id(tensor) not in twins:
                            # A write to the data of a tensor does not count as a write to the tensor.
                            same = _DATA.__get__(tensor)
                            is_parameter = isinstance(tensor, nn.Parameter)
                            twins[id(tensor)] = nn.Parameter(same, requires_grad(tensor)) if is_parameter else same
                            self._pairs.append((tensor, twins[id(tensor)]))
                        own[name] = twins[id(tensor)]
                    if own:
                        self._tables.append((tensors, own))
            self.trained: Sequence[torch.Tensor] = [each for each in twins.values() if requires_grad(each)]
            for twin in twins.values():
                mark_own(twin)
        # Whether a wrapped tensor is a parameter is a question that downloads.
        self._parameters = [tensor for tensor, twin in self._pairs if isinstance(twin, nn.Parameter)]
        self._memory = self._where()

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Have the twins in the module in the `with` block, and after it the tensors that it had before."""
        changes, before = CHANGES.count, [(tensors, dict(tensors)) for tensors, _ in self._tables]
        replace_for_a_while(self._tables)
        try:
            yield
        finally:
            if changes != CHANGES.count:
                # A loop may stand at a name, as in `for parameter in model.parameters()`: the names stay there.
                for tensors, then in before:
                    for name in [name for name in tensors if name not in then]:
                        del tensors[name]
            replace_for_a_while(before)

    def follow(self) -> None:
        """Share the memory of tensors that were given other memory, as by `parameter.data = ...`."""
        now = self._where()
        if now == self._memory:
            return
        with DisableTorchFunctionSubclass():
            for (tensor, twin), before, place in zip(self._pairs, self._memory, now):
                if before != place:
                    _DATA.__set__(twin, _DATA.__get__(tensor))
        self._memory = now

    def copies(self) -> List[Tuple[torch.Tensor, torch.Tensor]]:
        """Return the parameters with copies of their values."""
        return [(plain(each), plain(each).clone()) for each in self._parameters]

    def _where(self) -> List[int]:
        with DisableTorchFunctionSubclass():
            return [torch.Tensor.data_ptr(tensor) for tensor, _ in self._pairs]


class ExecutorAround:
    """An executor over another one; attributes that a subclass does not define are those of the other."""

    def __init__(self, executor: Executor) -> None:
        self._executor: Any = executor
        # Each call uses these.
        self.isAttachedToDevice = self._executor.isAttachedToDevice
        self.getAnchoredTensor = self._executor.getAnchoredTensor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._executor(*args, **kwargs)

    @property
    def rng_state(self) -> Any:
        """The random state of the device."""
        return self._executor.rng_state

    @rng_state.setter
    def rng_state(self, state: Any) -> None:
        self._executor.rng_state = state


class TwinExecutor(ExecutorAround):
    """An executor over the twins of a module's tensors; attributes that are not defined here are its own.

    The weights of the host are the newest, but for the buffers that a call has written, until `fetch_buffers`.

    Args:
        twins: The twins.
        wrap: Makes the executor.
    """

    def __init__(self, twins: Twins, wrap: Callable[[], Executor]) -> None:
        self._twins = twins
        with twins.in_place():
            executor = wrap()
        super().__init__(executor)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        self._in_place("compile", *args, **kwargs)

    def loadExecutable(self, filename: str) -> None:
        self._in_place("loadExecutable", filename)

    def attachToDevice(self) -> None:
        self._in_place("attachToDevice")

    def copyWeightsToDevice(self) -> None:
        """Upload the weights and buffers of the host."""
        self._in_place("copyWeightsToDevice")

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Return False: the weights of the host are the newest."""
        return False

    def setOptimizer(self, optimizer: Any) -> None:
        """Keep the optimizer that leaves the weights alone."""

    def detachFromDevice(self) -> None:
        """Give the IPUs back."""
        self._leave("detachFromDevice")

    def destroy(self) -> None:
        """Give everything back."""
        self._leave("destroy")

    def fetch_buffers(self, finite: bool) -> None:
        """Download the buffers that a call has written; parameters stay, also if gradients were not `finite`.

        The update of the device has made parameters NaN then.
        """
        kept = [] if finite else self._twins.copies()
        with self._twins.in_place():
            self._executor.copyWeightsToHostIfNeeded()
        with torch.no_grad():
            for tensor, values in kept:
                tensor.copy_(values)

    def _leave(self, name: str) -> None:
        # PopTorch downloads values that may be newer on the device before it releases IPUs; after an upload there are
        # none.
        if self._executor.isCompiled() and self._executor.isAttachedToDevice():
            self.copyWeightsToDevice()
        self._in_place(name)

    def _in_place(self, name: str, *args: Any, **kwargs: Any) -> None:
        self._twins.follow()
        with self._twins.in_place():
            getattr(self._executor, name)(*args, **kwargs)
