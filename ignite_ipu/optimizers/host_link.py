"""The tie to an optimizer whose steps PyTorch makes on the host, with gradients that a device computes.

A training program needs an optimizer of its own, which here leaves all weights as they are: SGD with a learning rate of
zero. The user's optimizer stays an ordinary one, with its state, its groups and its hooks.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, Collection, Dict, Iterable, Optional, Protocol, Sequence, Tuple

import torch

from ignite_ipu.poptorch_types import Executor
from ignite_ipu.torch_names.optimizers import STEP_COUNT, STEPPED


class Link(Protocol):
    """The tie between a user's optimizer and a training program: an `OptimizerLink`, or a `HostLink`."""

    @property
    def steps(self) -> int: ...
    @property
    def conversion(self) -> Any: ...
    @property
    def settings(self) -> Any: ...
    @property
    def is_current(self) -> bool: ...
    def changes(self) -> Sequence[Any]: ...
    def expect_changes(self, names: Iterable[str]) -> None: ...
    def has_unsent(self) -> bool: ...
    def push(self, executor: Optional[Executor] = None) -> Sequence[Any]: ...
    def stepped(self, updates: int) -> None: ...
    def refresh_state(self) -> None: ...
    def detach(self) -> None: ...
    def give_up(self) -> None: ...
    def send_again(self, trainable: Collection[str]) -> None: ...
    def complete(self, trainable: Collection[str]) -> None: ...
    def tell(self, executor: Executor, settings: Any) -> None: ...
    def stand_in(self) -> Any: ...
    def read(self) -> Any: ...
    def put_back(self, saved: Any, steps: Optional[int] = None) -> None: ...
    def state_dict(self, saved: Any) -> Dict[str, Any]: ...


@dataclasses.dataclass(frozen=True)
class HostUpdates:
    """Updates that PyTorch makes on the host.

    Attributes:
        source: The user's optimizer; None if the loop decides at its `step()`.
        loss_scaling: Factor on the loss gradient on the device.
        max_grad_norm: Norm that gradients are clipped to before each step, None for none.
    """

    source: Optional[torch.optim.Optimizer] = None
    loss_scaling: float = 1.0
    max_grad_norm: Optional[float] = None

    def device_optimizer(self, parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
        """Return the optimizer for the device, which leaves the parameters as they are."""
        # With PopTorch's own SGD a read of its state, which is empty, would download all weights.
        optimizer = torch.optim.SGD(parameters, lr=0.0)
        optimizer.loss_scaling = self.loss_scaling  # type: ignore[attr-defined]
        return optimizer

    def compiled_in(self) -> Dict[str, str]:
        """Return in words, by name, the parts of the update in a compiled program."""
        return {"the optimizer": "none, gradients come back", "its loss_scaling": repr(self.loss_scaling)}


@dataclasses.dataclass(frozen=True)
class SavedOptimizer:
    """The state dictionary of an optimizer at one moment, after so many steps."""

    settings: HostUpdates
    state: Optional[Dict[str, Any]]
    steps: int


class HostLink:
    """Stands where an `OptimizerLink` stands for updates on the device, and has nothing to send or to bring back.

    Attributes:
        steps: Counted updates so far.
        is_current: Whether there is nothing to send: always.
    """

    is_current = True

    def __init__(self, updates: HostUpdates) -> None:
        self.conversion = self.settings = updates
        self.steps = 0

    def changes(self) -> Tuple[()]:
        return ()

    def expect_changes(self, names: Iterable[str]) -> None:
        """Do nothing: all numbers of the optimizer are the host's."""

    def has_unsent(self) -> bool:
        """Return whether a device has yet to take some state: never."""
        return False

    def push(self, executor: Optional[Executor] = None) -> Tuple[()]:
        """Send nothing: the device makes no update."""
        return ()

    def stepped(self, updates: int) -> None:
        self.steps += updates

    def refresh_state(self) -> None:
        """Leave the state, which is the newest."""

    detach = give_up = refresh_state

    def send_again(self, trainable: Collection[str]) -> None:
        """Send nothing."""

    complete = send_again

    def tell(self, executor: Executor, settings: HostUpdates) -> None:
        """Send nothing."""

    def stand_in(self) -> None:
        """Return nothing: each executor keeps its optimizer."""

    def read(self) -> SavedOptimizer:
        """Return a copy of the newest state, for `put_back`."""
        source = self.settings.source
        state = None if source is None else copy.deepcopy(source.state_dict())
        return SavedOptimizer(self.settings, state, self.steps)

    def put_back(self, saved: SavedOptimizer, steps: Optional[int] = None) -> None:
        """Make a state that `read` returned the newest; `steps` replaces its count."""
        self.steps = saved.steps if steps is None else steps
        if self.settings.source is not None and saved.state is not None:
            self.settings.source.load_state_dict(copy.deepcopy(saved.state))

    def state_dict(self, saved: SavedOptimizer) -> Dict[str, Any]:
        """Return the state dictionary that the user's optimizer gave at that moment."""
        return saved.state or {}


def note_step(optimizer: torch.optim.Optimizer) -> None:
    """Let schedules know of a step that went past their own wrapper of `step`."""
    source = optimizer.__dict__
    source[STEPPED] = True
    if STEP_COUNT in source:
        source[STEP_COUNT] += 1


def note_earlier_steps(link: Link) -> None:
    """Note that there were updates, maybe in a process before this one: schedules may step without a warning."""
    optimizer: Optional[torch.optim.Optimizer] = link.conversion.source
    if optimizer is None:
        return
    source = optimizer.__dict__
    source[STEPPED] = True
    if STEP_COUNT in source:
        source[STEP_COUNT] = max(source[STEP_COUNT], 1)
