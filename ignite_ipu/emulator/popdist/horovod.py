"""Functions of `horovod.torch` that PopTorch programs use beside PopDist: values of host tensors in all instances."""

from __future__ import annotations

import enum
import warnings
from typing import Any, Iterable, List, Mapping, Optional, Sequence, Union

import torch

from ignite_ipu.emulator.popdist import communication
from ignite_ipu.emulator.popdist.instances import getInstanceIndex, getLocalInstanceIndex, getNumInstances

Named = Union[Mapping[str, Any], Iterable[Any]]


class ReduceOp(enum.IntEnum):
    """Way in which `allreduce` combines tensors, with Horovod's values."""

    Average = 0
    Sum = 1


Average, Sum = ReduceOp.Average, ReduceOp.Sum
_initialized = False


def init() -> None:
    """Connect the instances; a second call does nothing."""
    global _initialized
    communication.init()
    _initialized = True


def shutdown() -> None:
    """Forget `init`; the instances stay connected for PopDist."""
    global _initialized
    _initialized = False


def is_initialized() -> bool:
    """Return whether `init` was called."""
    return _initialized


def rank() -> int:
    """Return the index of this instance."""
    _check_initialized()
    return getInstanceIndex()


def size() -> int:
    """Return the number of instances."""
    _check_initialized()
    return getNumInstances()


def local_rank() -> int:
    """Return the index of this instance on its host."""
    _check_initialized()
    return getLocalInstanceIndex()


def local_size() -> int:
    """Return the number of instances on this host: all of them."""
    return size()


def broadcast(tensor: torch.Tensor, root_rank: int, name: Optional[str] = None) -> torch.Tensor:
    """Return the tensor of the instance `root_rank`, and leave `tensor` as it is."""
    return broadcast_(tensor.detach().clone(), root_rank, name)


def broadcast_(tensor: torch.Tensor, root_rank: int, name: Optional[str] = None) -> torch.Tensor:
    """Replace a tensor by that of the instance `root_rank`, and return it."""
    group = _everyone("broadcast")
    if not 0 <= root_rank < group.size:
        raise ValueError(f"The root rank of a broadcast must be between 0 and {group.size - 1}, got {root_rank}.")
    with torch.no_grad():
        value = tensor.detach().contiguous()
        group.broadcast(value, root_rank)
        if value.data_ptr() != tensor.data_ptr():
            tensor.copy_(value)
    return tensor


def broadcast_parameters(params: Named, root_rank: int) -> None:
    """Replace parameters by those of the instance `root_rank`.

    Args:
        params: A dictionary such as `model.state_dict()`, pairs such as `model.named_parameters()`, or a list of
            tensors.
        root_rank: The instance.

    Raises:
        ValueError: `params` is none of these.
    """
    for tensor in _tensors(params):
        if tensor is not None:
            broadcast_(tensor, root_rank)


def allreduce(
    tensor: torch.Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    compression: Any = None,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Return the mean, or another reduction, of a tensor over all instances.

    Args:
        tensor: This instance's.
        average: Whether it is the mean or the sum; deprecated in favour of `op`.
        name: Ignored: calls are matched by their order.
        compression: Ignored: values are exchanged as they are.
        op: `Average`, which is the default, or `Sum`.
        prescale_factor: Factor on the tensor before the reduction.
        postscale_factor: Factor on the result.

    Raises:
        ValueError: `op` and `average` are both given, or Horovod is not initialized.
        NotImplementedError: `op` is another reduction.
    """
    group = _everyone("allreduce")
    mean = _reduction(average, op) is Average
    reduced = tensor.detach().clone(memory_format=torch.contiguous_format)
    if prescale_factor != 1.0:
        reduced.mul_(prescale_factor)
    group.all_reduce(reduced)
    if mean and reduced.is_floating_point():
        reduced.div_(group.size)
    elif mean:
        reduced.floor_divide_(group.size)
    return reduced.mul_(postscale_factor) if postscale_factor != 1.0 else reduced


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    compression: Any = None,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> List[torch.Tensor]:
    """Return `allreduce` of each tensor."""
    return [allreduce(tensor, average, name, compression, op, prescale_factor, postscale_factor) for tensor in tensors]


def allgather(tensor: torch.Tensor, name: Optional[str] = None) -> torch.Tensor:
    """Return the tensors of all instances, joined along the first dimension, whose size may differ.

    Raises:
        ValueError: The tensor has no dimension, or its other dimensions differ between instances.
    """
    group = _everyone("allgather")
    if not tensor.dim():
        raise ValueError("allgather joins tensors along their first dimension, and this one has none: reshape it.")
    own = tensor.detach().contiguous()
    shapes = group.all_gather(torch.tensor(own.shape))
    if any(not torch.equal(shape[1:], shapes[0][1:]) for shape in shapes):
        raise ValueError(
            f"allgather takes tensors that differ in the first dimension only; got {[s.tolist() for s in shapes]}."
        )
    rows = [int(shape[0]) for shape in shapes]
    padded = own.new_zeros((max(rows), *own.shape[1:]))
    padded[: len(own)] = own
    return torch.cat([part[:count] for part, count in zip(group.all_gather(padded), rows)])


def _everyone(function: str) -> communication.Communicator:
    _check_initialized()
    group = communication.communicator(f"horovod.torch.{function}")
    if not group.is_whole:
        raise RuntimeError(
            f"horovod.torch.{function} waits for all instances, and within popdist.execute_on_instances only "
            f"{group.members} come here: on a Pod the program would hang. Call it outside of the function."
        )
    return group


def _check_initialized() -> None:
    if not _initialized:
        raise ValueError("Horovod has not been initialized; use hvd.init().")


def _reduction(average: Optional[bool], op: Optional[int]) -> ReduceOp:
    if average is not None:
        if op is not None:
            raise ValueError("The op parameter supersedes average. Please provide only one of them.")
        warnings.warn("Parameter `average` has been replaced with `op`", DeprecationWarning, stacklevel=3)
        return Average if average else Sum
    if op not in (None, Average, Sum):
        raise NotImplementedError(f"The emulator's allreduce has Average and Sum, not {op!r}.")
    return Average if op is None else ReduceOp(op)


def _tensors(params: Named) -> List[Optional[torch.Tensor]]:
    if isinstance(params, Mapping):
        return [value for _, value in sorted(params.items()) if isinstance(value, torch.Tensor)]
    given: Any = params
    values: List[Any] = [given]
    if hasattr(given, "__iter__") and not isinstance(given, torch.Tensor):
        values = [each[-1] if isinstance(each, tuple) else each for each in given]
    if isinstance(given, torch.Tensor) or not all(each is None or isinstance(each, torch.Tensor) for each in values):
        raise ValueError(f"invalid params of type: {type(params)}; give a state_dict, named parameters, or tensors.")
    return values
