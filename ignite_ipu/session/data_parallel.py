"""Models that several processes train together: wrappers for data parallelism, and the averages of gradients.

`DistributedDataParallel` averages gradients at the end of a backward pass. On IPUs PopTorch adds them up inside the
compiled update; where PyTorch makes the update on the host, `torch.distributed` does. Either way all processes first
agree on the update.
"""

from __future__ import annotations

import contextlib
import inspect
import weakref
from typing import Any, Callable, Dict, FrozenSet, Iterable, List, NoReturn, Optional, Sequence, Tuple, Type

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join, Joinable, JoinHook

from ignite_ipu.errors import ProcessesError, UnsupportedArgumentError, listed
from ignite_ipu.program.tensors.raw import plain, requires_grad
from ignite_ipu.session.job import Job, by_dtype, job
from ignite_ipu.session.processes import connected, unwrapped
from ignite_ipu.torch_names.lists import flatten_tensors, unflatten_tensors
from ignite_ipu.torch_names.modules import all_parameters
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass


class Reducer:
    """Averages the gradients of one wrapped model, as the reducer of `DistributedDataParallel` does.

    A backward pass is synchronised if a forward pass before it was outside of `no_sync()`, and no other backward pass
    was in between.

    Attributes:
        made: How many there have been in this process.
        number: Order in which models were wrapped, the same in all processes.
        ids: Of the parameters that were trained when the model was wrapped.
        job: The processes.
        local: Whether gradients have been added by a backward pass since the last synchronised one.
        wrapper: Returns the wrapped model, as long as it lives.
    """

    made = 0

    def __init__(self, model: nn.Module, broadcasts_buffers: bool) -> None:
        self.number = Reducer.made
        Reducer.made += 1
        self.job = job()
        self.broadcasts_buffers = broadcasts_buffers
        with DisableTorchFunctionSubclass():
            self.ids: FrozenSet[int] = frozenset(id(each) for each in all_parameters(model) if requires_grad(each))
        self.local = False
        self.wrapper: Callable[[], Any] = _nothing
        self._prepared = False

    def prepare_for_backward(self, outputs: Iterable[torch.Tensor] = ()) -> None:
        """Synchronise the next backward pass; the name and the argument are those of PyTorch's reducer."""
        self._prepared = True

    def notify(self) -> None:
        """Let processes that are through their data, and in `join()`, take part in the average that follows."""
        wrapper = self.wrapper()
        work = None if wrapper is None else Join.notify_join_context(wrapper)
        if work is not None:
            work.wait()

    def went_backward(self) -> bool:
        """Note a backward pass, and return whether it is synchronised."""
        prepared, self._prepared = self._prepared, False
        self.local = not prepared
        return prepared


def _nothing() -> None:
    return None


_REDUCERS: weakref.WeakKeyDictionary[nn.Module, Reducer] = weakref.WeakKeyDictionary()


def has_reducers() -> bool:
    """Return whether any model is trained together by several processes."""
    return bool(_REDUCERS)


def reducer_of(model: nn.Module) -> Optional[Reducer]:
    """Return the averaging of gradients of a wrapped model; None for any other."""
    return _REDUCERS.get(model)


def reducers_within(model: nn.Module) -> List[Reducer]:
    """Return the reducers of a model and of its parts, in the order in which they were wrapped."""
    if not _REDUCERS:
        return []
    found = {reducer.number: reducer for reducer in map(_REDUCERS.get, model.modules()) if reducer is not None}
    return [found[number] for number in sorted(found)]


