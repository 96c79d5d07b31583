"""Wrapping of a model for training: reading its weights first fetches the newest from the device.

The model, its parameters and its buffers change class, to subclasses made for one executor. They hold that executor
only weakly: once it is gone they behave as ordinary tensors.
"""

from __future__ import annotations

import weakref
from copyreg import _reconstructor  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Protocol, Sequence, Tuple, Type

import torch

from ignite_ipu.emulator.errors import python_error
from ignite_ipu.torch_names.modules import BUFFERS, PARAMETERS
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass, version_of

if TYPE_CHECKING:
    from torch import nn

_ORIGINAL = "_poptorch_original_class"
_HOLDER = "_poptorch_holder_reference"
_FETCHES = frozenset({PARAMETERS, BUFFERS, "forward"})


class Holder(Protocol):
    """Executor, which may have newer weights than the host."""

    def copyWeightsToHostIfNeeded(self) -> bool: ...

    def destroy(self) -> None: ...


class Wrapping:
    """The class changes made to one model for one executor."""

    def __init__(self, model: nn.Module, holder: Holder) -> None:
        self._model = weakref.ref(model)
        self._holder = weakref.ref(holder)
        self._tensor_classes: Dict[type, type] = {}
        for name, buffer in model.named_buffers():
            if original_class(type(buffer)) is not torch.Tensor:
                raise python_error(
                    f"All buffers must be an instance of torch.Tensor; {name} is a {type(buffer).__qualname__}. "
                    "Register parameters with register_parameter."
                )
        self._tensors: List[torch.Tensor] = []
        self.parameter_class = self._tensor_class(torch.nn.Parameter)
        self.buffer_class = self._tensor_class(torch.Tensor)
        self.wrap_tensors(model)
        model.__class__ = _model_class(type(model), self._holder)

    def wrap_tensors(self, model: nn.Module) -> None:
        """Change the class of every parameter and buffer of `model`, also where it is that of an earlier executor."""
        for tensor in (*model.parameters(), *model.buffers()):
            fetch(tensor)
            wrapped = self._tensor_class(original_class(type(tensor)))
            if type(tensor) is not wrapped:
                self._tensors.append(tensor)
                tensor.__class__ = wrapped

    def undo(self) -> None:
        """Give the model and its tensors their own classes back."""
        model = self._model()
        if model is None:
            return
        # Unless another executor has taken them over.
        for tensor in self._tensors:
            if type(tensor) in self._tensor_classes.values():
                object.__setattr__(tensor, "__class__", original_class(type(tensor)))
        self._tensors.clear()
        if _TAKEN_OFF.pop(model, None) is not None:
            return
        if not is_wrapped(model):
            raise python_error(
                f"Cannot unwrap {type(model).__qualname__}: model was never wrapped, or was unwrapped before."
            )
        model.__class__ = original_class(type(model))

    def _tensor_class(self, original: type) -> type:
        if original not in self._tensor_classes:
            self._tensor_classes[original] = _tensor_class(original, self._holder)
        return self._tensor_classes[original]


# The wrapped class of a model, and those of its tensors.
_TAKEN_OFF: weakref.WeakKeyDictionary[nn.Module, Tuple[type, List[Tuple[weakref.ref[torch.Tensor], type]]]]
_TAKEN_OFF = weakref.WeakKeyDictionary()


def unwrapModelIfNecessary(model: nn.Module) -> None:
    """Give a model that is wrapped for training, and its tensors, their own classes back until it is rewrapped.

    A model that is not wrapped is left as it is. The host's weights are made the newest first, since nothing fetches
    them afterwards. Private in PopTorch (`poptorch._impl`), and used by frameworks that compile other models of the
    same parts.
    """
    if not is_wrapped(model):
        return
    tensors = []
    for tensor in (*model.parameters(), *model.buffers()):
        fetch(tensor)
        tensors.append((weakref.ref(tensor), type(tensor)))
        object.__setattr__(tensor, "__class__", original_class(type(tensor)))
    _TAKEN_OFF[model] = type(model), tensors
    model.__class__ = original_class(type(model))


def rewrapModelIfNecessary(model: nn.Module) -> None:
    """Restore the wrapper that `unwrapModelIfNecessary` removed; any other model is left as it is."""
    taken_off = _TAKEN_OFF.pop(model, None)
    if taken_off is None or is_wrapped(model):
        return
    model_class, tensors = taken_off
    for reference, wrapped in tensors:
        tensor = reference()
        if tensor is not None:
            tensor.__class__ = wrapped
    model.__class__ = model_class


def original_class(wrapped: type) -> type:
    """Return the class that a model, parameter or buffer had before it was wrapped: `wrapped` itself if it was not."""
    original: type = getattr(wrapped, _ORIGINAL, wrapped)
    return original


def is_wrapped(model: Any) -> bool:
    """Return whether `model` has been wrapped for training and not been unwrapped."""
    return hasattr(type(model), _ORIGINAL)


def holder_of(wrapped: Any) -> Optional[Holder]:
    """Return the executor that a wrapped model, parameter or buffer is tied to, None if it is gone or there is none."""
    reference = getattr(type(wrapped), _HOLDER, None)
    return None if reference is None else reference()


def fetch(wrapped: Any) -> None:
    """Download the newest values of a model, parameter or buffer if the executor that it is tied to has them."""
    holder = holder_of(wrapped)
    if holder is not None:
        holder.copyWeightsToHostIfNeeded()


