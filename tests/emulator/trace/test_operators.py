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
from ignite_ipu.emulator.trace import operators
from ignite_ipu.operators import table
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
    "erfinv": torch.erfinv,
    "tril": lambda x: x.tril(),
    "linalg_qr": lambda x: torch.linalg.qr(x),
    "lgamma": torch.lgamma,
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, 2),
    "logit": lambda x: x.logit_(),
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
    file.write_text("import torch\n\n\ndef forward(x):\n    return torch.lgamma(x)\n", encoding="utf-8")
    forward = runpy.run_path(str(file))["forward"]
    with pytest.raises(poptorch.Error, match=rf"lgamma is used at {re.escape(str(file))}:5\."):
        run(forward, X)


def test_all_of_a_models_unsupported_operators_are_named_at_once():
    with pytest.raises(poptorch.Error, match=r"\[aten::erfinv, aten::lgamma\]"):
        run(lambda x: torch.lgamma(torch.erfinv(x)), X)


def test_a_composite_names_the_part_that_is_missing():
    with pytest.raises(poptorch.Error, match=r"aten::lerp.*lerp is part of quantile.*a \+ weight"):
        run(lambda x: torch.quantile(x, 0.5), X)


@pytest.mark.usefixtures("_lenient")
def test_one_switch_turns_refusals_into_warnings(caplog):
    assert torch.equal(run(torch.lgamma, X), torch.lgamma(X))
    assert "[aten::lgamma]" in caplog.text
    assert torch.equal(run(lambda x: x.argsort(stable=True), X), X.argsort(stable=True).int())
    assert "stable=True" in caplog.text


def test_the_switch_has_an_environment_variable(monkeypatch):
    """And refuses labels other than 0 and 1."""
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
        return x + F.relu(self.out(y.transpose(1, 2).contiguous().view(2, 4, 8)))


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
    """And compute PyTorch's result, without a warning about an operator."""
    model, *inputs = COMMON[name]
    if isinstance(model, nn.Module):
        model.eval()
    found = run(model, *inputs)
    with torch.no_grad():
        expected = model(*inputs)
    from ignite_ipu.emulator.testing import allclose

    assert allclose(expected, found)
    assert "PopTorch's sources" not in caplog.text


