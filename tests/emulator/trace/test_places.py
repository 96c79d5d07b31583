"""Messages name the line of the model, or its module, and the way out."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import ignite_ipu.emulator as poptorch

X = torch.randn(2, 5, 8)
MASK = nn.Transformer.generate_square_subsequent_mask(5)
# Whether all of PyTorch's layers take a flag for causal masks.
IS_TOLD = hasattr(nn.modules.transformer, "_detect_is_causal_mask")
HERE = re.escape(__file__) + r":\d+"


class Calls(nn.Module):
    """Calls its argument, from a line of its own."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs)


def layers(kind: str) -> nn.Module:
    if kind == "Transformer":
        return nn.Transformer(8, 2, 1, 1, 16, 0.0, batch_first=True).eval()
    layer = getattr(nn, f"Transformer{kind}Layer")(8, 2, 16, 0.0, batch_first=True)
    return getattr(nn, f"Transformer{kind}")(layer, 1).eval()


@pytest.mark.parametrize("read", [bool, float, int, torch.Tensor.item, torch.Tensor.tolist])
def test_a_read_is_named_with_its_line(read):
    with pytest.raises(poptorch.Error, match=rf"only supported in eager mode.*called at {HERE}\..*torch\.where"):
        poptorch.inferenceModel(Calls(lambda x: x * read(x.sum())))(X)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: x.numpy(), "Illegal move to CPU"),
        (lambda x: x.nonzero(), "aten::nonzero are unsupported"),
        (lambda x: x * torch.ones(8, device="cpu"), "Expected an IPU tensor"),
        (torch.lgamma, "lgamma is used"),
    ],
)
def test_other_refusals_are_named_with_the_line(function, words):
    with pytest.raises(poptorch.Error, match=rf"{words}.* at {HERE}"):
        poptorch.inferenceModel(Calls(function))(X)


def test_a_layer_that_reads_is_named_with_the_line_that_calls_it():
    model = Calls(nn.BatchNorm1d(5, momentum=None))
    place = rf"BatchNorm1d\.forward of torch \(nn/modules/batchnorm\.py:\d+\), in the module 'inner' .*, at {HERE}"
    with pytest.raises(poptorch.Error, match=place + r".*give it a momentum"):
        poptorch.trainingModel(model)(X)


def test_a_layer_that_nothing_of_the_models_own_calls_is_named_by_itself():
    """Not with the line that calls the executor."""
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(5, momentum=None))
    with pytest.raises(poptorch.Error, match=r"in the module '1' \(BatchNorm1d\)\. With momentum=None") as error:
        poptorch.trainingModel(model)(X)
    assert __file__ not in str(error.value)
    with pytest.raises(poptorch.Error, match=r"lgamma is used in the module '0\.inner' \(Lgamma\)"):
        poptorch.inferenceModel(nn.Sequential(Calls(Lgamma())), options_without(__file__))(X)


@pytest.mark.skipif(not IS_TOLD, reason="PyTorch 2.1 brought the function, and the arguments of nn.Transformer")
@pytest.mark.parametrize(
    ("kind", "masks", "remedy"),
    [
        ("Encoder", {"mask": MASK}, {"is_causal": True}),
        ("Encoder", {"mask": MASK}, {"is_causal": False}),
        ("Decoder", {"tgt_mask": MASK}, {"tgt_is_causal": True}),
        ("Transformer", {"tgt_mask": MASK}, {"tgt_is_causal": True}),
        ("Transformer", {"src_mask": MASK}, {"src_is_causal": True}),
    ],
)
def test_pytorchs_look_at_masks_is_named_and_how_to_do_without(kind, masks, remedy):
    model = layers(kind)
    inputs = (X,) if kind == "Encoder" else (X, X)
    (argument,) = remedy
    words = rf"in _detect_is_causal_mask of torch .*, in .*{kind}.*{argument}"
    with pytest.raises(poptorch.Error, match=words):
        poptorch.inferenceModel(model)(*inputs, **masks)
    found = poptorch.inferenceModel(model)(*inputs, **masks, **remedy)
    torch.testing.assert_close(found, model(*inputs, **masks).detach())


@pytest.mark.skipif(IS_TOLD, reason="PyTorch 2.0 looks in the encoder itself, and at its mask alone")
@pytest.mark.parametrize("is_causal", [False, True])
def test_pytorchs_earlier_look_at_masks_is_named_too(is_causal):
    encoder, whole = layers("Encoder"), layers("Transformer")
    words = r"in TransformerEncoder\.forward of torch .*pass is_causal=.*call its encoder so and then its decoder"
    with pytest.raises(poptorch.Error, match=words):
        poptorch.inferenceModel(encoder)(X, mask=MASK)
    with pytest.raises(poptorch.Error, match=words):
        poptorch.inferenceModel(whole)(X, X, src_mask=MASK)
    found = poptorch.inferenceModel(encoder)(X, mask=MASK, is_causal=is_causal)
    torch.testing.assert_close(found, encoder(X, mask=MASK).detach())
    parts = Calls(lambda x: whole.decoder(x, whole.encoder(x, mask=MASK.to(x.device), is_causal=is_causal)))
    parts.whole = whole
    torch.testing.assert_close(poptorch.inferenceModel(parts.eval())(X), whole(X, X, src_mask=MASK).detach())


class Lgamma(nn.Module):
    def forward(self, x):
        return torch.lgamma(x)


def options_without(file):
    """Return options by which a file is not the user's code."""
    options = poptorch.Options()
    options.appendToLocationExcludes(file)
    return options
