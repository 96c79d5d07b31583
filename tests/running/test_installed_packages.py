"""Training loops of installed packages, captured as those of the script are."""

from __future__ import annotations

import json
import os
import sys
import textwrap

import pytest
import torch

from ignite_ipu import emulator
from ignite_ipu.errors import RunError
from ignite_ipu.running import program, run_module

PACKAGE = """
import torch
from torch import nn
from torch.nn import functional as F

class Trainer:
    def __init__(self, device=None):
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)

    def update(self, x, y, clip=nn.utils.clip_grad_norm_):
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x.to(self.device)), y.to(self.device))
        loss.backward()
        clip(self.model.parameters(), 0.5)
        self.optimizer.step()
        return loss.item()

class MixedTrainer(Trainer):
    def __init__(self):
        super().__init__("cuda")
        torch.cuda.set_device(0)
        self.model = nn.DataParallel(self.model)
        self.scaler = torch.cuda.amp.GradScaler()

    def update(self, x, y):
        self.optimizer.zero_grad()
        with torch.cuda.amp.autocast():
            loss = F.cross_entropy(self.model(x.cuda()), y.cuda())
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        torch.cuda.synchronize()
        return loss.item()

class AcceleratedTrainer(Trainer):
    def __init__(self):
        from accelerate import Accelerator
        super().__init__("cpu")
        self.accelerator = Accelerator()
        self.model, self.optimizer = self.accelerator.prepare(self.model, self.optimizer)

    def update(self, x, y):
        loss = F.cross_entropy(self.model(x), y)
        self.accelerator.backward(loss)
        self.accelerator.clip_grad_norm_(self.model.parameters(), 0.5)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()
"""
SCRIPT = """
import json, sys, torch
sys.path.append({folder!r})
import installed_trainers
torch.manual_seed(0)
x, y = torch.randn(4, 8, 6), torch.randint(3, (4, 8))
trainer = installed_trainers.{made}
print(json.dumps([trainer.update(*pair) for pair in zip(x, y)]))
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Return the text of a script that makes a trainer of a package in a site-packages folder."""
    folder = tmp_path / "environment" / "lib" / "site-packages"
    (folder / "installed_trainers").mkdir(parents=True)
    (folder / "installed_trainers" / "__init__.py").write_text(textwrap.dedent(PACKAGE))
    monkeypatch.delitem(sys.modules, "installed_trainers", raising=False)
    return lambda made: SCRIPT.format(folder=str(folder), made=made)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch.cuda.amp
@pytest.mark.parametrize("made", ["Trainer()", "MixedTrainer()", "AcceleratedTrainer()"])
def test_losses_are_the_native_ones(run, script, monkeypatch, made):
    """Also of one that was written for a GPU alone, and of one that uses accelerate, which the script does not name."""
    found = json.loads(run(script(made)).output[-1])
    monkeypatch.delitem(sys.modules, "installed_trainers")
    monkeypatch.setenv("IGNITE_IPU_BACKEND", "native")
    native = json.loads(run(script("Trainer()")).output[-1])
    assert found == pytest.approx(native, rel=1e-4)


LOOPS = """
import torch
from torch import nn

class OwnOptimizer:
    def __init__(self, parameters, lr):
        self.parameters, self.lr = list(parameters), lr

    def zero_grad(self):
        for each in self.parameters:
            if each.grad is not None:
                each.grad.detach_().zero_()

    @torch.no_grad()
    def step(self):
        for each in self.parameters:
            each.data.add_(each.grad.data, alpha=-self.lr)

def own_optimizer(model, data):
    optimizer = OwnOptimizer(model.parameters(), 0.1)
    for x, y in data:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    return loss

def by_hand(model, data):
    for x, y in data:
        model.zero_grad()
        loss = nn.functional.mse_loss(model.forward(x), y)
        loss.backward()
        with torch.no_grad():
            for each in model.parameters():
                each -= 0.1 * each.grad
    return loss

def by_hooks(model, data):
    optimizers = {each: torch.optim.SGD([each], lr=0.1) for each in model.parameters()}

    def update(weight):
        optimizers[weight].step()
        optimizers[weight].zero_grad()

    for each in optimizers:
        each.register_post_accumulate_grad_hook(update)
    for x, y in data:
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
    return loss

def wrapped(model, data):
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, inner):
            self.inner, self.param_groups = inner, inner.param_groups

        def step(self):
            self.inner.step()

        def zero_grad(self):
            self.inner.zero_grad()

    optimizer = Wrapper(torch.optim.SGD(model.parameters(), lr=0.1))
    for x, y in data:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    return loss

def _composed(model, x):
    first, last = model[0], model[2]
    return torch.tanh(x @ first.weight.t() + first.bias) @ last.weight.t() + last.bias

def without_calls(model, data):
    for x, y in data:
        nn.functional.mse_loss(_composed(model, x), y).backward()

def by_autograd(model, data):
    for x, y in data:
        torch.autograd.grad(nn.functional.mse_loss(_composed(model, x), y), list(model.parameters()))
"""
TRAINED = """
import sys, torch
from torch import nn
sys.path.append({folder!r})
import installed_loops
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to("cuda" if torch.cuda.is_available() else "cpu")
data = [(torch.randn(4, 3), torch.randn(4, 1)) for _ in range(3)]
print(installed_loops.{loop}(model, data).item(), *(each.abs().sum().item() for each in model.parameters()))
"""


