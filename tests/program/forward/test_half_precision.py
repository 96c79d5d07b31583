"""`amp_mode="amp"`: which operations are in half precision, and that training with it goes where float32 goes."""

from __future__ import annotations

import pytest
import torch
from ignite.engine import create_supervised_trainer
from torch import nn
from torch.utils.data import DataLoader

from ignite_ipu import UnsupportedArgumentError, backend, create_ipu_evaluator, create_ipu_trainer
from ignite_ipu.emulator.runtime import loss_scaling
from ignite_ipu.program.forward.half_precision import HALF_OPERATIONS, HalfProducts
from tests.half_precision import needs_half_precision
from tests.supervised import network, pair, task


class Types(nn.Module):
    """A model that notes the types of its values while it is traced."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm1d(4)
        self.linear = nn.Linear(4, 3)
        self.seen = {}

    def forward(self, x):
        x = x.reshape(-1, 2, 3)
        for name, layer in (("conv", self.conv), ("norm", self.norm)):
            x = layer(x)
            self.seen[name] = x.dtype
        x = x.mean(2)
        self.seen["matmul"] = (x @ x.t()).dtype
        return self.linear(x)


@needs_half_precision
def test_results_are_float32_and_weights_stay_so():
    """Half precision begins and ends inside an operation; the one copy of the weights is in float32."""
    model = Types()
    trainer = create_ipu_trainer(
        model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), amp_mode="amp"
    )
    trainer.run(DataLoader(task(), batch_size=8), max_epochs=1)
    assert set(model.seen.values()) == {torch.float32}
    assert {tensor.dtype for tensor in model.parameters()} == {torch.float32}
    trainer.ipu.close()


@pytest.mark.parametrize("function", HALF_OPERATIONS, ids=lambda function: function.__qualname__)
def test_products_round_their_activations_to_half(function):
    """Factors of a product lose the bits that half precision does not hold; the result is float32."""
    exact = 1.0 + 2.0**-12  # rounds to 1 in half precision
    seen = []

    def spy(*arguments):
        seen.append([argument.dtype for argument in arguments])
        return arguments[0]

    places = HALF_OPERATIONS[function]
    mode = HalfProducts()
    result = mode.__torch_function__(spy, (), (torch.full((2, 2), exact),) * 2)
    assert seen == [[torch.float32] * 2] and result is not None  # an operation that is not in the table
    HALF_OPERATIONS[spy] = places
    try:
        result = mode.__torch_function__(spy, (), (torch.full((2, 2), exact),) * 2)
    finally:
        del HALF_OPERATIONS[spy]
    assert seen[1] == [torch.float16] * places + [torch.float32] * (2 - places)
    assert result.dtype is torch.float32 and float(result[0, 0]) == 1.0


@needs_half_precision
def test_integers_and_half_models_are_left_alone():
    spy = torch.bmm
    for dtype in (torch.int32, torch.float16):
        value = torch.ones(1, 2, 2, dtype=dtype)
        with HalfProducts():
            assert spy(value, value).dtype is dtype


@needs_half_precision
def test_training_and_evaluation_stay_close_to_float32():
    losses = {}
    for mode in (None, "amp"):
        model, optimizer = pair()
        trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss(), amp_mode=mode, loss_scaling=128.0)
        trainer.run(DataLoader(task(), batch_size=8), max_epochs=3)
        evaluator = create_ipu_evaluator(model, amp_mode=mode)
        evaluator.run(DataLoader(task(), batch_size=64))
        losses[mode] = trainer.state.output, evaluator.state.output[0]
        trainer.ipu.close()
    assert losses["amp"][0] == pytest.approx(losses[None][0], rel=1e-2)
    assert losses["amp"][0] != losses[None][0], "nothing was computed in half precision"
    torch.testing.assert_close(losses["amp"][1], losses[None][1], rtol=2e-2, atol=2e-2)


@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
@pytest.mark.parametrize("chosen", [pytest.param("emulator", marks=needs_half_precision), "native"])
@pytest.mark.parametrize("made", [bool, getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler)])
def test_a_scaler_scales_the_loss_on_either_side(made, chosen, monkeypatch):
    """As with a GradScaler in eager PyTorch: training goes where it goes in single precision."""
    monkeypatch.setenv(backend.VARIABLE, chosen)
    (plain, single), (model, optimizer) = pair(), pair()
    reference = create_supervised_trainer(plain, single, nn.CrossEntropyLoss())
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss(), amp_mode="amp", scaler=made is bool or made())
    for engine in (reference, trainer):
        engine.run(DataLoader(task(), batch_size=8), max_epochs=3)
    assert trainer.state.output == pytest.approx(reference.state.output, rel=2e-2)
    if chosen == "emulator":
        assert loss_scaling.enabled(trainer.ipu.training.options)
        trainer.ipu.close()
    with pytest.raises(ValueError, match="amp_mode="):
        create_ipu_trainer(*pair(), nn.CrossEntropyLoss(), scaler=True)


@needs_half_precision
@pytest.mark.parametrize("scaling", [{}, {"scaler": True}, {"loss_scaling": 65536.0}, {"loss_scaling": 1.0}])
def test_gradients_below_the_range_of_half_precision_train_by_default(scaling, caplog):
    """They are scaled, by a factor that the log says; without one nothing moves."""

    def loss_fn(y_pred, y):
        return nn.functional.cross_entropy(y_pred, y) * 1e-8

    trained = {}
    for arguments in ({}, {"amp_mode": "amp", **scaling}):
        model, _ = pair()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        optimizer = torch.optim.SGD(model.parameters(), lr=1e7)
        with caplog.at_level("INFO", "ignite_ipu"):
            trainer = create_ipu_trainer(model, optimizer, loss_fn, **arguments)
            trainer.run(DataLoader(task(), batch_size=8), max_epochs=1)
        trained[len(arguments)] = torch.cat([(model.state_dict()[name] - before[name]).flatten() for name in before])
        trainer.ipu.close()
    single, half = trained[0], trained[1 + len(scaling)]
    error = float((half - single).norm() / single.norm())
    assert error > 0.3 if scaling == {"loss_scaling": 1.0} else error < 0.02
    assert ("Loss scaling is 4096" in caplog.text) == ("loss_scaling" not in scaling)


@needs_half_precision
def test_automatic_loss_scaling_follows_gradients_of_products_between_single_weights(caplog):
    """Those between weights of float32 and the loss are of float16: the factor grows until they are large."""
    model, optimizer = pair()
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss(), amp_mode="amp", scaler=True)
    trainer.run(DataLoader(task(), batch_size=8), max_epochs=1)
    state = trainer.ipu.training.executor._life.state.optimizer._optimizer.state_dict()["ipu_state"]
    assert state["lossScaleUpdateFactor"].item() > 1
    assert "no gradient is of type float16" not in caplog.text
    trainer.ipu.close()


@needs_half_precision
def test_a_half_model_trains_with_half_inputs():
    model = network().half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    trainer = create_ipu_trainer(
        model,
        optimizer,
        lambda y_pred, y: nn.functional.cross_entropy(y_pred.float(), y),
        prepare_batch=lambda batch, device, non_blocking: (batch[0].half(), batch[1]),
        loss_scaling=64.0,
    )
    full, plain = pair()
    reference = create_ipu_trainer(full, plain, nn.CrossEntropyLoss())
    for engine in (trainer, reference):
        engine.run(DataLoader(task(), batch_size=8), max_epochs=2)
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float16}
    assert trainer.state.output == pytest.approx(reference.state.output, rel=2e-2)
    trainer.ipu.close()
    reference.ipu.close()


def test_other_modes_are_refused():
    model, optimizer = pair()
    with pytest.raises(UnsupportedArgumentError, match="amp_mode='apex'"):
        create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss(), amp_mode="apex")
