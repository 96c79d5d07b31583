"""Operators that compile by the documentation: they compile, with PyTorch's results."""

from __future__ import annotations

from typing import Any, Callable, Dict, Tuple

import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu.selftest.bench import Bench, agree, batches, expect, network, sgd

PAGE = "operators.md"

Functions = Dict[str, Callable[[Any], torch.Tensor]]


class _Together(nn.Module):
    """Calls functions with the same input; its parameters are those of the functions that are layers."""

    def __init__(self, functions: Functions) -> None:
        super().__init__()
        self.functions = functions
        self.layers = nn.ModuleList([layer for layer in functions.values() if isinstance(layer, nn.Module)])

    def forward(self, x: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        return tuple(function(x) for function in self.functions.values())


def _compare(bench: Bench, functions: Functions, *shape: int) -> None:
    """Compile all functions into one program, which is called with numbers between 0.1 and 0.9."""
    x = 0.1 + 0.8 * torch.rand(shape, generator=torch.Generator().manual_seed(5))
    model = _Together(functions).eval()
    with torch.no_grad():
        expected = model(x)
    found = bench.inference_model(model)(x)
    wrong = []
    for name, one, other in zip(functions, found, expected):
        try:
            agree(one.double(), other.double(), name)
        except AssertionError as error:
            wrong.append(str(error))
    expect(not wrong, "; ".join(wrong))


def arithmetic(bench: Bench) -> None:
    """Element-wise functions, error functions and powers among them, compile and give PyTorch's values."""
    names = "abs asin atan ceil cos erf erfc exp expm1 floor log log1p reciprocal rsqrt sigmoid sign sin sqrt tanh"
    functions: Functions = {name: getattr(torch, name) for name in names.split()}
    functions["atan2"] = lambda x: torch.atan2(x, x + 1)
    functions["pow"] = lambda x: x**2.5
    functions["clamp"] = lambda x: x.clamp(0.3, 0.6)
    functions["where"] = lambda x: torch.where(x > 0.5, x, -x)
    functions["remainder"] = lambda x: torch.remainder(x, 0.25)
    _compare(bench, functions, 4, 6)


def reductions(bench: Bench) -> None:
    """Reductions, sorting and matrix products compile and give PyTorch's values."""
    functions: Functions = {
        "sum": lambda x: x.sum(1),
        "mean": lambda x: x.mean((0, 2)),
        "nansum": lambda x: torch.nansum(x, 1, keepdim=True),
        "std": lambda x: x.std(2),
        "prod": lambda x: x.prod(2),
        "norm": lambda x: x.norm(dim=2),
        "logsumexp": lambda x: x.logsumexp(1),
        "cumsum": lambda x: x.cumsum(2),
        "amax": lambda x: x.amax(1),
        "argmax": lambda x: x.argmax(2),
        "topk": lambda x: x.topk(2, dim=2).values,
        "sort": lambda x: x.sort(dim=2).values,
        "bmm": lambda x: torch.bmm(x, x.transpose(1, 2)),
        "einsum": lambda x: torch.einsum("bij,bkj->bik", x, x),
    }
    _compare(bench, functions, 4, 3, 6)


def indexing(bench: Bench) -> None:
    """Views, gathering and scattering compile and give PyTorch's values."""
    functions: Functions = {
        "reshape": lambda x: x.reshape(4, -1),
        "permute": lambda x: x.permute(0, 2, 1).contiguous(),
        "flip": lambda x: x.flip((1, 2)),
        "roll": lambda x: x.roll(1, 2),
        "cat": lambda x: torch.cat([x, 2 * x], 1),
        "stack": lambda x: torch.stack([x, 2 * x], 1),
        "split": lambda x: x.split(2, 2)[1],
        "gather": lambda x: x.gather(2, (2 * x).long()),
        "scatter_add": lambda x: torch.zeros_like(x).scatter_add(2, (2 * x).long(), x),
        "masked_fill": lambda x: x.masked_fill(x > 0.5, -1.0),
        "one_hot": lambda x: F.one_hot((3 * x[:, 0]).long(), 3),
        "expand": lambda x: x[:, :1].expand(-1, 3, -1) + x,
    }
    _compare(bench, functions, 4, 3, 6)


def layers(bench: Bench) -> None:
    """Images' layers compile and give PyTorch's values, resizing by bilinear interpolation and folding among them."""
    torch.manual_seed(3)
    functions: Functions = {
        "conv2d": nn.Conv2d(4, 6, 3, padding=1, groups=2),
        "conv_transpose2d": nn.ConvTranspose2d(4, 2, 2, stride=2),
        "max_pool2d": nn.MaxPool2d(2),
        "avg_pool2d": nn.AvgPool2d(2),
        "adaptive_avg_pool2d": nn.AdaptiveAvgPool2d(2),
        "batch_norm": nn.BatchNorm2d(4, affine=False),
        "group_norm": nn.GroupNorm(2, 4, affine=False),
        "layer_norm": nn.LayerNorm(8, elementwise_affine=False),
        "nearest": nn.Upsample(scale_factor=2, mode="nearest"),
        "bilinear": nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False),
        "pixel_shuffle": nn.PixelShuffle(2),
        "fold": lambda x: F.fold(x.reshape(2, 4, 64), (9, 9), 2),
        "pad": lambda x: F.pad(x, (1, 2, 1, 0)),
    }
    _compare(bench, functions, 2, 4, 8, 8)


