"""The table of supported operators, and models checked against it."""

from __future__ import annotations

import importlib.util
import re
import runpy
from typing import Any, Callable, Dict, Iterator, Tuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ignite_ipu.emulator as poptorch
from ignite_ipu.emulator import operators
from ignite_ipu.emulator.operator_table import DECOMPOSED
from ignite_ipu.emulator.operators import Status, support
from tests.emulator.calls import Calls

X = torch.rand(2, 4, 8) + 0.5


def run(model: Any, *inputs: torch.Tensor) -> Any:
    executor = poptorch.inferenceModel(model if isinstance(model, nn.Module) else Calls(model))
    try:
        return executor(*inputs)
    finally:
        executor.destroy()


@pytest.fixture
def _lenient() -> Iterator[None]:
    before = operators.set_strict(False)
    yield
    operators.set_strict(before)


UNSUPPORTED: Dict[str, Callable[[torch.Tensor], Any]] = {
    "erf": torch.erf,
    "flip": lambda x: x.flip(0),
    "linalg_qr": lambda x: torch.linalg.qr(x),
    "lgamma": torch.lgamma,
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, 2),
    "erfinv": lambda x: x.erfinv_(),
}


@pytest.mark.parametrize(("name", "function"), UNSUPPORTED.items(), ids=UNSUPPORTED)
def test_unsupported_operators_are_refused_by_name(name, function):
    """With the line that uses them."""
    with pytest.raises(poptorch.Error, match="Unsupported ops found in compiled model") as error:
        run(lambda x: function(x * 1), X)
    assert f"aten::{name}" in str(error.value)
    assert "test_operators.py" in str(error.value)


def test_the_line_may_lie_in_any_folder(tmp_path):
    """Also in one with the name of a library."""
    file = tmp_path / "torch" / "model.py"
    file.parent.mkdir()
    file.write_text("import torch\n\n\ndef forward(x):\n    return torch.erf(x)\n", encoding="utf-8")
    forward = runpy.run_path(str(file))["forward"]
    with pytest.raises(poptorch.Error, match=rf"erf is used at {re.escape(str(file))}:5\."):
        run(forward, X)


def test_all_of_a_models_unsupported_operators_are_named_at_once():
    with pytest.raises(poptorch.Error, match=r"\[aten::erf, aten::lgamma\]"):
        run(lambda x: torch.lgamma(torch.erf(x)), X)


def test_a_composite_names_the_part_that_is_missing():
    with pytest.raises(poptorch.Error, match=r"aten::flip.*flip is part of fliplr"):
        run(torch.fliplr, X)


@pytest.mark.usefixtures("_lenient")
def test_one_switch_turns_refusals_into_warnings(caplog):
    assert torch.equal(run(torch.erf, X), torch.erf(X))
    assert "[aten::erf]" in caplog.text
    assert torch.equal(run(lambda x: x.topk(2, sorted=False).values.sum(), X), X.topk(2).values.sum())
    assert "sorted=False" in caplog.text


def test_the_switch_has_an_environment_variable(monkeypatch):
    """And refuses what is neither 0 nor 1."""
    assert operators.strict()
    monkeypatch.setenv(operators.STRICT_VARIABLE, "0")
    assert not operators.strict()
    before = operators.set_strict(True)
    assert operators.strict()
    operators.set_strict(before)
    monkeypatch.setenv(operators.STRICT_VARIABLE, "no")
    with pytest.raises(ValueError, match=operators.STRICT_VARIABLE):
        operators.strict()


class Attention(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x)


