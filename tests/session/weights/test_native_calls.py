"""C++ code that reads tensors without `__torch_function__` gets the newest weights, and its writes count."""

from __future__ import annotations

import copy
import gc
import io
from typing import Any, Callable, Dict, List

import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch import nn
from torch import tensor as imported_tensor
from torch.utils.dlpack import from_dlpack, to_dlpack

from ignite_ipu import IPUConfig, ipu_prepare

X = torch.randn(4, 6, 4, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 1, 0, 2])
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{words}")
    for words in (
        "`torch.jit",
        "Sparse invariant checks",
        "torch.asarray",
        "__array_wrap__ must",
        "To copy construct from a tensor",
    )
]
every_update = pytest.mark.parametrize("update", ["auto", "device", "host"])


@torch.jit.script
def squares(weights: List[torch.Tensor]) -> torch.Tensor:
    found = torch.zeros(())
    for weight in weights:
        found = found + (weight * weight).sum()
    return found


@torch.jit.script
def squares_by_name(weights: Dict[str, torch.Tensor]) -> torch.Tensor:
    found = torch.zeros(())
    for weight in weights.values():
        found = found + (weight * weight).sum()
    return found


@torch.jit.script
def average_(average: torch.Tensor, weight: torch.Tensor) -> None:
    average.mul_(0.9).add_(weight, alpha=0.1)


