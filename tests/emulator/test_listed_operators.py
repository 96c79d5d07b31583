"""The operators of PopTorch's guide, on the emulated device and on the host."""

from __future__ import annotations

from typing import Any, Callable, Dict, List

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ignite_ipu.emulator as poptorch
from ignite_ipu.emulator.testing import allclose

torch.manual_seed(0)
X = torch.rand(4, 6) * 0.8 + 0.1
Y = torch.rand(4, 6) + 0.5
INDEX = torch.randint(0, 6, (4, 3))
B = X > 0.5
N = torch.randint(1, 9, (4, 6), dtype=torch.int32)
SEQUENCE = torch.randn(2, 4, 8)
IMAGE = torch.randn(2, 4, 8, 8)
VOLUME = torch.randn(1, 2, 6, 6, 6)
CLASSES = torch.tensor([0, 2, 1, 1])
SIGNS = torch.tensor([1.0, -1.0, 1.0, -1.0])


class Calls(nn.Module):
    def __init__(self, function: Callable[..., Any], *rest: torch.Tensor) -> None:
        super().__init__()
        self.function = function
        self.count = len(rest)
        for index, tensor in enumerate(rest):
            self.register_buffer(f"rest{index}", tensor)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x, *(getattr(self, f"rest{index}") for index in range(self.count)))


def check(function: Callable[..., Any], x: torch.Tensor, *rest: torch.Tensor) -> None:
    """Compare the device's result with the host's."""
    if isinstance(function, nn.Module):
        function.eval()
    with torch.no_grad():
        expected = function(x, *rest)
    executor = poptorch.inferenceModel(Calls(function, *rest))
    found = executor(x)
    executor.destroy()
    assert allclose(expected, found)


def words(text: str) -> List[str]:
    return text.split()


UNARY = words(
    "abs acos acosh asin asinh atan atanh ceil cos cosh exp expm1 floor frac log log10 log1p log2 neg reciprocal round "
    "rsqrt sigmoid sign sin sinh sqrt square tan tanh trunc isnan all any argmax argmin count_nonzero mean median prod "
    "sum std var std_mean var_mean amax amin norm max min argsort sort t zeros_like ones_like"
)
BINARY = words("add div fmod floor_divide mul pow remainder sub true_divide eq ge gt le lt max min ne")
BITWISE = words("bitwise_and bitwise_or bitwise_xor")

