"""Writes of a forward into its weights, which a compiled program would make into copies that nobody sees."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from ignite_ipu.errors import SessionError
from ignite_ipu.program.user_code import current_line


class WeightWriteGuard(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operators that write into a model's weights, under whatever alias, in its `with` block on the host."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        with torch._C.DisableTorchFunctionSubclass():
            weights: Any = model.named_parameters()
            self._names: Dict[Optional[int], str] = {
                weight.untyped_storage()._cdata: name for name, weight in weights if not is_lazy(weight)
            }

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # no torch.compile is running: PyTorch would look for one at every operator

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        if func._schema.is_mutable:
            self.check(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def check(self, func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            for tensor in value if isinstance(value, (list, tuple)) else [value]:
                memory = tensor.untyped_storage()._cdata if isinstance(tensor, torch.Tensor) else None
                if memory in self._names:
                    raise SessionError(
                        f"A forward writes into the weight {self._names[memory]} at {current_line()}, and a compiled "
                        "program would write into a copy that nobody sees. Write it in the loop, before the model is "
                        "called: under torch.no_grad(), weight.copy_(...); or compute with what it would be "
                        "(w = F.normalize(weight))."
                    )
