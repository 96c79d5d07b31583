"""`HooksBefore`: the hooks before one `optimizer.step()`, called once wherever the step is made."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, Iterator, List, Optional, Tuple

import torch

from ignite_ipu.errors import CaptureError
from ignite_ipu.optimizers.step_hooks import of_scripts
from ignite_ipu.program.user_code import current_line
from ignite_ipu.torch_names.optimizers import GLOBAL_PRE_HOOKS, pre_hooks_of

_Hook = Callable[..., Any]


class HooksBefore:
    """The hooks that scripts have registered before a step, which the device or PyTorch makes after them.

    Attributes:
        called: Those that were called, each with its result.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self.called: List[Tuple[_Hook, Any]] = []

    def call(self) -> Optional[CaptureError]:
        """Call them, until one refuses a step of the device by other arguments for it; returns that refusal."""
        for hook in of_scripts(GLOBAL_PRE_HOOKS, pre_hooks_of(self._optimizer)):
            self.called.append((hook, hook(self._optimizer, (self._optimizer,), {})))
            if self.called[-1][1] is not None:
                return CaptureError(
                    f"A hook before {type(self._optimizer).__name__}.step() at {current_line()} returned other "
                    "arguments for it, but the step of a device takes none. Let it return None."
                )
        return None

    @contextlib.contextmanager
    def as_called(self) -> Iterator[None]:
        """Context of the step on the host: in place of each hook that was called, PyTorch gets its result."""
        called, replaced = list(self.called), []
        for table in (GLOBAL_PRE_HOOKS, pre_hooks_of(self._optimizer)):
            for key, hook in list(table.items()):
                number = next((number for number, (each, _) in enumerate(called) if each is hook), None)
                if number is not None:
                    given = table[key] = functools.partial(_give, called.pop(number)[1])
                    replaced.append((table, key, hook, given))
        try:
            yield
        finally:
            for table, key, hook, given in replaced:
                if table.get(key) is given:
                    table[key] = hook


def _give(result: Any, *arguments: Any) -> Any:
    return result
