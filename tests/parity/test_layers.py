"""Training steps compared: agreement where both sides compute the same, the first layer where they do not."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from torch import nn

from ignite_ipu import backend
from ignite_ipu.cli.command import main
from ignite_ipu.errors import ParityError
from ignite_ipu.migration.rules import all_rules
from ignite_ipu.migration.trial.setup import Setup
from ignite_ipu.parity.layer_outputs import LayerOutputs
from ignite_ipu.parity.layers import compare_training
from tests.half_precision import needs_half_precision


@pytest.fixture(autouse=True)
def _emulator(monkeypatch):
    monkeypatch.setenv(backend.VARIABLE, "emulator")


class Net(nn.Module):
    def __init__(self, slope=0.0):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.norm = nn.BatchNorm2d(3)
        self.act = nn.LeakyReLU(slope, inplace=True)
        self.drop = nn.Dropout(0.5)
        self.rnn = nn.GRU(12, 5, batch_first=True)
        self.head = nn.Linear(5, 4)

    def forward(self, x):
        x = self.drop(self.act(self.norm(self.conv(x))))
        states, _ = self.rnn(x.flatten(2))
        return self.head(states[:, -1])


def make(slope=0.0, optimizer=torch.optim.SGD):
    model = Net(slope)
    generator = torch.Generator().manual_seed(1)
    batches = [
        (torch.randn(4, 1, 6, 5, generator=generator), torch.randint(4, (4,), generator=generator)) for _ in range(5)
    ]
    return model, optimizer(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), batches


@pytest.mark.parametrize(
    "factors",
    [{}, {"gradient_accumulation_steps": 2}, {"gradient_accumulation_steps": 2, "replication_factor": 2}],
)
def test_the_same_steps_agree(factors):
    report = compare_training(make, steps=2, **factors)
    assert report.agrees, report
    kinds = {kind: [d.name for d in report.differences if (d.kind, d.step) == (kind, 2)] for kind in ("output", "loss")}
    assert kinds["output"] == ["conv", "norm", "act", "drop", "rnn[0]", "rnn[1]", "head"]
    assert kinds["loss"] == ["the batch"]
    parameters = len(list(Net().parameters()))
    assert sum(d.kind == "gradient" and d.step == 1 for d in report.differences) == parameters
    assert "drop" in report.remarks[0]


@needs_half_precision
def test_half_precision_agrees_within_its_tolerance_only():
    assert compare_training(make, steps=2, mixed_precision="fp16").agrees
    first = compare_training(make, steps=2, mixed_precision="fp16", tolerance=1e-6).first
    assert (first.step, first.kind, first.name, first.dtype) == (1, "output", "conv", "float32")


@needs_half_precision
def test_a_model_in_half_precision_is_compared_in_half_precision():
    def halved():
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).half()
        x = torch.linspace(-1, 1, 32).reshape(8, 4).half()
        return model, torch.optim.SGD(model.parameters(), 0.1), nn.MSELoss(), [(x, x[:, :1])]

    report = compare_training(halved, steps=2)
    assert report.agrees, report
    assert {d.dtype for d in report.differences if d.kind == "output"} == {"float16"}


def test_the_first_diverging_layer_is_named():
    """The second model, which the device gets, has another activation."""
    slopes = iter((0.0, 0.3))
    first = compare_training(lambda: make(next(slopes)), steps=1).first
    assert (first.step, first.kind, first.name) == (1, "output", "act")
    assert first.largest > first.allowed > 0


def test_another_update_is_found_in_the_weights():
    """The learning rate is part of the state that both get, the momentum's way of starting is not."""

    class Wrong(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            with torch.no_grad():
                self.param_groups[0]["params"][0].mul_(1.5)

    optimizers = iter((Wrong, torch.optim.SGD))
    first = compare_training(lambda: make(optimizer=next(optimizers)), steps=2).first
    assert (first.step, first.kind, first.name) == (1, "weight", "conv.weight")


def test_a_model_may_return_its_own_loss_and_the_factory_a_dataclass():
    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def forward(self, x):
            output = self.layer(x)
            return {"loss": output.pow(2).mean(), "output": output}

    @dataclasses.dataclass
    class Made:
        model: object
        optimizer: object
        loss_fn: object
        batches: object

    def factory():
        model = WithLoss()
        return Made(model, torch.optim.Adam(model.parameters()), None, [(torch.ones(4, 2), torch.zeros(4))])

    assert compare_training(factory, steps=2).agrees


class TwoInputs(nn.Module):
    """Takes inputs and labels, and returns its loss in a dictionary."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x, labels=None):
        logits = self.layer(x)
        return logits if labels is None else {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class ThreeInputs(TwoInputs):
    def forward(self, x, scale, labels):
        return super().forward(x * scale, labels)


def own_loss(batch, kind=TwoInputs):
    """Return a factory of a model that computes its loss from all of a batch."""

    def factory():
        model = kind()
        return model, torch.optim.AdamW(model.parameters()), None, [batch] * 3

    return factory


X, LABELS = torch.randn(4, 4), torch.randint(2, (4,))


@pytest.mark.parametrize(
    "factory",
    [
        own_loss({"x": X, "labels": LABELS}),
        own_loss((X, LABELS)),
        own_loss([X, torch.ones(4, 1), LABELS], ThreeInputs),
        own_loss(({"x": X, "scale": torch.ones(4, 1), "labels": LABELS}, LABELS), ThreeInputs),
        own_loss(((X, torch.ones(4, 1), LABELS), LABELS), ThreeInputs),
    ],
    ids=["a mapping", "a pair", "three items", "a mapping of inputs", "a tuple of inputs"],
)
def test_a_model_of_several_inputs_is_given_all_of_them_on_both_sides(factory):
    report = compare_training(factory, steps=2, gradient_accumulation_steps=2)
    assert report.agrees, report


def test_a_batch_may_be_one_tensor():
    class Mean(nn.Linear):
        def forward(self, x):
            return super().forward(x).pow(2).mean()

    def factory():
        model = Mean(4, 1)
        return model, torch.optim.SGD(model.parameters(), 0.1), None, [torch.ones(2, 4)] * 2

    assert compare_training(factory, steps=2).agrees


def test_micro_batches_are_not_called_whole_batches(caplog):
    """They are joined to one device call, so that no warning about a cut list appears."""
    compare_training(make, steps=1, gradient_accumulation_steps=2, replication_factor=2)
    assert not [record for record in caplog.records if "nothing can join" in record.getMessage()]


def test_random_models_are_refused_with_the_layer():
    class Noisy(nn.Module):
        def forward(self, x):
            return x + torch.rand_like(x)

    def factory():
        model = nn.Sequential(nn.Linear(2, 2), Noisy())
        return model, torch.optim.SGD(model.parameters(), 0.1), nn.MSELoss(), [(torch.ones(4, 2), torch.ones(4, 2))]

    with pytest.raises(ParityError, match="output of 1 depends on random numbers"):
        compare_training(factory)


def test_wrong_factories_are_refused():
    with pytest.raises(ParityError, match="returned something of type int"):
        compare_training(lambda: 3)
    made = make()
    with pytest.raises(ParityError, match="same model twice"):
        compare_training(lambda: made)
    with pytest.raises(ParityError, match="empty"):
        compare_training(lambda: (*make()[:3], []))
    sizes = iter((2, 3))
    with pytest.raises(ParityError, match="two results differ: RuntimeError"):
        compare_training(lambda: (nn.Linear(4, next(sizes)), *make()[1:]))
    with pytest.raises(ParityError, match="tuple of all arguments of a model without a loss_fn"):
        compare_training(lambda: (*make()[:3], [(X, X, LABELS)]))
    with pytest.raises(ParityError, match=r"not torch\.optim's"):
        Setup.of((nn.Linear(1, 1), None, None, []))


def test_layer_outputs_are_those_before_in_place_changes():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True), nn.Linear(2, 2))
    x = torch.randn(5, 2)
    with LayerOutputs(model) as layers:
        model(x)
    before = x @ model[0].weight.T + model[0].bias
    torch.testing.assert_close(layers.outputs["0"], before)
    torch.testing.assert_close(layers.outputs["1"], before.relu())
    assert list(layers.outputs) == ["0", "1", "2"]
    assert not any(module._forward_hooks for module in model.modules())


def test_a_layer_that_is_called_twice_is_seen_twice():
    layer = nn.Linear(2, 2)
    with LayerOutputs(nn.Sequential(layer, layer)) as layers:
        layers._model(torch.ones(1, 2))
    assert list(layers.outputs) == ["0", "0#2"]


FILE = """
import torch
from torch import nn
def make():
    model = nn.Linear(2, 1)
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), 0.1), "loss_fn": nn.MSELoss(),
            "batches": [(torch.ones(4, 2), torch.ones(4, 1))]}
