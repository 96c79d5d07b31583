"""Types that name a GPU in a script are those of the host, and ordinary again afterwards."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.parametrize(
    ("expression", "shown"),
    [
        ("torch.cuda.FloatTensor([1, 2])", "cpu torch.float32"),
        ("torch.cuda.LongTensor(3).fill_(1)", "cpu torch.int64"),
        ("torch.ones(2).type(torch.cuda.HalfTensor)", "cpu torch.float16"),
        ("torch.ones(2).type('torch.cuda.LongTensor')", "cpu torch.int64"),
        ("torch.nn.Linear(1, 2).type(torch.cuda.DoubleTensor).bias", "cpu torch.float64"),
        ("torch.rand(2, generator=torch.Generator(device='cuda'))", "cpu torch.float32"),
        ("torch.rand(2, generator=torch.Generator().manual_seed(0))", "cpu torch.float32"),
    ],
)
def test_tensors_are_on_the_host(run, expression, shown):
    assert run(f"import torch\nt = {expression}\nprint(t.device, t.dtype)").output == [shown]


def test_old_scripts_that_choose_their_types(run):
    """`Tensor = torch.cuda.FloatTensor if cuda else torch.FloatTensor`, as in scripts of the time of Variable."""
    ran = run(
        """
        import torch
        from torch.autograd import Variable
        Tensor = torch.cuda.FloatTensor if torch.cuda.is_available() else torch.FloatTensor
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            loss = model(Variable(torch.ones(4, 3).type(Tensor)) + Variable(Tensor(4, 3).fill_(1))).pow(2).mean()
            loss.backward()
            optimizer.step()
        right = (model(Tensor(4, 3).fill_(1)) > 0).float()
        print(isinstance(Tensor(1), Tensor), isinstance(Tensor(1), torch.cuda.LongTensor))
        """
    )
    assert ran.output == ["True False"]
    assert ran.became("tensor.type(torch.cuda.FloatTensor)") == "stays on the host"


def test_everything_is_put_back(run):
    """Also PyTorch's list of factories, which it makes when a device's context is entered for the first time."""
    before = torch.cuda.FloatTensor, torch.Generator, torch.Tensor.type
    run("import torch\nwith torch.device('cuda'):\n    torch.ones(2)")
    assert (torch.cuda.FloatTensor, torch.Generator, torch.Tensor.type) == before
    with torch.device("meta"):
        assert torch.ones(2).device.type == "meta"
