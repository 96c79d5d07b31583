"""Writes of a forward that a compiled program would not keep: into weights, and into counters that it reads."""

from __future__ import annotations

from typing import Any, Dict, Iterator, Mapping, Optional, Set, Tuple

import torch
from torch import nn

from ignite_ipu.capabilities.traced import COUNTED, NO_FUNCTION, WEIGHT
from ignite_ipu.errors import ForwardError, SessionError
from ignite_ipu.program.tensors.raw import is_lazy
from ignite_ipu.program.traced_places import refusal_at
from ignite_ipu.program.user_code import current_line
from ignite_ipu.torch_names.dispatch import DispatchMode, is_mutable, schema_of
from ignite_ipu.torch_names.modules import NormWithStatistics, all_named_parameters
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass, memory_of


class WeightWriteGuard(DispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operators that write into a model's weights, under any alias, in its `with` block on the host.

    Also into those of `buffers` that normalisations compute their momentum from, counters of batches.

    Attributes:
        written: The memory that operators have written into, also through `tensor.data`, whose writes PyTorch does not
            count.
    """

    def __init__(self, model: nn.Module, buffers: Optional[Mapping[str, torch.Tensor]] = None) -> None:
        super().__init__()
        with DisableTorchFunctionSubclass():
            named: Any = all_named_parameters(model)
            weights = [(name, weight) for name, weight in named if not is_lazy(weight)]
            self._weights: Dict[Optional[int], str] = {memory_of(weight): name for name, weight in weights}
            # Memory that is freed, as by `weight.data = values`, would be that of another tensor.
            self._kept = [weight.detach() for _, weight in weights]
            self._counters: Dict[Optional[int], str] = {
                memory_of(buffer): name for name, buffer in (buffers or {}).items() if _is_read(model, name)
            }
        self.written: Set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        if is_mutable(func):
            self.check(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def check(self, func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        for tensor in written_by(func, args, kwargs):
            self.check_written(tensor)

    def check_written(self, tensor: torch.Tensor) -> None:
        """Note a tensor that is written into, and refuse a weight."""
        memory = memory_of(tensor)
        self.written.add(memory)
        if memory in self._counters:
            raise SessionError(refusal_at(COUNTED, current_line().place, NO_FUNCTION, self._counters[memory]))
        if memory in self._weights:
            raise ForwardError(refusal_at(WEIGHT, current_line().place, NO_FUNCTION, self._weights[memory]))


def written_by(func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Iterator[torch.Tensor]:
    """Yield the arguments that an operator writes into, by its schema."""
    for place, argument in enumerate(schema_of(func).arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            for each in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(each, torch.Tensor):
                    yield each


def _is_read(model: nn.Module, name: str) -> bool:
    owner, _, attribute = name.rpartition(".")
    norm = model.get_submodule(owner)
    return isinstance(norm, NormWithStatistics) and attribute == "num_batches_tracked" and norm.momentum is None
