"""Names of PyTorch's functions and attributes, by their use of a tensor."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

import torch

from ignite_ipu.errors import CaptureError
from ignite_ipu.operators.words import word_set
from ignite_ipu.program.tensors.described import VALUE_READS
from ignite_ipu.program.user_code import current_line

METADATA = word_set(
    "shape dtype device ndim layout itemsize nbytes is_cuda is_cpu is_ipu is_meta is_mps is_xpu is_sparse "
    "is_sparse_csr is_quantized is_nested is_mkldnn is_xla is_vulkan is_maia is_mtia is_ort is_leaf names name "
    "_is_view size dim numel nelement is_floating_point is_complex is_signed stride storage_offset is_contiguous "
    "element_size ndimension __len__ get_device dense_dim sparse_dim is_same_size result_type can_cast __hash__ "
    "is_conj is_neg is_inference has_names __dir__ is_tensor is_shared is_pinned is_distributed "
    "_has_compatible_shallow_copy_type"
)
READS = VALUE_READS | word_set(
    "__reduce_ex__ __reduce__ __deepcopy__ __dlpack__ __dlpack_device__ data_ptr untyped_storage storage "
    "_typed_storage storage_type share_memory_ __format__ __repr__ __str__ nonzero argwhere masked_select unique "
    "unique_consecutive is_set_to to_sparse histc bincount __cuda_array_interface__ "
    "__array_wrap__ __array_priority__ save"
)
EXPOSING = word_set("numpy __array__ data_ptr untyped_storage storage _typed_storage __dlpack__ share_memory_")
"""Those of `READS` by which code gets the memory of a tensor, into which it may write."""
DIFFERENTIABLE_READS = word_set("masked_select to_sparse share_memory_")
"""Those of `READS` through which gradients flow in eager PyTorch."""
TENSOR_PROPERTIES = word_set("T mT H mH real imag")
REFUSED = {
    "requires_grad_": (
        "the device computes gradients of parameters, and of inputs that require them at the model's call. Call it on "
        "the input of the model"
    ),
    "register_hook": (
        "hooks on gradients of results do not run on a device. Hooks on parameters do, with updates on the host"
    ),
    "retain_grad": (
        "gradients of results stay on the device. Those of parameters, and of inputs that require gradients, come to "
        "the host. For others call copy.deepcopy(model) in a loop with ipu_prepare, which computes on the host"
    ),
    "set_": "its memory is on the device. Use a new tensor",
    "resize_": "a compiled step has fixed shapes",
    "resize_as_": "a compiled step has fixed shapes",
}
# Functions called by `x += y` and its kin, beside methods of these names.
OPERATORS = word_set("__iadd__ __isub__ __imul__ __idiv__ __itruediv__ add_ sub_ mul_ div_")
_ITEMS = word_set("__setitem__ __set__ __delete__")


def attribute_of(func: Any) -> str:
    """Return the name of the attribute that a function reads, sets or deletes."""
    return str(getattr(getattr(func, "__self__", None), "__name__", "attribute"))


def written(name: str, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Optional[Any]:
    """Return the tensor that a call writes into, None for most calls."""
    if kwargs.get("out") is not None:
        return kwargs["out"]
    if kwargs.get("inplace"):
        return args[0] if args else kwargs["input"]
    in_place = name in OPERATORS or name in _ITEMS or (name.endswith("_") and not name.endswith("__"))
    if args or not in_place:
        return args[0] if in_place else None
    # PyTorch's initialisers hand the tensor on by its name.
    return next((each for each in kwargs.values() if isinstance(each, torch.Tensor)), None)


def cast_type(args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Optional[torch.dtype]:
    """Return the other type that `tensor.to(...)` asks for, None if it asks for none; only the host is a device."""
    own = args[0].dtype
    for value in (*args[1:], *kwargs.values()):
        if isinstance(value, (str, torch.device)) and torch.device(value).type not in ("cpu", "ipu"):
            raise CaptureError(
                f".to({str(value)!r}) at {current_line()}: the step runs on an IPU, and its results are on "
                "the host. Use accelerator.device, or remove the call."
            )
        wanted = value.dtype if isinstance(value, torch.Tensor) else value
        if isinstance(wanted, torch.dtype) and wanted is not own:
            return wanted
    return None