def test_transformers_pass():
    """BERT, GPT-2 and ViT as Hugging Face writes them, masks made beforehand."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 20}
    eager = {"attn_implementation": "eager"}
    ids, image = torch.randint(0, 50, (2, 7)), torch.randn(1, 3, 8, 8)
    # Earlier versions take 1 for every token, and do not look at it.
    makers = ("modeling_attn_mask_utils", "masking_utils")  # of version 4, and of version 5
    made = any(importlib.util.find_spec(f"transformers.{module}") is not None for module in makers)
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


IMAGE = torch.randn(1, 4, 8, 8)
IDS = torch.tensor([[0, 1]])

RESTRICTED: Dict[str, Tuple[Any, ...]] = {
    "ord='nuc'": (lambda x: torch.linalg.norm(x[0], "nuc"), X),
    "ord=2": (lambda x: torch.linalg.matrix_norm(x, 2), X),
    "p='nuc'": (lambda x: torch.norm(x[0], "nuc"), X),
    r"dilation=\(2, 2\)": (nn.ConvTranspose2d(4, 2, 3, dilation=2), IMAGE),
    "return_indices=True": (nn.MaxPool2d(2, return_indices=True), IMAGE),
    "layer_norm: a normalisation takes both": (lambda x: F.layer_norm(x, (8,), torch.ones(8)), X),
    "group_norm: a normalisation takes both": (lambda x: F.group_norm(x, 2, torch.ones(4)), X),
    "num_layers=2": (nn.LSTM(8, 3, num_layers=2), X),
    "bidirectional=True": (nn.LSTM(8, 3, bidirectional=True), X),
    "has_biases=False": (nn.LSTM(8, 3, bias=False), X),
    "offsets must be a constant": (nn.EmbeddingBag(4, 2), torch.tensor([0, 1]), torch.tensor([0])),
    "same shape": (lambda x: torch.cross(x[..., :3], x[:, :1, :3], dim=-1), X),
    "8-bit integral types": (lambda x: x & 1, torch.ones(2, dtype=torch.uint8)),
    "not one of each": (lambda x: (x > 0) & x, torch.ones(2, dtype=torch.int32)),
    "size must be divisible by its output size": (nn.AdaptiveAvgPool2d(3), IMAGE),
    r"mode='area'": (lambda x: F.interpolate(x, scale_factor=1.5, mode="area"), IMAGE),
    "one scale factor for both axes": (nn.Upsample(scale_factor=(2, 3), mode="bilinear"), IMAGE),
    "reflection over three": (lambda x: F.pad(x[None], (1,) * 6, mode="reflect"), IMAGE),
    "a stride is needed": (lambda x: F.max_pool3d(x, 2), IMAGE),
    "slices with step size other than 1": (lambda x: (x * 1).__setitem__(slice(None, None, 2), 0), X),
    "output_size": (lambda x: x.repeat_interleave(2), X),
    "both bounds": (lambda x: (x * 1).random_(), X),
    "only 'nearest' is supported": (nn.Upsample(scale_factor=2, mode="linear"), X),
    "max_norm=1.0": (nn.Embedding(4, 2, max_norm=1.0), IDS),
    "sparse=True": (nn.Embedding(4, 2, sparse=True), IDS),
    "padding_idx=0": (nn.EmbeddingBag(4, 2, padding_idx=0), IDS),
    "align_corners=True": (nn.Upsample(scale_factor=2, mode="bicubic", align_corners=True), IMAGE),
    "one value for all of its places": (lambda x: (x * 1).__setitem__(x > 0, torch.ones(3)), X),
    "takes one value": (lambda x: x.index_put((x > 0,), torch.ones(3)), X),
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


class Embeds(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return poptorch.identity_loss(self.layer(ids), "sum")


def test_an_embeddings_padding_row_is_not_trained():
    """Its row is read like any other, and its gradient is zero."""
    net = Embeds(nn.Embedding(3, 2, padding_idx=0))
    nn.init.ones_(net.layer.weight)
    executor = poptorch.trainingModel(net, optimizer=poptorch.optim.SGD(net.parameters(), lr=1.0))
    assert executor(torch.tensor([0, 1])).item() == 4
    executor.destroy()
    assert net.layer.weight.tolist() == [[1.0, 1], [0, 0], [1, 1]]


UNUSED: Dict[str, Callable[[torch.Tensor], Any]] = {
    "result": lambda x: (torch.lgamma(x), x + 1)[1],
    "part of a chain": lambda x: (torch.lgamma(x).sum() * 2, x + 1)[1],
}


@pytest.mark.parametrize("name", UNUSED)
def test_what_nobody_uses_need_not_compile(name):
    assert torch.equal(run(UNUSED[name], X), X + 1)


def test_what_depends_on_constants_alone_need_not_compile():
    """It is computed while compiling; in the body of a loop it is not."""
    assert torch.equal(run(lambda x: x * torch.ones(8, 8).tril()[0], X), X * torch.eye(8)[0])

    def looped(x: torch.Tensor) -> Any:
        return poptorch.for_loop(2, lambda y: y * torch.ones(8, 8).triu()[0], [x])

    with pytest.raises(poptorch.Error, match=r"\[aten::triu\].*within constant expressions"):
        run(looped, X)


def test_a_write_makes_a_constant_depend_on_the_data():
    def forward(x: torch.Tensor) -> Any:
        mask = torch.ones(8, 8)
        mask[torch.tensor([0])] = x[0, :1]
        return mask.tril()

    with pytest.raises(poptorch.Error, match=r"\[aten::tril\]"):
        run(forward, X)


def test_a_kernel_that_cannot_be_traced_fails_at_the_call():
    """Whether or not its result is used."""
    with pytest.raises(poptorch.Error, match=r"Type inference failed for aten::_cummax_helper, part of cummax, .*:\d+"):
        run(lambda x: (torch.cummax(x, 0), x)[1], X)


NORMS = {
    "batch": (lambda: nn.BatchNorm2d(4, affine=False), (2, 4, 3, 3)),
    "batch without statistics": (lambda: nn.BatchNorm1d(4, affine=False, track_running_stats=False), (3, 4)),
    "layer": (lambda: nn.LayerNorm(8, elementwise_affine=False), (2, 4, 8)),
    "group": (lambda: nn.GroupNorm(2, 4, affine=False), (2, 4, 3)),
    "instance": (lambda: nn.InstanceNorm1d(4), (2, 4, 8)),
}


@pytest.mark.parametrize("name", NORMS)
def test_normalisations_need_no_weight(name):
    """Value and gradient are PyTorch's."""
    make, shape = NORMS[name]
    x, weight = torch.randn(shape), torch.full(shape[1:], 2.0)
    net = nn.Sequential()
    net.norm, net.weight = make(), nn.Parameter(weight.clone())
    net.forward = lambda x: poptorch.identity_loss(net.norm(x * net.weight).square(), "mean")
    expected = make()(x * net.weight).square().mean()
    (gradient,) = torch.autograd.grad(expected, net.weight)
    executor = poptorch.trainingModel(net, optimizer=poptorch.optim.SGD(net.parameters(), lr=1.0))
    assert executor(x).item() == pytest.approx(expected.item(), rel=1e-5)
    executor.destroy()
    torch.testing.assert_close(weight - net.weight.detach(), gradient, atol=1e-5, rtol=1e-4)


