"""`DeferredTensor`: a tensor of a captured step, whose value exists once the step has run."""

from __future__ import annotations

import weakref
from typing import Any, Callable, Container, Dict, List, Optional, Sequence, Tuple

import torch
from torch import nn
from torch.overrides import enable_reentrant_dispatch

from ignite_ipu.capabilities.gradients import DIFFERENTIATED_AGAIN
from ignite_ipu.deferred.events import OBSERVERS
from ignite_ipu.deferred.graph.operations import Operation, Value, name_of
from ignite_ipu.deferred.graph.structure import leaves_in, unflatten
from ignite_ipu.deferred.tensor.autograd import accumulate_to
from ignite_ipu.deferred.tensor.calls import call
from ignite_ipu.deferred.tensor.deferred_values import Deferred, awaited_values, resolved
from ignite_ipu.deferred.tensor.frames import passes_argument_on, refuse_function, refuse_script
from ignite_ipu.deferred.tensor.functions import written
from ignite_ipu.deferred.tensor.losses import mark_loss
from ignite_ipu.deferred.tensor.reads import read
from ignite_ipu.deferred.tensor.recording import Recorder
from ignite_ipu.deferred.tensor.weight_views import WeightMemory, viewed_weights
from ignite_ipu.deferred.tensor.written_tensors import WrittenTensor, in_place_of_written
from ignite_ipu.errors import CaptureError
from ignite_ipu.operators.words import word_set
from ignite_ipu.program.refusal_frames import brief_refusals
from ignite_ipu.program.tensors.new_parameters import convert_when_marked
from ignite_ipu.program.user_code import current_line
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass, make_wrapper_subclass

# The factor of torch.add and torch.sub, which has to be a Python number.
_ALPHA = "alpha"
_CPU = torch.device("cpu")
# Functions that set attributes of a tensor.
_NOT_WRITING = word_set("__set__ __delete__ requires_grad_")