def wrap(wrapper: Any, model: nn.Module, *args: Any, **kwargs: Any) -> None:
    """Make a new `DataParallel` or `DistributedDataParallel` the model within, with parameters named `module...`.

    In several processes a `DistributedDataParallel` copies the weights of process 0 to all, as PyTorch's does, and the
    gradients of the model are averaged from then on.

    Args:
        wrapper: The object before its `__init__`; it keeps its class, and calls of it become the model's.
        model: The model.
        args, kwargs: Those of the constructor.

    Raises:
        ProcessesError: The processes have models with other parameters, or it is for some of the processes.
    """
    nn.Module.__init__(wrapper)
    kind: Any = type(wrapper)
    own: Dict[str, Any] = {
        "forward": _forward,
        "no_sync": _no_sync,
        "train": nn.Module.train,
        "__module__": kind.__module__,
        _OURS: True,
    }
    distributed = issubclass(kind, nn.parallel.DistributedDataParallel)
    if distributed:
        own.update(join_hook=_join_hook, register_comm_hook=_refuse_hook)
    wrapper.__class__ = type(kind.__name__, (kind,), own)
    wrapper.module = model
    wrapper.device_ids, wrapper.dim = [], 0
    if not distributed:
        return
    Joinable.__init__(wrapper)
    wrapper.require_backward_grad_sync = wrapper.require_forward_param_sync = True
    wrapper.reducer = None
    if connected()[1] > 1 and _is_trained(model):
        wrapper.device, wrapper.process_group = torch.device("cpu"), dist.group.WORLD
        given = dict(inspect.signature(kind.__init__).bind_partial(wrapper, model, *args, **kwargs).arguments)
        _refuse_group(given.get("process_group"))
        old, new = given.get("broadcast_buffers"), given.get("forward_sync_buffers")  # the latter since PyTorch 2.13
        at_first = new is not None or old is not False
        wrapper.reducer = _share(unwrapped(model), at_first, at_first and new is not False)
        wrapper.reducer.wrapper = weakref.ref(wrapper)


