"""The state that a user's optimizer shows: written by code, and held by it over updates."""

from __future__ import annotations

import hashlib
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from ignite_ipu.errors import logger
from ignite_ipu.optimizers.held_state import is_held, put_entries

_REPLACED: List[Any] = ["another mapping"]


class ShownState:
    """The state of a user's optimizer, which may be older than the device's.

    Nothing here asks the optimizer for its `state`, which would bring the device's to it.

    Args:
        slots: Names of the entries that the device's update reads; scripts may keep more with a parameter.

    Attributes:
        is_old: Whether the device has newer values.
        seen: The state as it was shown since the last update, to find writes into it; None if it was not.
        handed_out: Whether code may hold a part of it.
        parameters: The optimizer's parameters, in its order.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, slots: Sequence[str]) -> None:
        self._optimizer, self._entries = optimizer, (*slots, "step")
        self.parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self.is_old = False
        self.seen: Optional[List[Any]] = None
        self.handed_out, self._warned = True, False  # code may hold state from before

    @property
    def state(self) -> Dict[torch.Tensor, Dict[str, Any]]:
        state: Dict[torch.Tensor, Dict[str, Any]] = vars(self._optimizer)["state"]
        return state

    @property
    def steps(self) -> int:
        """The largest number of steps that the state counts, 0 if it counts none."""
        counts = [int(entries["step"]) for entries in self.state.values() if entries.get("step") is not None]
        return max(counts, default=0)

    def show(self) -> Any:
        """Return the state to code, which may write into it or hold it."""
        if self.seen is None:
            self.seen = self._signature()
        self.handed_out = True
        return self.state

    def replace(self, state: Any) -> None:
        """Follow the assignment of another state."""
        vars(self._optimizer)["state"] = state
        self.handed_out, self.is_old, self.seen = True, False, _REPLACED

    def note_loaded(self) -> None:
        """Note that a state dictionary was loaded: its tensors may be the caller's, or another optimizer's."""
        self.handed_out = True
        self.expect_edits()

    def take_edits(self) -> bool:
        """Return whether the state was written into since it was shown, and be unshown from now on."""
        seen, self.seen = self.seen, None
        return seen is not None and seen != self._signature()

    def put(self, state: Mapping[int, Mapping[str, Any]]) -> None:
        """Show newer values, by the numbers of the parameters.

        State that the device does not have now stays, for frozen parameters or while there is no momentum: it is needed
        again.
        """
        shown = self.state
        for number, entries in state.items():
            put_entries(shown.setdefault(self.parameters[number], {}), entries)
        self.is_old = False

    def followed_by(self, state: Mapping[int, Mapping[str, Any]]) -> List[Tuple[Any, Mapping[str, Any]]]:
        """Return the state of each parameter with newer values in it, which `put` would show."""
        newer = {id(self.parameters[number]): (self.parameters[number], entries) for number, entries in state.items()}
        shown = [(key, {**entries, **newer.pop(id(key), (key, {}))[1]}) for key, entries in self.state.items()]
        return [*shown, *newer.values()]

    def by_number(self, every: bool) -> Dict[int, Mapping[str, Any]]:
        """Return the state by the numbers of the parameters: `every` entry, or those that the device reads."""
        numbers = {id(parameter): number for number, parameter in enumerate(self.parameters)}
        found = [(numbers[id(key)], entries) for key, entries in self.state.items() if id(key) in numbers]
        return {number: entries if every else self._read_by_device(entries) for number, entries in found}

    def check_held(self) -> bool:
        """Return whether code holds some of the state, which PyTorch's next update changes; warn of the first time."""
        self.handed_out = is_held(vars(self._optimizer))
        if self.handed_out and not self._warned:
            self._warned = True
            logger.warning(
                "The loop keeps a state_dict() of %s, or a part of its state, over updates. In eager PyTorch it "
                "changes with each update, so the state is copied to the host after each. copy.deepcopy() of it keeps "
                "the values, and saves the copies.",
                type(self._optimizer).__name__,
            )
        return self.handed_out

    def expect_edits(self) -> None:
        """Have writes into the state found from now on."""
        self.seen = self._signature()

    def _signature(self) -> List[Any]:
        """Return a list that differs if the state was written into."""
        return [
            (id(parameter), name, id(value), _contents(value) if isinstance(value, torch.Tensor) else value)
            for parameter, entries in self.state.items()
            for name, value in self._read_by_device(entries).items()
        ]

    def _read_by_device(self, entries: Mapping[str, Any]) -> Mapping[str, Any]:
        return {name: value for name, value in entries.items() if name in self._entries}


def _contents(value: torch.Tensor) -> bytes:
    """Return a digest of a tensor: PyTorch counts no writes through `.data`, an array or a view from before."""
    return hashlib.blake2b(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data).digest()