def test_gelu_has_the_tanh_form():
    """Whatever is asked for."""
    assert torch.allclose(run(nn.GELU(), X), F.gelu(X, approximate="tanh"), atol=1e-7)
    assert not torch.allclose(run(nn.GELU(), X), F.gelu(X), atol=1e-7)


def test_average_pooling_has_no_divisor_of_its_own(caplog):
    pool = nn.AvgPool2d(2, divisor_override=3)
    assert torch.allclose(run(pool, IMAGE), F.avg_pool2d(IMAGE, 2))
    assert caplog.text.count("divisor_override is ignored") == 1


def test_a_doubt_is_warned_of_once(caplog):
    """And the emulator computes PyTorch's result."""
    found = run(lambda x: torch.round(torch.round(x, decimals=1), decimals=1), X)
    assert torch.equal(found, torch.round(X, decimals=1))
    assert caplog.text.count("decimals is ignored") == 1 and __file__ in caplog.text


WHOLE = torch.tensor([[1, 2], [3, 4]], dtype=torch.int32)
TARGETS = torch.tensor([1, 2, 1])


def probabilities(x):
    return x.permute(2, 0, 1).log_softmax(2)


# By the message: doubted cases, certain cases, and their operators.
DOUBTED: Dict[str, Tuple[Any, ...]] = {
    "integers stay integers": (lambda x: torch.exp(x) + x.sqrt(), lambda x: x.float().exp(), WHOLE),
    "no integers of 8 bits": (lambda x: x * 2 + x, lambda x: x * 0.5, WHOLE.to(torch.uint8)),
    "dtype is not applied": (
        lambda x: x.sum(dtype=torch.float16),
        lambda x: x.sum(0, dtype=torch.float32) + (x > 0).sum(dtype=torch.int64) + x.sum(dtype=torch.float64),
        X,
    ),
    "over everything the result has the shape (1,)": (torch.count_nonzero, lambda x: torch.count_nonzero(x, 1), X),
    "at the wrong axes": (
        lambda x: F.avg_pool2d(x, 2, 2, padding=(0, 1)),
        lambda x: F.avg_pool2d(x, 2, 2, padding=1) + F.avg_pool2d(x, 2, 2, (1, 1), count_include_pad=False),
        IMAGE,
    ),
    "one row for each sample": (
        lambda x: F.ctc_loss(probabilities(x), TARGETS.to(x.device), (8, 8), (2, 1)),
        lambda x: F.ctc_loss(probabilities(x), TARGETS.to(x.device).expand(2, 3), (8, 8), (2, 1)),
        X,
    ),
    "it divides by beta": (
        lambda x: F.smooth_l1_loss(x, x * 2, beta=0.0),
        lambda x: F.smooth_l1_loss(x, x * 2, beta=0.1),
        X,
    ),
    "the results differ": (lambda x: F.group_norm(x[0], 2), lambda x: F.group_norm(x, 2), X),
    "is not counted from the end": (
        lambda x: x.take_along_dim(x[:1].argmax(-1, True), -1).index_fill(-1, torch.tensor([0]).to(x.device), 2),
        lambda x: x.take_along_dim(x.argmax(-1, True), -1).index_fill(2, torch.tensor([0]).to(x.device), 2),
        X,
    ),
    "not counted from the end": (lambda x: x[:, [-1]], lambda x: x[:, [3, 0]] + x[:, -1:] + x[:, -1, None], X),
    "this one has another shape": (
        lambda x: (x * 1).__setitem__(x[..., 0] > 0, 1.0),
        lambda x: (x * 1).__setitem__(x > 0, 1.0),
        X,
    ),
}


