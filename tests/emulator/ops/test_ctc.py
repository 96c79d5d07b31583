"""The beam search decoder against the sum over all alignments."""

from __future__ import annotations

import itertools
import math
from typing import Dict, List, Tuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import ignite_ipu.emulator as poptorch


class Decodes(nn.Module):
    def __init__(self, **arguments: int) -> None:
        super().__init__()
        self.arguments = arguments

    def forward(self, probs: torch.Tensor, lengths: torch.Tensor) -> List[torch.Tensor]:
        return poptorch.ctc_beam_search_decoder(probs, lengths, **self.arguments)


def decode(probs: torch.Tensor, lengths: List[int], **arguments: int) -> List[torch.Tensor]:
    # The batch is the second dimension of probs: one device iteration leaves both inputs whole.
    model = poptorch.inferenceModel(Decodes(**arguments))
    result = model(probs, torch.tensor(lengths, dtype=torch.int32))
    model.destroy()
    return result


def likelihoods(probs: torch.Tensor, blank: int) -> Dict[Tuple[int, ...], float]:
    """Add up the probabilities of all alignments of every label sequence."""
    found: Dict[Tuple[int, ...], float] = {}
    for alignment in itertools.product(range(probs.shape[1]), repeat=probs.shape[0]):
        labels = tuple(label for label, _ in itertools.groupby(alignment) if label != blank)
        probability = math.exp(sum(probs[time, label].item() for time, label in enumerate(alignment)))
        found[labels] = found.get(labels, 0.0) + probability
    return found


@given(st.integers(1, 5), st.integers(1, 3), st.integers(0, 2), st.integers(1, 4), st.integers(0, 2**31))
def test_a_wide_beam_finds_the_likeliest_sequences(times, classes, blank, paths, seed):
    """With room for all sequences the search is exact: probabilities, order, labels, lengths and filling."""
    classes += 1
    blank %= classes
    generator = torch.Generator().manual_seed(seed)
    probs = torch.randn(times, 2, classes, generator=generator).log_softmax(2)
    lengths = [times, max(1, times - 1)]
    scores, counts, labels = decode(probs, lengths, blank=blank, beam_width=400, top_paths=paths)
    assert (scores.shape, counts.shape, labels.shape) == ((2, paths), (2, paths), (2, paths, times))
    for example in range(2):
        expected = likelihoods(probs[: lengths[example], example], blank)
        ranked = sorted(expected.values(), reverse=True)[:paths]
        for place, probability in enumerate(ranked):
            count = counts[example, place].item()
            sequence = tuple(labels[example, place, :count].tolist())
            assert math.exp(scores[example, place]) == pytest.approx(probability, rel=1e-4)
            assert expected[sequence] == pytest.approx(probability, rel=1e-4)
            assert labels[example, place, count:].eq(blank).all()
        assert scores[example, len(ranked) :].isinf().all()


def test_a_narrow_beam_follows_the_best_only():
    """Width 1 loses a sequence whose alignments are many but each unlikely."""
    probs = torch.tensor([[0.6, 0.4], [0.6, 0.4]]).log().unsqueeze(1)
    # Blank, blank has 0.36; the label's alignments together 0.64.
    assert decode(probs, [2], beam_width=10)[1].item() == 1
    assert decode(probs, [2], beam_width=1)[1].item() == 0


def test_on_the_host_it_gives_zeros_of_the_right_shapes():
    outputs = poptorch.ctc_beam_search_decoder(torch.zeros(5, 2, 3), torch.tensor([5, 5]), top_paths=4)
    assert [tuple(output.shape) for output in outputs] == [(2, 4), (2, 4), (2, 4, 5)]
    assert not any(output.any() for output in outputs)


def test_arguments():
    lengths = torch.tensor([5])
    with pytest.raises(poptorch.Error, match=r"torch\.tensor as probs"):
        poptorch.ctc_beam_search_decoder([0.0], lengths)
    with pytest.raises(poptorch.Error, match=r"torch\.tensor as lengths"):
        poptorch.ctc_beam_search_decoder(torch.zeros(5, 1, 3), [5])
    with pytest.raises(poptorch.Error, match="dimensions time, batch and class"):
        poptorch.ctc_beam_search_decoder(torch.zeros(5, 3), lengths)
    with pytest.raises(poptorch.Error, match="blank must be one of"):
        decode(torch.zeros(5, 1, 3), [5], blank=3)
    with pytest.raises(poptorch.Error, match="between 1 and beam_width"):
        decode(torch.zeros(5, 1, 3), [5], beam_width=2, top_paths=3)
