"""Connection between the instances of a job: torch.distributed's gloo stands in for the MPI of PopDist.

`popdist.init()` and `horovod.torch.init()` connect all instances. `execute_on_instances` narrows the connection to some
of them for the time of a call.
"""

from __future__ import annotations

import atexit
import contextlib
import inspect
import os
from typing import Any, Callable, Collection, Dict, FrozenSet, Iterator, List, Optional, Sequence, Tuple, TypeVar

import torch
import torch.distributed as dist

from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.popdist.instances import getInstanceIndex, getNumInstances

_Result = TypeVar("_Result")
_Key = Tuple[FrozenSet[int], FrozenSet[int]]


class Communicator:
    """Connected instances, by their indices in the whole job.

    Attributes:
        members: The indices in order.
        is_whole: Whether all instances of the job are members.
    """

    def __init__(self, members: Sequence[int], group: Any, is_whole: bool) -> None:
        self.members = list(members)
        self.is_whole = is_whole
        self._group = group  # None where this is the only member

    @property
    def size(self) -> int:
        return len(self.members)

    def barrier(self) -> None:
        """Wait until all members have come here."""
        if self.size > 1:
            dist.barrier(group=self._group)

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Replace a tensor by its sum over the members."""
        if self.size > 1:
            dist.all_reduce(tensor, group=self._group)

    def all_gather(self, tensor: torch.Tensor) -> List[torch.Tensor]:
        """Return the tensors of all members, which have one shape, in the members' order."""
        if self.size == 1:
            return [tensor.clone()]
        gathered = [torch.empty_like(tensor) for _ in self.members]
        dist.all_gather(gathered, tensor, group=self._group)
        return gathered

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """Replace a tensor by that of the instance `source`."""
        if self.size > 1:
            dist.broadcast(tensor, source, group=self._group)


# The innermost one holds.
_active: List[Communicator] = []
_groups: Dict[_Key, Any] = {}
_own_connection = False


def init() -> None:
    """Connect the instances, if they are not connected yet; alone there is nothing to connect.

    Raises:
        RuntimeError: The instances of the job were not started by a launcher that sets the address to meet at, or
            torch.distributed connects another number of processes already.
    """
    if not isBackendInitialized():
        initializeBackend()
        atexit.register(finalizeBackend)


def isBackendInitialized() -> bool:
    """Return whether `init` has connected the instances."""
    return bool(_active)


def initializeBackend() -> None:
    """Connect the instances; `init` does so too, and disconnects them when the program ends."""
    global _own_connection
    instances = getNumInstances()
    if instances > 1 and not dist.is_initialized():
        if "MASTER_ADDR" not in os.environ or "MASTER_PORT" not in os.environ:
            raise RuntimeError(
                f"The environment describes {instances} instances, but not where they meet (MASTER_ADDR and "
                "MASTER_PORT). Start the program with `python -m ignite_ipu.emulator.poprun` or `ignite-ipu launch`."
            )
        dist.init_process_group("gloo", init_method="env://", rank=getInstanceIndex(), world_size=instances)
        _own_connection = True
    _active[:] = [_whole()]


def finalizeBackend() -> None:
    """Disconnect the instances; nothing where they are not connected, or where the program itself connected them."""
    global _own_connection
    _active.clear()
    _groups.clear()
    if _own_connection and dist.is_initialized():
        dist.destroy_process_group()
    _own_connection = False


def synchronize() -> None:
    """Wait until all instances have come here.

    Raises:
        RuntimeError: The instances are not connected.
    """
    communicator("popdist.synchronize").barrier()


def execute_on_instances(
    instances: Collection[int], func: Callable[..., _Result], *args: Any, **kwargs: Any
) -> Optional[_Result]:
    """Call a function in some instances only; all instances must come here.

    Inside the function these instances are the only ones connected.

    Returns:
        The function's result; None in the other instances.

    Raises:
        RuntimeError: The instances are not connected.
        ValueError: There is no instance of one of the indices.
    """
    chosen = frozenset(instances)
    whole = communicator("popdist.execute_on_instances")
    if not chosen <= set(whole.members):
        raise ValueError(
            f"execute_on_instances was given the instances {sorted(chosen)}, and those connected here are "
            f"{whole.members}. Instances are numbered from 0."
        )
    group = _group(whole, chosen)
    if getInstanceIndex() not in chosen:
        return None
    with _narrowed(Communicator(sorted(chosen), group, whole.is_whole and len(chosen) == whole.size)):
        return func(*args, **kwargs)


def communicator(asked_by: str) -> Communicator:
    """Return the connection that holds here.

    Raises:
        RuntimeError: There is none, although the job has several instances.
    """
    if _active:
        return _active[-1]
    if getNumInstances() == 1:
        return Communicator([0], None, True)
    raise RuntimeError(
        f"{asked_by} needs instances that are connected, and these {getNumInstances()} are not. Call popdist.init() "
        "first."
    )


def connected(processes: int) -> Communicator:
    """Return the connection over which the replicas of so many processes reduce and exchange their values.

    It may be one that the program has made with torch.distributed.

    Raises:
        Error: That number of processes is not connected.
    """
    what = f"The options describe {processes} distributed processes, but"
    if _active and getNumInstances() > 1:
        found, by = _active[-1], "PopDist"
    elif dist.is_available() and dist.is_initialized():
        found, by = Communicator(range(dist.get_world_size()), None, True), "torch.distributed"
    else:
        raise backend_error(
            f"{what} they are not connected. The emulator reduces gradients through torch.distributed: call "
            'popdist.init() under PopRun, and torch.distributed.init_process_group("gloo") elsewhere.'
        )
    if found.size != processes:
        raise backend_error(f"{what} {by} connects {found.size}.")
    return found


def _whole() -> Communicator:
    instances = getNumInstances()
    if instances > 1 and dist.get_world_size() != instances:
        raise RuntimeError(
            f"The environment describes {instances} instances, but torch.distributed connects {dist.get_world_size()} "
            "processes. Leave init_process_group out: popdist.init() connects them."
        )
    return Communicator(range(instances), None, True)


@contextlib.contextmanager
def _narrowed(to: Communicator) -> Iterator[None]:
    _active.append(to)
    try:
        yield
    finally:
        if _active and _active[-1] is to:
            _active.pop()


def _group(whole: Communicator, chosen: FrozenSet[int]) -> Any:
    """Return the process group of some members, which all members make together; None for one, which needs none."""
    if len(chosen) < 2 or len(chosen) == whole.size:
        return whole._group if len(chosen) > 1 else None
    key = (frozenset(whole.members), chosen)
    if key not in _groups:
        local: Dict[str, Any] = {}
        if not whole.is_whole:
            # The other instances of the job do not come here.
            if getInstanceIndex() not in chosen:
                return None
            if "use_local_synchronization" not in inspect.signature(dist.new_group).parameters:
                raise RuntimeError(
                    "execute_on_instances within execute_on_instances, with several instances in each, needs PyTorch "
                    f"2.1 or newer; this is {torch.__version__}. Call the inner one with one instance."
                )
            local["use_local_synchronization"] = True
        _groups[key] = dist.new_group(sorted(chosen), **local)
    return _groups[key]