@pytest.mark.parametrize("words", DOUBTED)
def test_what_the_sources_alone_say_is_doubted(words, caplog):
    """PyTorch's numbers come out, and neighbouring cases are not doubted."""
    doubted, certain, inputs = DOUBTED[words]
    for function, said in ((certain, False), (doubted, True)):
        found, expected = run(function, inputs), function(inputs)
        if expected is not None:
            torch.testing.assert_close(found, expected, check_dtype=False)
        assert (words in caplog.text) is said


@pytest.mark.parametrize("mode", ["reflect", "replicate", "constant"])
def test_only_constant_padding_is_certain_to_have_a_gradient(mode, caplog):
    """That of the inputs needs none."""

    class Padded(nn.Module):
        def __init__(self, first: nn.Module) -> None:
            super().__init__()
            self.first, self.last = first, nn.Conv2d(4, 1, 3, padding=1, padding_mode="zeros")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.mse_loss(self.last(F.pad(self.first(x), (1, 1, 1, 1), mode=mode)), torch.zeros(1, 1, 10, 10))

    for first, doubted in ((nn.Identity(), False), (nn.Conv2d(4, 4, 1), mode != "constant")):
        net = Padded(first)
        executor = poptorch.trainingModel(net, optimizer=poptorch.optim.SGD(net.parameters(), lr=0.1))
        executor(IMAGE)
        executor.destroy()
        assert ("only constant padding has a gradient" in caplog.text) is doubted


def test_fractions_of_a_range_are_doubted_in_a_body(caplog):
    """Outside of one they are computed while compiling."""
    run(lambda x: x + torch.arange(0, 2, 0.25), X)
    assert "cut to integers" not in caplog.text
    run(lambda x: poptorch.for_loop(2, lambda y: y + torch.arange(0, 2, 0.25), [x]), X)
    assert "cut to integers" in caplog.text


def test_bags_of_a_frozen_weight_are_doubted(caplog):
    """They are another kind then, in training."""
    for frozen in (False, True):
        net = Embeds(nn.Sequential(nn.EmbeddingBag(4, 2), nn.Linear(2, 2)))
        net.layer[0].weight.requires_grad_(not frozen)
        executor = poptorch.trainingModel(net, optimizer=poptorch.optim.SGD(net.layer[1].parameters(), lr=1.0))
        executor(IDS)
        executor.destroy()
        assert ("a weight that is not trained" in caplog.text) is frozen


WRITES = {
    "a slice": lambda x: x[::2].add_(1),
    "a slice of a slice": lambda x: x[::2][0].add_(1),
    "an assignment within": lambda x: x[..., ::2].__setitem__(0, 1),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_write_through_a_view_with_a_step_is_refused(name):
    with pytest.raises(poptorch.Error, match="slices with step size other than 1"):
        run(lambda x: WRITES[name](x * 1), X)


def test_a_write_through_a_transposed_view_is_doubted(caplog):
    """One through a slice is not, nor one into a transposed tensor that was computed with."""

    def forward(x: torch.Tensor, turned: bool) -> torch.Tensor:
        made = x * 1
        (made.transpose(0, 1) if turned else made[0]).mul_(2)
        (x.transpose(0, 1) + 1).mul_(2)
        return made

    run(lambda x: forward(x, False), X)
    assert "changes the view only" not in caplog.text
    assert torch.equal(run(lambda x: forward(x, True), X), 2 * X)
    assert "changes the view only" in caplog.text


def test_a_write_into_a_slice_of_constants_is_doubted(caplog):
    def forward(x: torch.Tensor, indices: bool) -> torch.Tensor:
        made = torch.zeros(2, 4, 8)
        made[torch.tensor([0]) if indices else 0] = x[0]
        return made

    expected = torch.stack([X[0], torch.zeros(4, 8)])
    assert torch.equal(run(lambda x: forward(x, True), X), expected)
    assert "such a write is lost" not in caplog.text
    assert torch.equal(run(lambda x: forward(x, False), X), expected)
    assert "such a write is lost" in caplog.text


def test_every_listed_name_works():
    """The list and the lookup agree, and no name is on both sides."""
    for names in operators.listed().values():
        for name in names:
            assert table.compiles(table.undecorated(f"torch.{name}")), name
