"""`run` treats the example of each rule as `check` says."""

from __future__ import annotations

import linecache
import runpy
import sys

import pytest

from ignite_ipu.migration.checker import check_source
from ignite_ipu.migration.findings import Outcome
from ignite_ipu.migration.rules import all_rules
from ignite_ipu.migration.source.file import Source
from ignite_ipu.running import run_script

BEFORE = """
import random
import torch
from torch import nn
torch.manual_seed(0), random.seed(0)
data = torch.utils.data.TensorDataset(torch.randn({samples}, 4), torch.randint(2, ({samples},)))
loader = torch.utils.data.DataLoader(data, batch_size=8)
net = model = nn.Linear(4, 2)
loss = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
total = 0.0


class ClassifierWithLoss(nn.Linear):
    def __init__(self):
        super().__init__(4, 2)

    def forward(self, x, y):
        output = super().forward(x)
        return output, nn.functional.cross_entropy(output, y)


class RecurrentWithLoss(nn.GRUCell):
    def __init__(self):
        super().__init__(4, 4)

    def forward(self, x, hidden):
        hidden = super().forward(x, hidden)
        return poptorch.identity_loss(hidden.mean(), reduction="none"), hidden


torch.save(model.state_dict(), "model.pt")
"""
# How an example is used that does not train by itself.
STEPS = """
for _ in range(2):
    optimizer.zero_grad()
    {loss}.backward()
    optimizer.step()
weights = [p.detach().double().sum().item() for p in {model}.parameters()]
"""
FORWARD = "\nmodel = Net()\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n" + STEPS.format(
    model="model", loss="model(torch.randn(8, 4)).pow(2).mean()"
)
TRAIN = STEPS.format(model="model", loss="model(torch.ones(8, 2)).pow(2).mean()")
USES = {
    "captured-constant": FORWARD.replace("Net()", "make()[0]"),
    "changing-batch-shape": "\nmodel, optimizer, loss, batches = make()\nfor x, y in batches:"
    + STEPS.format(model="model", loss="loss(model(x), y)").replace("\n", "\n    "),
    "compiled-model": "\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)" + TRAIN,
    "cuda-device": "\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)" + TRAIN,
    "custom-autograd-function": STEPS.format(model="model", loss="Clamp.apply(model(torch.ones(8, 4))).mean()"),
    "data-parallel": "\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)" + TRAIN,
    "failed-trace": FORWARD.replace("Net()", "make()[0]"),
    "hand-written-evaluation": "\nweights = output.sum(0).tolist()",
    "ignored-optimizer-argument": STEPS.format(model="model", loss="model(torch.ones(8, 4)).pow(2).mean()"),
    "mixed-precision": STEPS.format(model="model", loss="scaler.scale(model(torch.ones(8, 4)).pow(2).mean())").replace(
        "optimizer.step()", "scaler.step(optimizer); scaler.update()"
    ),
    "narrowed-dtype": "\nmodel = make()[0].eval()\n"
    "with torch.no_grad():\n    weights = model(torch.ones(8, 4)).tolist()",
    "native-accelerator": STEPS.format(model="model", loss="model(torch.ones(8, 4)).pow(2).mean()"),
    "native-ignite-engine": "\ntrainer.run(loader)",
    "loss-reduction": "\ntrainer.run(loader)",
    "restricted-operator": "\noptimizer = torch.optim.SGD(layer.parameters(), lr=0.1)"
    + STEPS.format(model="layer", loss="layer(torch.ones(3, 8).long()).pow(2).mean()"),
    "small-batch-norm": "\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
    + STEPS.format(model="model", loss="model(torch.randn(8, 4)).pow(2).mean()"),
    "unsupported-dtype": "\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
    + STEPS.format(model="model", loss="model(torch.ones(8, 2, dtype=torch.bfloat16)).pow(2).mean()"),
    **dict.fromkeys(
        ["unsupported-optimizer", "unsupported-optimizer-argument"],
        STEPS.format(model="model", loss="model(torch.ones(8, 4)).pow(2).mean()"),
    ),
}
# Installed where a package manager would install it.
PACKAGE = """
from ignite.engine import Engine


class SupervisedTrainer(Engine):
    def __init__(self, device, max_epochs, train_data_loader, network, optimizer, loss_function):
        super().__init__(self.iterate)
        self.network, self.optimizer, self.loss_function = network.to(device), optimizer, loss_function
        self.data, self.epochs = train_data_loader, max_epochs

    def iterate(self, engine, batch):
        self.optimizer.zero_grad()
        loss = self.loss_function(self.network(batch[0]), batch[1])
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def run(self):
        super().run(self.data, self.epochs)
"""
ENDING = "\nresult[:] = globals().get('weights') or [p.detach().double().sum().item() for p in model.parameters()]\n"
REASONS = {
    "accumulation-in-inference": "gradientAccumulation to 1 for inference",
    "backward-on-output": "backward() cannot be called explicitly",
    "custom-autograd-function": "Clamp is an autograd.Function with a backward of its own",
    "failed-trace": "'builtin_function_or_method' object",
    "frozen-options": "Can't modify frozen Options",
    "gradient-in-forward": "Net.forward differentiates",
    "growing-list": "a list that still has those of the previous call",
    "rebound-buffer": "Net.forward puts another tensor in the place of a registered one",
    "restricted-operator": "scale_grad_by_freq",
    "sampled-value": "it was sampled from the model's output",
    "shared-memory-training": "share_memory() cannot be mapped",
    "unreadable-source": "never closed" if sys.version_info >= (3, 10) else "invalid syntax",
    "transformed-model": "A model is called within a transform of torch.func",
    "unsupported-dtype": "a number format that an IPU lacks (torch.bfloat16)",
    "unsupported-operator": "Unsupported ops found in compiled model: [aten::_linalg_svd]",
}
# Rules whose example needs a GPU, or takes more than a minute natively: the mended example computes the same.
MENDED = {"compiled-model", "cuda-api", "cuda-device", "ignored-optimizer-argument"}
NOT_RUN = {"async-loader-labels"}  # it starts a process, which imports the script anew


