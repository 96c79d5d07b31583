"""Arithmetic over lists, with float16 storage."""

from __future__ import annotations

import math
from typing import List

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ignite_ipu.emulator.optim.device import foreach
from ignite_ipu.torch_names import lists

values = st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=5)


@given(state=values, new=values, keep=st.floats(0, 1), gain=st.floats(-2, 2))
def test_what_is_stored_in_float16_is_rounded_once(
    state: List[float], new: List[float], keep: float, gain: float
) -> None:
    """The result is the float16 nearest to the float32 result, and arithmetic goes on with it."""
    size = min(len(state), len(new))
    kept = torch.tensor(state[:size]).half()
    fresh = torch.tensor(new[:size])
    expected = (fresh * gain + kept.float() * keep).half()
    result = foreach.decay([kept], keep, [fresh], gain, foreach.store_nearest)
    torch.testing.assert_close(kept, expected, rtol=1e-3, atol=1e-6)
    assert result[0].dtype == torch.float32
    assert torch.equal(result[0], kept.float())


def test_storing_works_without_a_copy_over_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.0 has no `_foreach_copy_`."""
    monkeypatch.setattr(lists, "copy_", lists._one_by_one("copy_"))
    half, source = [torch.ones(3).half()], [torch.tensor([1e-8, 1 / 3, -70000.0])]
    foreach.store_nearest(half, source)
    assert torch.equal(half[0], source[0].half())


def test_another_way_of_rounding_can_be_chosen() -> None:
    """Everything float16 goes through the given store."""
    seen = []

    def store(to: foreach.Tensors, values: foreach.Tensors) -> None:
        seen.append([value.clone() for value in values])
        foreach.store_nearest(to, [value.floor() for value in values])

    weights = [torch.tensor([2.0]).half()]
    foreach.move(weights, [torch.tensor([0.25])], -1.0, 1.0, store)
    assert seen == [[torch.tensor([1.75])]]
    assert weights[0].item() == 1.0
    state = [torch.tensor([3.0]).half()]
    assert foreach.average_square(state, 0.5, [torch.tensor([2.0])], store)[0].item() == 3.0
    assert foreach.average(state, 0.5, [torch.tensor([2.0])], store)[0].item() == 2.0


def test_norms_of_float16_do_not_overflow() -> None:
    big = torch.full((100,), 60000.0).half()
    assert foreach.norms([big], grouped=False)[0].item() == pytest.approx(10 * 60000.0, rel=1e-3)


def test_norms_can_be_taken_for_each_slice() -> None:
    tensor = torch.tensor([[3.0, 4.0], [6.0, 8.0]])
    (found,) = foreach.norms([tensor], grouped=True)
    assert found.tolist() == [[5.0], [10.0]]
    (scalars,) = foreach.norms([torch.tensor([-2.0, 3.0])], grouped=True)
    assert scalars.tolist() == [2.0, 3.0]


def test_the_global_norm_spans_lists_of_different_scale() -> None:
    found = foreach.global_norm([([torch.tensor([3.0]), torch.tensor([[4.0]])], 1.0), ([torch.tensor([24.0])], 2.0)])
    assert float(found) == pytest.approx(math.sqrt(9 + 16 + 144))