class DeferredTensor(Deferred):
    """A tensor whose shape, type and place in the step are known, and whose value comes with the step.

    Operations on it are recorded. Asking for its value gives the number when the step has run, runs the step when its
    loss has gone backward, and is an error before that.
    """

    @classmethod
    @brief_refusals
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        grad = torch.is_grad_enabled()
        if not grad and func is not torch.Tensor.requires_grad_:  # which computes nothing
            refuse_function(awaited_values, (args, kwargs), passes_argument_on(func, args))
        numbers: Optional[Container[type]] = RECORDER.numbers.get(func)
        if numbers is not None:
            leaves: List[Any] = []
            key, values = [func, grad], args
            if kwargs:
                if _ALPHA in kwargs:
                    numbers = ()
                key += (len(args), *kwargs)
                values = (*args, *kwargs.values())
            signature = RECORDER.signatures.look_up(key, values, leaves, numbers)
            if signature is not None:
                return deferred_results(Operation(signature, None, leaves, current_line(above=1)))
        if WrittenTensor in types:
            args, kwargs = in_place_of_written(args, kwargs or {})
        if WeightView in types:
            result = write_weights(func, args, kwargs or {})
            if result is not NotImplemented:
                return result
        with DisableTorchFunctionSubclass():
            return call(RECORDER, func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Callable[..., Any], types: Sequence[type], args: Tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        # Code in C++, such as a scripted function, does not pass through PyTorch's Python API. An argument that an
        # autograd.Function returns unchanged comes here, too.
        returned = not torch.is_grad_enabled() and passes_argument_on(func, args)
        refuse_function(awaited_values, (args, kwargs), returned)
        refuse_script()
        # Autograd is switched off here, and with it the flag for results that depend on weights.
        with enable_reentrant_dispatch():
            return call(RECORDER, func, args, kwargs or {})

    @brief_refusals
    def backward(
        self,
        gradient: Optional[torch.Tensor] = None,
        retain_graph: Optional[bool] = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        """Mark this as a loss of the step, which runs with `optimizer.step()`.

        With a `gradient` the loss is the sum of this times that.

        Raises:
            CaptureError: It is no scalar that depends on one model, or an argument cannot be honoured.
        """
        if create_graph:
            refusal = DIFFERENTIATED_AGAIN.refusal("backward(create_graph=True)")
            raise CaptureError(f"{current_line()}: {refusal}")
        if inputs is not None:
            accumulate_to(self, inputs, gradient, bool(retain_graph))
            return
        if gradient is not None:
            torch.mul(self, gradient).sum().backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]
            return
        mark_loss(self.value, bool(retain_graph))
        for observer in OBSERVERS:
            observer.went_backward(self)

    @brief_refusals
    def item(self) -> Any:
        tensor = self.value.tensor
        return (read(self.value, "item()") if tensor is None else tensor).item()

    def __repr__(self, *, tensor_contents: Optional[str] = None) -> str:  # type: ignore[override]
        # Debuggers and error messages show objects at any time: this one never fails.
        if self.value.known:
            return repr(self.value.get())
        size, dtype = self.value.shape.size, self.value.shape.dtype
        return (
            f"DeferredTensor(size={size}, dtype={dtype}, known after optimizer.step(); to see a value now, call the "
            "model in evaluation mode under torch.no_grad())"
        )

    @brief_refusals
    def __str__(self) -> str:
        return str(read(self.value, "print"))

    @brief_refusals
    def __format__(self, spec: str) -> str:
        return format(read(self.value, "format"), spec)

    @brief_refusals
    def __reduce_ex__(self, protocol: Any) -> Any:
        plain = read(self.value, "saving it")
        # Hooks that the engine has put on it would go into the file.
        saved: Any = plain.detach().requires_grad_(plain.requires_grad)
        return saved.__reduce_ex__(protocol)

    @brief_refusals
    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        return read(self.value, "a copy").clone()


class WeightView(DeferredTensor):
    """A view of a weight, which each use records anew: it has the values that the weight has then.

    A write into it, without gradients, is one into the weight.

    Attributes:
        memory: The memory that it shows.
    """

    memory: WeightMemory

    @property
    def value(self) -> Value:  # type: ignore[override]
        value = self.memory.record()
        value.handle = weakref.ref(self)
        return value


convert_when_marked(DeferredTensor)


def write_weights(func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    """Call a function that writes into views of weights, on the host; `NotImplemented` for all others."""
    name = getattr(func, "__name__", "")
    target = None if name in _NOT_WRITING else written(name, args, kwargs)
    views = [each for each in leaves_in(target) if isinstance(each, WeightView)]
    if not views:
        return NotImplemented
    initializes = getattr(func, "__module__", None) == nn.init.__name__  # without gradients
    if torch.is_grad_enabled() and not initializes and any(view.requires_grad for view in views):
        raise RuntimeError("a view of a leaf Variable that requires grad is being used in an in-place operation.")
    args, kwargs = resolved((args, kwargs), name_of(func), views)
    func(*args, **kwargs)
    return target


def deferred_results(operation: Operation) -> Any:
    """Return the results of an operation as the user gets them."""
    signature, tensor = operation.signature, None
    if signature.single and not (operation.of_weights and signature.aliases):
        shape = signature.shapes[0]
        value = Value(operation, 0, shape)
        operation.results = (weakref.ref(value),)
        size, stride, dtype, _ = shape.key
        made: Any = make_wrapper_subclass(DeferredTensor, size, strides=stride, dtype=dtype, device=_CPU)
        made.value = value
        value.handle = weakref.ref(made)
        return made
    found: List[DeferredTensor] = []
    views = viewed_weights(operation) if operation.of_weights and signature.aliases else ()
    for value in operation.give():
        shape = value.shape
        memory = views[value.index] if views else None
        kind = DeferredTensor if memory is None else WeightView
        tensor = make_wrapper_subclass(kind, shape.size, strides=shape.stride, dtype=shape.dtype, device=_CPU)
        if memory is None:
            tensor.value = value
            value.handle = weakref.ref(tensor)
        else:
            tensor.memory = memory
        if not signature.single:
            found.append(tensor)
    return tensor if signature.single else unflatten(signature.result, found)


RECORDER = Recorder(deferred_results, DeferredTensor, WeightView)