def wrapped(kind: Type[nn.Module], model: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    """Return a model in a wrapper of a class, as `wrap` makes it."""
    wrapper = kind.__new__(kind)
    wrap(wrapper, model, *args, **kwargs)
    return wrapper


def adopt(model: Any) -> None:
    """Make PyTorch's own `DistributedDataParallel`, around a model that is captured, a wrapper as `wrap` makes them."""
    while isinstance(model, nn.parallel.DistributedDataParallel) and not hasattr(model, _OURS):
        inner, buffers, group = model.module, model.broadcast_buffers, model.process_group
        model.__dict__.clear()
        wrap(model, inner, broadcast_buffers=buffers, process_group=group)
        model = inner


_OURS = "_ignite_ipu_wrapper"


def _forward(wrapper: Any, *inputs: Any, **kwargs: Any) -> Any:
    reducer: Optional[Reducer] = getattr(wrapper, "reducer", None)
    if reducer is None:
        return wrapper.module(*inputs, **kwargs)
    recorded = torch.is_grad_enabled() and wrapper.module.training
    if not recorded and wrapper.require_forward_param_sync and reducer.broadcasts_buffers:
        _copy_from(0, dict(wrapper.module.named_buffers()), reducer.job)
    output = wrapper.module(*inputs, **kwargs)
    synchronised = torch.is_grad_enabled() and wrapper.require_backward_grad_sync
    wrapper.require_forward_param_sync = synchronised
    if synchronised:
        reducer.prepare_for_backward()
    return output


@contextlib.contextmanager
def _no_sync(wrapper: Any) -> Any:
    before = getattr(wrapper, "require_backward_grad_sync", True)
    wrapper.require_backward_grad_sync = False
    try:
        yield
    finally:
        wrapper.require_backward_grad_sync = before


def _share(model: nn.Module, copies_buffers: bool, broadcasts_buffers: bool) -> Reducer:
    known = _REDUCERS.get(model)
    if known is not None:
        return known
    reducer = Reducer(model, broadcasts_buffers)
    _check_same_parameters(model, reducer.job)
    buffers = dict(model.named_buffers()) if copies_buffers else {}
    _copy_from(0, {**dict(model.named_parameters()), **buffers}, reducer.job)
    _REDUCERS[model] = reducer
    return reducer


def _is_trained(model: nn.Module) -> bool:
    with DisableTorchFunctionSubclass():
        return any(requires_grad(each) for each in all_parameters(model))


def _check_same_parameters(model: nn.Module, processes: Job) -> None:
    own = [(name, tuple(each.shape), str(each.dtype)) for name, each in model.named_parameters()]
    found: List[Any] = [None] * processes.size
    with processes.reporting():
        dist.all_gather_object(found, own)
    for rank, others in enumerate(found):
        if others != found[0]:
            differing = sorted({name for name, *_ in set(others) ^ set(found[0])})
            raise ProcessesError(
                f"DistributedDataParallel of a {type(model).__name__}: process {rank} has other parameters than "
                f"process 0 ({listed(differing, 3) or 'in another order'}). Make the same model in each process."
            )


def _copy_from(source: int, tensors: Dict[str, torch.Tensor], processes: Job) -> None:
    """Copy tensors of one process to the others, where they differ."""
    for same in by_dtype(tensors.values()):
        values = [plain(each.detach()) for each in same]  # detach() brings the newest to the host
        flat = flatten_tensors(values)
        with processes.reporting():
            dist.broadcast(flat, src=source)
        if processes.rank == source:
            continue
        for tensor, value, first in zip(same, values, unflatten_tensors(flat, values)):
            if not torch.equal(value, first):
                with torch.no_grad():
                    tensor.copy_(first)


def _refuse_group(group: Any) -> None:
    if group is not None and dist.get_world_size(group) != connected()[1]:
        raise ProcessesError(
            f"DistributedDataParallel was given a process_group of {dist.get_world_size(group)} of the "
            f"{connected()[1]} processes. PopTorch adds gradients up over all processes of a job. Leave process_group "
            "out."
        )


class _Joined(JoinHook):
    """Takes part in the updates of other processes with gradients of zero, once this one is through its data."""

    def __init__(self, wrapper: Any) -> None:
        self._wrapper = wrapper

    def main_hook(self) -> None:
        reducer = self._wrapper.reducer
        if reducer is not None:
            # On the host: a device would need a batch.
            parameters = [each for each in all_parameters(self._wrapper) if id(each) in reducer.ids]
            reducer.job.agree(0, gradients=False, on_host=True)
            reducer.job.average([plain(each).requires_grad_() for each in parameters])

    def post_hook(self, is_last_joiner: bool) -> None:
        reducer = self._wrapper.reducer
        if reducer is not None:
            # Those that ended last have made all updates.
            last = torch.tensor(reducer.job.rank if is_last_joiner else -1)
            with reducer.job.reporting():
                dist.all_reduce(last, op=dist.ReduceOp.MAX)
            _copy_from(int(last), dict(self._wrapper.named_parameters()), reducer.job)


def _join_hook(wrapper: Any, **kwargs: Any) -> JoinHook:
    if not kwargs.get("divide_by_initial_world_size", True):
        raise UnsupportedArgumentError(
            "join(divide_by_initial_world_size=False) averages over the processes that are left, and gradients are "
            "averaged over all processes of the job. Leave it out."
        )
    return _Joined(wrapper)


def _refuse_hook(wrapper: Any, state: Any, hook: Callable[..., Any]) -> NoReturn:
    raise UnsupportedArgumentError(
        f"register_comm_hook({getattr(hook, '__name__', hook)!r}) changes gradients between processes, and PopTorch "
        "adds them up as they are, inside the compiled update. Leave it out."
    )


def covering(model: nn.Module, parameters: Sequence[torch.Tensor]) -> Tuple[List[Reducer], List[str]]:
    """Return the reducers of trained parameters of a model, and the names of those that no reducer averages."""
    reducers = reducers_within(model)
    if not reducers:
        return [], []
    ids = {id(parameter) for parameter in parameters}
    found = [reducer for reducer in reducers if not reducer.ids.isdisjoint(ids)]
    if not found:
        return [], []
    left = ids.difference(*[reducer.ids for reducer in found])
    with DisableTorchFunctionSubclass():
        return found, [name for name, each in model.named_parameters() if id(each) in left]
