"""Calls of a model on the host that find the results and writes of later calls, without effects of their own.

They refuse forwards that no compiled program can follow: packed sequences, derivatives, and buffers that are replaced.
"""

from __future__ import annotations

import contextlib
import functools
from typing import (
    Any,
    Callable,
    ContextManager,
    Dict,
    FrozenSet,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

import numpy as np
import torch
from torch import nn

from ignite_ipu.capabilities.traced import GRADIENT, NO_FUNCTION, REPLACED, VALUE
from ignite_ipu.capabilities.transforms import COMPUTED_ONCE
from ignite_ipu.deferred.graph.call_signatures import CallSignature
from ignite_ipu.deferred.graph.leaves import Shape
from ignite_ipu.deferred.graph.returned import Returned, returned_in
from ignite_ipu.deferred.graph.structure import (
    Structure,
    flatten,
    is_bare_tensor,
    is_flat,
    is_tensor_or_array,
    leaves_in,
    objects_in,
    refuse_sparse,
    unflatten,
)
from ignite_ipu.errors import CaptureError, ForwardError, IPUError, listed
from ignite_ipu.operators.words import word_set
from ignite_ipu.program.forward.assigned_buffers import is_assignment
from ignite_ipu.program.forward.eager import EAGER
from ignite_ipu.program.forward.gradients import GradientHookGuard
from ignite_ipu.program.forward.left_behind import LeftBehind, Place, called_beside
from ignite_ipu.program.forward.model_libraries import without_generation_cache
from ignite_ipu.program.forward.module_attributes import ModuleAttributes
from ignite_ipu.program.forward.number_formats import refuse_lacked_formats
from ignite_ipu.program.forward.randomness import GENERATORS
from ignite_ipu.program.forward.statistics import LaterStatisticsGuard
from ignite_ipu.program.forward.value_reads import ValueReads
from ignite_ipu.program.forward.weight_writes import WeightWriteGuard
from ignite_ipu.program.function_mode import FunctionGuard, FunctionGuards
from ignite_ipu.program.guards.decisions import Decisions
from ignite_ipu.program.guards.names import Named
from ignite_ipu.program.guards.python_state import PythonState, named_by
from ignite_ipu.program.guards.retrace import OperatorRecorder, Retrace
from ignite_ipu.program.tensors.raw import named_tensors, plain, requires_grad
from ignite_ipu.program.tensors.trees import restore_contents
from ignite_ipu.program.traced_places import changes_in_every_call, changing_place, refusal_at
from ignite_ipu.program.user_code import Line, current_line
from ignite_ipu.session.gradients import WordsRead
from ignite_ipu.session.weights.tracker import Weights
from ignite_ipu.torch_names.modules import (
    BUFFERS,
    PARAMETERS,
    NormWithStatistics,
    all_modules,
    all_named_buffers,
    all_parameters,
    pack_padded_sequence,
)
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass, memory_of, version_of

NO_CONTEXT = contextlib.nullcontext()
_LAYOUT: Any = torch.Tensor.layout.__get__  # type: ignore[attr-defined]
_PACK = pack_padded_sequence()
_ARRAYS = (torch.Tensor.numpy, torch.Tensor.__array__)
_SET_DATA = (torch.Tensor.data.__set__,)  # type: ignore[attr-defined]
_DERIVATIVES = (torch.autograd.grad, torch.autograd.backward, torch.Tensor.backward)
_GRADIENT_MODE = word_set("is_grad_enabled requires_grad")
_CHANGES_ARGUMENT = (
    " changes an object that it is given (an attribute, a list, a dictionary), which a compiled program would do once. "
    "Let it return the values to keep. If it only sets something up, as a cached property does, do that before the "
    "first call."
)
_KEEPS_OBJECT = (
    " returns an object that it keeps, and writes new tensors into it. A compiled program returns a new one for each "
    "call. Make a new object in each call, or return the tensors."
)


class ForwardGuard(FunctionGuard):
    """Refuses calls that no compiled program makes, in its `with` block, where a model is tried or traced.

    Args:
        writes: Refuses writes into weights; `weight.data = values` is no operator that it sees.
        reads: Refuses reads of values, which otherwise show when the model is compiled.

    Attributes:
        array_at: The last line that read a tensor as an array.
    """

    array_at: Optional[Line] = None

    def __init__(self, writes: Optional[WeightWriteGuard] = None, reads: Optional[ValueReads] = None) -> None:
        super().__init__()
        self._writes, self._reads = writes, reads

    def check(self, func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        for value in args:
            if type(value) is torch.Tensor and value.layout is not torch.strided and func is not _LAYOUT:
                refuse_sparse(value, current_line())
        refuse_lacked_formats((func, *args, *kwargs.values()))
        if func is _PACK:
            raise CaptureError(
                f"pack_padded_sequence at {current_line()} makes a tensor whose shape depends on the lengths, and a "
                "compiled program has fixed shapes. Leave out the packing: the results up to each "
                "sequence's end are the same. The last output is output[torch.arange(n), lengths - 1]. A mask of "
                "the lengths leaves the padding out of sums. (The backward direction of a bidirectional layer sees the "
                "padding first.)"
            )
        if self._reads is not None:
            self._reads.check(func, args, kwargs)
        if func in _ARRAYS:
            self.array_at = current_line()
        if self._writes is not None and func in _SET_DATA:
            self._writes.check_written(args[0])
        if func in _DERIVATIVES:
            raise ForwardError(refusal_at(GRADIENT, current_line().place, NO_FUNCTION, f"{func.__name__}()"))


class GivenArguments:
    """The arguments of one call of a model, made of these leaves; its code may change nothing in them.

    `what` names the call at the start of a message.
    """

    def __init__(self, what: str, structure: Structure, leaves: Sequence[torch.Tensor]) -> None:
        self._what, self._structure, self._leaves = what, structure, leaves
        try:
            self.args, self.kwargs = unflatten(structure, leaves)
        except CaptureError:  # by an earlier call
            raise ForwardError(what + _CHANGES_ARGUMENT) from None

    def check(self) -> None:
        """Refuse a call that has put other values into its arguments."""
        now: List[Any] = []
        key = flatten((self.args, self.kwargs), now, is_bare_tensor).key
        same = key == self._structure.key and len(now) == len(self._leaves)
        if not same or any(mine is not theirs for mine, theirs in zip(now, self._leaves)):
            raise ForwardError(self._what + _CHANGES_ARGUMENT)


class HeldBuffers:
    """A model's buffers before a call, in whose place its code may not put others, as for a cache that grows."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        # A look into __dict__ in the ordinary way counts as a read of all attributes.
        found: List[Dict[str, Any]] = [object.__getattribute__(module, "__dict__") for module in all_modules(model)]
        found += [each[BUFFERS] for each in found]
        self._attributes: List[Tuple[Dict[str, Any], Dict[str, Any]]] = [(each, dict(each)) for each in found]

    def put_back(self) -> None:
        """Restore buffers, and the attributes in which a call may have noted that it has replaced them."""
        for now, then in self._attributes:
            restore_contents(now, then)

    def check(self, before: Dict[str, torch.Tensor], after: Dict[str, torch.Tensor]) -> None:
        """Refuse a call that has replaced buffers, and put them back."""
        replaced = [path for path, buffer in before.items() if after.get(path) is not buffer]
        if not replaced:
            return
        self.put_back()
        forward = f"The forward of {type(self._model).__name__}, called at {current_line()},"
        place = changing_place(named_by(self._model), replaced)
        raise CaptureError(refusal_at(REPLACED, place, forward, listed(replaced)))


class HostCall(NamedTuple):
    """Result of a call on the host.

    Attributes:
        reads, writes: The names of the buffers that its operators and its result have, and of those that it wrote into.
        draws: Whether it drew random numbers of PyTorch's.
        shared: The memory of arguments and weights, some of which may be that of the output.
        left: Places where it stores tensors for other code, or something instead of tensors; `results` then has its
            output, and the values in these places.
        with_gradients: Whether gradients flow through the tensors of `results` as in eager PyTorch.
        returned: The tensors of the output that are parameters, buffers, arguments or views, or constants, with their
            positions.
        outside: The tensors that operators had and none has computed, besides arguments and buffers.
        asks_for_gradients: Whether its code names the mode of gradients, which are disabled in inference programs.
    """

    results: Any
    reads: List[str]
    writes: List[str]
    draws: bool
    shared: FrozenSet[int]
    left: Sequence[Place]
    with_gradients: bool
    returned: Sequence[Tuple[int, Returned]]
    outside: Sequence[torch.Tensor]
    asks_for_gradients: bool

    def signature(self, structure: Structure, leaves: Sequence[Any], frozen: bool, training: bool) -> CallSignature:
        """Return the signature of such calls of a model that is `frozen` or not, `training` if any module of it is.

        It has no modes, and no tensors of this call, whose graph holds views of weights.
        """
        tensors: List[torch.Tensor] = []
        result = flatten(self.results, tensors)
        grad = torch.is_grad_enabled()
        trains = grad and (not frozen or any(leaf.shape.requires_grad for leaf in leaves))
        memory = [memory_of(tensor) for tensor in tensors]
        aliases = [part in self.shared or memory.count(part) > 1 for part in memory]
        flows = [requires_grad(each) if self.with_gradients else each.is_floating_point() for each in tensors]
        shapes = [Shape.of(tensor, trains and flow, alias) for tensor, flow, alias in zip(tensors, flows, aliases)]
        evaluates = trains and not (training or self.writes or self.draws or self.asks_for_gradients)
        given = (structure, grad, result, shapes, None, self.writes, self.draws)
        returned, reads = self.returned, self.reads
        return CallSignature(None, *given, left=self.left, evaluates=evaluates, returned=returned, reads=reads)


def _called_with(model: nn.Module, buffers: Dict[str, torch.Tensor], own: GivenArguments) -> Any:
    """Return the result of a model with other buffers; `buffers` has those in their places afterwards.

    Each place gets its buffer once: PyTorch would leave it there if a module has several names.
    """
    first = {id(buffer): buffers.get(path) for path, buffer in all_named_buffers(model)}
    every = {name: first[id(buffer)] for name, buffer in named_tensors(model, BUFFERS).items()}
    given = {name: buffer for name, buffer in every.items() if buffer is not None}
    try:
        return torch.func.functional_call(model, given, own.args, own.kwargs, tie_weights=False)
    finally:
        buffers.update({path: given[path] for path in buffers.keys() & given.keys()})


def called_on_host(
    model: nn.Module,
    structure: Structure,
    tensors: Sequence[torch.Tensor],
    weights: Weights,
    name: str,
    places: Optional[Sequence[Place]] = None,
    differentiated: Optional[Sequence[bool]] = None,
    failed: Optional[Dict[str, torch.Tensor]] = None,
    operands: ContextManager[Any] = NO_CONTEXT,
    refuse_reads: bool = False,
    searched: Optional[Decisions] = None,
) -> HostCall:
    """Call a model on the host, without a trace in its weights, its buffers, its arguments or randomness.

    `places` are the known places where it stores tensors for other code. With `differentiated`, the call is made with
    gradients enabled, which flow to the weights and to those of the arguments. If the model's code raises an error,
    `failed` gets the buffers that it has written until then. The model is called in the context `operands`. With
    `refuse_reads`, reads of data are refused. Values that its code names have been `searched`, if they may be known.

    Raises a `CaptureError` if its code changes Python values or its arguments in every call, which a compiled program
    would not do, or replaces buffers by other tensors. Raises a `SessionError` if it writes into weights, a
    `LossError` if it registers hooks on gradients.
    """
    # An access to a weight in the call would download all tensors, buffers too, into their stand-ins for the call.
    weights.to_host()
    before = {path: plain(buffer).clone() for path, buffer in all_named_buffers(model)}
    held = HeldBuffers(model)
    buffers: Dict[str, torch.Tensor] = {}
    left_there: Dict[str, torch.Tensor] = {}
    copies: List[torch.Tensor] = []

    drawn: List[bool] = []
    given: List[GivenArguments] = []
    left_at: List[Place] = []
    left: List[Any] = []
    begun: List[LeftBehind] = []
    cleared: List[Tuple[Place, Any]] = []
    kept_before: List[torch.Tensor] = []
    returned: List[Any] = []
    assigned: Set[str] = set()
    recorders: List[OperatorRecorder] = []
    written_by_last: List[str] = []
    guards: List[ForwardGuard] = []
    grows = False
    known = searched if searched is not None and searched.are_current else None
    named: Optional[Named] = None
    if places is None:
        named = named_by(model) if known is None else known.named
    words = WordsRead()
    what = f"The forward of {name}, called at {current_line()},"

    def call_once(recorder: OperatorRecorder) -> Any:
        nonlocal grows
        recorders.append(recorder)
        buffers.update({path: buffer.clone() for path, buffer in before.items()})
        left_there.update(buffers)
        copies[:] = [tensor.clone() for tensor in tensors]
        if differentiated is not None:
            with torch.enable_grad():
                pairs = zip(copies, differentiated)
                # A copy of the copy, as PyTorch lets no code write into a tensor that gradients end at.
                copies[:] = [copy.requires_grad_().clone() if needs else copy for copy, needs in pairs]
        recorder.mark([*copies, *left_there.values()])
        recorder.mark_memory(map(plain, named_tensors(model).values()))
        reads = ValueReads(recorder) if refuse_reads else None
        if reads is not None:
            # A call reads the tensors that the one before it has written.
            later = [left_there[path] for path in written_by_last]
            recorder.before_index = reads.check_index
            recorder.mark_data([*copies, *map(plain, all_parameters(model)), *later])
        own = GivenArguments(what, structure, tuple(copies))
        given[:] = [own]
        random = torch.get_rng_state()
        for place, value in cleared:  # so that this call clears them, too
            place.write(value)
        behind = None if named is None else LeftBehind(named, words)
        recorder.writes = WeightWriteGuard(model, buffers)
        guard = ForwardGuard(recorder.writes, reads)
        guards.append(guard)
        with FunctionGuards(guard, GradientHookGuard(), LaterStatisticsGuard()), operands, recorder:
            call = functools.partial(model, *own.args, **own.kwargs)
            if left_there:
                call = functools.partial(_called_with, model, left_there, own)
            with torch.set_grad_enabled(differentiated is not None):
                output = called_beside(places or (), call)
        if reads is not None and reads.refusal is not None:
            raise reads.refusal
        written_by_last[:] = [path for path, buffer in buffers.items() if memory_of(buffer) in recorder.written]
        returned.append(objects_in(output))
        if not torch.equal(random, torch.get_rng_state()):
            drawn[:] = [True]
        for path, buffer in buffers.items():
            owner, _, own_name = path.rpartition(".")
            if is_assignment(model.get_submodule(owner), own_name, buffer, left_there.get(path)):
                assigned.add(path)
                left_there[path] = buffer
        held.check(buffers, left_there)
        kept_before[:] = [
            each for each in recorder.constants if type(each) is torch.Tensor and each.grad_fn is not None
        ]
        if behind is not None:
            left_at[:] = [place for place in behind.places(grows) if is_flat(place.read())]
            left[:] = [place.read() for place in left_at]
            cleared[:] = behind.cleared()
            if grows:
                behind.shrink()
            elif begun and behind.grows:
                # The first call has begun some of these lists.
                begun[0].shrink()
                grows = True
            begun.append(behind)
        return output

    whole = GivenArguments(what, structure, tensors)
    drawn_from = [
        value for value in (*whole.args, *whole.kwargs.values()) if isinstance(value, (*GENERATORS, Iterator))
    ]
    with EAGER, without_generation_cache(all_modules(model)), torch.no_grad():
        called, kept = Retrace(call_once, lambda: PythonState(model), drawn_from), ModuleAttributes(model)
        state = PythonState(model, named=named) if known is None else known.state
        try:
            changed = called.begin(state, everywhere=True)
            if grows:
                changed = called.begin(state, everywhere=True)
        except IPUError:
            raise
        except Exception:
            if failed is not None:
                failed.clear()
                failed.update(changed_values(before, left_there))
            raise
    results = (called.result, left) if left_at else called.result  # of `called_beside`, for known places
    # Attributes that forward stores for other code. The ones that it reads itself, such as a table by length, stay as
    # in eager PyTorch.
    kept.put_back(always=True, but=state.words)
    if changed:
        raise ForwardError(changes_in_every_call(model, changed))
    if kept_before:
        raise CaptureError(f"{current_line()}: {COMPUTED_ONCE.refusal(name, name)}")
    array_at = guards[-1].array_at
    if array_at is not None and any(isinstance(each, np.ndarray) for each in leaves_in(results, is_tensor_or_array)):
        raise ForwardError(refusal_at(VALUE, array_at.place, name, "numpy"))
    first, last = returned[0], returned[-1]
    if len(returned) > 1 and any(mine is theirs for mine in first for theirs in last):
        raise ForwardError(what + _KEEPS_OBJECT)
    given[0].check()
    for copy in copies:
        if version_of(copy):
            raise ForwardError(
                f"{what} writes into an argument, a tensor of shape {tuple(copy.shape)}; the device writes into a copy "
                "of its own, which the loop would not see. Let it compute a new tensor (x = x - 1 instead of x -= 1, "
                "inplace=False in its first layer)."
            )
    written = assigned.union(
        path
        for path, buffer in buffers.items()
        if memory_of(buffer) in recorders[-1].written or _was_written(buffer, before[path])
    )
    # Statistics of zeros may be unchanged.
    owners = {path.rpartition(".")[0] for path in written}
    norms = {path for path in owners if isinstance(model.get_submodule(path), NormWithStatistics)}
    writes = [path for path in buffers if path in written or path.rpartition(".")[0] in norms]
    with_gradients = differentiated is not None
    with DisableTorchFunctionSubclass():
        reads = _read_in(model, recorders[-1], leaves_in(results), buffers, len(copies))
        shared = [memory_of(tensor) for tensor in (*copies, *buffers.values(), *all_parameters(model))]
        own = {**named_tensors(model, PARAMETERS), **buffers}
        outputs = len(leaves_in(results[0] if places or left_at else results))
        returned = returned_in(leaves_in(results), copies, own, recorder=recorders[-1], outputs=outputs)
    others = recorders[-1].constants
    places = places or left_at
    asks = not _GRADIENT_MODE.isdisjoint(state.words)
    return HostCall(
        results, reads, writes, bool(drawn), frozenset(shared), places, with_gradients, returned, others, asks
    )


def _read_in(
    model: nn.Module,
    recorder: OperatorRecorder,
    results: Sequence[torch.Tensor],
    copies: Dict[str, torch.Tensor],
    first: int,
) -> List[str]:
    """Return the names of the buffers that operators or results of a call have.

    The call had `copies` of them, which the recorder has numbered from `first` on.
    """
    used = {memory_of(each) for each in (*recorder.constants, *results) if each.layout is torch.strided}
    own = dict(all_named_buffers(model))
    memories = {path: {memory_of(copy), memory_of(plain(own[path]))} for path, copy in copies.items()}
    numbered = enumerate(memories.items(), first)
    return [path for number, (path, each) in numbered if number in recorder.given or not each.isdisjoint(used)]


def _was_written(buffer: torch.Tensor, before: torch.Tensor) -> bool:
    # PyTorch counts the writes to a tensor, but not those of batch normalisation to its statistics.
    return bool(version_of(buffer)) or not torch.allclose(buffer, before, rtol=0, atol=0, equal_nan=True)


def changed_values(before: Dict[str, torch.Tensor], after: Dict[str, torch.Tensor]) -> Dict[str, torch.Tensor]:
    """Return the present values of buffers that have others than before."""
    found: Dict[str, torch.Tensor] = {}
    for path, then in before.items():
        now = plain(after[path])
        if now.shape == then.shape and now.dtype == then.dtype and not torch.equal(now, then):
            found[path] = now.clone()
    return found
