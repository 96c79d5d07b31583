"""Functions that PopTorch has no operator for: by the ones that it has, on the host and on the device."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import backend, create_ipu_trainer
from ignite_ipu.emulator.errors import Error
from ignite_ipu.program.evaluation_step import EvaluationStep
from ignite_ipu.program.forward.equivalents import EQUIVALENTS, Equivalents

RANDOM = torch.Generator().manual_seed(0)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=RANDOM)


CLASSES = torch.tensor([0, 2, -100, 1])
PIXELS = torch.randint(0, 3, (4, 5), generator=RANDOM)
WEIGHT = torch.tensor([1.0, 2.0, 0.5])
MASK = torch.tensor([[True, False, True], [False, True, True]])
PROBABILITIES = normal(4, 3).softmax(1)
Case = Tuple[Callable[..., Any], Tuple[torch.Tensor, ...]]
# A function's operands are a list of inputs; the others are constants.
CASES: Dict[str, Case] = {
    **{
        f"cross entropy, {reduction}, {smoothing}, {weight is not None}": (
            lambda x, reduction=reduction, smoothing=smoothing, weight=weight: F.cross_entropy(
                x, CLASSES.to(x.device), _on(weight, x), reduction=reduction, label_smoothing=smoothing
            ),
            (normal(4, 3),),
        )
        for reduction in ("mean", "sum", "none")
        for smoothing, weight in ((0.0, WEIGHT), (0.1, None), (0.1, WEIGHT))
    },
    "cross entropy of pixels": (
        lambda x: F.cross_entropy(x, PIXELS.to(x.device), _on(WEIGHT, x), ignore_index=1),
        (normal(4, 3, 5),),
    ),
    "cross entropy of probabilities": (
        lambda x: F.cross_entropy(x, PROBABILITIES.to(x.device), label_smoothing=0.1),
        (normal(4, 3),),
    ),
    "nll loss": (lambda x: F.nll_loss(x.log_softmax(1), CLASSES.to(x.device), _on(WEIGHT, x)), (normal(4, 3),)),
    "nll loss by the arguments of before": (
        lambda x: F.nll_loss(x.log_softmax(1), CLASSES.to(x.device), _on(WEIGHT, x), size_average=False),
        (normal(4, 3),),
    ),
    **{
        f"huber loss, {reduction}": (
            lambda x, y, reduction=reduction: F.huber_loss(x, y, reduction=reduction, delta=0.7),
            (normal(4, 3), normal(4, 3)),
        )
        for reduction in ("mean", "sum", "none")
    },
    "layer norm without bias": (lambda x, w: F.layer_norm(x, (3,), w), (normal(4, 3), normal(3))),
    "layer norm without weight": (lambda x, b: F.layer_norm(x, (3,), None, b), (normal(4, 3), normal(3))),
    "average of unlike windows": (lambda x: F.adaptive_avg_pool2d(x, (4, 5)), (normal(2, 3, 7, 3),)),
    "average of a line": (lambda x: F.adaptive_avg_pool1d(x, 2), (normal(2, 3, 5),)),
    "adaptive maximum": (lambda x: F.adaptive_max_pool2d(x, (2, None)), (normal(2, 3, 6, 4),)),
    "global maximum": (lambda x: F.adaptive_max_pool1d(x, 1), (normal(2, 3, 5),)),
    **{
        f"{mode} padding": (lambda x, mode=mode: F.pad(x, (1, 2, 0, 1), mode=mode), (normal(2, 3, 4, 5),))
        for mode in ("circular", "reflect", "replicate", "constant")
    },
    "reflection of volumes": (lambda x: F.pad(x, (1, 1, 2, 0, 0, 1), mode="reflect"), (normal(1, 2, 3, 4, 5),)),
    "cropping": (lambda x: F.pad(x, (-1, 2), mode="replicate"), (normal(2, 3, 5),)),
    "channel shuffle": (lambda x: F.channel_shuffle(x, 2), (normal(2, 6, 3),)),
    "tril": (lambda x: x.tril(-1), (normal(2, 4, 3),)),
    "triu": (lambda x: torch.triu(x, 1), (normal(4, 3),)),
    "diagonal": (lambda x: x.diagonal(1, -2, -1), (normal(2, 4, 3),)),
    "diagonals of matrices": (
        lambda x: torch.linalg.diagonal(x) + torch.linalg.diagonal(x, offset=1, dim1=0, dim2=1).sum(),
        (normal(2, 4, 3),),
    ),
    "functions of torch.special": (
        lambda x: torch.special.exp2(x) + torch.special.sinc(x) + torch.special.xlogy(x, x.abs() + 1),
        (normal(2, 3),),
    ),
    "diagonal below": (lambda x: torch.diagonal(x, -2), (normal(4, 3, 2),)),
    "diag": (torch.diag, (normal(4, 4),)),
    "trace": (torch.trace, (normal(3, 4),)),
    "index_add": (
        lambda x, y: x.index_add(0, torch.tensor([1, 1, 3]).to(x.device), y, alpha=2),
        (normal(4, 3), normal(3, 3)),
    ),
    "index_copy": (lambda x, y: x.index_copy(-1, torch.tensor([2, 0]).to(x.device), y), (normal(4, 3), normal(4, 2))),
    "repeat_interleave": (lambda x: x.repeat_interleave(3, -1), (normal(4, 3),)),
    "repeat_interleave of all": (lambda x: torch.repeat_interleave(x, 2), (normal(4, 3),)),
    "searchsorted": (
        # The last of the second sequence is NaN, which is behind all.
        lambda x: x * torch.searchsorted(x.detach().cumsum(1), x.detach().flip(1).log(), right=True),
        (torch.tensor([[0.5, 1.0, 9.0], [-1.0, 3.5, 4.0]]),),
    ),
    "searchsorted in one sequence": (
        lambda x: x * torch.searchsorted(torch.arange(3.0).to(x.device), x, side="right", out_int32=True),
        (torch.tensor([[0.0, 0.5, 2.0], [7.0, -1.0, 1.0]]),),
    ),
    "searchsorted by the order of an argsort": (
        lambda x: torch.searchsorted(x, torch.tensor([0.5, 2.0, 5.0]).to(x.device), sorter=x.argsort(-1)) * x,
        (torch.tensor([3.0, 1.0, 2.0]),),
    ),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.3), (normal(4), normal(4))),
    "logaddexp": (torch.logaddexp, (normal(4), normal(4))),
    "logaddexp2": (torch.logaddexp2, (normal(4, 1), normal(3))),
    "logit": (lambda x: torch.sigmoid(x).logit(1e-3), (normal(4),)),
    "xlogy": (lambda x, y: torch.xlogy(x.relu(), y.abs()), (normal(6), normal(6))),
    "nan_to_num": (lambda x: (x / x.relu()).nan_to_num(posinf=5.0), (normal(6),)),
    "exp2": (torch.exp2, (normal(4),)),
    "logical_xor": (lambda x, y: torch.logical_xor(x > 0, y > 0).float(), (normal(4), normal(4))),
    "hypot": (torch.hypot, (normal(4), normal(4))),
    "addbmm": (lambda x, a, b: torch.addbmm(x, a, b, beta=0.5), (normal(2, 4), normal(3, 2, 5), normal(3, 5, 4))),
}
_INDEX = torch.tensor([1, 1, 3])
# Of functions that write in place: their arguments after the tensor that they write into.
IN_PLACE: Dict[str, Callable[..., Tuple[Any, ...]]] = {
    "tril_": lambda x: (-1,),
    "triu_": lambda x: (1,),
    "index_add_": lambda x: (0, _INDEX.to(x.device), x[:3].exp()),
    "index_copy_": lambda x: (0, _INDEX[1:].to(x.device), x[:2].exp()),
    "lerp_": lambda x: (x.exp(), 0.3),
    "logit_": lambda x: (0.4,),
    "xlogy_": lambda x: (x.exp(),),
    "nan_to_num_": lambda x: (),
    "exp2_": lambda x: (),
    "logical_xor_": lambda x: (x > 0.2,),
    "hypot_": lambda x: (x.exp(),),
    "addbmm_": lambda x: (torch.stack([x, x.exp()]), torch.stack([x[:3], x[1:]])),
    "div_": lambda x: (x.exp(),),
    "round_": lambda x: (),
    "index_put_": lambda x: ((_INDEX.to(x.device),), x[:3].exp(), True),
    "copysign_": lambda x: (x,),
    "divide_": lambda x: (x.exp(),),
    "true_divide_": lambda x: (x.exp(),),
    "sinc_": lambda x: (),
    "sgn_": lambda x: (),
    "heaviside_": lambda x: (x,),
}


def _whole(func: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a call that writes into a tensor made from x, and reads the written values."""

    def call(x: torch.Tensor) -> torch.Tensor:
        made = x / 9 + 0.5
        returned = func(made, *IN_PLACE[name](x))
        return made + returned

    return call


