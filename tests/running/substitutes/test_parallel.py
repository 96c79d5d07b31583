"""Models that scripts wrap for several GPUs train as the model within does, under the wrapper's names."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ignite_ipu.errors import RunError
from ignite_ipu.running.substitutes import parallel

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


def test_statistics_of_all_processes_are_those_of_the_only_one(run, tmp_path, monkeypatch):
    """PyTorch's layer refuses tensors of the host once processes are connected, also a single one."""
    monkeypatch.chdir(tmp_path)
    ran = run(f"""
        import torch, torch.distributed as dist
        from torch import nn
        dist.init_process_group("nccl", init_method="file://{tmp_path}/store", rank=0, world_size=1)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.SyncBatchNorm(4))
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, y = torch.randn(8, 3).cuda(), torch.randn(8, 4).cuda()
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
        torch.save(model.eval().state_dict(), "state.pt")
        dist.destroy_process_group()
    """)
    assert ran.became("convert_sync_batchnorm()").startswith("the model as it is")
    torch.manual_seed(0)
    native = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(native.parameters(), lr=0.1)
    x, y = torch.randn(8, 3), torch.randn(8, 4)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.mse_loss(native(x), y).backward()
        optimizer.step()
    found = torch.load("state.pt", weights_only=True)
    torch.testing.assert_close(found, native.state_dict(), rtol=1e-4, atol=1e-5)


def test_statistics_of_several_processes_are_refused(run, monkeypatch):
    monkeypatch.setattr(parallel, "connected", lambda: (0, 2))
    script = "import torch.nn as nn\nnn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(3))"
    with pytest.raises(RunError, match=r"script\.py:2: convert_sync_batchnorm\(\) cannot be mapped .* GroupNorm"):
        run(script)


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


TRAINED_IN_PROCESSES = """
import os, sys
from pathlib import Path
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
X, Y = torch.arange(12.0).view(4, 3) / 10, torch.tensor([[0.0], [1.0], [2.0], [3.0]])
def work(rank, size, folder):
    dist.init_process_group("nccl", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(3, 1).to(DEVICE), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(X[rank::size].to(DEVICE)), Y[rank::size].to(DEVICE)).backward()
        optimizer.step()
    torch.save([*model.module.parameters(), DEVICE.type], Path(folder, f"{size}-{rank}.pt"))
    EXTRA
    dist.destroy_process_group()
if __name__ == "__main__":
    mp.spawn(work, args=(int(sys.argv[1]), sys.argv[2]), nprocs=int(sys.argv[1]))
"""


@pytest.mark.usefixtures("forks_spawned")
def test_spawned_processes_train_together(run, tmp_path):
    """Each has half of the batch, and their mean gradient is that of one process with the whole."""
    alone, together = (tmp_path / name for name in ("alone", "together"))
    for folder, size in ((alone, "1"), (together, "2")):
        folder.mkdir()
        ran = run(TRAINED_IN_PROCESSES.replace("EXTRA", ""), size, str(folder))
    assert ran.became("spawn(nprocs=2)") == "2 processes, each with its own IPUs"
    assert ran.became("DistributedDataParallel") == ("the model itself, whose gradients are averaged over 2 processes")
    assert ran.became("backward()") == "part of the device step"
    *expected, device = torch.load(alone / "1-0.pt")
    assert device == "cuda"
    for rank in (0, 1):
        *weights, device = torch.load(together / f"2-{rank}.pt")
        assert device == "cuda"
        torch.testing.assert_close(weights, expected)


@pytest.mark.usefixtures("forks_spawned")
def test_a_refusal_in_a_spawned_process_is_the_runs(run, tmp_path):
    text = TRAINED_IN_PROCESSES.replace("EXTRA", "torch.cuda.CUDAGraph()")
    with pytest.raises(RunError, match=r"script.py:\d+: torch.cuda.CUDAGraph.*cannot be mapped"):
        run(text, "2", str(tmp_path))


def test_launched_processes_are_the_spawned_ones(run, tmp_path, monkeypatch):
    """PopRun or torchrun has started as many: the function runs once in each of them, with its number."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    text = SPAWNED.replace("COUNT", "torch.cuda.device_count()").replace(
        "model = ", "Path(name).write_text(f'{rank} {size}'); return\n    model = "
    )
    assert run(text).became("spawn(nprocs=2)") == "a call in each of the 2 processes that the launcher has started"
    assert (tmp_path / "done.txt").read_text() == "1 2"
    with pytest.raises(RunError, match=r"spawn\(nprocs=3\).*LOCAL_WORLD_SIZE"):
        run(text.replace("torch.cuda.device_count()", "3"))


def test_on_ipus_a_launcher_starts_the_processes(run, monkeypatch):
    monkeypatch.setattr(parallel.backend, "is_emulator", lambda: False)
    with pytest.raises(RunError, match=r"spawn\(nprocs=2\).*ignite-ipu launch --instances"):
        run(SPAWNED.replace("COUNT", "2"))
