"""Access to the tensors of a wrapped model, which does more than PopTorch's download of the newest weights.

PopTorch gives the tensors of a wrapped model classes of its own, made for one executor. They download the newest
weights at any access. The same classes do three more things here. The classes of `watch_tensors` do them for a model
that is evaluated alone, such as a teacher, a momentum encoder or a target network: code usually writes their moving
averages by `parameter.data.mul_(...)`.

- They detect possible writes into a weight: checking every tensor for writes takes longer than all other work of the
  host in a training step.
- They download for values alone, not for properties of a tensor: its class, its shape, whether it is trained.
- Their results are ordinary, so that files need no PopTorch: computed tensors, copies and pickles.
"""

from __future__ import annotations

import contextlib
import copyreg
import weakref
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Set, Tuple

import torch
from torch import nn

from ignite_ipu.program.tensors.new_parameters import as_new_parameter, convert_when_marked, makes_parameter
from ignite_ipu.program.tensors.raw import ACCESS, GRADIENT, ORDINARY, is_lazy, plain
from ignite_ipu.session.hooks import Gradients, SessionHooks
from ignite_ipu.session.weights.aliases import Aliases
from ignite_ipu.torch_names.tensors import COUNT_OF_WRITES, DisableTorchFunctionSubclass, base_of, make_subclass

# Through these, memory is written without PyTorch counting it as a change of the tensor.
_UNCOUNTED = frozenset(("data", "numpy", "untyped_storage", "storage", "data_ptr", "__array__", "__dlpack__"))
# Attributes that do not concern a tensor's values, for reading and writing.
_METADATA = frozenset(
    (
        *("shape", "size", "dim", "ndim", "ndimension", "numel", "nelement", "__len__", "dtype", "device", "layout"),
        *("is_floating_point", "is_complex", "is_sparse", "is_leaf", "grad_fn", "grad", "requires_grad"),
        *(
            "requires_grad_",
            "stride",
            "element_size",
            "is_contiguous",
            COUNT_OF_WRITES,
            "is_cpu",
            "is_cuda",
            "itemsize",
            "nbytes",
        ),
        *("__class__", "__torch_function__", "__torch_dispatch__"),
    )
)
# PyTorch calls these methods without `__torch_function__`.
_UNDISPATCHED = frozenset(("as_subclass", "set_"))
# Other methods record their effect when they are called.
_SILENT = _METADATA.union(
    name
    for name in dir(torch.Tensor)
    if name[0] != "_" and name not in _UNCOUNTED | _UNDISPATCHED and callable(getattr(torch.Tensor, name))
)
_HOLDER = "_ignite_ipu_accesses"


