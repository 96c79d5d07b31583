"""One trainer after another over a model, as in fine-tuning by stages."""

from __future__ import annotations

import pytest

from ignite_ipu.errors import RunError

FACTORIES = {"device_iterations": 1}

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import MeanSquaredError
torch.manual_seed(0)
device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(device)
data = DataLoader(TensorDataset(torch.randn(16, 3), torch.randn(16, 1)), batch_size=4)
sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
"""

STAGES = """
evaluator = create_supervised_evaluator(model, {"mse": MeanSquaredError()}, device=device)
found = []
def stage(optimizer, loss_fn, epochs):
    trainer = create_supervised_trainer(model, optimizer, loss_fn, device=device)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: found.append(evaluator.run(data).metrics["mse"]))
    trainer.run(data, max_epochs=epochs)
    found.append(trainer.state.output)
stage(sgd, nn.MSELoss(), 2)
stage(sgd, nn.L1Loss(), 1)  # goes on with the momentum
model[0].requires_grad_(False)
stage(torch.optim.Adam(model[2].parameters(), lr=0.01), nn.MSELoss(), 2)
model[0].requires_grad_(True)
stage(torch.optim.AdamW(model.parameters(), lr=0.01), nn.MSELoss(), 1)
print([round(value, 4) for value in (*found, *model[0].weight.flatten().tolist(), *model[2].weight[0].tolist())])
"""


def test_stages_with_trainers_of_their_own_give_the_native_weights(run, monkeypatch):
    captured, factories = run(HEAD + STAGES), run(HEAD + STAGES, config=FACTORIES)
    became = [substitution.became for substitution in factories.substitutions]
    assert "create_ipu_trainer(), which takes the model over from the trainer of script.py:16" in became
    monkeypatch.setenv("IGNITE_IPU_BACKEND", "native")
    assert captured.output == factories.output == run(HEAD + STAGES).output


TWO = HEAD + "first = create_supervised_trainer(model, sgd, nn.MSELoss(), device=device)\n"


def test_a_trainer_whose_model_another_one_has_taken_over_trains_no_more(run):
    """Its step would make the other trainer's updates, with the other loss."""
    with pytest.raises(RunError, match=r"script\.py:12: .*another trainer, made at script\.py:14"):
        run(
            TWO
            + """first.run(data)
second = create_supervised_trainer(model, sgd, nn.L1Loss(), device=device)
second.run(data)
first.run(data, max_epochs=2)
""",
            config=FACTORIES,
        )


def test_a_trainer_that_is_running_ends_when_another_takes_its_model_over(run):
    with pytest.raises(RunError, match="Run this trainer to its end before the other is made"):
        run(
            TWO
            + """
@first.on(Events.ITERATION_COMPLETED(once=2))
def restart():
    create_supervised_trainer(model, sgd, nn.L1Loss(), device=device).run(data)
first.run(data, max_epochs=2)
""",
            config=FACTORIES,
        )


def test_captured_trainers_take_turns_over_a_model(run, monkeypatch):
    """A captured model is updated by whatever engine steps through it."""
    script = (
        TWO
        + """
second = create_supervised_trainer(model, sgd, nn.L1Loss(), device=device)
first.run(data)
second.run(data)
first.run(data, max_epochs=2)
print([round(value, 4) for value in model[2].weight[0].tolist()])
"""
    )
    found = run(script).output
    monkeypatch.setenv("IGNITE_IPU_BACKEND", "native")
    assert found == run(script).output