class HandWrittenGpt(nn.Module):
    """A decoder block as tutorials write it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)
        self.register_buffer("mask", torch.tril(torch.ones(4, 4)).view(1, 1, 4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.view(2, 4, 2, 4).transpose(1, 2) for part in self.qkv(self.norm(x)).split(8, dim=2))
        scores = (q @ k.transpose(-2, -1)) * 0.5
        scores = scores.masked_fill(self.mask[:, :, :4, :4] == 0, float("-inf"))
        y = F.dropout(F.softmax(scores, dim=-1), 0.1, self.training) @ v
        return x + F.gelu(self.out(y.transpose(1, 2).contiguous().view(2, 4, 8)))


class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(4, 8, 3, padding=1, bias=False), nn.BatchNorm1d(8), nn.SiLU())
        self.gate = nn.Sequential(nn.AdaptiveAvgPool1d(1), nn.Conv1d(8, 8, 1), nn.Sigmoid())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return torch.flatten(x * self.gate(x), 1)


# PyTorch 2.1 brought it as a parametrization.
WEIGHT_NORM = getattr(nn.utils.parametrizations, "weight_norm", nn.utils.weight_norm)

COMMON: Dict[str, Tuple[Any, ...]] = {
    "attention": (Attention(), X),
    "gpt": (HandWrittenGpt(), X),
    "squeeze and excite": (SqueezeExcite(), X),
    "transformer": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), X),
    "multi-head attention": (nn.MultiheadAttention(8, 2, batch_first=True), X, X, X),
    "lstm": (nn.LSTM(8, 3, batch_first=True), X),
    "gru": (nn.GRU(8, 3, bias=False), X),
    "rnn": (nn.RNN(8, 3), X),
    "resnet-like": (
        nn.Sequential(nn.Conv1d(4, 6, 3, 2, 1), nn.BatchNorm1d(6), nn.ReLU(inplace=True), nn.MaxPool1d(2)),
        X,
    ),
    "einsum": (lambda x: torch.einsum("bij,bkj->bik", x, x), X),
    "rotary": (lambda x: torch.cat((-x[..., 4:], x[..., :4]), -1) * x.cos() + x * x.sin(), X),
    "rms norm": (lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6), X),
    "gumbel": (lambda x: F.softmax((x.log() - (-torch.rand_like(x).log()).log()) * 0, -1), X),
    "one-hot": (lambda x: F.one_hot((x > 1).long(), 2).sum(), X),
    "upsampling": (nn.Upsample(scale_factor=2, mode="nearest"), X),
    "padding": (lambda x: F.pad(F.pad(x, (1, 2)), (1, 1), mode="reflect"), X),
    "indexing": (lambda x: x[torch.tensor([1, 0]), :, 1:7:2][:, None, -1], X),
    "statistics": (lambda x: (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5), X),
    "distances": (lambda x: torch.cdist(x, x) + F.cosine_similarity(x, x + 1, dim=-1).unsqueeze(1), X),
    "weight norm": (nn.Sequential(WEIGHT_NORM(nn.Linear(8, 2))), X),
}


@pytest.mark.parametrize("name", COMMON)
def test_common_models_pass(name, caplog):
    """And compute what PyTorch computes, without a warning about an operator."""
    model, *inputs = COMMON[name]
    if isinstance(model, nn.Module):
        model.eval()
    found = run(model, *inputs)
    with torch.no_grad():
        expected = model(*inputs)
    from ignite_ipu.emulator.testing import allclose

    assert allclose(expected, found)
    assert "not among the operators" not in caplog.text


def test_transformers_pass():
    """BERT, GPT-2 and ViT as Hugging Face writes them, masks made beforehand."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 20}
    eager = {"attn_implementation": "eager"}
    ids, image = torch.randint(0, 50, (2, 7)), torch.randn(1, 3, 8, 8)
    # Earlier versions take 1 for every token, and do not look at it.
    made = importlib.util.find_spec("transformers.modeling_attn_mask_utils") is not None
    mask = torch.zeros(2, 1, 7, 7) if made else torch.ones(2, 7)
    gpt = {"n_embd": 16, "n_layer": 1, "n_head": 2, "bos_token_id": 1, "eos_token_id": 1}
    cases = [
        (
            transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=50, **sizes, **eager)),
            (ids, mask),
            {},
        ),
        (
            transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=50, **gpt, **eager)),
            (ids,),
            {"attention_mask": mask, "use_cache": False},
        ),
        (transformers.ViTModel(transformers.ViTConfig(image_size=8, patch_size=4, **sizes, **eager)), (image,), {}),
    ]
    for model, args, kwargs in cases:
        model.eval()
        executor = poptorch.inferenceModel(model)
        with torch.no_grad():
            expected = model(*args, **kwargs)[0]
        assert torch.allclose(executor(*args, **kwargs)[0], expected, atol=1e-5)
        executor.destroy()


