"""Tensors are found by the memory that they have, and others in the process are no hindrance."""

from __future__ import annotations

import torch

from ignite_ipu.program.tensors.sharing import address_of, overlapping, tensors_at
from ignite_ipu.torch_names.tensors import make_wrapper_subclass


def test_views_arrays_and_detached_tensors_have_the_memory_of_their_tensor():
    weight = torch.zeros(4, 2)
    array, row = weight.detach().numpy(), weight[1]
    found = tensors_at({address_of(weight)}, {id(weight)})
    assert len(found) == 2 and any(each is row for each in found)
    assert all(each.numpy().base is not None for each in found) and array.shape == (4, 2)


def test_tensors_without_memory_have_no_address():
    """Of another device, sparse, and those of a function that vmap calls."""
    found = [torch.zeros(2, device="meta"), torch.eye(2).to_sparse()]

    def within(x):
        found.append(x)
        assert address_of(x) == 0
        return 2 * x

    torch.func.vmap(within)(torch.ones(3, 2))
    assert len(found) == 3 and {address_of(each) for each in found} == {0}


def test_tensors_without_memory_share_none_and_are_asked_nothing():
    """A question would have a deferred tensor computed."""

    class Deferred(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *given):
            raise AssertionError("it was asked")

        __torch_dispatch__ = __torch_function__

    weight = torch.zeros(4, 2)
    deferred = make_wrapper_subclass(Deferred, (4, 2))
    assert list(overlapping([("a", deferred), ("b", weight), ("c", weight[1]), ("d", deferred)])) == [("c", "b")]
