"""Values that forward computes from shapes, Python values and buffers that nothing writes: code reads them."""

from __future__ import annotations

from typing import Any, Callable, Dict, List

import pytest
import torch
from torch import nn

from ignite_ipu import ipu_prepare
from ignite_ipu.deferred import captured
from ignite_ipu.errors import SessionError

Forward = Callable[[Any, torch.Tensor], torch.Tensor]


def grouped(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Join parts of equal sizes, which a tensor of sizes counts."""
    parts = [x, x, x[:, :2]]
    counts = torch.unique_consecutive(torch.tensor([each.shape[-1] for each in parts]), return_counts=True)[1]
    start, found = 0, []
    for end in torch.cumsum(counts, 0):
        found.append(torch.cat(parts[start:end]).mean(1))
        start = end
    return torch.cat(found)


def begun_empty(self: Any, x: torch.Tensor) -> torch.Tensor:
    kept, others = torch.tensor([], dtype=x.dtype), x.new_zeros(len(x), 0)
    for _ in range(2):
        kept = torch.cat([kept, self.layer(x)], dim=-1)
        others = torch.cat((others, kept), 1)
    return kept.sum(1) + others.mean(1)


def filled(self: Any, x: torch.Tensor) -> torch.Tensor:
    weights = torch.zeros(3)
    weights[0] = 2
    weights[1:] += 1
    first, *rest = weights.tolist()
    return first * x + sum(rest)


def filled_with_inputs(self: Any, x: torch.Tensor) -> torch.Tensor:
    weights = torch.arange(3.0)
    weights[0] = x.mean()
    return self.layer(x) * weights


def chosen(self: Any, x: torch.Tensor) -> torch.Tensor:
    sizes = torch.tensor([len(x), 4], device=x.device)
    return x * 2 if sizes[0] > 2 and (sizes == torch.tensor([len(x), 4])).all() else x


FORWARDS: Dict[str, Forward] = {
    "axes in a list": lambda self, x: self.layer(x).sum(dim=torch.arange(1, x.dim()).tolist()),
    "a number": lambda self, x: x * float(torch.tensor([2, 3])[0]) + torch.full((1,), 3, device=x.device).item(),
    "an array": lambda self, x: x * float(torch.linspace(0, 1, 5).numpy().sum()),
    "a choice": chosen,
    "a loop": lambda self, x: torch.stack([int(i) * x[:, i : i + 1] for i in torch.arange(3)]),
    "bounds": lambda self, x: self.layer(x)[torch.tensor([1, 3])[0] : torch.tensor(4)],
    "sizes": lambda self, x: x.view(len(x), torch.tensor(3), -1).expand(-1, 3, torch.tensor(2)),
    "groups": grouped,
    "begun empty": begun_empty,
    "filled": filled,
    "filled with inputs": filled_with_inputs,
    "a mask": lambda self, x: self.layer(x)[torch.arange(len(x)) % 2 == 0],
    "places": lambda self, x: self.layer(x)[:, torch.ones(3, 3, device=x.device).triu(1).nonzero()[:, 1]],
    "counts": lambda self, x: torch.repeat_interleave(self.layer(x), torch.tensor([1, 2, 1]), dim=1),
    "like an input": lambda self, x: x * torch.ones_like(x).cumsum(1)[0, -1].item(),
    "a tensor of the host": lambda self, x: x * self.table[0].item() + self.table.to(x.device).sum().item(),
    "a flag": lambda self, x: x * 2 if self.ready else x,
    "a flag in floats": lambda self, x: x.view(-1, int(self.level.sum()), 3) if not self.ready.item() else x * 2,
}


class Model(nn.Module):
    def __init__(self, forward: Forward) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.table, self.kind = nn.Linear(3, 3), torch.tensor([2.0, 1.0]), forward
        self.register_buffer("ready", torch.tensor([True]))
        self.register_buffer("level", torch.tensor([1.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.kind(self, x)


def prepared(forward: Forward) -> Any:
    return ipu_prepare(Model(forward).eval())


@pytest.mark.parametrize("name", FORWARDS)
def test_constants_are_read_while_a_program_is_traced(name: str) -> None:
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(prepared(FORWARDS[name])(x), Model(FORWARDS[name])(x))


def test_random_numbers_are_no_constants() -> None:
    """They are drawn in each call, and reading one is refused."""
    model = prepared(lambda self, x: x + torch.rand(3))
    with torch.no_grad():
        assert not torch.equal(model(torch.zeros(2, 3)), model(torch.zeros(2, 3)))
        with pytest.raises(Exception, match="only supported in eager mode"):
            prepared(lambda self, x: x * torch.rand(3).sum().item())(torch.zeros(2, 3))


@pytest.mark.parametrize("name", ["ready", "level"])
def test_another_value_in_a_buffer_that_is_read_is_another_program(name: str) -> None:
    model = prepared(lambda self, x: x * 3 if getattr(self, name) else x)
    x, seen = torch.ones(2, 3), []
    with torch.no_grad():
        for value in (1, 0, 1, 1):
            getattr(model, name).fill_(value)
            seen.append(model(x).mean().item())
    assert seen == [3, 1, 3, 3] and captured(model) is not None


def test_a_value_that_training_has_written_decides_in_evaluation() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.level += 1
        elif self.level > 2:
            return self.layer(x) * 2
        return self.layer(x)

    def results(captures: bool) -> List[float]:
        model = Model(forward)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if captures:
            ipu_prepare(optimizer, model)
        seen = []
        for _ in range(3):
            optimizer.zero_grad()
            model.train()(torch.ones(2, 3)).square().mean().backward()
            optimizer.step()
            with torch.no_grad():
                seen.append(model.eval()(torch.ones(2, 3)).sum().item())
        return seen

    assert results(captures=True) == pytest.approx(results(captures=False), rel=1e-5)


def test_a_buffer_that_forward_reads_and_writes_is_refused() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.level += 1
        return x * 2 if self.level > 2 else x

    with torch.no_grad(), pytest.raises(
        SessionError, match=r"py:\d+: .* needs the value of a tensor, .*of the buffer .*level, which forward writes"
    ):
        prepared(forward)(torch.ones(2, 3))
