"""accelerate in a script: the accelerator is an `IPUAccelerator`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ignite_ipu import emulator

accelerate = pytest.importorskip("accelerate")

SCRIPT = """
import torch
from accelerate import Accelerator
from torch import nn
torch.manual_seed(0)
accelerator = Accelerator()
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(16, 3), torch.randn(16, 1)), 4)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
for x, y in data:
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
print(isinstance(accelerator, Accelerator), *model.weight.flatten().tolist())
"""


def test_loops_of_accelerate_run_on_the_device(run, monkeypatch):
    before = emulator.counters()
    original = accelerate.Accelerator
    ran = run(SCRIPT)
    assert accelerate.Accelerator is original
    assert (emulator.counters() - before).optimizer_updates == 4
    assert ran.became("Accelerator()") == "IPUAccelerator()"
    monkeypatch.setenv("IGNITE_IPU_BACKEND", "native")
    native = run(SCRIPT).output[0].split()
    found = ran.output[0].split()
    assert found[0] == "True"
    assert [float(text) for text in found[1:]] == pytest.approx([float(text) for text in native[1:]], rel=1e-5)


def test_a_module_of_that_name_beside_the_script_is_the_scripts_own(run, tmp_path, monkeypatch):
    (tmp_path / "accelerate.py").write_text("def faster(model): return model\n")
    monkeypatch.delitem(sys.modules, "accelerate")
    script = """
import torch
from accelerate import faster
model = faster(torch.nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(4, 3)).sum().backward()
optimizer.step()
print(model.bias.shape)
"""
    assert run(script).output == ["torch.Size([1])"]


def test_a_module_that_hides_accelerate_is_named(tmp_path):
    (tmp_path / "accelerate.py").write_text("")
    (tmp_path / "train.py").write_text("from ignite_ipu import IPUAccelerator\n")
    # The forked processes have imported accelerate already.
    found = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert f"Python finds {tmp_path / 'accelerate.py'} under that name" in found.stderr
