"""Functions of PyTorch's C++ code that read tensors without `__torch_function__`: of scripts, transforms, and makers.

PyTorch lists the public ones in `torch.overrides.get_ignored_functions`.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator, List, Tuple

import torch
import torch.utils.dlpack

from ignite_ipu.torch_names.table import find, word
from ignite_ipu.torch_names.tensors import MAKE_SUBCLASS

__all__ = ["is_compiling", "native_functions", "native_methods", "reached_by_script"]

_LOST = "This C++ code reads previous weights of models on a device, and its writes into them are lost."
_MAKERS = (
    *("tensor", "as_tensor", "asarray", "full", "arange", "sparse_coo_tensor", "sparse_compressed_tensor"),
    *("sparse_csr_tensor", "sparse_csc_tensor", "sparse_bsr_tensor", "sparse_bsc_tensor"),
)
_TO_DLPACK = "to_dlpack"
_OF_TENSORS = ("new_tensor", "new", "set_", "as_subclass", MAKE_SUBCLASS)
_OF_TRANSFORMS = [
    find(path, "2.0", _LOST, fallback=None)
    for path in (
        "torch._C._functorch._wrap_for_grad",
        "torch._C._functorch._add_batch_dim",
        "torch._C._functorch._wrap_functional_tensor",
        "torch._to_functional_tensor",
    )
]
_FREEZE = word("torch._C._freeze_module", "2.0", _LOST)
_FUNCTION: Any = find("torch._C.ScriptFunction", "2.0", _LOST, fallback=None)
_METHOD: Any = find("torch._C.ScriptMethod", "2.0", _LOST, fallback=None)
_MODULE: Any = find("torch._C.ScriptModule", "2.0", _LOST, fallback=None)
_SAVING = ("save", "save_to_buffer", "_save_for_mobile", "_save_to_buffer_for_mobile", "__deepcopy__", "__getstate__")
_GROUP: Any = find("torch._C._distributed_c10d.ProcessGroup", "2.0", _LOST, fallback=None)
# Functions of torch.distributed ask `__torch_function__` in newer versions alone.
_OF_GROUPS = (
    *("allreduce", "allreduce_coalesced", "broadcast", "reduce", "gather", "scatter", "send", "recv"),
    *("allgather", "allgather_coalesced", "_allgather_base", "reduce_scatter", "_reduce_scatter_base"),
    *("alltoall", "alltoall_base"),
)
_tables_of: List[Callable[[Any], Any]] = [
    find(path, "2.0", _LOST, fallback=lambda module: {}) for path in ("torch._C.ParameterDict", "torch._C.BufferDict")
]
_modules_of: Callable[[Any], Any] = find("torch._C.ModuleDict", "2.0", _LOST, fallback=lambda module: {})
_CONSTANTS = "_ignite_ipu_constants"

is_compiling: Callable[[], bool] = find(
    "torch.compiler.is_compiling",
    "2.1",
    "torch.compile looks into functions of this library in code that makes tensors.",
    fallback=lambda: False,
)
"""Returns whether `torch.compile` or an export runs the code that asks."""


def native_functions() -> List[Any]:
    """Return the functions that code imports by their names."""
    makers = [getattr(torch, name, None) for name in _MAKERS]
    found = [*makers, getattr(torch.utils.dlpack, _TO_DLPACK), *_OF_TRANSFORMS]
    return [each for each in found if each is not None]


def native_methods() -> Iterator[Tuple[Any, str]]:
    """Yield the classes and the module whose functions code finds as attributes, with their names."""
    owned = [*((torch.Tensor, name) for name in _OF_TENSORS), (torch._C, _FREEZE)]
    yield from ((owner, name) for owner, name in owned if hasattr(owner, name))
    scripts = (_FUNCTION, ("__call__", *_SAVING)), (_METHOD, ("__call__",)), (_MODULE, _SAVING)
    for kind, names in (*scripts, (_GROUP, _OF_GROUPS)):
        yield from ((kind, name) for name in names if name in vars(kind or object))


def reached_by_script(value: Any) -> Tuple[List[torch.Tensor], List[torch.Tensor]]:
    """Return the tensors of the modules that a function, a method or a module of TorchScript has, and its constants.

    Of these only the memory tells whose they are. Both are empty for any other object.
    """
    kind = type(value)
    if kind is _FUNCTION:
        return [], _constants(value)
    if kind is _METHOD:
        return _tensors(value.owner), _constants(value)
    if kind is not _MODULE:
        return [], []
    parts = [value, *(part for part in _parts(value))]
    methods = [part._get_method(name) for part in parts for name in part._method_names()]
    return _tensors(value), [constant for method in methods for constant in _constants(method)]


def _parts(module: Any) -> Iterator[Any]:
    for _, part in _modules_of(module).items():
        yield part
        yield from _parts(part)


def _tensors(module: Any) -> List[torch.Tensor]:
    found = [tensor for part in (module, *_parts(module)) for of in _tables_of for _, tensor in of(part).items()]
    return [each for each in found if isinstance(each, torch.Tensor)]


def _constants(function: Any) -> List[torch.Tensor]:
    known = getattr(function, _CONSTANTS, None)
    if known is None:
        graph = function.inlined_graph  # which its nodes do not keep
        nodes = graph.findAllNodes("prim::Constant")
        known = [node.t("value") for node in nodes if node.hasAttribute("value") and node.kindOf("value") == "t"]
        setattr(function, _CONSTANTS, known)
    found: List[torch.Tensor] = known
    return found
