"""Tensors in the memory order of others, against PyTorch's own."""

from __future__ import annotations

import pytest
import torch

from ignite_ipu.program.tensors.strides import with_strides

BASE = torch.arange(120.0).reshape(2, 3, 4, 5)
VIEWS = {
    "contiguous": BASE,
    "transposed": BASE.transpose(1, 2),
    "channels last": BASE.to(memory_format=torch.channels_last),
    "expanded": BASE[:, :1].expand(2, 3, 4, 5),
    "sliced": BASE[..., 1:3],
    "transposed slice": BASE[:, 1:].permute(3, 0, 2, 1),
    "single": BASE[:1, :1].transpose(0, 1),
    "windows": BASE.flatten().unfold(0, 4, 2),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_random_numbers_like_a_result_are_those_like_pytorch_s(view):
    result = with_strides(view.contiguous(), view.shape, view.stride())
    assert torch.equal(result, view)
    drawn = []
    for tensor in (view, result):
        torch.manual_seed(3)
        drawn.append(torch.randn_like(tensor))
    assert torch.equal(*drawn)
    if view.dim() == 4:
        assert result.is_contiguous() == view.is_contiguous()


def test_fewer_rows_have_the_same_order():
    view = VIEWS["channels last"]
    result = with_strides(view[:1].contiguous(), view.shape, view.stride())
    assert result.is_contiguous(memory_format=torch.channels_last)