def outcome(function, path):
    """Return the numbers that a program ends with, or its exception."""
    import builtins

    builtins.result = []
    linecache.clearcache()
    try:
        function(path)
    except (Exception, SystemExit) as error:
        return error
    finally:
        found = vars(builtins).pop("result")
    return found


LOOP = """
for x, y in loader:
    optimizer.zero_grad()
    loss(model(x), y).backward()
    optimizer.step()
"""
CLIPPED = LOOP.replace("    optimizer.step", "    nn.utils.{}; optimizer.step")
PLACES = [
    "optimizer = torch.optim.Adam(model.parameters(), amsgrad=True)" + LOOP,
    "optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.1))" + LOOP,
    "optimizer = torch.optim.Adam(model.parameters(), betas=[0.9, 0.99])" + LOOP,
    "optimizer = torch.optim.Adam(model.parameters(), fused=False)" + LOOP,
    CLIPPED.format("clip_grad_value_(model.parameters(), 1.0)"),
    CLIPPED.format("clip_grad_norm_(model.parameters(), 1.0)"),
    "optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)"
    + CLIPPED.format("clip_grad_norm_(model.parameters(), 1.0)"),
    "optimizer = torch.optim.Adam(model.parameters())" + CLIPPED.format("clip_grad_norm_(model.parameters(), 1.0)"),
    LOOP.replace("backward()", "backward(retain_graph=True)"),
    LOOP.replace("    optimizer.step", "    model.weight.grad.data.clamp_(-1, 1); optimizer.step"),
    LOOP.replace("    optimizer.step", "    model.weight.grad = torch.ones(2, 4); optimizer.step"),
    LOOP.replace("optimizer.zero_grad()", "model.weight.grad = model.bias.grad = None"),
    LOOP + "print(torch.cuda.memory_allocated())",
    LOOP + "if torch.cuda.is_available():\n    print(torch.cuda.max_memory_allocated())",
    LOOP + "torch.cuda.empty_cache()",
    "torch.distributed.init_process_group('nccl', store=torch.distributed.HashStore(), rank=0, world_size=1)"
    + LOOP
    + "torch.distributed.destroy_process_group()",
    "model = torch.nn.parallel.DistributedDataParallel(model)" + LOOP,
    "import ignite.distributed as idist\nmodel = idist.auto_model(model)" + LOOP,
    "import ignite.distributed as idist\nwith idist.Parallel(backend='nccl') as parallel:\n    parallel.run(print)"
    + LOOP,
    "from ignite.engine import create_supervised_trainer\n"
    "create_supervised_trainer(model, optimizer, loss, amp_mode='apex').run(loader)",
    "torch.jit.script(model).save('scripted.pt')" + LOOP,
    "model = torch.jit.script(model)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)" + LOOP,
    "model = model.double()\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
    + LOOP.replace("(x)", "(x.double())"),
    "with torch.autocast('cuda', dtype=torch.bfloat16):" + LOOP.replace("\n", "\n    "),
    "types = {'half': torch.float16, 'bfloat16': torch.bfloat16, 'single': torch.float32}\n"
    "model.to(types['single'])" + LOOP,
]