# What PyTorch has a kernel for and defines through listed operators, written with these alone.
DEFINITIONS: Dict[str, Tuple[Callable[..., Any], Callable[..., Any]]] = {
    "addbmm": (lambda x: torch.addbmm(x[0, :, :4], x, x.mT), lambda x: x[0, :, :4] + torch.bmm(x, x.mT).sum(0)),
    "addcmul": (lambda x: torch.addcmul(x, x, x, value=2), lambda x: x + 2 * x * x),
    "addmv": (lambda x: torch.addmv(x[0, :, 0], x[0], x[1, 0]), lambda x: x[0, :, 0] + torch.matmul(x[0], x[1, 0])),
    "addr": (lambda x: torch.addr(x[0], x[0, :, 0], x[1, 0]), lambda x: x[0] + x[0, :, :1] * x[1, 0]),
    "aminmax": (lambda x: torch.aminmax(x), lambda x: (torch.amin(x), torch.amax(x))),
    "baddbmm": (lambda x: torch.baddbmm(x[:, :, :4], x, x.mT), lambda x: x[:, :, :4] + torch.bmm(x, x.mT)),
    "channel_shuffle": (
        lambda x: torch.channel_shuffle(x, 2),
        lambda x: x.reshape(2, 2, 2, 8).transpose(1, 2).reshape(2, 4, 8),
    ),
    "copysign": (
        lambda x: torch.copysign(x, 1 - x),
        lambda x: torch.where(1 - x < 0, -torch.abs(x), torch.abs(x)),
    ),
    "deg2rad": (torch.deg2rad, lambda x: x * (torch.pi / 180)),
    "diag_embed": (
        lambda x: torch.diag_embed(x),
        lambda x: torch.where(torch.arange(8)[:, None] == torch.arange(8), x[..., None], torch.zeros(1)),
    ),
    "exp2": (torch.exp2, lambda x: torch.pow(2.0, x)),
    "eye": (
        lambda x: x @ torch.eye(8, device=x.device),
        lambda x: x @ torch.where(torch.arange(8)[:, None] == torch.arange(8), torch.ones(1), torch.zeros(1)),
    ),
    "fmax": (lambda x: torch.fmax(x, 2 - x), lambda x: torch.max(x, 2 - x)),
    "fmin": (lambda x: torch.fmin(x, 2 - x), lambda x: torch.min(x, 2 - x)),
    "hardsigmoid": (F.hardsigmoid, lambda x: torch.clamp(x + 3, 0, 6) / 6),
    "hardswish": (F.hardswish, lambda x: x * torch.clamp(x + 3, 0, 6) / 6),
    "heaviside": (
        lambda x: torch.heaviside(x - 1, x),
        lambda x: torch.where(x - 1 == 0, x, torch.where(x - 1 < 0, torch.zeros(1), torch.ones(1))),
    ),
    "hypot": (lambda x: torch.hypot(x, 2 * x), lambda x: torch.sqrt(torch.square(x) + torch.square(2 * x))),
    "isinf": (lambda x: torch.isinf(1 / (x - x)), lambda x: torch.abs(1 / (x - x)) == float("inf")),
    "isposinf": (lambda x: torch.isposinf(1 / (x - x)), lambda x: 1 / (x - x) == float("inf")),
    "isneginf": (lambda x: torch.isneginf(-1 / (x - x)), lambda x: -1 / (x - x) == float("-inf")),
    "lerp": (lambda x: torch.lerp(x, 2 * x, 0.3), lambda x: x + 0.3 * (2 * x - x)),
    "log_sigmoid_forward": (
        F.logsigmoid,
        lambda x: torch.min(x, torch.zeros(1)) - torch.log1p(torch.exp(-torch.abs(x))),
    ),
    "logaddexp": (
        lambda x: torch.logaddexp(x, 2 - x),
        lambda x: torch.max(x, 2 - x) + torch.log1p(torch.exp(-torch.abs(2 * x - 2))),
    ),
    "logical_xor": (lambda x: torch.logical_xor(x > 1, x > 1.2), lambda x: (x > 1) != (x > 1.2)),
    "logit": (lambda x: torch.logit(x / 2), lambda x: torch.log((x / 2) / (1 - x / 2))),
    "logcumsumexp": (lambda x: torch.logcumsumexp(x, 1), lambda x: torch.log(torch.cumsum(torch.exp(x), 1))),
    "nan_to_num": (
        lambda x: torch.nan_to_num((x - x) / (x - x)),
        lambda x: torch.where(torch.isnan((x - x) / (x - x)), torch.zeros(1), x),
    ),
    "pixel_shuffle": (
        lambda x: F.pixel_shuffle(x[:, :, :, None], 2),
        lambda x: x.reshape(2, 1, 2, 2, 8, 1).permute(0, 1, 4, 2, 5, 3).reshape(2, 1, 16, 2),
    ),
    "pixel_unshuffle": (
        lambda x: F.pixel_unshuffle(x[:, None], 2),
        lambda x: x.reshape(2, 1, 2, 2, 4, 2).permute(0, 1, 3, 5, 2, 4).reshape(2, 4, 2, 4),
    ),
    "rad2deg": (torch.rad2deg, lambda x: x * (180 / torch.pi)),
    "signbit": (lambda x: torch.signbit(1 - x), lambda x: 1 - x < 0),
    "sgn": (lambda x: torch.sgn(1 - x), lambda x: torch.sign(1 - x)),
    "sinc": (torch.sinc, lambda x: torch.sin(torch.pi * x) / (torch.pi * x)),
    "tril": (
        torch.tril,
        lambda x: torch.where(torch.arange(8) <= torch.arange(4)[:, None], x, torch.zeros(1)),
    ),
    "triu": (
        torch.triu,
        lambda x: torch.where(torch.arange(8) >= torch.arange(4)[:, None], x, torch.zeros(1)),
    ),
    "xlogy": (lambda x: torch.xlogy(x, 2 * x), lambda x: x * torch.log(2 * x)),
}
# Writing single rows: PyTorch's definition is `tensor[index] = value`, which is movement here.
ROWS = {"index_add", "index_copy"}
ALIASES = {"native_channel_shuffle": "channel_shuffle", "log_sigmoid": "log_sigmoid_forward"}


