"""What all PopTorch optimizers share: the state they hold for the device, and the executor that has the newer one."""

from __future__ import annotations

import copy
from typing import Any, Dict, Iterable, List, Mapping, Optional, Protocol, Tuple, cast

import torch

from ignite_ipu.emulator.optim.attributes import VariableAttributes

IpuTensors = Dict[str, torch.Tensor]
IpuState = Tuple[IpuTensors, IpuTensors]
"""Moments and step counters by name (`ipu_state`), then the variable hyper-parameters by name (`ipu_param`)."""

ACCUMULATION_TYPES = (torch.float16, torch.float32)


class StateHolder(Protocol):
    """An executor whose device may hold newer optimizer state than the optimizer object.

    It drives the optimizer in this order, and an optimizer belongs to one holder at a time:

    1. `optimizer._attach_to(holder)` when it is given to the executor (again for the same holder: no effect).
    2. Before each run, and when the device is attached: upload `optimizer._pending_state()` if that is not None, then
       call `optimizer._uploaded()`.
    3. After the attach and after each training run: `optimizer._device_is_newer()`.
    4. Before the device is detached or the executable destroyed: `optimizer._keep_for_next_attach()`, which reads the
       state back and schedules it for upload.
    5. When another optimizer replaces it: `optimizer._detach()`, which reads the state back first.
    """

    def _read_optimizer_state(self) -> Optional[IpuState]:
        """Return CPU copies of the device's optimizer state, or None while there is none."""


class Optimizer:
    """Base of the classes in `poptorch.optim`: adds the device's state to a `torch.optim` optimizer.

    Attributes:
        ipu_state_is_dirty: A state was loaded here that the device has yet to receive.
        host_state_is_dirty: The device has trained since the state kept here was read.
    """

    _poptorch_attributes: Tuple[str, ...] = ("variable_attrs",)
    variable_attrs: VariableAttributes

    def __init__(self) -> None:
        self.ipu_state_is_dirty = False
        self.host_state_is_dirty = False
        self._ipu_state: Optional[IpuTensors] = None
        self._ipu_param: Optional[IpuTensors] = None
        self._holder: Optional[StateHolder] = None

    def state_dict(self) -> Dict[str, Any]:
        """Return torch's dictionary plus `ipu_state` and `ipu_param`, read from the device if it has newer ones.

        Both are None until the first attach; then they map names such as `Accl1___fc.weight` to tensors.
        """
        return {**self.get_state_dict(), **torch.optim.Optimizer.state_dict(self._torch())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a dictionary made by `state_dict`; the device receives it at its next run or attach.

        Hyper-parameters come into force with the executor's `setOptimizer`.

        Raises:
            KeyError: There are no `param_groups`.
            ValueError: The groups do not match this optimizer's.
            RuntimeError: There is no device state, as in the dictionary of a `torch.optim` optimizer.
        """
        plain = {name: value for name, value in state.items() if name not in ("ipu_state", "ipu_param")}
        torch.optim.Optimizer.load_state_dict(self._torch(), plain)
        self.set_state_dict(state)

    def get_state_dict(self) -> Dict[str, Optional[IpuTensors]]:
        """Return `ipu_state` and `ipu_param` alone, read from the device if it has newer ones."""
        self._read_back()
        return {"ipu_state": self._ipu_state, "ipu_param": self._ipu_param}

    def set_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over `ipu_state` and `ipu_param` alone; the device receives them at its next run or attach.

        Raises:
            RuntimeError: `state` is empty or lacks one of the two.
        """
        if not state:
            raise RuntimeError("Cannot set the optimizer's state dictionary because it is empty.")
        missing = [name for name in ("ipu_state", "ipu_param") if name not in state]
        if missing:
            raise RuntimeError(
                f"Only IPU optimizer states can be loaded onto the IPU: {' and '.join(missing)} missing among the keys "
                f"{sorted(state)}. Load a dictionary that state_dict() of a poptorch.optim optimizer returned."
            )
        self._ipu_state = _copied(state["ipu_state"])
        self._ipu_param = _copied(state["ipu_param"])
        self.host_state_is_dirty = False
        self.ipu_state_is_dirty = self.has_state()

    def has_state(self) -> bool:
        """Return whether there is device state in this object."""
        return self._ipu_state is not None and self._ipu_param is not None

    def __getstate__(self) -> Dict[str, Any]:
        # Only what describes the optimizer: executors, hooks and the step() that schedulers wrap stay behind.
        self._read_back()
        state: Dict[str, Any] = torch.optim.Optimizer.__getstate__(self._torch())
        state.update({name: copy.copy(getattr(self, name)) for name in self._poptorch_attributes})
        state.update(ipu_state_is_dirty=self.ipu_state_is_dirty, host_state_is_dirty=False, _holder=None)
        state.update(_ipu_state=self._ipu_state, _ipu_param=self._ipu_param)
        return state

    def _torch(self) -> torch.optim.Optimizer:
        return cast(torch.optim.Optimizer, self)

    def _mark_variables(self, given: Iterable[str], allowed: Iterable[str]) -> None:
        """Make variable the hyper-parameters among `given`, the arguments passed explicitly."""
        names: List[str] = list(allowed)
        self.variable_attrs = VariableAttributes([name for name in given if name in names], names)

    def _attach_to(self, holder: StateHolder) -> None:
        """Let `holder` provide the newest state from now on, and schedule the state kept here for upload."""
        if self._holder is holder:
            return
        self._detach()
        self._holder = holder
        self.ipu_state_is_dirty = self.has_state()

    def _detach(self) -> None:
        """Read the newest state back and forget the executor."""
        self._read_back()
        self._holder = None

    def _pending_state(self) -> Optional[IpuState]:
        """Return the state that the device has yet to receive, or None."""
        if not self.ipu_state_is_dirty or self._ipu_state is None or self._ipu_param is None:
            return None
        return self._ipu_state, self._ipu_param

    def _uploaded(self) -> None:
        """Note that the device has received the pending state."""
        self.ipu_state_is_dirty = False

    def _device_is_newer(self) -> None:
        """Note that the device's state has moved on from the one kept here."""
        self.host_state_is_dirty = True

    def _keep_for_next_attach(self) -> None:
        """Read the newest state back and schedule it for upload, because the device is about to lose it."""
        self._read_back()
        self.ipu_state_is_dirty = self.has_state()

    def _read_back(self) -> None:
        if not self.host_state_is_dirty or self._holder is None:
            return
        newest = self._holder._read_optimizer_state()
        if newest is not None:
            self._ipu_state, self._ipu_param = newest
        self.host_state_is_dirty = False


def given_arguments(arguments: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the arguments that are not None, that is: not left to their defaults."""
    return {name: value for name, value in arguments.items() if value is not None}


def accumulation_type(value: Optional[torch.dtype]) -> torch.dtype:
    """Return the type to accumulate or store in: `value`, or float32 when it is None.

    Raises:
        AssertionError: It is neither torch.float16 nor torch.float32.
    """
    if value is None:
        return torch.float32
    if value not in ACCUMULATION_TYPES:
        raise AssertionError(f"Accumulation types must be either torch.float32 or torch.float16, not {value}.")
    return value


def _copied(tensors: Optional[Mapping[str, torch.Tensor]]) -> Optional[IpuTensors]:
    return None if tensors is None else {name: tensor.detach().clone() for name, tensor in tensors.items()}
