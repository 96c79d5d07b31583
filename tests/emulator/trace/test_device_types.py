"""Types that forward reads, and the consequences for programs that use them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ignite_ipu.emulator as poptorch
from tests.emulator.calls import Calls

INDEX = torch.tensor([[2, 0]])


def test_64_bit_types_read_as_32_bit_ones():
    """Of inputs, buffers, constants and results; the tensors that come back have these types, too."""
    seen = []

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("steps", torch.ones(2, dtype=torch.int64))

        def forward(self, x, y):
            seen.extend([x, x + 1, self.steps, x.long(), torch.argmax(y, 0), torch.arange(3, device=x.device)])
            seen[:] = [each.dtype for each in seen]
            seen.extend([y.dtype, y.double().dtype])
            return x, y

    outputs = poptorch.inferenceModel(Net())(torch.tensor([1, 2]), torch.ones(2, dtype=torch.float64))
    assert seen == [torch.int32] * 6 + [torch.float32] * 2
    assert [each.dtype for each in outputs] == [torch.int32, torch.float32]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: x.gather(1, i),
        lambda x, i: x.gather(1, torch.zeros_like(i, dtype=i.dtype)),
        lambda x, i: torch.take_along_dim(x, i, 1),
        lambda x, i: x.scatter(1, i, 0.0),
        lambda x, i: x.scatter_add(1, index=i, src=torch.ones_like(x)),
        lambda x, i: x.index_select(1, i[0]),
        lambda x, i: x[0][i[0]],
        lambda x, i: x.clone().index_fill_(1, i[0], 0.0),
        lambda x, i: F.one_hot(i, 3),
        lambda x, i: F.embedding(i, x.t()),
        lambda x, i: F.cross_entropy(x, i[:, 0]),
        lambda x, i: F.nll_loss(x, i[:, 0]),
    ],
)
@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_indices_are_taken_in_the_type_that_the_program_has(function, kind):
    """Where PyTorch needs int64, the value is converted without a word."""
    x = torch.rand(1, 3)
    wanted = function(x, INDEX)
    found = poptorch.inferenceModel(Calls(lambda x, i: function(x, i.to(kind))))(x, INDEX.to(kind))
    assert torch.equal(found, wanted.to(found.dtype))


def test_a_number_over_integers_is_no_division_of_integers(caplog):
    """PyTorch multiplies with the reciprocal; for two tensors a warning explains the device's division."""
    whole = torch.tensor([1, 2, 4])
    assert poptorch.inferenceModel(Calls(lambda x: 2 / x))(whole).tolist() == [2, 1, 0.5]
    assert "divided as integers" not in caplog.text
    poptorch.inferenceModel(Calls(lambda x: x / x))(whole)
    assert "divided as integers" in caplog.text


def test_an_unbatched_image_is_not_unfolded():
    image = torch.randn(3, 4, 4)
    with pytest.raises(poptorch.Error, match=r"unfold: the image must have four dimensions.*unsqueeze\(0\)"):
        poptorch.inferenceModel(Calls(lambda x: F.unfold(x, 2)))(image)
    batched = poptorch.inferenceModel(Calls(lambda x: F.unfold(x, 2)))(image[None])
    assert torch.equal(batched, F.unfold(image[None], 2))


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(4, affine=False), nn.BatchNorm1d(4)])
def test_statistics_of_other_channels_are_refused_in_inference_too(layer):
    """Where they are not updated, PyTorch would still refuse them."""
    with pytest.raises(RuntimeError, match="running_mean should contain 5 elements not 4"):
        poptorch.inferenceModel(layer.train())(torch.randn(2, 5))


def test_a_sentence_of_poptorchs_stands_at_the_beginning():
    def stepped(x):
        x[::2] = 0
        return x

    with pytest.raises(poptorch.Error) as raised:
        poptorch.inferenceModel(Calls(stepped))(torch.ones(4))
    assert raised.value.message.startswith("In-place modification of slices with step size other than 1")


@pytest.mark.parametrize(("limit", "shown"), [(2, 2), (None, 6)])
def test_repeated_messages_of_the_back_end_are_limited(limit, shown, capsys):
    def forward(x):
        for _ in range(6):
            x = x + torch.ones(2)
        return x

    poptorch.inferenceModel(Calls(forward), poptorch.Options().maxRepeatLogs(limit))(torch.ones(2))
    lines = [line for line in capsys.readouterr().err.splitlines() if "ones was called without a device" in line]
    assert len(lines) == shown


def test_the_state_of_a_wrapped_model_can_be_copied():
    """The copy belongs to no executor: it keeps the values of its time."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = model

        def forward(self, x):
            return poptorch.identity_loss(self.layers(x).square().sum(), "sum")

    net = Net()
    executor = poptorch.trainingModel(net, None, torch.optim.SGD(net.parameters(), lr=0.1))
    executor(torch.randn(4, 2))
    state, other = copy.deepcopy(net.state_dict()), copy.deepcopy(net)
    wanted = {name: value.clone() for name, value in net.state_dict().items()}
    executor(torch.randn(4, 2))
    for name, value in state.items():
        assert type(value) is torch.Tensor and torch.equal(value, torch.as_tensor(wanted[name]))
    assert [type(each) for each in other.parameters()] == [nn.Parameter] * 4
    assert all(each.requires_grad for each in other.parameters())
    Net().load_state_dict(state)


def test_synthetic_data_are_not_checked():
    """Nothing crosses to the device, so that a value that 32 bits do not hold does no harm."""
    wide = torch.tensor([2**40])
    with pytest.raises(poptorch.Error, match="the device's integers are int32"):
        poptorch.inferenceModel(Calls(lambda x: x))(wide)
    options = poptorch.Options().enableSyntheticData(True)
    assert poptorch.inferenceModel(Calls(lambda x: x), options)(wide).tolist() == [0]


@pytest.mark.parametrize(("mode", "check"), [(1, lambda x: (x == 0).all()), (3, lambda x: ((x >= 0) & (x < 1)).all())])
def test_synthetic_data_are_of_the_mode_that_is_set(mode, check):
    options = poptorch.Options()
    options._Popart.set("syntheticDataMode", mode)
    found = poptorch.inferenceModel(Calls(lambda x: x + 0), options)(torch.full((100,), 9.0))
    assert check(found) and (mode == 1 or found.unique().numel() > 50)
