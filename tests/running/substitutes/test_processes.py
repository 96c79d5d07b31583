"""Scripts that train in several processes of torchrun: the numbers are those of DistributedDataParallel on CPUs."""

from __future__ import annotations

import os

import pytest
import torch

from ignite_ipu import backend
from ignite_ipu.running import Substitution, run_script
from tests.together import together

SCRIPT = """
import os
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

result, clips = sys.argv[1], len(sys.argv) > 2
cuda = torch.cuda.is_available()
dist.init_process_group("nccl" if cuda else "gloo")
rank = int(os.environ["LOCAL_RANK"])
device = torch.device("cuda", 0) if cuda else torch.device("cpu")
torch.manual_seed(rank)
model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2)).to(device)
model = DDP(model, device_ids=[0] if cuda else None)
x = torch.randn(48, 4, generator=torch.Generator().manual_seed(0))
data = TensorDataset(x, (x[:, 0] > 0).long())
sampler = DistributedSampler(data, shuffle=True, seed=2)
loader = DataLoader(data, batch_size=6, sampler=sampler)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
losses = []
for epoch in range(2):
    sampler.set_epoch(epoch)
    model.train()
    for number, (inputs, targets) in enumerate(loader):
        inputs, targets = inputs.to(device), targets.to(device)
        if number % 2 == 0:
            with model.no_sync():
                loss = nn.functional.cross_entropy(model(inputs), targets)
                loss.backward()
        else:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            if clips:
                nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
    model.eval()
    with torch.no_grad():
        right = (model(x.to(device)).argmax(1).cpu() == data.tensors[1]).sum()
    dist.all_reduce(right)
losses = [loss.item() for loss in losses]
if dist.get_rank() == 0:
    torch.save({"model": model.state_dict(), "losses": losses, "right": int(right)}, result)
dist.barrier()
dist.destroy_process_group()
"""

IGNITE = """
import sys
import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events
from ignite.utils import manual_seed
from torch import nn
from torch.utils.data import TensorDataset


def train(local_rank, result):
    manual_seed(3)
    x = torch.randn(48, 4)
    loader = idist.auto_dataloader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=12, shuffle=False)
    model = idist.auto_model(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)))
    optimizer = idist.auto_optim(torch.optim.Adam(model.parameters(), lr=0.02))
    losses = []

    def step(engine, batch):
        model.train()
        optimizer.zero_grad()
        x, y = (each.to(idist.device()) for each in batch)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    trainer = Engine(step)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: losses.append(engine.state.output))
    trainer.run(loader, max_epochs=2)
    if idist.get_rank() == 0:
        torch.save({"model": model.state_dict(), "losses": losses, "right": idist.get_world_size()}, result)


if __name__ == "__main__":
    with idist.Parallel(backend="nccl" if torch.cuda.is_available() else "gloo") as parallel:
        parallel.run(train, sys.argv[1])
"""


def run(kind, script, *argv):
    os.environ[backend.VARIABLE] = kind
    substitutions: list[Substitution] = []
    run_script(str(script), argv, substitutions=substitutions)
    return [(each.original, each.became) for each in substitutions]


@pytest.mark.parametrize(("text", "words"), [(SCRIPT, ["clip"]), (IGNITE, [])])
def test_scripts_train_as_distributed_data_parallel_does(tmp_path, text, words):
    """Weights, under the wrapper's names, statistics of normalisations, losses of the first process."""
    script = tmp_path / "train.py"
    script.write_text(text)
    files = [tmp_path / f"{kind}.pt" for kind in ("native", "emulator")]
    _, seen = (together(run, file.stem, script, str(file), *words) for file in files)
    expected, found = (torch.load(file, weights_only=True) for file in files)
    assert found["losses"] == pytest.approx(expected["losses"], abs=1e-5) and found["right"] == expected["right"]
    assert list(found["model"]) == list(expected["model"])
    for name, each in found["model"].items():
        torch.testing.assert_close(each, expected["model"][name], rtol=1e-3, atol=1e-5)
    became = dict(seen[0])
    assert any("averaged over 2 processes" in text for text in became.values()), became