def test_every_decomposition_is_shown():
    assert set(DEFINITIONS) | ROWS | set(ALIASES) >= set(DECOMPOSED)


@pytest.mark.parametrize("name", DEFINITIONS)
def test_decomposed_operators_work_with_a_warning(name, caplog):
    """They equal their definition through listed operators, which passes without one."""
    function, definition = DEFINITIONS[name]
    expected = run(definition, X)
    assert "not among the operators" not in caplog.text
    found = run(function, X)
    assert f"{name}" in caplog.text and "not among the operators" in caplog.text
    from ignite_ipu.emulator.testing import allclose

    assert allclose(expected, found)


IMAGE = torch.randn(1, 4, 8, 8)
IDS = torch.tensor([[0, 1]])

RESTRICTED: Dict[str, Tuple[Any, ...]] = {
    "sorted=False": (lambda x: x.topk(2, sorted=False), X),
    "'nuc' of a matrix": (lambda x: torch.linalg.norm(x[0], "nuc"), X),
    "ord=2 of a matrix": (lambda x: torch.linalg.matrix_norm(x, 2), X),
    "ord='nuc'": (lambda x: torch.norm(x[0], "nuc"), X),
    r"dilation=\(2, 2\)": (nn.ConvTranspose2d(4, 2, 3, dilation=2), IMAGE),
    "return_indices=True": (nn.MaxPool2d(2, return_indices=True), IMAGE),
    "batch_norm: a normalisation": (nn.BatchNorm2d(4, affine=False), IMAGE),
    "instance_norm: a normalisation": (nn.InstanceNorm2d(4), IMAGE),
    "layer_norm: a normalisation": (nn.LayerNorm(8, elementwise_affine=False), X),
    "group_norm: a normalisation": (nn.GroupNorm(2, 4, affine=False), IMAGE),
    "num_layers=2": (nn.LSTM(8, 3, num_layers=2), X),
    "bidirectional=True": (nn.GRU(8, 3, bidirectional=True), X),
    "bias=False": (nn.RNN(8, 3, bias=False), X),
    "max_norm=1.0": (nn.Embedding(4, 2, max_norm=1.0), IDS),
    "sparse=True": (nn.Embedding(4, 2, sparse=True), IDS),
    "padding_idx=0": (nn.EmbeddingBag(4, 2, padding_idx=0), IDS),
    "mode='bilinear'": (nn.Upsample(scale_factor=2, mode="bilinear"), IMAGE),
    "align_corners=True": (nn.Upsample(scale_factor=2, mode="bicubic", align_corners=True), IMAGE),
    "mode='circular'": (nn.Conv2d(4, 2, 3, padding=1, padding_mode="circular"), IMAGE),
}


