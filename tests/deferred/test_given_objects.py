"""Objects that a model is given: the tensors in them are inputs of the device, as in lists and dataclasses."""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass
from typing import Any, Callable, List, Optional

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu.deferred import CaptureError, capture_model, capture_optimizer
from ignite_ipu.deferred.graph.structure import leaves_in

X = torch.randn(6, 8, 4, generator=torch.Generator().manual_seed(1))
Y = (X[:, :, 0] > 0).long()


class Images:
    """Images with a mask of their padding, as models for detection get them."""

    def __init__(self, tensors: torch.Tensor, mask: Optional[torch.Tensor], name: str = "images") -> None:
        self.tensors, self.mask, self.name = tensors, mask, name

    def decompose(self) -> Any:
        return self.tensors, self.mask


class Slotted:
    __slots__ = ("extra", "mask", "tensors")

    def __init__(self, tensors: torch.Tensor, mask: Optional[torch.Tensor]) -> None:
        self.tensors, self.mask = tensors, mask


@dataclass
class Fields:
    tensors: torch.Tensor
    mask: Optional[torch.Tensor]


class AttrDict(dict):  # type: ignore[type-arg]
    """A dictionary that is the table of its own attributes, as models get for batches."""

    def __init__(self, **entries: Any) -> None:
        super().__init__(entries)
        self.__dict__ = self


class Marked(dict):  # type: ignore[type-arg]
    """A dictionary with attributes that are no entries, and one that is."""

    def __init__(self, tensors: torch.Tensor, mask: torch.Tensor) -> None:
        super().__init__(tensors=tensors)
        self.tensors, self.mask = self["tensors"], mask


class Encoding(UserDict):  # type: ignore[type-arg]
    """A mapping around a dictionary, as tokenizers return."""

    tensors = property(lambda self: self.data["tensors"])
    mask = property(lambda self: self.data["mask"])


def with_mask(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor that has others as attributes."""
    padded = x.clone()
    padded.mask = mask_of(x)  # type: ignore[attr-defined]
    padded.tensors = x * 2  # type: ignore[attr-defined]
    return padded


class Net(nn.Module):
    def __init__(self, change: Callable[[Any], Any] = lambda images: None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.change = nn.Linear(4, 2), change

    def forward(self, images: Any) -> torch.Tensor:
        images = images["images"][0] if isinstance(images, dict) else images
        self.change(images)
        hidden = images.tensors if images.mask is None else images.tensors * images.mask
        return self.layer(hidden)  # type: ignore[no-any-return]


def mask_of(x: torch.Tensor) -> torch.Tensor:
    return (x > -1).float()


def trained(make: Callable[[torch.Tensor], Any], captures: bool) -> List[float]:
    """Return the losses of some updates and evaluations."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    if captures:
        capture_model(model)
        capture_optimizer(optimizer)
    seen = []
    for x, y in zip(X[:4], Y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(make(x)), y)
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    model.eval()
    with torch.no_grad():
        return [*seen, *(F.cross_entropy(model(make(x)), y).item() for x, y in zip(X[4:], Y[4:]))]


@pytest.mark.parametrize(
    "make",
    [
        lambda x: Images(x, mask_of(x)),
        lambda x: Images(x, None),
        lambda x: Slotted(x, mask_of(x)),
        lambda x: {"images": [Images(x, mask_of(x))]},
        lambda x: {"images": [AttrDict(tensors=x, mask=mask_of(x))]},
        lambda x: {"images": [Marked(x, mask_of(x))]},
        lambda x: Encoding(tensors=x, mask=mask_of(x)),
        with_mask,
    ],
    ids=["of a class", "without a part", "slots", "in a list", "attrdict", "marked", "mapping", "tensor"],
)
def test_their_tensors_are_inputs(make: Any) -> None:
    assert trained(make, captures=True) == pytest.approx(trained(make, captures=False), rel=1e-4)


def test_parts_that_several_objects_share_are_looked_at_once() -> None:
    """Each level holds the one below twice: without a record of those seen, the tensor would be asked for often."""
    asked = 0

    class Counted:
        def __init__(self, below: Any) -> None:
            self.first = self.second = below

        def __getattribute__(self, name: str) -> Any:
            nonlocal asked
            asked += name == "__dict__"
            return object.__getattribute__(self, name)

    level = Counted(1)
    for _ in range(12):
        level = Counted(level)
    assert not leaves_in([level, X])[1:]
    assert asked < 500  # 2 ** 12 else


def replaces(images: Any) -> None:
    images.tensors = images.tensors * 2


def adds(images: Any) -> None:
    images.extra = images.tensors * 2


def call(model: Net, images: Any) -> None:
    if model.training:
        F.cross_entropy(model(images), Y[0]).backward()
    else:
        with torch.no_grad():
            model(images)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("make", "change"),
    [(Images, replaces), (Images, adds), (Slotted, replaces), (Slotted, adds), (Fields, replaces)],
)
def test_a_forward_that_writes_into_them_is_refused(make: Any, change: Any, training: bool) -> None:
    model = Net(change).train(training)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    capture_model(model)
    capture_optimizer(optimizer)
    with pytest.raises(CaptureError, match=r"The forward of Net, called at .*, changes an object that it is given"):
        call(model, make(X[0], None))
