"""Private names of PyTorch's dispatcher: modes, operators, jit traces, transformations and containers."""

from __future__ import annotations

import contextlib
import functools
import inspect
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Optional

import torch

from ignite_ipu.torch_names.table import Name, find, word

__all__ = [
    "FRAMES_OF_SCRIPT",
    "GROUPED_PRODUCT",
    "LOCAL_SCALAR",
    "NESTED_FROM_MASK",
    "NEURAL_FUNCTIONS",
    "UNIQUE",
    "DispatchMode",
    "TorchDispatchMode",
    "autocasts_on_cpu",
    "differentiates",
    "function_modes_left",
    "has_function_modes",
    "is_mutable",
    "is_random",
    "jit_trace_left",
    "operators_of_scripts",
    "saved_tensor_hooks",
    "saved_tensor_hooks_left",
    "schema_of",
    "schemas_of",
    "set_grad_enabled",
    "tracing_state",
    "transformation",
    "tree_flatten",
    "tree_map",
    "tree_map_only",
]

if TYPE_CHECKING:
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
    from torch.utils._pytree import tree_flatten as tree_flatten
    from torch.utils._pytree import tree_map as tree_map
    from torch.utils._pytree import tree_map_only as tree_map_only
else:
    TorchDispatchMode = find(
        "torch.utils._python_dispatch.TorchDispatchMode", "2.0", "No model is traced, so none trains or evaluates."
    )
    tree_flatten = find("torch.utils._pytree.tree_flatten", "2.0", "Captured loops cannot infer the shapes of results.")
    tree_map = find("torch.utils._pytree.tree_map", "2.0", "`ignite-ipu plan` cannot measure models.")
    tree_map_only = find(
        "torch.utils._pytree.tree_map_only", "2.0", "Captured loops cannot infer the shapes of results."
    )


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode of PyTorch's dispatcher, for operators that PyTorch does not compile.

    PyTorch would look for a `torch.compile` that runs at every operator, and import the compiler for that.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


_SCHEMA = Name(
    "torch._ops.OpOverload._schema",
    "2.0",
    "Operators that write into tensors cannot be told from others, so no model is compiled.",
    check=lambda: hasattr(torch.ops.aten.add.Tensor, "_schema"),
)


def schema_of(operator: Any) -> Any:
    """Return the schema of an operator of PyTorch's: its name, arguments, results, and whether it writes."""
    try:
        return operator._schema
    except AttributeError:
        raise _SCHEMA.missing() from None


@functools.lru_cache(maxsize=None)
def is_mutable(operator: Any) -> bool:
    """Return whether an operator writes into an argument."""
    return bool(schema_of(operator).is_mutable)


@functools.lru_cache(maxsize=None)
def is_random(operator: Any) -> bool:
    """Return whether an operator draws random numbers."""
    return torch.Tag.nondeterministic_seeded in operator.tags


def operator_name(operator: Any) -> str:
    """Return the name of an operator of PyTorch's, without its namespace."""
    return str(schema_of(operator).name.rpartition("::")[2])


schemas_of: Callable[[str], List[Any]] = find(
    "torch._C._jit_get_schemas_for_operator", "2.0", "Captured loops cannot record operations that write into tensors."
)
"""Returns the schemas of all overloads of an operator, such as "aten::add_"."""
NEURAL_FUNCTIONS: Any = find(
    "torch._C._nn",
    "2.0",
    "Some functions of torch.nn.functional that write into tensors cannot be recorded.",
    fallback=torch.nn.functional,
)
"""Functions of C++ behind some of `torch.nn.functional`."""
set_grad_enabled: Callable[[bool], None] = find(
    "torch._C._set_grad_enabled", "2.0", "The emulator cannot train a model whose forward switches gradients off."
)
LOCAL_SCALAR = word(
    "torch.ops.aten._local_scalar_dense", "2.0", "A read of a value in a model is refused less clearly."
)
"""The operator that reads the value of a tensor."""
_LESS_ADVICE = "The error of such an operator in a model has no advice."
NESTED_FROM_MASK = (
    word("torch._nested_tensor_from_mask", "2.0", _LESS_ADVICE),
    word("torch._nested_tensor_from_mask_left_aligned", "2.0", _LESS_ADVICE),
)
"""Operators that make nested tensors for encoders."""
GROUPED_PRODUCT = word("torch._grouped_mm", "2.13", _LESS_ADVICE)
"""Operator that multiplies groups of matrices."""
UNIQUE = word("torch._unique2", "2.0", "A model that calls it is refused with another message.")
"""Operator behind `torch.unique`."""