def _part(func: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a call that writes into the last rows and columns of a larger tensor."""

    def call(x: torch.Tensor) -> torch.Tensor:
        made = torch.cat([x, x], 1) / 9 + 0.5
        func(made[:, 3:], *IN_PLACE[name](x))
        return made

    return call


for _name in IN_PLACE:
    for _owner in (torch, torch.Tensor):
        if hasattr(_owner, _name):
            _func = getattr(_owner, _name)
            CASES[f"{_owner.__name__}.{_name}"] = (_whole(_func, _name), (normal(4, 3),))
            CASES[f"{_owner.__name__}.{_name} of a part"] = (_part(_func, _name), (normal(4, 3),))
# Operators that PopTorch compiles into something else.
CASES.update(
    {
        "gelu": (F.gelu, (3 * normal(40),)),
        "gelu with tanh": (lambda x: F.gelu(x, approximate="tanh"), (normal(4),)),
        "celu": (lambda x: F.celu(x, 0.4), (normal(4),)),
        "celu in place": (lambda x: F.celu(x * 2, 0.4, True), (normal(4),)),
        "logarithms of sigmoids": (lambda x: F.logsigmoid(60 * x), (normal(9),)),
        **{
            f"binary cross entropy, {reduction}": (
                lambda x, reduction=reduction: F.binary_cross_entropy(
                    torch.sigmoid(30 * x), (x > 0.3).to(x.dtype), torch.ones_like(x) / 2, reduction=reduction
                ),
                (normal(3, 9),),
            )
            for reduction in ("mean", "sum", "none")
        },
        "divergence": (
            lambda x, y: F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"),
            (normal(4, 3), normal(4, 3)),
        ),
        "average pooling": (lambda x: F.avg_pool2d(x, 2), (normal(2, 3, 5, 4),)),
        "average pooling with a divisor": (
            lambda x: F.avg_pool2d(x, (2, 3), padding=1, count_include_pad=False, divisor_override=5),
            (normal(2, 3, 5, 4),),
        ),
        "average pooling with unlike paddings": (
            lambda x: F.avg_pool2d(x, 3, padding=(0, 1)) + F.avg_pool2d(x, 3, 2, (1, 0), False, True, 5).sum(),
            (normal(2, 3, 6, 4),),
        ),
        "average pooling of volumes": (lambda x: F.avg_pool3d(x, 2, divisor_override=3), (normal(1, 2, 4, 4, 4),)),
        **{
            f"maximum pooling, {count}": (
                lambda x, count=count: getattr(F, f"max_pool{count}d")(x, 2),
                (normal(2, 3, *[4] * count),),
            )
            for count in (1, 2, 3)
        },
        "division of whole numbers": (lambda x: (x * 9).int() / 4 + torch.div((x * 9).int(), 3), (normal(9),)),
        "floor of a quotient": (lambda x, y: torch.div(x, y, rounding_mode="floor"), (9 * normal(40), normal(40))),
        "floor of a quotient near a whole number": (
            lambda x: x.div(0.1, rounding_mode="floor"),
            (torch.tensor([1.0, -1.0, 0.3, 0.7]),),
        ),
        "floor of whole numbers": (
            lambda x: torch.div((9 * x).int(), torch.tensor([2, -2, 3]).to(x.device), rounding_mode="floor").float(),
            (normal(7, 3),),
        ),
        "floor division of whole numbers": (
            lambda x: ((9 * x).int() // 4 + 7 // ((9 * x).int() * 2 + 1)).float() + x.floor_divide(0.4),
            (normal(9),),
        ),
        "floor division in place": (lambda x: (9 * x).int().floor_divide_(-2).float(), (normal(9),)),
        "places from the end": (
            lambda x: (
                x[:, [-1], :]
                + x[..., [-2, 0], None, :].sum(2)
                + x[[0, -1], [1, -1]][:, None]
                + x[[-1], ..., [2, -1]].sum()
            ),
            (normal(2, 3, 4),),
        ),
        "a write at places from the end": (lambda x: written(x * 1, (slice(None), [-1, 0]), 2.0), (normal(2, 3, 4),)),
        "rows under a mask": (lambda x, y: written(x * 1, x[..., 0] > 0, y), (normal(4, 5, 3), normal(3))),
        "a number under a mask of rows": (lambda x: written(x * 1, x[..., 0] > 0, 2.0), (normal(4, 5, 3),)),
        "values under a mask": (lambda x, y: written(x * 1, MASK.to(x.device), y), (normal(2, 3), normal(4))),
        "rows, one for each, under a mask": (
            lambda x, y: written(x * 1, (MASK[0].to(x.device),), y),
            (normal(3, 5), normal(2, 5)),
        ),
        "one row under a mask": (lambda x, y: written(x * 1, MASK[0].to(x.device), y), (normal(3, 5), normal(1, 5))),
        "one value under a mask": (lambda x: written(x * 1, x > 0, 2.0), (normal(3, 5),)),
        "masked_scatter": (
            lambda x, y: x.masked_scatter(MASK.to(x.device)[..., None], y) + (x * 2).masked_scatter_(x > 0, y * 3),
            (normal(2, 3, 2), normal(4, 3)),
        ),
        "quotient without its rest": (lambda x, y: x.divide(y, rounding_mode="trunc"), (9 * normal(9), normal(9))),
        "rounding": (lambda x: torch.round(x, decimals=2) + (1000 * x).round(decimals=-2) + x.round(), (normal(9),)),
        "functions of whole numbers": (
            lambda x: torch.exp((x * 3).int()) + (x > 0).cos() + torch.sqrt(x.abs()).sigmoid_(),
            (normal(9),),
        ),
        "reductions in another type": (
            lambda x: (
                torch.sum((100 * x).abs().half(), dtype=torch.float32)
                + (9 * x).int().mean(0, dtype=torch.float32).sum()
                + x.norm(dtype=torch.float32)
                + x.int().prod(1, keepdim=True, dtype=torch.float32).cumprod(0, dtype=torch.float32)
            ),
            (100 + normal(9, 5),),
        ),
        "number of others than zero": (
            lambda x: ((x > 0).count_nonzero() + x.count_nonzero(0)).float(),
            (normal(5, 3),),
        ),
        "dimensions from the end": (
            lambda x: (
                x.take_along_dim(x.argmax(-1, True)[:1], -1)
                + x.take_along_dim(x.argmax())
                + torch.index_fill(x, dim=-1, index=torch.tensor([1]).to(x.device), value=2.0)
                + (x * 2).index_fill_(-1, torch.tensor([1]).to(x.device), 3.0)
            ),
            (normal(5, 3),),
        ),
        "groups of channels alone": (
            lambda x, w: F.group_norm(x, 2, w, w / 2, 0.1) + nn.GroupNorm(3, 6, 0.1, affine=False)(x),
            (normal(5, 6), normal(6)),
        ),
        "groups of channels": (lambda x, w: F.group_norm(x, 2, w, w / 2), (normal(5, 6, 2), normal(6))),
        "smooth loss without a bend": (
            lambda x, y: F.smooth_l1_loss(x, y, beta=0.0, reduction="sum") + F.smooth_l1_loss(x, y),
            (normal(5), normal(5)),
        ),
        "rsub": (lambda x, y: torch.rsub(x, y, alpha=3), (normal(4), normal(4))),
        "index_put": (
            lambda x, y: x.index_put(
                (torch.tensor([0, 2, 0]).to(x.device), torch.tensor([1, -1, 1]).to(x.device)), y, accumulate=True
            ),
            (normal(3, 4, 2), normal(3, 2)),
        ),
        "variance": (lambda x: x.var(0, correction=2), (normal(5, 3),)),
        "deviation": (lambda x: torch.std(x, (0, 1), correction=3, keepdim=True), (normal(5, 3),)),
        "variance and mean": (lambda x: sum(torch.var_mean(x, 1, keepdim=True)), (normal(5, 3),)),
        "deviation and mean": (lambda x: sum(torch.std_mean(x, correction=2)), (normal(5, 3),)),
        "largest": (lambda x: x.argmax() + torch.amax(x) + x.amin() + x.argmin(), (normal(5, 3),)),
        "matrices of diagonals": (lambda x: torch.diag_embed(x, 1) + x.diag_embed(-1), (normal(2, 3),)),
        "matrices of other diagonals": (lambda x: torch.diag_embed(x, 0, 0, 1), (normal(2, 3),)),
        "diag of a vector": (lambda x: torch.diag(x, -2) + torch.diagflat(x, 2), (normal(3),)),
        "aminmax": (lambda x: torch.aminmax(x, dim=1).max - x.aminmax().min, (normal(5, 3),)),
        "quantile": (lambda x: torch.quantile(x, 0.3, 1) + x.quantile(0.9), (normal(5, 7),)),
        "quantile of columns": (lambda x: x.quantile(0.5, dim=0, keepdim=True), (normal(5, 7),)),
        "signs": (
            lambda x: torch.copysign(x, -x.exp()) + x.copysign(1.0) + torch.signbit(x) + torch.sgn(x),
            (normal(5),),
        ),
        "either": (lambda x, y: torch.fmax(x, y) + torch.fmin(x * torch.nan, y), (normal(5), normal(5))),
        "sinc": (lambda x: torch.sinc(x.relu()), (normal(9),)),
        "steps": (lambda x: torch.heaviside(x.relu(), x / 2), (normal(9),)),
        "infinities": (lambda x: torch.isposinf(x / 0).float() - (x / 0).isneginf().float(), (normal(9),)),
        "topk": (lambda x: torch.topk(x, 3, sorted=False).values.sum(-1), (normal(4, 5),)),
        "argsort": (lambda x: (torch.argsort(x, stable=True, descending=True) + x.argsort()).float(), (normal(4, 5),)),
        "vdot": (torch.vdot, (normal(4), normal(4))),
        "cross entropy of one sample": (
            lambda x: F.cross_entropy(x, torch.tensor(1).to(x.device), _on(WEIGHT, x), label_smoothing=0.1),
            (normal(3),),
        ),
        "cross entropy of one sample alone": (lambda x: F.cross_entropy(x, torch.tensor(1).to(x.device)), (normal(3),)),
    }
)
NO_GRADIENT = {
    *("floor division of whole numbers", "floor division in place"),
    *("logical_xor", "nan_to_num", "floor of whole numbers", "division of whole numbers", "argsort", "infinities"),
    *("signs", "steps", "either", "number of others than zero", "functions of whole numbers"),
    *(name for name in CASES if any(each in name for each in ("logical_xor_", "copysign_", "heaviside_"))),
}


def written(x: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    x[index] = value
    return x


def _on(weight: Any, x: torch.Tensor) -> Any:
    return None if weight is None else weight.to(x.device)


class Function(nn.Module):
    """A model that computes one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, inputs: List[torch.Tensor]) -> Any:
        return self.function(*inputs)