not_a_function = 1
"""


def test_the_command_reports_and_exits(tmp_path, capsys):
    path = tmp_path / "setup_for_parity.py"
    path.write_text(FILE)
    assert main(["parity", f"{path}:make", "--steps", "2", "--gradient-accumulation", "2"]) == 0
    assert "They agree" in capsys.readouterr().out
    assert main(["parity", f"{path}:make", "--tolerance", "0", "--json"]) in (0, 1)
    report = json.loads(capsys.readouterr().out)
    assert report["steps"] == 3 and report["agrees"] == (report["first"] is None)


def test_the_command_takes_settings(tmp_path, capsys):
    """Those under which updates can be compared; others are refused by name."""
    path = tmp_path / "setup_for_parity.py"
    path.write_text(FILE)
    words = ["parity", f"{path}:make", "--steps", "1", "--set", "options.Training.gradientAccumulation=2"]
    assert main([*words, "--ipu-config", '{"replication_factor": 2}']) == 0
    assert "1 updates from 4 micro-batches each" in capsys.readouterr().out
    for refused in ("device_iterations=2", "max_grad_norm=1", "options.deviceIterations=2"):
        assert main([*words, "--set", refused]) == 2
        assert "parity compares" in capsys.readouterr().err


@needs_half_precision
def test_the_command_compares_in_half_precision(tmp_path, capsys):
    path = tmp_path / "setup_for_parity.py"
    path.write_text(FILE)
    assert main(["parity", f"{path}:make", "--half", "--tolerance", "0", "--json"]) in (0, 1)
    report = json.loads(capsys.readouterr().out)
    assert report["steps"] == 3 and report["agrees"] == (report["first"] is None)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nowhere", "MODULE:FACTORY"),
        ("nowhere_at_all:make", "there is no module 'nowhere_at_all'"),
        ("nowhere.py:make", "there is no file"),
        ("json:nothing", "has no function 'nothing'"),
    ],
)
def test_wrong_targets_are_the_users_error(target, message, capsys):
    assert main(["parity", target]) == 2
    assert message in capsys.readouterr().err


FAILING = """
import torch
from torch import nn
from ignite_ipu import backend