class AccessTracker:
    """Accesses to the tensors of a wrapped model since they were last looked at.

    Args:
        before_first: A bound method, held weakly: called before the first download by access since `forget`, with
            whether it is to bring the newest weights.
        hooks: The session's, held weakly, which may refuse an access that shows values.
        on_host: Whether no training takes place, so that shared memory keeps the newest values.
        is_written: A bound method, held weakly: returns whether PyTorch has counted a write to a tensor since `forget`.
            None where nobody asks for values before writes.

    Attributes:
        aliases: The tensors that share the memory of these.
        any: Whether a tensor was accessed in any way that may have written into it, or set its gradient.
        read: Whether one was accessed in a way that downloads.
        in_graphs: Whether autograd has recorded functions of a tensor on the host, by which gradients may come later.
    """

    def __init__(
        self,
        tensors: Iterable[torch.Tensor],
        before_first: Callable[[bool], None],
        hooks: SessionHooks,
        on_host: bool = False,
        is_written: Optional[Callable[[torch.Tensor], bool]] = None,
    ) -> None:
        self.any = True
        self.aliases = Aliases()
        self.read = self.ended = self.in_graphs = False
        self._hooks = weakref.ref(hooks)
        self._before_first: Any = weakref.WeakMethod(before_first)
        self._is_written: Any = (lambda: None) if is_written is None else weakref.WeakMethod(is_written)
        self._on_host = on_host
        self.replaced = False  # whether a tensor was given other memory
        self._before: Dict[int, Tuple[torch.Tensor, torch.Tensor]] = {}
        self._late: Set[int] = set()  # those of them that had been written before their values were kept
        # By the same keys, weakly: `parameter.data`, through which writes are possible as long as it exists.
        self._handed_out: Dict[int, List[weakref.ref[torch.Tensor]]] = {}
        self._tensors = list(tensors)
        self._classes: Set[Any] = set(map(type, self._tensors)) - ORDINARY
        for tensor_class in self._classes:
            _watch(tensor_class, self)

    def watches(self, tensors: Iterable[torch.Tensor]) -> bool:
        """Return whether tensors still have the classes that report accesses."""
        return set(map(type, tensors)) - ORDINARY == self._classes

    def forget(self) -> None:
        self.replaced = False
        self._late.clear()
        if self._on_host and (self.aliases.handed_out or self._handed_out):
            self.keep_aliased()
        alive = {key: [each for each in some if each() is not None] for key, some in self._handed_out.items()}
        kept = {key: some for key, some in alive.items() if some}
        self._before = {key: (self._before[key][0], plain(self._before[key][0]).clone()) for key in kept}
        self._handed_out = kept
        self.any = bool(kept)
        self.read = False

    def keep(self, tensor: torch.Tensor) -> None:
        """Keep the value of a tensor that is about to be written, for `with_values_before`."""
        if id(tensor) not in self._before:
            self._before[id(tensor)] = (tensor, plain(tensor).clone())
            self.any = True  # what is kept is compared at the next look, and not at a later one
            is_written = self._is_written()
            if is_written is not None and is_written(tensor):
                self._late.add(id(tensor))

    @contextlib.contextmanager
    def keeping_none(self) -> Iterator[None]:
        """Keep no values of tensors in the `with` block, where they have others for a while: these are no writes.

        At its end they have their own again.
        """
        before = self._before
        self._before = {key: (tensor, plain(tensor).clone()) for key, (tensor, _) in before.items()}
        try:
            yield
        finally:
            for key, (tensor, _) in self._before.items():
                if key in self._handed_out:  # in the block
                    before.setdefault(key, (tensor, plain(tensor).clone()))
            self._before = before

    def with_values_before(self, tensors: Iterable[torch.Tensor]) -> List[Tuple[torch.Tensor, Optional[torch.Tensor]]]:
        """Return tensors, each with its value when it was last looked at; None for a value that was not kept."""
        kept = {key: value for key, (_, value) in self._before.items() if key not in self._late}
        return [(tensor, kept.get(id(tensor))) for tensor in tensors]

    def written_uncounted(self) -> List[torch.Tensor]:
        """Return the tensors with a known write that PyTorch does not count."""
        return [tensor for tensor, before in self._before.values() if not torch.equal(plain(tensor), before)]

    def uncounted_write(self) -> bool:
        """Return whether a tensor was written in one of the ways that PyTorch does not count."""
        return self.replaced or any(not torch.equal(plain(now), then) for now, then in self._before.values())

    @property
    def serves(self) -> bool:
        """True while there are watchers."""
        return not self.ended and self._before_first() is not None

    def recorded(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return the result of a function that is recorded, `NotImplemented` for one that the host computes."""
        hooks = self._hooks()
        return NotImplemented if hooks is None else hooks.record(func, args, kwargs)

    @property
    def gradients(self) -> Optional[Gradients]:
        """The object that shows the gradients of the tensors; None where the attribute is PyTorch's."""
        hooks = None if self.ended else self._hooks()
        return None if hooks is None else hooks.follower.gradients

    def note(self, reads: bool, brings: bool = True, buffers: bool = False) -> None:
        """Take notice of an access, which may read values or asks for none, and for which they are to be brought.

        It is one of `buffers`, which calls may have yet to write, or of parameters.
        """
        self.any = True
        if reads:
            self.aliases.handed_out = True
            self.bring(brings, buffers)

    def bring(self, brings: bool = True, buffers: bool = False) -> None:
        """Take notice of a read alone, by which code gets no memory and writes nothing."""
        hooks = self._hooks()
        if hooks is not None:
            hooks.check_shown()
            if buffers:
                hooks.follower.before_buffer_read()
        if not self.read:
            self.read = True
            before_first = self._before_first()
            if before_first is not None:
                before_first(brings)
                self.read = True  # also where a fault was recovered from by training again

    def note_view(self, tensor: torch.Tensor) -> None:
        """Take notice that a view of a tensor was made."""
        hooks = self._hooks()
        if hooks is not None and not self.ended:
            hooks.follower.after_view(tensor)

    def note_exposed(self, tensor: torch.Tensor, by: Any) -> None:
        """Take notice that the memory of a tensor, which holds the newest values, is handed out."""
        key = id(tensor)
        self.keep(tensor)
        if self._on_host and isinstance(by, torch.Tensor):
            self._handed_out.setdefault(key, []).append(weakref.ref(by))

    def keep_aliased(self) -> None:
        """Keep the present values of tensors whose memory code holds, to find writes through it."""
        for tensor, alias in self.aliases.among(self._tensors):
            self._handed_out[id(tensor)] = [weakref.ref(alias)]
            self._before[id(tensor)] = (tensor, plain(tensor).clone())


def _watch(tensor_class: Any, accesses: AccessTracker) -> None:
    known: Optional[List[AccessTracker]] = tensor_class.__dict__.get(_HOLDER)
    if known is not None:
        # Models have weights in common, or a program that was set aside trains again.
        known[:] = [each for each in known if each.serves]
        known.append(accesses)
        return
    holder = [accesses]
    setattr(tensor_class, _HOLDER, holder)
    download = tensor_class.__getattribute__
    are_buffers = not issubclass(tensor_class, nn.Parameter)
    # Any tensor of the class serves to ask PopTorch for the newest weights.
    any_of_them = make_subclass(tensor_class, torch.empty(0))

    def getattribute(self: Any, name: str) -> Any:
        if name in _SILENT or not hasattr(torch.Tensor, name):
            if name == "grad" and not are_buffers:
                for accesses in holder:
                    if accesses.gradients is not None:
                        return accesses.gradients.show(self)
            with DisableTorchFunctionSubclass():
                return object.__getattribute__(self, name)
        for accesses in holder:
            accesses.note(reads=True, buffers=are_buffers)
        if not issubclass(type(self), tensor_class):  # PopTorch's own class may be derived from it
            return getattr(self, name)  # training is over
        found = download(self, name)
        if name in _UNCOUNTED:
            for accesses in holder:
                accesses.note_exposed(self, found)
        return found

    def access(reads: bool, hands_out: bool = True) -> None:
        for accesses in holder:
            if hands_out:
                accesses.note(reads, buffers=are_buffers)
            else:
                accesses.bring(buffers=are_buffers)
        if reads:
            download(any_of_them, "__class__")

    def torch_function(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _replaces_gradient(func):
            for accesses in holder:
                if accesses.gradients is not None:
                    if not accesses.gradients.put(args[0], args[1] if args[1:] else None):
                        return None
                    break
        for accesses in holder:
            found = accesses.recorded(func, args, kwargs or {})
            if found is not NotImplemented:
                return found
        reads = _name(func) not in _METADATA
        serving = [accesses for accesses in holder if not accesses.ended]
        for tensor_class in types:  # of which PyTorch asks one
            tensor_class.__dict__.get(ACCESS, lambda reads: None)(reads)
        if any(accesses.ended for accesses in serving):  # the access has taken an update back: they have other classes
            return func(*args, **(kwargs or {}))
        if func == _SET_DATA and not _same_memory(*args):
            for accesses in holder:
                accesses.replaced = True
        others = [each for each in types if not hasattr(each, ACCESS)]
        if others:  # such as that of a gradient; without hooks here, PyTorch calls no other
            return others[0].__torch_function__(func, others, args, kwargs or {})
        with DisableTorchFunctionSubclass():
            found = func(*args, **(kwargs or {}))
            viewed = _viewed(found)
        if reads and torch.is_grad_enabled() and _is_in_graph(found):
            for accesses in holder:
                accesses.in_graphs = True
        if viewed is not None and isinstance(viewed, cls):
            for accesses in holder:
                accesses.note_view(viewed)
        # An array of numpy() that a detached tensor gives is written without a count, too.
        if (_name(func) in _UNCOUNTED or func is torch.Tensor.detach) and isinstance(args[0], cls):
            for accesses in holder:
                accesses.note_exposed(args[0], found)
            if func is torch.Tensor.detach and makes_parameter():
                return as_new_parameter(found, cls)
        return found

    convert_when_marked(tensor_class)
    setattr(tensor_class, ACCESS, access)
    tensor_class.__getattribute__ = getattribute
    tensor_class.__torch_function__ = classmethod(torch_function)
    tensor_class.__deepcopy__, tensor_class.__reduce_ex__ = _deepcopy, _reduce_ex
    if tensor_class in copyreg.dispatch_table:  # which is asked before the method
        copyreg.pickle(tensor_class, _reduce_ex)


def _deepcopy(tensor: torch.Tensor, memo: Dict[int, Any]) -> torch.Tensor:
    # As of PyTorch's parameters, gradients are not copied.
    duplicate = memo[id(tensor)] = _ordinary(tensor.detach().clone(), tensor)
    return duplicate


def _reduce_ex(tensor: torch.Tensor, protocol: Any = 2) -> Any:
    # The same memory, since files keep shared memory.
    ordinary = _ordinary(tensor.detach(), tensor)
    ordinary.__dict__.update(tensor.__dict__)
    return ordinary.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]


def _ordinary(values: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return values in the class of a tensor before it was wrapped: a parameter or not."""
    return nn.Parameter(values, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else values


_OF_ATTRIBUTES = ("__get__", "__set__", "__delete__")
_SET_DATA: Any = torch.Tensor.data.__set__  # type: ignore[attr-defined]


def _name(func: Any) -> str:
    """Return the name of a function, or of the attribute that it reads or writes."""
    name = getattr(func, "__name__", "")
    if name not in _OF_ATTRIBUTES:
        return str(name)
    return "grad" if _is_gradient(func.__self__) else str(getattr(func.__self__, "__name__", ""))


def _replaces_gradient(func: Any) -> bool:
    return getattr(func, "__name__", "") in _OF_ATTRIBUTES[1:] and _is_gradient(func.__self__)


def _is_gradient(attribute: Any) -> bool:
    """Return whether this is `Tensor.grad`: PyTorch's, or its current replacement, which PyTorch passes on."""
    return attribute is GRADIENT or attribute is torch.Tensor.grad


def _is_in_graph(found: Any) -> bool:
    """Return whether autograd has recorded a result, or one of several."""
    if isinstance(found, (tuple, list)):
        return any(map(_is_in_graph, found))
    return isinstance(found, torch.Tensor) and found.grad_fn is not None


def _viewed(found: Any) -> Optional[torch.Tensor]:
    """Return the tensor that a result, or the first of several, is a view of; None for an ordinary result."""
    first = found[0] if isinstance(found, (tuple, list)) and found else found
    return base_of(first) if isinstance(first, torch.Tensor) else None


def _same_memory(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether another tensor has the same values in the same memory, as after an idle `model.to(...)`."""
    if is_lazy(tensor) or is_lazy(other):
        return False
    with DisableTorchFunctionSubclass():
        mine, theirs = [(each.data_ptr(), each.shape, each.stride(), each.dtype) for each in (tensor, other)]
    return mine == theirs


class _Watched:
    """Base of the classes that `watch_tensors` makes."""


def is_watched(tensor_class: type) -> bool:
    """Return whether this is a class that `watch_tensors` has made."""
    return issubclass(tensor_class, _Watched)


def watch_tensors(tensors: Iterable[torch.Tensor], buffers: bool = False) -> None:
    """Give parameters a class of their own, and on request buffers; those of other classes than PyTorch's keep theirs.

    To be taken off before PopTorch wraps a model for training, which takes ordinary buffers alone.
    """
    kinds: Dict[type, List[torch.Tensor]] = {}
    for tensor in tensors:
        if type(tensor) is nn.Parameter or (buffers and type(tensor) is torch.Tensor):
            kinds.setdefault(type(tensor), []).append(tensor)
    for kind, ordinary in kinds.items():
        members = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
        watched: Any = type(kind.__name__, (kind, _Watched), members)
        for tensor in ordinary:
            tensor.__class__ = watched


def unwatch_tensors(tensors: Iterable[torch.Tensor], always: bool = True) -> None:
    """Restore PyTorch's class of tensors; `always` also with remaining watchers."""
    for tensor in tensors:
        tensor_class = type(tensor)
        if is_watched(tensor_class) and (always or not any(each.serves for each in tensor_class.__dict__[_HOLDER])):
            object.__setattr__(tensor, "__class__", tensor_class.__mro__[1])