def on_device(model: nn.Module, x: Any) -> Any:
    """Return the result of an evaluation program, which keeps the shape of a scalar as one element."""
    step = EvaluationStep(model)
    executor = backend.poptorch().inferenceModel(step)
    try:
        return executor(*step.arguments(x, micro_batches=1))
    finally:
        executor.destroy()


@pytest.mark.filterwarnings("ignore:size_average and reduce")
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_pytorch(name: str) -> None:
    """By plain PyTorch on the host, where both can be computed."""
    function, inputs = CASES[name]
    found = []
    for context in (Equivalents(), torch.no_grad() if name in NO_GRADIENT else torch.enable_grad()):
        given = [value.clone().requires_grad_(name not in NO_GRADIENT) for value in inputs]
        with context:
            result = function(*given)
        try:
            gradients = () if name in NO_GRADIENT else torch.autograd.grad((result * result).sum(), given)
        except RuntimeError as error:
            pytest.skip(f"this PyTorch has none: {error}")
        found.append((result.detach(), *gradients))
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:size_average and reduce")
@pytest.mark.parametrize("name", CASES)
def test_they_compile(name: str) -> None:
    """A device gives PyTorch's result."""
    function, inputs = CASES[name]
    expected = function(*inputs)
    torch.testing.assert_close(
        on_device(Function(function), [value.clone() for value in inputs]).reshape(expected.shape),
        expected,
        rtol=1e-5,
        atol=1e-6,
    )