_NO_MODES = "Function modes, such as a default device, stay in force within device calls of the emulator."
has_function_modes: Callable[[], int] = find("torch._C._len_torch_function_stack", "2.0", _NO_MODES, fallback=lambda: 0)
"""Returns how many `TorchFunctionMode`s are in force."""
_pop_mode: Callable[[], Any] = find("torch._C._pop_torch_function_stack", "2.0", _NO_MODES)
_push_mode: Callable[[Any], None] = find("torch._C._push_on_torch_function_stack", "2.0", _NO_MODES)


@contextlib.contextmanager
def function_modes_left() -> Iterator[None]:
    """Leave all `TorchFunctionMode`s in the `with` block."""
    modes = [_pop_mode() for _ in range(has_function_modes())]
    try:
        yield
    finally:
        for mode in reversed(modes):
            _push_mode(mode)


autocasts_on_cpu: Callable[[], bool] = functools.partial(torch.is_autocast_enabled, "cpu")
"""Returns whether autocast is on for the CPU, which versions of PyTorch read in different ways."""
try:
    autocasts_on_cpu()
except TypeError:
    autocasts_on_cpu = getattr(torch, "is_autocast_cpu_enabled")  # noqa: B009

_NO_STATE = "Device calls within torch.jit.trace become part of its trace, or crash."
tracing_state: Callable[[], Any] = find("torch._C._get_tracing_state", "2.0", _NO_STATE, fallback=lambda: None)
"""Returns the state of `torch.jit.trace`, None if it is not at work."""
_set_tracing_state: Callable[[Any], None] = find(
    "torch._C._set_tracing_state", "2.0", _NO_STATE, fallback=lambda state: None
)


@contextlib.contextmanager
def jit_trace_left() -> Iterator[None]:
    """Keep the operations of the `with` block out of a trace by `torch.jit.trace`."""
    state = tracing_state()
    _set_tracing_state(None)
    try:
        yield
    finally:
        _set_tracing_state(state)


_NO_HOOKS = "Hooks on tensors that autograd saves stay in force within device calls of the emulator."
# PyTorch 2.0 cannot return the hooks.
saved_tensor_hooks: Callable[[bool], Any] = find(
    "torch._C._autograd._top_saved_tensors_default_hooks", "2.1", _NO_HOOKS, fallback=lambda ignores_tracing: None
)
"""Returns the innermost hooks for the tensors that autograd saves; None without any, and with PyTorch 2.0."""
_pop_saved_hooks: Callable[[], Any] = find("torch._C._autograd._pop_saved_tensors_default_hooks", "2.0", _NO_HOOKS)
_push_saved_hooks: Callable[[Any, Any], None] = find(
    "torch._C._autograd._push_saved_tensors_default_hooks", "2.0", _NO_HOOKS
)


@contextlib.contextmanager
def saved_tensor_hooks_left() -> Iterator[None]:
    """Have autograd save tensors as they are in the `with` block.

    The hooks are the host's: they move or change the given tensors. A trace has no values to move, and the device keeps
    its own.
    """
    hooks: List[Any] = []
    while saved_tensor_hooks(False) is not None:
        hooks.append(saved_tensor_hooks(False))
        _pop_saved_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(hooks):
            _push_saved_hooks(pack, unpack)


_operators: Callable[[], Dict[int, str]] = find(
    "torch.jit._builtins._get_builtin_table",
    "2.0",
    "Under `ignite-ipu run` TorchScript cannot compile functions that make tensors.",
    fallback=dict,
)


def operators_of_scripts() -> Dict[int, str]:
    """Return the operators that TorchScript knows, by the `id` of PyTorch's functions; a table that may be changed."""
    return _operators()


FRAMES_OF_SCRIPT = word(
    "torch.jit.script._frames_up",
    "2.0",
    "Under `ignite-ipu run` TorchScript does not find the classes that another class names.",
    check=lambda: "_frames_up" in inspect.signature(torch.jit.script).parameters,
)
"""Argument of `torch.jit.script`: how many frames above the caller a class finds its names in."""

_NO_TRANSFORMATIONS = "torch.func.grad and its relatives around a model on a device are not refused."
transformation: Callable[[], Optional[Any]] = find(
    "torch._C._functorch.peek_interpreter_stack", "2.0", _NO_TRANSFORMATIONS, fallback=lambda: None
)
"""Returns the innermost transformation of `torch.func` that is at work; None if there is none."""
_KINDS: Any = find("torch._C._functorch.TransformType", "2.0", _NO_TRANSFORMATIONS, fallback=None)


def differentiates(transformation: Any) -> bool:
    """Return whether a transformation of `torch.func` takes derivatives."""
    return _KINDS is not None and transformation.key() in (_KINDS.Grad, _KINDS.Jvp)