def activations(bench: Bench) -> None:
    """Activations and attention compile and give PyTorch's values."""
    names = "elu gelu hardswish leaky_relu mish relu selu silu softplus softsign"
    functions: Functions = {name: getattr(F, name) for name in names.split()}
    functions["softmax"] = lambda x: x.softmax(2)
    functions["log_softmax"] = lambda x: x.log_softmax(2)
    functions["glu"] = lambda x: F.glu(x, 2)
    functions["attention"] = lambda x: F.scaled_dot_product_attention(x, x, x)
    _compare(bench, functions, 2, 3, 8)


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.lstm, self.gru = nn.LSTM(1, 4, batch_first=True), nn.GRU(4, 4, batch_first=True)
        self.out = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> Any:
        states, _ = self.lstm(x.unsqueeze(2))
        return self.out(self.gru(states)[0][:, -1])


def recurrent(bench: Bench) -> None:
    """Recurrent layers train as in PyTorch."""
    bench.pair(model=_Recurrent).check()


def normalisation_without_weights(bench: Bench) -> None:
    """Normalisation without weights, or without running statistics, trains as in PyTorch."""

    def made() -> Any:
        return network(
            lambda: nn.BatchNorm1d(8, affine=False),
            lambda: nn.LayerNorm(8, elementwise_affine=False),
            lambda: nn.Linear(8, 8),
            lambda: nn.BatchNorm1d(8, track_running_stats=False),
        )

    pair = bench.pair(lambda model: sgd(model, momentum=0), made)
    pair.run(batches())
    agree(dict(pair.model.named_parameters()), dict(pair.reference.named_parameters()), "weights")
    agree(pair.model[2].running_mean, pair.reference[2].running_mean, "running mean")


def padding_of_an_embedding(bench: Bench) -> None:
    """An embedding's padding_idx is read like any row, and never trained."""

    def embedding() -> Any:
        torch.manual_seed(3)
        model: Any = nn.Sequential(nn.Embedding(5, 6, padding_idx=0), nn.Flatten(), nn.Linear(18, 3))
        with torch.no_grad():
            model[0].weight[0] = 1.0
        return model

    tokens = torch.tensor([[0, 1, 2], [3, 0, 0], [4, 4, 0], [1, 2, 3]])
    data = [(tokens, torch.tensor([0, 1, 2, 0])), (tokens.flip(0), torch.tensor([0, 2, 1, 0]))]
    pair = bench.pair(model=embedding)
    pair.check(data)
    agree(pair.model.state_dict()["0.weight"][0], torch.ones(6), "the padding's row")


class _ByOthers(nn.Module):
    """Uses functions without a gradient or an operator in PopTorch, or with another meaning."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.norm = nn.Linear(6, 8), nn.GroupNorm(2, 8, eps=0.1)
        self.token, self.out = nn.Parameter(torch.ones(4)), nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> Any:
        states = self.norm(self.first(x)).view(-1, 2, 4) + 0
        states[torch.stack([x[:, 0] > 0, x[:, 1] > 0], 1)] = self.token
        states = F.pad(states[:, [-1, 0]], (1, 1), mode="reflect") + (3 * x[:, :1, None]).int().exp() / 30
        return self.out(torch.cat([states[:, 0], states[:, [-1]].flatten(1)], 1))


def computed_by_others(bench: Bench) -> None:
    """Reflected padding, group norms of matrices, writes under masks and places from the end train as in PyTorch."""
    bench.pair(model=_ByOthers).check()