@pytest.fixture
def loops(tmp_path, monkeypatch):
    """Return the text of a script that trains a model by a loop of an installed package."""
    folder = tmp_path / "environment" / "lib" / "site-packages"
    folder.mkdir(parents=True)
    (folder / "installed_loops.py").write_text(LOOPS)
    monkeypatch.delitem(sys.modules, "installed_loops", raising=False)
    return lambda loop: TRAINED.format(folder=str(folder), loop=loop)


HOOKED = pytest.param(
    "by_hooks", marks=pytest.mark.skipif(not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"), reason="2.1")
)


@pytest.mark.parametrize("loop", ["own_optimizer", "by_hand", HOOKED, "wrapped"])
def test_loops_train_on_the_device_however_they_update(run, loops, natively, loop):
    """By optimizers of the package's own, by hand, or in hooks on gradients."""
    expected = [float(number) for number in natively(loops(loop))[0].split()]
    before = emulator.counters().device_calls
    (line,) = run(loops(loop)).output
    assert [float(number) for number in line.split()] == pytest.approx(expected, rel=1e-5)
    assert emulator.counters().device_calls - before == 3


@pytest.mark.parametrize("loop", ["without_calls", "by_autograd"])
def test_a_package_does_not_train_a_model_on_the_host_in_silence(run, loops, loop):
    """The line of the script, that of the package, and that at which the model was put on a GPU are named."""
    with pytest.raises(RunError, match=r"script\.py:9: .*loops\.py:\d+ .*Sequential, .* put on a GPU at script\.py:7"):
        run(loops(loop))


def test_what_would_train_in_another_way_is_refused(run, script):
    """Clipping by value would find no gradients on the device, and clip nothing."""
    text = script("Trainer()").replace("*pair)", "*pair, clip=torch.nn.utils.clip_grad_value_)")
    with pytest.raises(RunError, match=r"script\.py:8.*clip_grad_value_\(\).*global norm"):
        run(text, config={"update": "device"})


def test_a_package_that_is_run_by_its_name_owns_its_modules_and_no_others(tmp_path, monkeypatch, capsys):
    """It insists on its GPU; a package beside it is for IPUs, and one that it imports beside it is not read."""
    folder = tmp_path / "environment" / "lib" / "site-packages"
    for name, text in {
        "tool/__init__.py": "",
        "tool/__main__.py": "import neighbour\nfrom tool import training",
        "tool/training.py": (
            "import torch\n"
            "assert torch.cuda.is_available() and torch.cuda.get_device_properties(0).total_memory\n"
            "torch.manual_seed(0)\n"
            "model = torch.nn.Linear(3, 1).cuda()\n"
            "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
            "model(torch.ones(2, 3).cuda()).sum().backward()\n"
            "optimizer.step()\n"
            "print('trained')\n"
        ),
        "neighbour/__init__.py": "",
        "neighbour/unread.py": "import for_ipus",
        "for_ipus.py": "import poptorch",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setattr(sys, "path", [sys.path[0], str(folder), *sys.path[1:]])
    read, substitutions = [], []
    monkeypatch.setattr(program, "_imports", lambda *args, found=program._imports: read.append(args[0]) or found(*args))
    before = emulator.counters().optimizer_updates
    run_module("tool", substitutions=substitutions)
    assert capsys.readouterr().out == "trained\n" and emulator.counters().optimizer_updates == before + 1
    assert {os.path.basename(file) for file in read} == {"__init__.py", "__main__.py", "training.py"}
    assert any(each.original == "torch.cuda.is_available()" for each in substitutions)
    for name in ("tool", "tool.training", "neighbour"):
        sys.modules.pop(name, None)
