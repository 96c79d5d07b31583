"""Private names of tensors without values, with which PyTorch infers shapes and types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ignite_ipu.torch_names.table import find

__all__ = ["DataDependentOutputException", "DynamicOutputShapeException", "FakeTensorMode"]

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import DataDependentOutputException as DataDependentOutputException
    from torch._subclasses.fake_tensor import DynamicOutputShapeException as DynamicOutputShapeException
    from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
else:
    DynamicOutputShapeException = find(
        "torch._subclasses.fake_tensor.DynamicOutputShapeException",
        "2.0",
        "Selection by a mask in a model raises another class of error than PyTorch's inference of shapes.",
        fallback=RuntimeError,
    )
    DataDependentOutputException = find(
        "torch._subclasses.fake_tensor.DataDependentOutputException",
        "2.0",
        "`ignite-ipu plan` does not name the operator that needs values.",
        fallback=RuntimeError,
    )
    FakeTensorMode = find(
        "torch._subclasses.fake_tensor.FakeTensorMode", "2.0", "`ignite-ipu plan` cannot measure models."
    )
