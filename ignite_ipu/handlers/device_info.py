"""Utilisation, power, clock and temperatures of this process's IPUs, from `gcipuinfo`, which comes with the SDK.

Source: gcipuinfo lists devices as mappings of texts, such as `{"user process id": "71", "ipu utilisation": "52.31%"}`.
"""

from __future__ import annotations

import importlib
import os
from statistics import fmean
from typing import Any, Dict, List, Optional

from ignite_ipu.errors import logger

__all__: List[str] = []  # users attach `IPUStats`

_PROCESS = "user process id"
# Attribute of gcipuinfo -> metric, and the unit that its texts end with.
_METRICS = {
    "ipu utilisation": ("utilisation_percent", "%"),
    "ipu utilisation (session)": ("session_utilisation_percent", "%"),
    "ipu power": ("power_watts", "W"),
    "clock": ("clock_mhz", "MHz"),
    "average die temp": ("die_celsius", "C"),
    "average board temp": ("board_celsius", "C"),
}


class DeviceInfo:
    """Figures of the IPUs that this process has; none where there is no `gcipuinfo`."""

    def __init__(self) -> None:
        self._inventory: Optional[Any] = None
        try:
            self._inventory = importlib.import_module("gcipuinfo").gcipuinfo()
            self._inventory.setUpdateMode(True)  # look again at each call
        except ImportError:
            pass
        except Exception as error:
            self._detach(error)

    def metrics(self) -> Dict[str, float]:
        """Return averages over this process's IPUs, by name; values that a device does not report are left out."""
        if self._inventory is None:
            return {}
        try:
            devices = [dict(device) for device in self._inventory.getDevices()]
        except Exception as error:
            self._detach(error)
            return {}
        own = [device for device in devices if device.get(_PROCESS) == str(os.getpid())]
        found = {name: _numbers(own, attribute, unit) for attribute, (name, unit) in _METRICS.items()}
        return {name: fmean(numbers) for name, numbers in found.items() if numbers}

    def _detach(self, error: Exception) -> None:
        logger.warning("gcipuinfo fails, so the utilisation of IPUs is not known: %s", error)
        self._inventory = None


def _numbers(devices: List[Dict[str, str]], attribute: str, unit: str) -> List[float]:
    numbers = []
    for device in devices:
        text = str(device.get(attribute, "")).strip()
        try:
            numbers.append(float(text[: -len(unit)] if text.endswith(unit) else text))
        except ValueError:
            continue  # "N/A"
    return numbers