# (function, first tensor, other tensors)
EXAMPLES: Dict[str, Any] = {
    **{name: (getattr(torch, name), X) for name in UNARY},
    **{f"{name} of two": (getattr(torch, name), X, Y) for name in BINARY},
    **{name: (getattr(torch, name), N, N.flip(0)) for name in BITWISE},
    "acosh": (lambda x: torch.acosh(x + 1), X),
    "bitwise_not": (torch.bitwise_not, N),
    "logical_and": (torch.logical_and, B, ~B),
    "logical_or": (torch.logical_or, B, ~B),
    "addcdiv": (lambda x, y: torch.addcdiv(x, x, y, value=2), X, Y),
    "cdist": (torch.cdist, X, Y),
    "clamp": (lambda x: torch.clamp(x, 0.2, 0.6), X),
    "clamp_max": (lambda x: torch.clamp_max(x, 0.6), X),
    "clamp_min": (lambda x: torch.clamp_min(x, 0.2), X),
    "logsumexp": (lambda x: torch.logsumexp(x, 1), X),
    "topk": (lambda x: torch.topk(x, 3), X),
    "cumsum": (lambda x: torch.cumsum(x, 1), X),
    "cumprod": (lambda x: torch.cumprod(x, 1), X),
    "cross": (lambda x, y: torch.cross(x[:, :3], y[:, :3], dim=1), X, Y),
    "meshgrid": (lambda x: torch.meshgrid(x[0], x[1], indexing="ij"), X),
    "cartesian_prod": (lambda x: torch.cartesian_prod(x[0], x[1]), X),
    "tensordot": (lambda x, y: torch.tensordot(x, y, ([1], [1])), X, Y),
    "addmm": (lambda x, y: torch.addmm(torch.ones(4), x, y.t()), X, Y),
    "matmul": (lambda x, y: torch.matmul(x, y.t()), X, Y),
    "bmm": (lambda x, y: torch.bmm(x[None], y.t()[None]), X, Y),
    "linalg.norm": (lambda x: torch.linalg.norm(x), X),
    "linalg.matrix_norm": (lambda x: torch.linalg.matrix_norm(x, 1), X),
    "linalg.vector_norm": (lambda x: torch.linalg.vector_norm(x, 3), X),
    "arange": (lambda x: x + torch.arange(6), X),
    "full": (lambda x: x + torch.full((6,), 2.0), X),
    "full_like": (lambda x: x + torch.full_like(x, 2.0), X),
    "ones": (lambda x: x + torch.ones(6), X),
    "zeros": (lambda x: x + torch.zeros(6), X),
    "Tensor.fill": (lambda x: (x * 1).fill_(3.0), X),
    "Tensor.new_ones": (lambda x: x + x.new_ones(6), X),
    "Tensor.new_zeros": (lambda x: x + x.new_zeros(6), X),
    "bincount": (lambda x: torch.bincount(x.flatten(), minlength=9), N),
    "bucketize": (lambda x, y: torch.bucketize(x, y), X, torch.tensor([0.2, 0.5])),
    "cat": (lambda x, y: torch.cat([x, y], 1), X, Y),
    "chunk": (lambda x: torch.chunk(x, 3, 1), X),
    "gather": (lambda x, i: torch.gather(x, 1, i), X, INDEX),
    "index_select": (lambda x, i: torch.index_select(x, 1, i[0]), X, INDEX),
    "index_reduce": (lambda x, y: torch.index_reduce(x, 0, torch.tensor([1, 1, 2, 3]), y, "amax"), X, Y),
    "reshape": (lambda x: torch.reshape(x, (2, 12)), X),
    "roll": (lambda x: torch.roll(x, 2, 1), X),
    "scatter": (lambda x, i: torch.scatter(x, 1, i, 7.0), X, INDEX),
    "scatter_add": (lambda x, i, y: torch.scatter_add(x, 1, i, y), X, INDEX, Y),
    "scatter_reduce": (lambda x, i, y: torch.scatter_reduce(x, 1, i, y[:, :3], "amax"), X, INDEX, Y),
    "stack": (lambda x, y: torch.stack([x, y]), X, Y),
    "split": (lambda x: torch.split(x, [2, 4], 1), X),
    "squeeze": (lambda x: torch.squeeze(x[:, None]), X),
    "take_along_dim": (lambda x, i: torch.take_along_dim(x, i, 1), X, INDEX),
    "transpose": (lambda x: torch.transpose(x, 0, 1), X),
    "unbind": (lambda x: torch.unbind(x), X),
    "unsqueeze": (lambda x: torch.unsqueeze(x, 1), X),
    "where": (lambda x, y: torch.where(x > 0.5, x, y), X, Y),
    "Tensor.expand": (lambda x: x[:, None].expand(4, 2, 6), X),
    "Tensor.expand_as": (lambda x: x[:1].expand_as(x), X),
    "Tensor.masked_fill": (lambda x: x.masked_fill(x > 0.5, 3.0), X),
    "Tensor.index_fill_": (lambda x: (x * 1).index_fill_(1, torch.tensor([1, 2]), 3.0), X),
    # modules
    "Module": (Calls(lambda x: x * 2), X),
    "Sequential": (nn.Sequential(nn.Linear(6, 2), nn.ReLU()), X),
    "Conv1d": (nn.Conv1d(4, 2, 3), SEQUENCE),
    "Conv2d": (nn.Conv2d(4, 2, 3, stride=2, padding=1, groups=2), IMAGE),
    "Conv3d": (nn.Conv3d(2, 3, 2), VOLUME),
    "ConvTranspose1d": (nn.ConvTranspose1d(4, 2, 3), SEQUENCE),
    "ConvTranspose2d": (nn.ConvTranspose2d(4, 2, 3, stride=2), IMAGE),
    "ConvTranspose3d": (nn.ConvTranspose3d(2, 3, 2), VOLUME),
    **{f"{kind}Pool1d": (getattr(nn, f"{kind}Pool1d")(2), SEQUENCE) for kind in ("Max", "Avg", "AdaptiveAvg")},
    **{f"{kind}Pool2d": (getattr(nn, f"{kind}Pool2d")(2), IMAGE) for kind in ("Max", "Avg", "AdaptiveAvg")},
    **{f"{kind}Pool3d": (getattr(nn, f"{kind}Pool3d")(2), VOLUME) for kind in ("Max", "Avg", "AdaptiveAvg")},
    **{name: (getattr(nn, name)(1), SEQUENCE) for name in ("ReflectionPad1d", "ReplicationPad1d")},
    **{name: (getattr(nn, name)(1), IMAGE) for name in ("ReflectionPad2d", "ReplicationPad2d", "ZeroPad2d")},
    "ReplicationPad3d": (nn.ReplicationPad3d(1), VOLUME),
    "ConstantPad1d": (nn.ConstantPad1d(1, 2.0), SEQUENCE),
    "ConstantPad2d": (nn.ConstantPad2d(1, 2.0), IMAGE),
    "ConstantPad3d": (nn.ConstantPad3d(1, 2.0), VOLUME),
    **{
        name: (getattr(nn, name)(), SEQUENCE)
        for name in words(
            "ELU CELU Hardshrink LeakyReLU Mish ReLU SELU SiLU Sigmoid Softplus Softsign Softshrink Tanh PReLU "
            "RReLU Hardtanh Identity Dropout"
        )
    },
    "GELU": (nn.GELU("tanh"), SEQUENCE),
    "LogSoftmax": (nn.LogSoftmax(1), SEQUENCE),
    "Softmax": (nn.Softmax(1), SEQUENCE),
    "Threshold": (nn.Threshold(0.1, 2.0), SEQUENCE),
    "functional.glu": (F.glu, SEQUENCE),
    "BatchNorm1d": (nn.BatchNorm1d(4), SEQUENCE),
    "BatchNorm2d": (nn.BatchNorm2d(4), IMAGE),
    "BatchNorm3d": (nn.BatchNorm3d(2), VOLUME),
    "LayerNorm": (nn.LayerNorm(8), SEQUENCE),
    "GroupNorm": (nn.GroupNorm(2, 4), IMAGE),
    "InstanceNorm1d": (nn.InstanceNorm1d(4, affine=True), SEQUENCE),
    "InstanceNorm2d": (nn.InstanceNorm2d(4, affine=True, track_running_stats=True), IMAGE),
    "InstanceNorm3d": (nn.InstanceNorm3d(2, affine=True), VOLUME),
    "RNN": (nn.RNN(8, 3, batch_first=True), SEQUENCE),
    "GRU": (nn.GRU(8, 3), SEQUENCE),
    "LSTM": (nn.LSTM(8, 3), SEQUENCE),
    "Linear": (nn.Linear(6, 2), X),
    "Bilinear": (nn.Bilinear(6, 6, 2), X, Y),
    "Embedding": (nn.Embedding(10, 3), N),
    "EmbeddingBag": (nn.EmbeddingBag(10, 3), N),
    "functional.one_hot": (lambda n: F.one_hot(n.long(), 10), N),
    "Upsample": (nn.Upsample(scale_factor=2, mode="bicubic"), IMAGE),
    "L1Loss": (nn.L1Loss(), X, Y),
    "MSELoss": (nn.MSELoss(), X, Y),
    "CrossEntropyLoss": (nn.CrossEntropyLoss(), X, CLASSES),
    "NLLLoss": (nn.NLLLoss(reduction="sum"), X, CLASSES),
    "BCELoss": (nn.BCELoss(), X, X.flip(0)),
    "KLDivLoss": (nn.KLDivLoss(reduction="batchmean"), X, Y),
    "PoissonNLLLoss": (nn.PoissonNLLLoss(), X, Y),
    "HingeEmbeddingLoss": (nn.HingeEmbeddingLoss(), X[:, 0], SIGNS),
    "BCEWithLogitsLoss": (nn.BCEWithLogitsLoss(pos_weight=torch.ones(6) * 2), X, X.flip(0)),
    "SmoothL1Loss": (nn.SmoothL1Loss(), X, Y),
    "SoftMarginLoss": (nn.SoftMarginLoss(), X[:, 0], SIGNS),
    "CosineEmbeddingLoss": (lambda x, y, s: nn.CosineEmbeddingLoss()(x, y, s), X, Y, SIGNS),
    "MarginRankingLoss": (lambda x, y, s: nn.MarginRankingLoss()(x[:, 0], y[:, 0], s), X, Y, SIGNS),
    "TripletMarginLoss": (lambda x, y: nn.TripletMarginLoss()(x, y, y * 2), X, Y),
    "CTCLoss": (
        lambda x, c: nn.CTCLoss(reduction="sum", zero_infinity=True)(
            F.log_softmax(x, 1)[:, None], c[None, :2], (4,), (2,)
        ),
        X,
        torch.tensor([1, 2, 1, 1]),
    ),
}
RANDOM: Dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "bernoulli": lambda x: torch.bernoulli(torch.full((4000,), 0.5)),
    "randn": lambda x: torch.randn(4000) / 2 + 0.5,
    "normal": lambda x: torch.normal(0.5, 0.5, (4000,)),
    "rand": lambda x: torch.rand(4000),
    "uniform": lambda x: torch.empty(4000).uniform_(),
    "exponential": lambda x: torch.empty(4000).exponential_(2.0),
    "randperm": lambda x: torch.randperm(4000) / 3999,
    "distributions.Bernoulli": lambda x: torch.distributions.Bernoulli(x[0, 0] * 0 + 0.5).sample((4000,)),
    "distributions.Normal": lambda x: torch.distributions.Normal(x[0, 0] * 0 + 0.5, 0.5).sample((4000,)),
    "distributions.Uniform": lambda x: torch.distributions.Uniform(x[0, 0] * 0, x[0, 0] * 0 + 1).sample((4000,)),
    "distributions.Exponential": lambda x: torch.distributions.Exponential(x[0, 0] * 0 + 2.0).sample((4000,)),
}


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("name", EXAMPLES)
def test_results_are_the_hosts(name: str) -> None:
    check(*EXAMPLES[name])


@pytest.mark.parametrize("name", RANDOM)
def test_random_operators_draw_with_the_right_mean(name: str) -> None:
    """Each of these has mean one half and deviation of at most one half; five standard errors are allowed."""
    executor = poptorch.inferenceModel(Calls(lambda x: RANDOM[name](x) + x.sum() * 0))
    one, two = executor(X), executor(X)
    executor.destroy()
    assert one.shape == (4000,) and not torch.equal(one, two)
    assert abs(one.mean().item() - 0.5) < 5 * 0.5 / 4000**0.5


def test_a_count_needs_a_length() -> None:
    """Without one its shape depends on the data; a value beyond it has no place."""
    with pytest.raises(poptorch.Error, match="dynamic output shape"):
        check(lambda n: torch.bincount(n.flatten()), N)
    with pytest.raises(poptorch.Error, match="beyond the result"):
        check(lambda n: torch.bincount(n.flatten(), minlength=2), N)
