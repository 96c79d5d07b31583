"""Values of the step that a loop stores where PyTorch reads tensors: buffers, attributes, hyper-parameters."""

from __future__ import annotations

import inspect
from typing import Any, Callable, List, Tuple

import pytest
import torch
from torch import nn

from ignite_ipu import IPUConfig, ipu_prepare
from ignite_ipu.errors import CaptureError
from ignite_ipu.torch_names.tensors import sharers_of

XS = torch.randn(5, 8, 4, generator=torch.Generator().manual_seed(4))
Store = Callable[[Any, Any, torch.Tensor], None]


class Stateful(nn.Module):
    """A layer, and a buffer and two attributes that its forward adds."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(3))
        self.centre, self.state = torch.zeros(3), torch.zeros(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.layer(x) + self.mean + self.centre + self.state
        return output


def buffer_replaced(model: Any, output: torch.Tensor, x: torch.Tensor) -> None:
    model.mean = model.mean * 0.9 + output.detach()[0] * 0.1


def buffer_replaced_by_a_part(model: Any, output: torch.Tensor, x: torch.Tensor) -> None:
    model.mean = model.layer(x).detach()[0] * 0.1


def buffer_replaced_by_another_call(model: Any, output: torch.Tensor, x: torch.Tensor) -> None:
    model.mean = model(x).detach()[0] * 0.1


def attribute_written(model: Any, output: torch.Tensor, x: torch.Tensor) -> None:
    model.centre[:] = model(x).detach().mean(0)


def attribute_averaged(model: Any, output: torch.Tensor, x: torch.Tensor) -> None:
    model.centre.mul_(0.9).add_(output.detach().mean(0), alpha=0.1)


def made(update: str) -> Tuple[Any, torch.optim.Optimizer]:
    """Return a model and its optimizer, which are captured unless the updates are eager."""
    torch.manual_seed(0)
    model = Stateful()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if update != "eager":
        ipu_prepare(model, optimizer, config=IPUConfig(update=update))
    return model, optimizer


def states(update: str, store: Store) -> List[Any]:
    """Return losses, buffers and weights of a loop that stores a value after each step."""
    model, optimizer = made(update)
    found: List[Any] = []
    for x in XS:
        output = model(x)
        loss = output.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        store(model, output, x)
        found += [loss.item(), model.mean.clone(), model.centre.clone()]
    return [*found, {name: each.detach().clone() for name, each in model.state_dict().items()}]


@pytest.mark.parametrize("update", ["device", "auto", "host"])
@pytest.mark.parametrize(
    "store",
    [
        *(buffer_replaced, buffer_replaced_by_a_part, buffer_replaced_by_another_call),
        *(attribute_written, attribute_averaged),
    ],
)
def test_the_next_call_has_the_values(store: Store, update: str) -> None:
    torch.testing.assert_close(states(update, store), states("eager", store), rtol=1e-4, atol=1e-5)


def test_a_buffer_through_which_gradients_flow_is_refused() -> None:
    model: Any = Stateful()
    ipu_prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(CaptureError, match="as a buffer, through which gradients flow"):
        model.mean = model(XS[0]).mean(0)


def test_an_attribute_whose_value_is_still_to_come_is_refused() -> None:
    """A program has the tensors that forward reads from outside as constants."""
    model: Any = Stateful()
    ipu_prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model.state = model(XS[0]).mean(0)
    with pytest.raises(CaptureError, match=r"reads a tensor of shape \(3,\) from outside"):
        model(XS[1])


def learning_rates(update: str, late: bool) -> List[float]:
    """Return the losses of a loop whose learning rate is a part of its loss, from the start or `late`."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if update != "eager":
        ipu_prepare(model, optimizer, config=IPUConfig(update=update))
    losses: List[float] = []
    for number, x in enumerate(XS):
        loss = model(x).square().mean()
        loss.backward()
        if not late or number == 3:
            optimizer.param_groups[0]["lr"] = 0.1 * loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.filterwarnings("ignore:The optimizer's lr is a tensor")
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("update", ["auto", "host"])
def test_a_learning_rate_that_comes_with_the_update(update: str, late: bool) -> None:
    assert learning_rates(update, late) == pytest.approx(learning_rates("eager", late), rel=1e-4)


