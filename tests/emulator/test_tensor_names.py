"""Names of a compiled graph's tensors, and anchors on them."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

import ignite_ipu.emulator as poptorch

X = torch.tensor([[1.0, -2.0, 0.5], [3.0, 4.0, -1.0]])


class Net(nn.Module):
    """Two layers, one of them frozen, a normalisation and a loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc1 = nn.Linear(3, 3).requires_grad_(False)
        self.norm = nn.BatchNorm1d(3)
        self.fc2 = nn.Linear(3, 2)

    def forward(self, x):
        return poptorch.identity_loss(self.fc2(self.norm(self.fc1(x))).square(), "mean")


def trainer(net, options=None):
    return poptorch.trainingModel(net, options, torch.optim.SGD(net.parameters(), lr=0.1))


def test_parameters_and_buffers_have_the_models_names():
    """Trained parameters have a gradient and an updated value in training; frozen ones, and inference, have none."""
    net = Net()
    own = {name for name, _ in (*net.named_parameters(), *net.named_buffers())}
    trained = ["norm.weight", "norm.bias", "fc2.weight", "fc2.bias"]
    training, inference = trainer(net), poptorch.inferenceModel(Net())
    for model, of_updates in (
        (training, {f"{kind}___{name}" for kind in ("Gradient", "UpdatedVar") for name in trained}),
        (inference, set()),
    ):
        model.compile(X)
        names = set(model.getTensorNames())
        assert own <= names and {name for name in names if "___" in name} == of_updates
        assert not {name.replace(".", "_") for name in own} & names


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
def test_a_normalised_weight_is_two_parameters():
    """And the weight that hooks make of them is a result, not a parameter."""

    class Normalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = torch.nn.utils.weight_norm(nn.Linear(3, 2))

        def forward(self, x):
            return poptorch.identity_loss(self.lin(x).square(), "mean")

    model = trainer(Normalised())
    model.compile(X)
    names = set(model.getTensorNames())
    updated = {"UpdatedVar___lin.bias", "UpdatedVar___lin.weight_g", "UpdatedVar___lin.weight_v"}
    assert {"lin.weight_g", "lin.weight_v", *updated} <= names
    assert not {"lin.weight", "UpdatedVar___lin.weight"} & names


def test_an_updated_weight_is_the_one_after_the_step():
    """The plain name gives the one that the step began with."""
    options = poptorch.Options()
    options.anchorTensor("before", "fc2.weight")
    options.anchorTensor("after", "UpdatedVar___fc2.weight")
    options.anchorTensor("gradient", "Gradient___fc2.weight")
    net, native = Net(), Net()
    model = trainer(net, options)
    optimizer = torch.optim.SGD(native.parameters(), lr=0.1)
    for _ in range(3):
        model(X)
        torch.testing.assert_close(model.getAnchoredTensor("before"), native.fc2.weight.detach())
        optimizer.zero_grad()
        native(X).backward()
        optimizer.step()
        torch.testing.assert_close(model.getAnchoredTensor("after"), native.fc2.weight.detach())
        torch.testing.assert_close(model.getAnchoredTensor("gradient"), native.fc2.weight.grad)
    assert torch.equal(model.getAnchoredTensor("after"), net.fc2.weight)


@pytest.mark.parametrize("training", [True, False])
def test_every_listed_name_can_be_anchored(training):
    """Inputs, parameters, buffers, results of operators, and results of an update."""

    def wrapped(options):
        return trainer(Net(), options) if training else poptorch.inferenceModel(Net(), options)

    scout = wrapped(None)
    scout.compile(X)
    options = poptorch.Options()
    for name in scout.getTensorNames():
        options.anchorTensor(f"short {name}", name)
    model = wrapped(options)
    model(X)
    for name in scout.getTensorNames():
        assert isinstance(model.getAnchoredTensor(f"short {name}"), torch.Tensor), name


@pytest.mark.parametrize(
    "name", ["UpdatedVar___fc1.weight", "UpdatedVar___absent", "Gradient___fc1.bias", "fc2_weight"]
)
def test_other_names_do_not_compile(name):
    options = poptorch.Options()
    options.anchorTensor("a", name)
    with pytest.raises(poptorch.Error, match=f"Unknown tensor to anchor: '{name}'"):
        trainer(Net(), options)(X)


def test_programs_log_through_poptorchs_logger(caplog):
    """It is an ordinary `logging.Logger`, also where the emulator stands in for the package."""
    with poptorch.install():
        import poptorch as installed

        assert isinstance(installed.logger, logging.Logger) and installed.logger is poptorch.logger
        installed.logger.warning("%d steps", 3)
    assert [record.getMessage() for record in caplog.records] == ["3 steps"]
