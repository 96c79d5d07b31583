"""Every optimizer trains as in PyTorch, and its state is the newest when it is read, saved and resumed."""

from __future__ import annotations

import copy
import functools
from typing import Any, Callable, Dict, List

import torch
from torch import nn

from ignite_ipu.selftest.bench import Bench, adam, agree, batches, expect, network, sgd
from ignite_ipu.selftest.promises import Promise

PAGE = "optimizers.md"

Make = Callable[[nn.Module], Any]


class _Lamb(torch.optim.Optimizer):
    """LAMB in plain PyTorch: AdamW's step, scaled for each tensor by the norms of weight and step."""

    def __init__(self, parameters: Any, lr: float, weight_decay: float) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            first, second = group["betas"]
            for weight in group["params"]:
                state = self.state[weight]
                if not state:
                    state.update(step=0, exp_avg=torch.zeros_like(weight), exp_avg_sq=torch.zeros_like(weight))
                state["step"] += 1
                state["exp_avg"].mul_(first).add_(weight.grad, alpha=1 - first)
                state["exp_avg_sq"].mul_(second).addcmul_(weight.grad, weight.grad, value=1 - second)
                average = state["exp_avg"] / (1 - first ** state["step"])
                square = state["exp_avg_sq"] / (1 - second ** state["step"])
                update = average / (square.sqrt() + group["eps"]) + group["weight_decay"] * weight
                norms = weight.norm(), update.norm()
                trust = (norms[0] / norms[1]).item() if min(norms) > 0 else 1.0
                weight.sub_(update, alpha=group["lr"] * trust)


def _groups(model: nn.Module) -> List[Dict[str, Any]]:
    """Weights and biases with values of their own."""
    named = dict(model.named_parameters())
    return [
        {"params": [value for name, value in named.items() if name.endswith("weight")]},
        {"params": [value for name, value in named.items() if name.endswith("bias")], "lr": 0.02, "weight_decay": 0.0},
    ]


def _torch_state(found: Dict[str, Any], expected: Dict[str, Any], model: nn.Module) -> None:
    """Compare state dictionaries of torch's structure."""
    expected = {number: slots for number, slots in expected["state"].items() if None not in slots.values()}
    agree(found["state"], expected, "optimizer.state_dict()", atol=1e-5)


def _poptorch_state(found: Dict[str, Any], expected: Dict[str, Any], model: nn.Module) -> None:
    """See that each moment is among the tensors that PopTorch keeps for its parameter, with any names."""
    tensors = {name: value for name, value in (found.get("ipu_state") or {}).items() if torch.is_tensor(value)}
    for number, (parameter, _) in enumerate(model.named_parameters()):
        own = [value for name, value in tensors.items() if name.endswith(parameter)]
        for slot, moment in expected["state"].get(number, {}).items():
            if torch.is_tensor(moment) and moment.dim():
                near = any(torch.allclose(value, moment, 1e-3, 1e-5) for value in own if value.shape == moment.shape)
                expect(near, f"no tensor of ipu_state is {slot} of {parameter}; it has {sorted(tensors)}")


def _resumed(bench: Bench, make: Make, native: Make, compare_state: Any) -> None:
    """Train, read the state, train, read it again, save, resume with new objects, and train."""
    data, pair = batches(6), bench.pair(make)
    pair.expected = native(pair.reference)

    def run(part: Any) -> None:
        pair.run(part)
        compare_state(pair.optimizer.state_dict(), pair.expected.state_dict(), pair.model)

    run(data[:2])
    run(data[2:4])
    torch.save((pair.model.state_dict(), pair.optimizer.state_dict()), bench.folder / "saved.pt")
    pair.trainer.ipu.close()

    weights, state = torch.load(bench.folder / "saved.pt", weights_only=True)
    pair.model = network()
    pair.optimizer = make(pair.model)
    pair.model.load_state_dict(weights)
    pair.trainer = bench.trainer(pair.model, pair.optimizer)
    pair.optimizer.load_state_dict(state)
    run(data[4:])
    pair.compare()


def _nothing(found: Dict[str, Any], expected: Dict[str, Any], model: nn.Module) -> None:
    """Compare no state: this form folds the next update's decay into it."""