@pytest.mark.parametrize("words", RESTRICTED)
def test_restricted_arguments_are_refused(words):
    """Where the trace shows them; in evaluation mode as in training."""
    model, *inputs = RESTRICTED[words]
    with pytest.raises(poptorch.Error, match=words):
        run(model, *inputs)


def test_a_vector_2_norm_is_no_matrix_norm():
    assert torch.allclose(run(lambda x: torch.linalg.norm(x[0, 0], 2), X), X[0, 0].norm())
    assert torch.allclose(run(lambda x: torch.linalg.norm(x, dim=1), X), X.norm(dim=1))


def test_an_embeddings_padding_row_trains(caplog):
    """The device does not read `padding_idx`, and the emulator says so."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(3, 2, padding_idx=0)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return poptorch.identity_loss(self.embedding(ids), "sum")

    net = Net()
    before = net.embedding.weight.detach().clone()
    executor = poptorch.trainingModel(net, optimizer=poptorch.optim.SGD(net.parameters(), lr=1.0))
    executor(torch.tensor([0, 1]))
    assert torch.equal(before - net.embedding.weight.detach(), torch.tensor([[1.0, 1], [1, 1], [0, 0]]))
    assert "padding_idx=0 is not read" in caplog.text
    executor.destroy()


@pytest.mark.parametrize(
    ("operator", "status"),
    [
        ("torch.matmul", Status.LISTED),
        ("aten::add_", Status.LISTED),
        ("Tensor.masked_fill", Status.LISTED),
        ("nn.Conv2d", Status.LISTED),
        ("torch.nn.functional.glu", Status.LISTED),
        (nn.LSTM, Status.LISTED),
        (torch.maximum, Status.LISTED),
        (torch.linalg.matrix_norm, Status.LISTED),
        ("torch.Tensor.view", Status.MOVEMENT),
        (torch.triu, Status.DECOMPOSED),
        ("torch.einsum", Status.COMPOSITE),
        (F.scaled_dot_product_attention, Status.COMPOSITE),
        ("nn.TransformerEncoderLayer", Status.COMPOSITE),
        (F.multi_head_attention_forward, Status.COMPOSITE),
        ("torch.erf", Status.UNSUPPORTED),
        ("nonsense", Status.UNSUPPORTED),
        ("Tensor.cuda", Status.UNSUPPORTED),  # TorchScript's, unknown to PyTorch's dispatcher
    ],
)
def test_the_table_answers(operator, status):
    found = support(operator)
    assert found.status is status
    assert found.works == (status is not Status.UNSUPPORTED)


def test_answers_say_more():
    """What an operator stands for, consists of, and lacks."""
    assert support("torch.mm").means == "matmul"
    assert support("torch.baddbmm").means == "bmm mul add"
    assert "sorted=False" in support("torch.topk").restrictions
    assert "one layer" in support(nn.GRU).restrictions
    assert support(nn.Linear).restrictions == ""
    with pytest.raises(TypeError, match="Expected the name of an operator"):
        support(3)


def test_every_listed_name_works():
    """The list and the lookup agree."""
    for group, names in operators.listed().items():
        for name in names:
            if group not in ("torch_scatter", "torch_spline_conv") and "distributions" not in name:
                assert support(name).status is Status.LISTED, name