def counted(tensor: torch.Tensor) -> bool:
    """Return whether PyTorch counts the changes made to a tensor: it does not for those made in inference mode."""
    with DisableTorchFunctionSubclass():
        return not torch.Tensor.is_inference(tensor)


def counts(tensors: Sequence[torch.Tensor]) -> List[int]:
    """Return `versions` of tensors whose changes are counted."""
    with DisableTorchFunctionSubclass():
        return list(map(version_of, tensors))


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same memory as an ordinary tensor, without asking the device for newer values."""
    with DisableTorchFunctionSubclass():
        return torch.Tensor.detach(tensor).as_subclass(torch.Tensor)


def all_plain(tensors: Sequence[torch.Tensor]) -> List[torch.Tensor]:
    """Return the results of `plain` for some tensors."""
    with DisableTorchFunctionSubclass():
        return [torch.Tensor.detach(tensor).as_subclass(torch.Tensor) for tensor in tensors]


def versions(tensors: Sequence[torch.Tensor]) -> List[int]:
    """Return PyTorch's counts of the changes made to tensors, without asking the device for newer values.

    Tensors that were made in inference mode are not counted: theirs is always 0.
    """
    try:
        return counts(tensors)
    except RuntimeError:  # as of PyTorch, for a tensor that was made in inference mode
        with DisableTorchFunctionSubclass():
            return [0 if torch.Tensor.is_inference(each) else version_of(each) for each in tensors]


def storages(tensors: Sequence[torch.Tensor]) -> List[torch.Tensor]:
    """Return the same memory as each tensor has, through which writing does not count as an edit of the original."""
    data = torch.Tensor.data.__get__  # type: ignore[attr-defined]
    with DisableTorchFunctionSubclass():
        return [data(tensor).as_subclass(torch.Tensor) for tensor in tensors]


def unpickled_buffer(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor that a pickle of a wrapped buffer, or of a tensor computed from one, is read as.

    As in PopTorch, the pickle names this function: it cannot be read without the function, nor as weights only.
    """
    return tensor


def _tensor_class(original: Type[torch.Tensor], holder: Callable[[], Optional[Holder]]) -> type:
    parameter = issubclass(original, torch.nn.Parameter)

    class Wrapped(original):  # type: ignore[valid-type, misc]
        # PyTorch's functions come by here, too: they look `__torch_function__` up. Their results for a buffer are of
        # its class, those for a parameter are ordinary tensors. Both are PyTorch's rule for subclasses.
        def __getattribute__(self, name: str) -> Any:
            fetch(self)
            return super().__getattribute__(name)

        def __deepcopy__(self, memo: Dict[int, Any]) -> Any:
            # Of the class that it had before: a copy belongs to no executor.
            copied = plain(self).clone(memory_format=torch.preserve_format)
            if parameter:
                copied = original(copied, object.__getattribute__(self, "requires_grad"))
            memo[id(self)] = copied
            return copied

        def __reduce_ex__(self, protocol: Any) -> Any:
            if not parameter:
                return unpickled_buffer, (plain(self),)
            unwrapped = torch.nn.Parameter(plain(self), object.__getattribute__(self, "requires_grad"))
            return unwrapped.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    Wrapped.__name__ = Wrapped.__qualname__ = "PoptorchParameter" if parameter else "PoptorchBuffer"
    return _tied(Wrapped, original, holder)


def _model_class(original: Type[nn.Module], holder: Callable[[], Optional[Holder]]) -> type:
    class Wrapped(original):  # type: ignore[valid-type, misc]
        def __getattribute__(self, name: str) -> Any:
            if name in _FETCHES:
                fetch(self)
            return super().__getattribute__(name)

        def copyWeightsToHostIfNeeded(self) -> bool:
            """Download the weights if the device's are newer, and return whether that happened."""
            executor = holder_of(self)
            return executor is not None and executor.copyWeightsToHostIfNeeded()

        def destroy(self) -> None:
            executor = holder_of(self)
            if executor is not None:
                executor.destroy()

        def state_dict(self, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
            fetch(self)
            state = super().state_dict(*args, destination=destination, prefix=prefix, keep_vars=keep_vars)
            seen: Dict[Any, torch.Tensor] = {}
            for key, value in state.items():
                if isinstance(value, torch.Tensor):
                    tensor = plain(value) if keep_vars else value
                    memory = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
                    # Empty tensors have no memory that would distinguish them.
                    state[key] = seen.setdefault(memory, tensor) if tensor.numel() else tensor
            return state

        def __reduce_ex__(self, protocol: Any) -> Any:
            fetch(self)
            return _reconstructor, (original, object, None), self.__getstate__()

        def __copy__(self) -> Any:
            duplicate = type(self).__new__(type(self))
            duplicate.__dict__.update(self.__dict__)
            return duplicate

        def __getstate__(self) -> Any:
            fetch(self)
            inherited = getattr(super(), "__getstate__", None)
            return inherited() if inherited is not None else self.__dict__.copy()

    Wrapped.__name__ = f"Poptorch{original.__name__}"
    Wrapped.__qualname__ = f"Poptorch{original.__qualname__}"
    Wrapped.__module__ = original.__module__
    return _tied(Wrapped, original, holder)


def _tied(wrapped: type, original: type, holder: Callable[[], Optional[Holder]]) -> type:
    setattr(wrapped, _ORIGINAL, original)
    setattr(wrapped, _HOLDER, staticmethod(holder))
    return wrapped
