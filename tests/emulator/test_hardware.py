"""What programs hear that ask for hardware before they start."""

from __future__ import annotations

import pytest

import ignite_ipu.emulator as poptorch


def test_there_is_no_hardware_unless_a_machine_is_described(monkeypatch):
    """An undescribed emulator has none, and asking for its version is PopTorch's AssertionError."""
    monkeypatch.delenv("IGNITE_IPU_EMULATED_IPUS", raising=False)
    assert poptorch.ipuHardwareIsAvailable() is False
    with pytest.raises(AssertionError, match="No IPU hardware available"):
        poptorch.ipuHardwareVersion()


def test_a_described_machine_counts_as_present(monkeypatch):
    """Up to its number of IPUs, and not when an IPU model is asked for."""
    monkeypatch.setenv("IGNITE_IPU_EMULATED_IPUS", "4")
    assert [poptorch.ipuHardwareIsAvailable(ipus) for ipus in (1, 4, 5)] == [True, True, False]
    assert poptorch.ipuHardwareVersion() == 2
    monkeypatch.setenv("POPTORCH_IPU_MODEL", "1")
    assert poptorch.ipuHardwareIsAvailable() is False
