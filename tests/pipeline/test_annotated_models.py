"""Models annotated with PopTorch's blocks by hand: the factories put operations after the model into its last block."""

from __future__ import annotations

import pytest
import torch
from ignite.metrics import Accuracy
from torch import nn
from torch.utils.data import DataLoader

import ignite_ipu.emulator as poptorch
from ignite_ipu import create_ipu_evaluator, create_ipu_trainer
from ignite_ipu.pipeline import PlanError
from tests.supervised import assert_same_weights, task, train_natively
from tests.taken_ipus import leave_out_others, taken

CROSS_ENTROPY = nn.CrossEntropyLoss()


class Blocks(nn.Module):
    """Layers in `with` blocks, as the pipelining tutorial has them."""

    def __init__(self):
        super().__init__()
        self.layer1, self.layer2 = nn.Linear(6, 8), nn.Linear(8, 8)
        self.layer3, self.layer4 = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        with poptorch.Block("B1", ipu_id=0):
            x = self.layer1(x).relu()
        with poptorch.Block("B2", ipu_id=1):
            x = self.layer2(x).relu()
        with poptorch.Block("B3", ipu_id=2):
            x = self.layer3(x).relu()
        with poptorch.Block("B4", ipu_id=3):
            return self.layer4(x)


class Decorated(Blocks):
    """The last layer in a function that is a block."""

    @poptorch.BlockFunction("B4", ipu_id=3)
    def last(self, x):
        return self.layer4(x)

    def forward(self, x):
        for number, layer in enumerate((self.layer1, self.layer2, self.layer3)):
            with poptorch.Block(f"B{number + 1}", ipu_id=number):
                x = layer(x).relu()
        return self.last(x)


class Begun(Blocks):
    """Layers that begin blocks, which stay open."""

    def __init__(self):
        super().__init__()
        for number, layer in enumerate(self.children()):
            poptorch.BeginBlock(layer, f"B{number + 1}", ipu_id=number)

    def forward(self, x):
        return self.layer4(self.layer3(self.layer2(self.layer1(x).relu()).relu()).relu())


def made(kind):
    torch.manual_seed(3)
    model = kind()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@pytest.mark.parametrize("kind", [Blocks, Decorated, Begun])
@pytest.mark.parametrize("strategy", [None, poptorch.PipelinedExecution, poptorch.ShardedExecution])
def test_loss_and_predictions_belong_to_the_last_block(kind, strategy):
    """The loss, its treatment by the trainer, and the predictions' transformation; over 4 IPUs."""
    leave_out_others()
    options = poptorch.Options()
    if strategy is not None:
        options.setExecutionStrategy(strategy(*(poptorch.Stage(f"B{n + 1}").ipu(n) for n in range(4))))
    (model, optimizer), (reference, native) = made(kind), made(Blocks)
    trainer = create_ipu_trainer(
        model,
        optimizer,
        lambda y_pred, y: CROSS_ENTROPY(y_pred, y).reshape(1) * 2,
        model_transform=lambda y_pred: y_pred / 2,
        output_transform=lambda x, y, y_pred, loss: (y_pred, y),
        options=options,
        gradient_accumulation_steps=8,
    )
    data = DataLoader(task(), batch_size=4)
    trainer.run(data, max_epochs=2)
    assert len(taken()) == 4
    for _ in range(2):
        train_natively(reference, native, data, 8, lambda y_pred, y: 2 * CROSS_ENTROPY(y_pred / 2, y))
    assert_same_weights(model, reference)
    evaluator = create_ipu_evaluator(model, {"accuracy": Accuracy()}, model_transform=lambda y_pred: y_pred / 2)
    x, y = task().tensors
    assert evaluator.run(data).metrics["accuracy"] == (reference(x).argmax(1) == y).double().mean().item()
    trainer.ipu.close()


@pytest.mark.parametrize("kind", [Blocks, Begun])
def test_a_pipeline_beside_annotations_is_refused(kind):
    trainer = create_ipu_trainer(*made(kind), CROSS_ENTROPY, gradient_accumulation_steps=8, pipeline=["layer3"])
    with pytest.raises(PlanError, match=rf"{kind.__name__} has annotations of its own .* Remove the annotations"):
        trainer.run(DataLoader(task(), batch_size=4))
