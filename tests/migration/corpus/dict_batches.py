"""Batches that are dictionaries with several inputs, unpacked by prepare_batch and model_transform."""

import json

import torch
from ignite.engine import create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import MeanAbsoluteError
from ignite.utils import convert_tensor
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Houses(Dataset):
    def __init__(self, count):
        generator = torch.Generator().manual_seed(count)
        self.numbers = torch.randn(count, 4, generator=generator)
        self.district = torch.randint(5, (count,), generator=generator)
        self.price = self.numbers.sum(1, keepdim=True) + self.district.unsqueeze(1)

    def __len__(self):
        return len(self.price)

    def __getitem__(self, index):
        return {"numbers": self.numbers[index], "district": self.district[index], "price": self.price[index]}


class PriceModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.districts = nn.Embedding(5, 3)
        self.layers = nn.Sequential(nn.Linear(7, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, inputs):
        features = torch.cat([inputs["numbers"], self.districts(inputs["district"])], dim=1)
        return {"price": self.layers(features)}


def prepare_batch(batch, device=None, non_blocking=False):
    inputs = {key: convert_tensor(batch[key], device, non_blocking) for key in ("numbers", "district")}
    return inputs, convert_tensor(batch["price"], device, non_blocking)


torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = PriceModel()
model.to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
trainer = create_supervised_trainer(
    model,
    optimizer,
    nn.MSELoss(),
    device=device,
    prepare_batch=prepare_batch,
    model_transform=lambda output: output["price"],
)
evaluator = create_supervised_evaluator(
    model,
    metrics={"mae": MeanAbsoluteError()},
    device=device,
    prepare_batch=prepare_batch,
    model_transform=lambda output: output["price"],
)
trainer.run(DataLoader(Houses(640), batch_size=32, shuffle=True), max_epochs=5)
evaluator.run(DataLoader(Houses(100), batch_size=32))
print("RESULT", json.dumps({"mae": evaluator.state.metrics["mae"]}))
