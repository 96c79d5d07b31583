"""The module compiled for training: the loss that it finds, refusals, and results."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import backend
from ignite_ipu.errors import BatchError, LossError, OutputError
from ignite_ipu.program.evaluation_step import EvaluationStep
from ignite_ipu.program.training_step import TrainingStep, find_loss

poptorch = backend.poptorch()


def step_once(step: TrainingStep, x: Any, y: Any, lr: float = 0.1) -> Any:
    """Compile a step as PopTorch users do, train one micro-batch, and return its outputs."""
    options = poptorch.Options()
    options.showCompilationProgressBar(False)
    executor = poptorch.trainingModel(step, options, torch.optim.SGD(step.parameters(), lr=lr))
    outputs = executor(*step.arguments(x, y, micro_batches=1))
    executor.destroy()
    return outputs


def natively(model: nn.Module, loss_fn: Callable[[Any, Any], torch.Tensor], x: Any, y: Any, lr: float = 0.1) -> Any:
    """The same step in plain PyTorch."""
    loss = loss_fn(model(x), y)
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= lr * parameter.grad
    return loss


def linear(seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(3, 2)


X = torch.linspace(-1, 1, 12).reshape(4, 3)
Y = torch.tensor([0, 1, 1, 0])
T = torch.linspace(0, 1, 8).reshape(4, 2)


def weighted_sum(y_pred: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return 0.3 * F.mse_loss(y_pred, y) + 0.7 * F.l1_loss(y_pred, y) + 0.01 * y_pred.pow(2).sum()


@pytest.mark.parametrize(
    ("loss_fn", "y"),
    [
        (nn.CrossEntropyLoss(), Y),
        (F.mse_loss, T),
        (lambda y_pred, y: (y_pred - y).abs().pow(3).mean(), T),
        (weighted_sum, T),
        (lambda y_pred, y: F.mse_loss(y_pred, y) / 4, T),
        (lambda y_pred, y: F.mse_loss(y_pred, y, reduction="sum").reshape(1), T),
        (nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.0, 3.0])), T),
        (lambda y_pred, y: F.mse_loss(y_pred, y, reduction="none").mean(0).sum(), T),
    ],
    ids=["module", "function", "formula", "weighted sum", "scaled", "one element", "with buffer", "own reduction"],
)
def test_any_scalar_loss_trains_as_in_pytorch(loss_fn: Any, y: torch.Tensor) -> None:
    """Loss and weights after a step equal plain PyTorch's, whatever the loss is made of."""
    model, reference = linear(), linear()
    y_pred, loss = step_once(TrainingStep(model, loss_fn), X, y)
    expected = natively(reference, loss_fn, X, y)
    torch.testing.assert_close(loss, expected.detach().reshape(()))
    torch.testing.assert_close(y_pred, linear()(X).detach())
    torch.testing.assert_close(dict(model.state_dict()), dict(reference.state_dict()))


def test_parameters_keep_their_names_below_model() -> None:
    """The compiled program knows the user's parameters as `model.<name>`."""
    step = TrainingStep(linear(), F.mse_loss)
    assert [name for name, _ in step.named_parameters()] == ["model.weight", "model.bias"]
    assert [name for name, _ in EvaluationStep(linear()).named_parameters()] == ["model.weight", "model.bias"]


def test_predictions_can_be_left_out() -> None:
    """Without them the step returns nothing but the loss."""
    y_pred, loss = step_once(TrainingStep(linear(), F.mse_loss, predictions=False), X, T)
    assert y_pred is None and loss.shape == ()


def test_model_fn_and_transform_run_in_the_program() -> None:
    """They have the same meaning as in Ignite's own factory."""
    seen = []

    def model_fn(model: nn.Module, x: Any) -> Any:
        seen.append(type(x))
        return {"logits": model(x["features"]) * x["scale"]}

    step = TrainingStep(linear(), F.mse_loss, model_fn=model_fn, model_transform=lambda output: output["logits"])
    y_pred, _ = step_once(step, {"features": X, "scale": 2.0}, T)
    torch.testing.assert_close(y_pred, linear()(X).detach() * 2)
    assert seen == [dict]


def test_numbers_in_a_batch_may_change() -> None:
    """PopTorch alone would freeze the number 2 into the program."""
    step = TrainingStep(linear(), F.mse_loss, model_fn=lambda model, x: model(x[0]) * x[1])
    options = poptorch.Options().deviceIterations(2)
    executor = poptorch.trainingModel(step, options, torch.optim.SGD(step.parameters(), lr=0.0))
    for factor in (2, 3):
        y_pred, _ = executor(*step.arguments((X, factor), T, micro_batches=2))
        torch.testing.assert_close(y_pred, linear()(X[2:]).detach() * factor)
    executor.destroy()


def test_a_batch_of_another_shape_is_refused_before_the_device_sees_it() -> None:
    """The message names the part of the batch."""
    step = TrainingStep(linear(), F.mse_loss)
    step.arguments(X, T, micro_batches=1)
    with pytest.raises(BatchError, match=r"y is now .* shape \(3, 2\)"):
        step.arguments(X, T[:3], micro_batches=1)
    step.layout.forget()
    step.arguments(X[:2], T[:2], micro_batches=1)


