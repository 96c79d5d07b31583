"""Models that scripts wrap for several GPUs train as the model within does, under the wrapper's names."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ignite_ipu.errors import RunError

SCRIPT = """
import torch
from torch import nn
torch.manual_seed(0)
model = WRAPPED
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
x, y = torch.randn(8, 3).cuda(), torch.randn(8, 1).cuda()
for _ in range(4):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
assert isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel))
model.eval()
with torch.no_grad():
    again = model(x)
assert torch.allclose(again, model.module(x), atol=1e-6)
torch.save(model.state_dict(), "wrapped.pt")
torch.save(model.module.state_dict(), "within.pt")
"""


@pytest.mark.parametrize(
    "wrapped",
    [
        "nn.DataParallel(nn.Linear(3, 1)).cuda()",
        "nn.DataParallel(nn.Linear(3, 1).cuda(), device_ids=list(range(torch.cuda.device_count())))",
        "nn.parallel.DistributedDataParallel(nn.Linear(3, 1).cuda(), device_ids=[0], find_unused_parameters=True)",
    ],
)
def test_a_wrapped_model_trains_as_natively(run, wrapped, tmp_path, monkeypatch):
    """Files have the names with `module.` as they do natively, and those of the model within do not."""
    monkeypatch.chdir(tmp_path)
    ran = run(SCRIPT.replace("WRAPPED", wrapped))
    name = "DataParallel" if "nn.DataParallel" in wrapped else "DistributedDataParallel"
    assert ran.became(name) == "the model itself: one process drives all IPUs"

    torch.manual_seed(0)
    native = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(native.parameters(), lr=0.1, momentum=0.9)
    x, y = torch.randn(8, 3), torch.randn(8, 1)
    for _ in range(4):
        optimizer.zero_grad()
        nn.functional.mse_loss(native(x), y).backward()
        optimizer.step()
    expected = native.state_dict()
    torch.testing.assert_close(torch.load("within.pt", weights_only=True), expected, rtol=1e-5, atol=1e-6)
    wrapped_state = torch.load("wrapped.pt", weights_only=True)
    assert list(wrapped_state) == ["module.weight", "module.bias"]
    torch.testing.assert_close(wrapped_state["module.weight"], expected["weight"], rtol=1e-5, atol=1e-6)


def test_gradients_accumulate_without_synchronisation(run):
    """`no_sync` has nothing to leave out."""
    ran = run("""
        import torch
        from torch import nn
        model = nn.parallel.DistributedDataParallel(nn.Linear(3, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        before = model.module.weight.detach().clone()
        with model.no_sync():
            model(torch.ones(2, 3)).mean().backward()
        model(torch.ones(2, 3)).mean().backward()
        optimizer.step()
        print(torch.allclose(model.module.weight, before - 0.2))
    """)
    assert ran.output == ["True"]


def test_one_process_connects_without_gpus(run, tmp_path):
    """A launcher for one GPU starts one process."""
    store = tmp_path / "store"
    ran = run(f"""
        import torch, torch.distributed as dist
        from torch import nn
        dist.init_process_group("nccl", init_method="file://{store}", rank=0, world_size=1)
        model = nn.parallel.DistributedDataParallel(nn.Linear(3, 1), device_ids=[0])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        before = model.module.weight.detach().clone()
        model(torch.ones(2, 3)).mean().backward()
        optimizer.step()
        print(torch.allclose(model.module.weight, before - 0.1), dist.get_backend())
        dist.destroy_process_group()
    """)
    assert ran.output == ["True gloo"]


SPAWNED = """
from pathlib import Path
import torch
import torch.multiprocessing as mp
from torch import nn
def work(rank, size, name):
    model = nn.Linear(3, 1).to(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(4, 3).to(rank)).mean().backward()
    optimizer.step()
    Path(name).write_text(f"{rank} {size}")
if __name__ == "__main__":
    size = COUNT
    mp.spawn(work, args=(size, "done.txt"), nprocs=size, join=True)
"""


def test_one_spawned_process_is_a_call(run, tmp_path, monkeypatch):
    """A process of its own would know nothing of `run`, and train on the host without a word."""
    monkeypatch.chdir(tmp_path)
    ran = run(SPAWNED.replace("COUNT", "torch.cuda.device_count()"))
    assert ran.became("spawn(nprocs=1)") == "a call in this process, which drives all IPUs"
    assert ran.became("backward()") == "part of the device step"
    assert (tmp_path / "done.txt").read_text() == "0 1"


def test_several_spawned_processes_are_refused(run):
    with pytest.raises(RunError, match=r"spawn\(nprocs=2\).*--replication-factor"):
        run(SPAWNED.replace("COUNT", "2"))