def _of_torch(bench: Bench, kind: str, **arguments: Any) -> None:
    def make(model: nn.Module) -> Any:
        return getattr(torch.optim, kind)(_groups(model), **arguments)

    _resumed(bench, make, make, _torch_state)


def _of_poptorch(bench: Bench, kind: str, more: Any = None, **arguments: Any) -> None:
    def make(model: nn.Module) -> Any:
        return getattr(bench.poptorch.optim, kind)(model.parameters(), **arguments, **(more or {}))

    def native(model: nn.Module) -> Any:
        made = _Lamb if kind == "LAMB" else getattr(torch.optim, kind)
        return made(model.parameters(), **arguments)

    _resumed(bench, make, native, _nothing if more else _poptorch_state)


def _torch(name: str, kind: str, **arguments: Any) -> Promise:
    text = f"torch.optim.{kind} trains as in PyTorch; its state is torch's with the newest values, and can be resumed."
    program = functools.partial(_of_torch, kind=kind, **arguments)
    return Promise(f"optimizers.{name}", text, "checkpoints.md", program)


def _poptorch(name: str, kind: str, **arguments: Any) -> Promise:
    text = f"poptorch.optim.{kind} trains by its formula; its own state dictionary is the newest and can be resumed."
    return Promise(f"optimizers.poptorch-{name}", text, PAGE, functools.partial(_of_poptorch, kind=kind, **arguments))


MORE = [
    _torch("sgd", "SGD", lr=0.3),
    _torch("sgd-momentum", "SGD", lr=0.1, momentum=0.9, weight_decay=0.01),
    _torch("sgd-nesterov", "SGD", lr=0.1, momentum=0.9, nesterov=True),
    _torch("adam", "Adam", lr=0.02, weight_decay=0.01),
    _torch("adamw", "AdamW", lr=0.02, betas=(0.8, 0.95)),
    _torch("rmsprop", "RMSprop", lr=0.01, weight_decay=0.01),
    _torch("rmsprop-momentum", "RMSprop", lr=0.01, momentum=0.5),
    _torch("rmsprop-centered", "RMSprop", lr=0.01, momentum=0.5, centered=True),
    _poptorch("sgd", "SGD", lr=0.3, momentum=0.9, weight_decay=0.01),
    _poptorch("sgd-combined", "SGD", more={"use_combined_accum": True}, lr=0.1, momentum=0.9),
    _poptorch("adam", "Adam", lr=0.02, weight_decay=0.01),
    _poptorch("adamw", "AdamW", lr=0.02, weight_decay=0.1),
    _poptorch("rmsprop", "RMSprop", lr=0.01, momentum=0.5),
    _poptorch("lamb", "LAMB", lr=0.02, weight_decay=0.01),
]


def clipping(bench: Bench) -> None:
    """max_grad_norm clips by the global norm, as clip_grad_norm_ does."""
    bench.pair(adam, max_grad_norm=0.1).check(batches(), max_norm=0.1)


def freezing(bench: Bench) -> None:
    """A layer that is frozen is not trained; unfrozen, it takes up its momentum again."""
    data, pair = batches(6), bench.pair(lambda model: sgd(model, 0.1))
    for part, frozen in ((data[:2], False), (data[2:4], True), (data[4:], False)):
        for model in (pair.model, pair.reference):
            model[0].requires_grad_(not frozen)
        kept = copy.deepcopy(pair.reference.state_dict())
        pair.run(part)
        if frozen:
            agree(pair.model.state_dict()["0.weight"], kept["0.weight"], "weights of the frozen layer")
    pair.compare()


def gradients(bench: Bench) -> None:
    """Gradients shows the mean gradients of a call's last update as parameter.grad."""
    from ignite_ipu.handlers import Gradients

    pair = bench.pair()
    Gradients().attach(pair.trainer)
    pair.trainer.run(batches(1))
    x, y = batches(1)[0]
    torch.autograd.backward(nn.functional.cross_entropy(pair.reference(x), y))
    found = {name: parameter.grad for name, parameter in pair.model.named_parameters()}
    agree(found, {name: parameter.grad for name, parameter in pair.reference.named_parameters()}, "gradients")