@torch.jit.script
def clamp_(weight: torch.Tensor) -> None:
    weight.clamp_(-0.2, 0.2)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 3)
        self.calls: torch.Tensor
        self.register_buffer("calls", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(0.1)
        found: torch.Tensor = self.layer(x)
        return found * (1 + self.calls)


def train(net: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
    loss = F.cross_entropy(net(x), Y)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.detach()


Between = Callable[[Any, Dict[str, Any], torch.Tensor], Any]


def numbers(between: Between, captured: bool, update: str, grad: bool) -> List[Any]:
    """Return what code between updates sees, and the weights afterwards, in PyTorch or captured."""
    net, kept = Net(), {}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    if captured:
        ipu_prepare(net, optimizer, config=IPUConfig(update=update))
    found: List[Any] = []
    for number, x in enumerate(X):
        found.append(train(net, optimizer, x).tolist())
        if number != 1:
            with torch.set_grad_enabled(grad):
                found.append(np.asarray(torch.as_tensor(between(net, kept, x)).detach()).tolist())
    return [*found, *[each.tolist() for each in net.state_dict().values()]]


def assert_equal(between: Between, update: str, grad: bool = False) -> None:
    mine, theirs = numbers(between, True, update, grad), numbers(between, False, update, grad)
    assert len(mine) == len(theirs)
    for one, other in zip(mine, theirs):
        torch.testing.assert_close(torch.tensor(one), torch.tensor(other))


def of_buffers(net: Any, kept: Any, x: torch.Tensor) -> torch.Tensor:
    return squares([net.calls])


def averaged(net: Any, kept: Dict[str, Any], x: torch.Tensor) -> torch.Tensor:
    average: torch.Tensor = kept.setdefault("average", torch.zeros(3, 4))
    with torch.no_grad():
        average_(average, net.layer.weight)
    return average


def clamped(net: Any, kept: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        clamp_(net.layer.weight)
        clamp_(net.calls)
    weight: torch.Tensor = net.layer.weight
    return weight


def traced_function(net: Any, kept: Dict[str, Any], x: torch.Tensor) -> Any:
    if not kept:
        kept["made"] = torch.jit.trace(lambda y: y + net.calls, torch.zeros(3))
    return kept["made"](torch.zeros(3))


def made_once(make: Callable[[Any, torch.Tensor], Any]) -> Between:
    def between(net: Any, kept: Dict[str, Any], x: torch.Tensor) -> Any:
        if not kept:
            net.eval()
            kept["made"] = make(net, x)
            net.train()
        return kept["made"](x)

    return between


def saved(net: Any, x: torch.Tensor) -> Any:
    made = torch.jit.script(net)

    def call(x: torch.Tensor) -> Any:
        file = io.BytesIO()
        torch.jit.save(made, file)
        file.seek(0)
        return torch.jit.load(file)(x)

    return call


def copied(net: Any, x: torch.Tensor) -> Any:
    made = torch.jit.script(net)
    return lambda x: copy.deepcopy(made)(x)


SCRIPTS: Dict[str, Between] = {
    "list": lambda net, kept, x: squares(list(net.parameters())),
    "dictionary": lambda net, kept, x: squares_by_name(dict(net.named_parameters())),
    "buffers": of_buffers,
    "average": averaged,
    "writes": clamped,
    "constant of a trace": traced_function,
    "traced model": made_once(lambda net, x: torch.jit.trace(net, x, check_trace=False)),
    "scripted model": made_once(lambda net, x: torch.jit.script(net)),
    "frozen model": made_once(lambda net, x: torch.jit.freeze(torch.jit.script(net.eval().layer))),
    "saved script": made_once(saved),
    "copied script": made_once(copied),
}


@every_update
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_have_the_newest_weights(name: str, grad: bool, update: str) -> None:
    assert_equal(SCRIPTS[name], update, grad)


def dual(net: Any, kept: Any, x: torch.Tensor) -> torch.Tensor:
    weight = net.layer.weight
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(forward_ad.make_dual(weight, torch.ones(3, 4)) * weight)
        return found.primal + found.tangent


def per_sample(net: Any, kept: Any, x: torch.Tensor) -> torch.Tensor:
    weights = {"weight": net.layer.weight, "bias": net.layer.bias}

    def loss(weights: Any, sample: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(net.layer, weights, sample).pow(2).sum()

    found: Dict[str, torch.Tensor] = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, x)
    return torch.cat([found["weight"].flatten(), found["bias"].flatten()])


TRANSFORMS: Dict[str, Between] = {
    "grad": lambda net, kept, x: torch.func.grad(lambda w: (w**3).sum())(net.layer.weight),
    "closure": lambda net, kept, x: torch.func.grad(lambda y: (y @ net.layer.weight.t()).pow(2).sum())(x),
    "vmap": lambda net, kept, x: torch.func.vmap(lambda w: w.sum())(net.layer.weight),
    "vmap of a buffer": lambda net, kept, x: torch.func.vmap(lambda c: c * 2)(net.calls),
    "jvp": lambda net, kept, x: torch.func.jvp(lambda w: w * w, (net.layer.weight,), (torch.ones(3, 4),))[1],
    "jacrev": lambda net, kept, x: torch.func.jacrev(lambda b: b * b)(net.layer.bias),
    "hessian": lambda net, kept, x: torch.func.hessian(lambda b: (b**3).sum())(net.layer.bias),
    "functionalize": lambda net, kept, x: torch.func.functionalize(lambda w: w * 2)(net.layer.weight),
    "per sample": per_sample,
    "dual numbers": dual,
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_have_the_newest_weights(name: str, grad: bool) -> None:
    assert_equal(TRANSFORMS[name], "auto", grad)


def rows(values: torch.Tensor) -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.arange(3)[None], values, (3,)).to_dense()


MAKERS: Dict[str, Between] = {
    "as_tensor": lambda net, kept, x: torch.as_tensor(net.layer.weight, dtype=torch.float64),
    "asarray": lambda net, kept, x: torch.asarray(net.layer.weight, copy=True),
    "new_tensor": lambda net, kept, x: x.new_tensor(net.calls),
    "new": lambda net, kept, x: x.new(net.calls).clone(),
    "set_": lambda net, kept, x: torch.empty(0).set_(net.calls).clone(),
    "as_subclass": lambda net, kept, x: torch.Tensor.as_subclass(net.calls, torch.Tensor).clone(),
    "full": lambda net, kept, x: torch.full((2,), net.calls[0]),
    "sparse": lambda net, kept, x: rows(net.calls),
    "dlpack": lambda net, kept, x: from_dlpack(to_dlpack(net.calls)).clone(),
    "numpy": lambda net, kept, x: np.add(net.calls, 1.0),
}


@pytest.mark.parametrize("name", MAKERS)
def test_new_tensors_have_the_newest_weights(name: str) -> None:
    assert_equal(MAKERS[name], "auto")


def test_copies_have_the_newest_weights() -> None:
    """Also where a module has imported the function by its name before."""
    assert_equal(lambda net, kept, x: torch.tensor(net.layer.weight), "auto")
    assert_equal(lambda net, kept, x: imported_tensor(net.calls), "auto")
    assert_equal(lambda net, kept, x: imported_tensor([net.calls[0], 3.0]), "auto")


def test_writes_through_memory_that_was_handed_out() -> None:
    def between(net: Any, kept: Any, x: torch.Tensor) -> torch.Tensor:
        memory = kept.setdefault("memory", from_dlpack(to_dlpack(net.layer.weight.detach())))
        memory.mul_(0.5)
        found: torch.Tensor = net.layer.weight
        return found

    assert_equal(between, "auto")


@pytest.mark.parametrize("call", [lambda weight: average_(torch.zeros(3, 4), weight), clamp_])
def test_scripts_before_a_step_whose_update_a_read_has_made(call: Any) -> None:
    """The update is taken back: the script has the weights before it, and writes into these."""
    seen = []
    for captured in (False, True):
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
        if captured:
            ipu_prepare(net, optimizer, config=IPUConfig(update="auto"))
        found: List[float] = []
        for number in range(6):
            loss = F.cross_entropy(net(X[number % 4]), Y)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            found.append(loss.item())
            if number == 2:
                with torch.no_grad():
                    call(net.layer.weight)
                    found.append(float(squares([net.layer.weight])))
            optimizer.step()
        seen.append([*found, *net.layer.weight.flatten().tolist()])
    assert seen[1] == pytest.approx(seen[0], rel=1e-4, abs=1e-6)


def test_functions_are_pytorchs_own_again_once_nothing_is_captured() -> None:
    gc.collect()
    names = [(torch, "tensor"), (torch.jit.ScriptFunction, "__call__"), (torch.Tensor, "set_")]
    before = [vars(owner).get(name) for owner, name in names]
    assert before[0] is imported_tensor and before[2] is None
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    ipu_prepare(net, optimizer)
    train(net, optimizer, X[0])
    assert torch.tensor is imported_tensor is not before[0]
    assert torch.equal(torch.tensor([1.0, 2.0]), torch.ones(2).cumsum(0))
    del net, optimizer
    gc.collect()
    assert [vars(owner).get(name) for owner, name in names] == before