NET = """
class Net(nn.Linear):
    def forward(self, x):
        {}
        return super().forward(x) {}

model = Net(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
PLACES += [
    NET.format(line, used) + LOOP
    for line, used in [
        ("if getattr(self, 'mask', None) is None: self.mask = torch.ones(2)", "* self.mask"),
        ("if not hasattr(self, 'mask'): self.mask = torch.ones(2)", "* self.mask"),
        ("self.rows = x.shape[0]", "/ self.rows"),
        ("setattr(self, 'rows', x.shape[0])", "/ self.rows"),
        ("self.features = x.detach() * 2", ""),
        ("self.seen = getattr(self, 'seen', 0) + 1", "/ self.seen"),
    ]
]
PLACES.append(
    "scale = torch.ones(8, 1)\nfrom ignite.engine import create_supervised_trainer\n"
    "def scaled(output, y):\n    return loss(output * scale, y)\n"
    "create_supervised_trainer(model, optimizer, scaled).run(loader)"
)


def program(name, example):
    samples = 20 if name == "ragged-last-batch" else 16
    return BEFORE.format(samples=samples) + example + USES.get(name, FORWARD if "class Net" in example else "") + ENDING


@pytest.mark.parametrize("name", sorted(set(all_rules()) - NOT_RUN))
def test_run_makes_of_examples_what_is_said(name, tmp_path, monkeypatch, recwarn, caplog):
    rule = all_rules()[name]
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "example.py"
    path.write_text(program(name, rule.bad))
    if name == "library-loop":
        engines = tmp_path / "lib" / "site-packages" / "monai" / "engines.py"
        engines.parent.mkdir(parents=True)
        engines.write_text(PACKAGE)
        monkeypatch.setattr(sys, "path", [*sys.path, str(engines.parents[1])])
    ran = outcome(run_script, str(path))
    if rule.run is Outcome.REFUSED:
        assert isinstance(ran, Exception) and REASONS[name] in str(ran), ran
        return
    assert isinstance(ran, list), ran
    if rule.run is Outcome.ON_HOST:
        assert any("Weights are updated on the host from " in message for message in caplog.messages)
    if rule.run is Outcome.BY_FUNCTION:
        assert any("Each function of Net is recorded by itself" in message for message in caplog.messages)
    if rule.run.trains:
        if name in MENDED:
            path.write_text(program(name, rule.good))
        assert ran == pytest.approx(outcome(runpy.run_path, str(path)), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("code", PLACES)
def test_a_line_is_refused_where_it_is_said(code, tmp_path, monkeypatch, recwarn):
    """Where `run` makes otherwise of a line than of its rule's example."""
    monkeypatch.chdir(tmp_path)
    findings, _ = check_source(Source("code.py", "import torch\nfrom torch import nn\n" + code))
    (tmp_path / "example.py").write_text(BEFORE.format(samples=16) + code + ENDING)
    ran = outcome(run_script, str(tmp_path / "example.py"))
    refused = [finding for finding in findings if finding.run is Outcome.REFUSED]
    assert isinstance(ran, list) is not bool(refused), (ran, refused)