@pytest.mark.parametrize("name", ["huber loss, mean", "tril", "layer norm without bias"])
def test_poptorch_alone_refuses_them(name: str) -> None:
    """Else there would be no need."""
    function, inputs = CASES[name]
    executor = backend.poptorch().inferenceModel(Function(function))
    with pytest.raises(Error):
        executor([value.clone() for value in inputs])


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("layers", "bidirectional"), [(1, True), (2, False), (2, True), (1, False)])
def test_lstms_of_several_layers_and_directions(
    layers: int, bidirectional: bool, bias: bool, batch_first: bool
) -> None:
    """Outputs and both states are PyTorch's, from states of the user's own."""
    torch.manual_seed(0)
    lstm = nn.LSTM(3, 4, layers, bias, batch_first, bidirectional=bidirectional)
    states = [normal(layers * (1 + bidirectional), 5, 4) for _ in range(2)]
    x = normal(5, 6, 3) if batch_first else normal(6, 5, 3)
    with torch.no_grad():
        expected = lstm(x, tuple(states))
    with Equivalents():
        found = lstm(x, tuple(states))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


class Tagger(nn.Module):
    """A classifier of sequences with the usual parts of published recurrent models."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True)
        self.norm = nn.LayerNorm(8)
        self.out = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(F.layer_norm(self.lstm(x)[0].mean(1), (8,), self.norm.weight))


def test_they_train() -> None:
    """Weights after some updates are those of plain PyTorch, with smoothed labels and weights of classes."""
    x, y = normal(6, 4, 5, 3), torch.randint(0, 3, (6, 4), generator=RANDOM)
    weights = []
    for on_ipu in (False, True):
        torch.manual_seed(0)
        model, loss_fn = Tagger(), nn.CrossEntropyLoss(WEIGHT, label_smoothing=0.1)
        model.norm.bias.requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        if on_ipu:
            trainer = create_ipu_trainer(model, optimizer, loss_fn)
            trainer.run(list(zip(x, y)), max_epochs=1)
            trainer.ipu.close()
        else:
            for inputs, targets in zip(x, y):
                optimizer.zero_grad()
                loss_fn(model(inputs), targets).backward()
                optimizer.step()
        weights.append(list(model.parameters()))
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-4, atol=1e-5)


def test_dropout_between_layers_drops_there_alone() -> None:
    """With a probability of 1 the second layer reads zeros, in training mode."""
    torch.manual_seed(0)
    lstm = nn.LSTM(3, 4, 2, dropout=1.0)
    x = normal(6, 5, 3)
    with torch.no_grad():
        expected = lstm(x)[0]
        with Equivalents():
            torch.testing.assert_close(lstm(x)[0], expected)
            lstm.eval()
            assert not torch.allclose(lstm(x)[0], expected)


@pytest.mark.filterwarnings("ignore:size_average and reduce")
def test_everything_listed_is_tried() -> None:
    """Each equivalent is that of a function in the cases above, or of LSTMs."""
    seen = set()

    class Noting(Equivalents):
        def call(self, func: Any, args: Any, kwargs: Any) -> Any:
            seen.add(EQUIVALENTS.get(func))
            return super().call(func, args, kwargs)

    with Noting():
        for function, inputs in CASES.values():
            function(*inputs)
    untried = {getattr(func, "__name__", str(func)) for func, each in EQUIVALENTS.items() if each not in seen}
    assert untried == {"lstm"}