@pytest.mark.filterwarnings("ignore:The optimizer's lr is a tensor")
def test_the_device_refuses_a_learning_rate_that_comes_with_the_update() -> None:
    with pytest.raises(CaptureError, match="reads a value that comes with it"):
        learning_rates("device", late=False)


@pytest.mark.parametrize("update", ["device", "auto", "host"])
def test_the_name_of_a_type_is_that_of_the_host(update: str) -> None:
    model = nn.Linear(4, 3)
    ipu_prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), config=IPUConfig(update=update))
    output = model(XS[0])
    assert output.type() == "torch.FloatTensor"
    assert torch.ones(3, dtype=torch.int64).type(output.type()).dtype == torch.float32


class Logging(Stateful):
    """A model whose forward names a history for its length, and reads it in evaluation alone."""

    def __init__(self) -> None:
        super().__init__()
        self.history = torch.zeros(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.layer(x) if self.training else self.layer(x) + self.history.sum()
        return output if len(self.history) == 5 else -output


@pytest.mark.skipif(sharers_of(XS) is None, reason="this PyTorch does not count who shares memory")
@pytest.mark.parametrize("update", ["device", "auto", "host"])
@pytest.mark.parametrize("when", ["before backward()", "before the step", "after the step"])
def test_a_history_of_losses_that_forward_names(when: str, update: str) -> None:
    """The values are written when they are known, at the latest before the next call."""
    seen: List[List[Any]] = []
    for prepared in (False, True):
        torch.manual_seed(0)
        model: Any = Logging()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if prepared:
            ipu_prepare(model, optimizer, config=IPUConfig(update=update))
        found: List[Any] = []
        for number, x in enumerate(XS):
            loss = model(x).square().mean()
            for now in ("before backward()", "before the step", "after the step"):
                if now == when:
                    model.history[number] = loss.detach()
                if now == "before backward()":
                    loss.backward()
                elif now == "before the step":
                    optimizer.step()
            optimizer.zero_grad()
            model.eval()
            with torch.no_grad():
                found.append(model(x).sum().item())
            model.train()
        seen.append([*found, model.history.clone()])
    torch.testing.assert_close(seen[1], seen[0], rtol=1e-4, atol=1e-5)


def frozen_and_made_a_buffer(value: torch.Tensor) -> torch.Tensor:
    value = value.requires_grad_(False)
    value.requires_grad = False
    return nn.Buffer(value) if hasattr(nn, "Buffer") else value


def added_to_several_tensors(value: torch.Tensor) -> torch.Tensor:
    others = [torch.ones(8, 3), torch.ones(3)]
    torch._foreach_add_(others, [value, value[0]])
    return others[0] + others[1]


@pytest.mark.parametrize("store", [frozen_and_made_a_buffer, added_to_several_tensors])
def test_a_value_is_stored_before_the_step(store: Callable[[torch.Tensor], torch.Tensor]) -> None:
    found = []
    for update in ("eager", "device"):
        model, optimizer = made(update)
        stored = []
        for x in XS[:3]:
            optimizer.zero_grad()
            output = model(x)
            output.pow(2).mean().backward()
            stored.append(store(output.detach() * 2))
            optimizer.step()
        found.append((torch.cat(stored).tolist(), model.state_dict()))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.skipif(
    "assign" not in inspect.signature(nn.Module.load_state_dict).parameters, reason="this PyTorch copies what it loads"
)
def test_a_state_with_values_of_the_step_is_assigned() -> None:
    """They are read before the first tensor of the model is replaced."""
    found = []
    for update in ("eager", "device"):
        model, _ = made(update)
        output = model(XS[0])
        state = model.state_dict()
        given = [output.detach()[:, :1] * torch.ones(4), output.detach().mean(0)]
        state["layer.weight"], state["mean"] = given[0][:3], given[1]
        model.load_state_dict(state, assign=True)
        assert state["mean"] is given[1]
        found.append(model.state_dict())
    torch.testing.assert_close(found[1], found[0])