class Net(nn.Linear):
    def forward(self, x):
        if self.fails():
            raise KeyError("a table")
        return super().forward(x)

class Chooses(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        if y.sum() > 0:
            y = y * 2
        return y

class Natively(Net):
    fails = staticmethod(lambda: True)

class OnTheDevice(Net):
    fails = staticmethod(lambda: backend.poptorch().isRunningOnIpu())

def setup(model, x=torch.ones(4, 2)):
    return model, torch.optim.SGD(model.parameters(), 0.1), nn.MSELoss(), ((x, torch.ones(4, 1)) for _ in range(3))

def factory(): raise KeyError("a file")
def ends(): raise SystemExit(3)
def natively(): return setup(Natively(2, 1))
def on_the_device(): return setup(OnTheDevice(2, 1))
def chooses(): return setup(Chooses(2, 1))
def number(): return 5
def misshapen(): return setup(nn.Sequential(nn.Linear(3, 1)))
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("factory", "factory failed: KeyError: 'a file'"),
        ("ends", "ends ends the process, with exit code 3"),
        ("natively", "fails natively already: KeyError: 'a table'"),
        ("on_the_device", "own_failures.py:9: OnTheDevice.forward fails on the device: KeyError: 'a table'"),
        ("number", "The factory returned something of type int; it must return (model, optimizer"),
        ("misshapen", "fails natively already: RuntimeError: mat1 and mat2 shapes"),
    ],
)
def test_what_the_users_code_raises_is_no_bug_of_the_command(name, message, tmp_path, capsys):
    path = tmp_path / "own_failures.py"
    path.write_text(FAILING)
    assert main(["parity", f"{path}:{name}"]) == 2
    error = capsys.readouterr().err
    assert message in error and "this is a bug" not in error


def test_what_the_device_refuses_is_told_as_check_tells_it(tmp_path, capsys, caplog):
    """The reason without PopTorch's own file and line, and where and how to mend it; once."""
    path = tmp_path / "own_choices.py"
    path.write_text(FAILING)
    line = FAILING.splitlines().index("        if y.sum() > 0:") + 1
    assert main(["parity", f"{path}:chooses"]) == 2
    reason, finding = capsys.readouterr().err.splitlines()[-2:]
    assert "cannot run it: __bool__ is only supported in eager mode" in reason and "poptorch_cpp_error" not in reason
    assert f"own_choices.py:{line}: Chooses.forward needs the value of a tensor" in finding
    assert finding.endswith(all_rules()["data-dependent-control-flow"].remedy) and not caplog.records