class ReturnsLoss(nn.Module):
    """A model that computes its loss, as those of transformers do."""

    def __init__(self, wrap: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
        super().__init__()
        self.layer = linear()
        self.wrap = wrap

    def forward(self, batch: Any) -> Any:
        logits = self.layer(batch["x"])
        return self.wrap(F.cross_entropy(logits, batch["labels"]), logits)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda loss, logits: loss,
        lambda loss, logits: (loss, logits),
        lambda loss, logits: (logits, loss),
        lambda loss, logits: {"loss": loss, "logits": logits},
    ],
    ids=["alone", "first", "last", "dict"],
)
def test_models_that_return_their_loss(wrap: Any) -> None:
    """The loss is found in the output, and the whole output is the prediction."""
    y_pred, loss = step_once(TrainingStep(ReturnsLoss(wrap)), {"x": X, "labels": Y}, None)
    torch.testing.assert_close(loss, F.cross_entropy(linear()(X), Y).detach())
    logits = linear()(X).detach()
    torch.testing.assert_close(y_pred, wrap(loss, logits))


def test_find_loss_explains_what_it_looked_for() -> None:
    """No loss, or two candidates, is an error that explains how to choose one."""
    scalar, vector = torch.tensor(1.0), torch.zeros(3)
    assert find_loss(SimpleNamespace(loss=scalar)) is scalar
    assert find_loss([vector, vector, scalar]) is scalar
    for output, message in [
        ({"logits": vector}, r"keys \['logits'\] but no loss"),
        ((vector, vector), "neither its first nor its last item"),
        ((scalar, vector, scalar), "both its first and last item"),
        (SimpleNamespace(), "there is no loss in the model's output, a SimpleNamespace"),
    ]:
        with pytest.raises(LossError, match=message):
            find_loss(output)


@pytest.mark.parametrize(
    ("loss_fn", "message"),
    [
        (nn.MSELoss(reduction="none"), r"The loss has shape \(4, 2\); it must be a scalar.*reduction='mean'"),
        (lambda y_pred, y: 1.0, "The loss is a float, not a tensor"),
        (lambda y_pred, y: (y_pred > 0).sum(), "The loss has type torch.int32, which has no gradient"),
        (lambda y_pred, y: T.sum(), "does not depend on the batch or the model"),
    ],
)
def test_losses_that_are_none(loss_fn: Any, message: str) -> None:
    """Whatever cannot be differentiated is refused with the way out."""
    with pytest.raises(LossError, match=message):
        step_once(TrainingStep(linear(), loss_fn), X, T)


@torch.no_grad()
def watched(y_pred: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(y_pred, y)


@pytest.mark.parametrize(
    "loss_fn",
    [
        lambda y_pred, y: F.mse_loss(y_pred.detach(), y),
        lambda y_pred, y: (y_pred.argmax(1) == 0).float().mean(),
        watched,
    ],
    ids=["detach()", "accuracy", "no_grad()"],
)
def test_a_loss_that_reaches_no_parameter_is_refused(loss_fn: Any) -> None:
    """PyTorch has nothing to go backward to, and a device would train nothing without a word."""
    with pytest.raises(RuntimeError, match="does not require grad"):
        natively(linear(), loss_fn, X, T)
    message = r"a tensor of shape \(\) of torch.float32, reaches none of the 2 trained parameters.*attach a metric"
    with pytest.raises(LossError, match=message):
        step_once(TrainingStep(linear(), loss_fn), X, T)


class Marked(list):  # type: ignore[type-arg]
    def __init__(self, entries: Any, extra: torch.Tensor) -> None:
        super().__init__(entries)
        self.extra = 2 * extra


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (lambda y_pred: None, "The model's output is None, in which there is no tensor"),
        (lambda y_pred: {"mode": "x"}, r"a dict with the keys \['mode'\]"),
        (lambda y_pred: (y_pred, SimpleNamespace(logits=y_pred)), "contains a SimpleNamespace, whose tensors"),
        (
            lambda y_pred: Marked([y_pred], y_pred),
            "contains a Marked, whose tensors .* in its attribute extra",
        ),
    ],
)
def test_outputs_without_tensors(output: Any, message: str) -> None:
    """An output that could not come back from the device is refused, in training and evaluation."""
    step = TrainingStep(linear(), lambda y_pred, y: y.sum(), model_transform=output)
    with pytest.raises(OutputError, match=message):
        step_once(step, X, T)
    evaluation = EvaluationStep(linear(), model_transform=output)
    with pytest.raises(OutputError, match=message):
        evaluation(*evaluation.arguments(X, micro_batches=1))


def test_wrong_arguments() -> None:
    """The model is a module, the loss callable."""
    with pytest.raises(TypeError, match="The model is a function"):
        TrainingStep(lambda x: x, F.mse_loss)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="loss_fn is 'mse'"):
        TrainingStep(linear(), "mse")  # type: ignore[arg-type]


def test_on_the_host_the_step_is_plain_pytorch() -> None:
    """Without a device it computes the same, so that a model can be debugged."""
    step = TrainingStep(linear(), nn.functional.huber_loss)
    _, loss = step(*step.arguments(X, T, micro_batches=1))
    torch.testing.assert_close(loss, F.huber_loss(linear()(X), T))
    loss.backward()
    assert step.model.weight.grad is not None
