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
    """A model that notes the types of what flows through it while it is traced."""

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
    """What an operation multiplies has lost the bits that half precision does not hold; its result is float32."""
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
    """As natively, where a GradScaler does: training goes where it goes in single precision."""
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
