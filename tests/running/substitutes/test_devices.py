"""Devices in a script: the GPU it names is the host, from where PopTorch takes everything."""

from __future__ import annotations

import pytest
import torch

from ignite_ipu.running.substitutes.devices import is_gpu


@pytest.mark.parametrize(
    ("device", "gpu"),
    [("cuda", True), ("cuda:1", True), (torch.device("cuda", 0), True), (0, True), ("cpu", False), (None, False)],
)
def test_gpus_are_told_from_other_devices(device, gpu):
    assert is_gpu(device) is gpu


@pytest.mark.parametrize(
    "expression",
    [
        "torch.ones(2).to('cuda')",
        "torch.ones(2).to(device='cuda:0', dtype=torch.float64)",
        "torch.ones(2).to(torch.device('cuda'), non_blocking=True)",
        "torch.ones(2).to(0)",
        "torch.ones(2).cuda()",
        "torch.ones(2).cuda(non_blocking=True)",
        "torch.zeros(2, device='cuda')",
        "torch.tensor([1.0, 2.0], device=torch.device('cuda', 0))",
        "torch.randn_like(torch.ones(2), device='cuda')",
        "torch.ones(1).new_zeros(2, device='cuda')",
        "torch.ones(2).pin_memory()",
        "torch.ones(2).pin_memory(device='cuda')",
        "torch.nn.Linear(1, 2).cuda().bias",
        "torch.nn.Linear(1, 2).to('cuda', torch.float64).bias",
        "convert_tensor(torch.ones(2), 'cuda')",
    ],
)
def test_tensors_are_on_the_host(run, expression):
    ran = run(f"import torch\nfrom ignite.utils import convert_tensor\nt = {expression}\nprint(t.device, len(t))")
    assert ran.output == ["cpu 2"]
    assert [substitution.line for substitution in ran.substitutions] == [3]


def test_types_are_still_converted(run):
    ran = run("import torch\nprint(torch.ones(1).to('cuda', torch.float16).dtype)")
    assert ran.output == ["torch.float16"]


def test_a_moved_module_is_the_same_object(run):
    ran = run("import torch\nm = torch.nn.Linear(1, 1)\nprint(m.to('cuda') is m, m.cuda() is m)")
    assert ran.output == ["True True"]
    assert ran.became("module.to('cuda')") == "stays on the host"


def test_checkpoints_load_to_the_host(run, tmp_path):
    torch.save({"w": torch.ones(2)}, tmp_path / "w.pt")
    ran = run(
        f"""
        import torch
        for location in ("cuda", torch.device("cuda:0"), {{"cpu": "cuda:0"}}, None):
            print(torch.load({str(tmp_path / "w.pt")!r}, map_location=location)["w"].device)
        """
    )
    assert ran.output == ["cpu"] * 4


def test_loaders_do_not_pin_memory(run):
    ran = run("from torch.utils.data import DataLoader\nprint(DataLoader([1], pin_memory=True).pin_memory)")
    assert ran.output == ["False"]
