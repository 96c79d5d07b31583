"""Answers to programs that look for hardware before they start."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ignite_ipu.emulator as poptorch


@pytest.fixture(autouse=True)
def _an_own_machine(monkeypatch):
    monkeypatch.delenv("IGNITE_IPU_EMULATED_IPUS", raising=False)
    monkeypatch.delenv("IGNITE_IPU_RUNTIME_DIR", raising=False)


def three_ipus() -> nn.Module:
    layers = [nn.Linear(2, 2) for _ in range(3)]
    for number, layer in enumerate(layers):
        poptorch.BeginBlock(layer, f"layer {number}", ipu_id=number)
    return nn.Sequential(*layers)


def test_the_machine_is_there_up_to_its_number_of_ipus(monkeypatch):
    """64 of Mk2, as many as there can be, or as many as are described."""
    assert [poptorch.ipuHardwareIsAvailable(ipus) for ipus in (1, 64, 65)] == [True, True, False]
    assert poptorch.ipuHardwareVersion() == 2
    monkeypatch.setenv("IGNITE_IPU_EMULATED_IPUS", "4")
    assert [poptorch.ipuHardwareIsAvailable(ipus) for ipus in (1, 4, 5)] == [True, True, False]


@pytest.mark.parametrize("variable", [None, "POPTORCH_IPU_MODEL", "POPTORCH_SMALL_IPU_MODEL"])
def test_the_rules_for_hardware_hold_where_there_is_some(monkeypatch, variable):
    """Three IPUs are no power of two; two programs cannot have the same one; an IPU model minds neither."""
    if variable is not None:
        monkeypatch.setenv(variable, "1")
    assert poptorch.ipuHardwareIsAvailable() is (variable is None)
    pipeline = poptorch.inferenceModel(three_ipus(), poptorch.Options().deviceIterations(3))
    both = [poptorch.inferenceModel(nn.Linear(2, 2), poptorch.Options().useIpuId(0)) for _ in range(2)]
    both[0](torch.ones(1, 2))
    if variable is None:
        with pytest.raises(poptorch.Error, match="powers of two"):
            pipeline(torch.ones(3, 2))
        with pytest.raises(poptorch.Error, match="0"):
            both[1](torch.ones(1, 2))
    else:
        assert pipeline(torch.ones(3, 2)).shape == (3, 2)
        both[1](torch.ones(1, 2))
        with pytest.raises(AssertionError, match="No IPU hardware available"):
            poptorch.ipuHardwareVersion()
    for executor in (pipeline, *both):
        executor.destroy()
