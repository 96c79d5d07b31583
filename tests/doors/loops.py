"""Loops behind each door: an update that only the host can make is made there, and the numbers are the native ones."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from typing import List, Tuple

import pytest

from ignite_ipu import auto
from ignite_ipu.errors import IPUError
from ignite_ipu.migration.checker import judge_source
from ignite_ipu.migration.migrator import migrate_source
from ignite_ipu.migration.source.file import Source
from ignite_ipu.migration.verdict import Verdict
from tests.doors.judging import losses_of

ON_HOST = "Weights are updated on the host"
"""The beginning of the message with which a run goes over to updates on the host."""

PROGRAM = """
import copy
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
{setup}
losses = []
for step in range(6):
    x = torch.randn(4, 4)
{loop}
    losses.append(float(loss))
losses += [weight.abs().sum().item() for weight in model.parameters()]
"""
SGD = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
MOMENTUM = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)"
PLAIN = """
    optimizer.zero_grad()
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    loss.backward()
    optimizer.step()
"""
BEFORE_STEP = PLAIN.replace("    optimizer.step()", "    {}\n    optimizer.step()")
LOOPS = {
    "plain": (SGD, PLAIN),
    "cleared after the step": (SGD, PLAIN.replace("    optimizer.zero_grad()\n", "") + "    optimizer.zero_grad()\n"),
    "a gradient's norm is read": (SGD, BEFORE_STEP.format("norm = model[0].weight.grad.norm().item()")),
    "gradients get noise": (SGD, BEFORE_STEP.format("for w in model.parameters(): w.grad.add_(0.01)")),
    "clipped by value": (SGD, BEFORE_STEP.format("nn.utils.clip_grad_value_(model.parameters(), 0.01)")),
    "clipped with momentum": (MOMENTUM, BEFORE_STEP.format("nn.utils.clip_grad_norm_(model.parameters(), 0.1)")),
    "clipped by norm": (SGD, BEFORE_STEP.format("nn.utils.clip_grad_norm_(model.parameters(), 0.1)")),
    "weights are written before the step": (
        SGD,
        BEFORE_STEP.format("with torch.no_grad(): model[0].weight.mul_(0.99)"),
    ),
    "steps are left out": (SGD, BEFORE_STEP.format("if step % 3 == 1: continue")),
    "steps by the loss": (SGD, BEFORE_STEP.format("if loss.item() > 100: continue")),
    "accumulated": (SGD, PLAIN.replace("optimizer.zero_grad()", "if step % 2 == 0: optimizer.zero_grad()")),
    "accumulated, with a step each second time": (
        SGD,
        PLAIN.replace("optimizer.zero_grad()", "pass").replace(
            "    optimizer.step()", "    if step % 2:\n        optimizer.step()\n        optimizer.zero_grad()"
        ),
    ),
    "cleared between backward and step": (SGD, BEFORE_STEP.format("if step == 2: optimizer.zero_grad()")),
    "two backward passes": (SGD, BEFORE_STEP.format("(model(x) ** 2).mean().backward()")),
    "the graph is kept": (
        SGD,
        PLAIN.replace("loss.backward()", "loss.backward(retain_graph=True)\n    (0.1 * loss).backward()"),
    ),
    "two optimizers of all weights": (
        f"{SGD}\nother = torch.optim.Adam(model.parameters(), lr=0.01)",
        PLAIN + "    if step % 2: other.step()\n",
    ),
    "optimizers of parts": (
        "optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)\n"
        "other = torch.optim.Adam(model[2].parameters(), lr=0.01)",
        PLAIN.replace("optimizer.zero_grad()", "optimizer.zero_grad(); other.zero_grad()") + "    other.step()\n",
    ),
    "a closure": (
        "optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)",
        "    def closure():\n        optimizer.zero_grad()\n        loss = (model(x) - 1).pow(2).mean()\n"
        "        loss.backward()\n        return loss\n    loss = optimizer.step(closure)\n",
    ),
    "an optimizer that an IPU lacks": ("optimizer = torch.optim.RAdam(model.parameters(), lr=0.1)", PLAIN),
    "an argument that an IPU lacks": ("optimizer = torch.optim.Adam(model.parameters(), lr=0.1, amsgrad=True)", PLAIN),
    "weights are updated by hand": (
        "",
        "    loss = (model(x) - 1).pow(2).mean()\n    loss.backward()\n    with torch.no_grad():\n"
        "        for w in model.parameters():\n            w -= 0.1 * w.grad\n            w.grad = None\n",
    ),
    "a hook of a weight": (f"{SGD}\nmodel[0].weight.register_hook(lambda gradient: gradient * 0.5)", PLAIN),
    "an average of weights": (
        f"{SGD}\naverage = copy.deepcopy(model)",
        PLAIN + "    with torch.no_grad():\n        for old, new in zip(average.parameters(), model.parameters()):\n"
        "            old.mul_(0.9).add_(new, alpha=0.1)\n    loss = (average(x) - 1).pow(2).mean().detach()\n",
    ),
    "the loss is read before backward": (
        SGD,
        PLAIN.replace("    loss.backward()", "    value = loss.item()\n    loss.backward()"),
    ),
    "an output is read before backward": (
        SGD,
        "    optimizer.zero_grad()\n    y = model(x)\n    scale = y.abs().max().item()\n"
        "    loss = (y / scale).pow(2).mean()\n    loss.backward()\n    optimizer.step()\n",
    ),
    "an older output is used": (
        f"{SGD}\nbefore = torch.zeros(4, 1)",
        "    optimizer.zero_grad()\n    y = model(x)\n    loss = (y - before).pow(2).mean()\n    loss.backward()\n"
        "    optimizer.step()\n    before = y.detach()\n",
    ),
    "a part is cleared": (SGD, PLAIN.replace("optimizer.zero_grad()", "model[0].zero_grad()")),
    "a gradient is set to None": (SGD, PLAIN.replace("optimizer.zero_grad()", "model[0].weight.grad = None")),
    "all gradients are set to None": (
        SGD,
        PLAIN.replace("optimizer.zero_grad()", "for w in model.parameters(): w.grad = None"),
    ),
    "nothing is cleared": (SGD, PLAIN.replace("    optimizer.zero_grad()\n", "")),
    "two steps": (SGD, PLAIN + "    optimizer.step()\n"),
    "weights are clamped after the step": (SGD, PLAIN + "    for w in model.parameters(): w.data.clamp_(-1, 1)\n"),
    "weights are clamped before the step": (
        SGD,
        BEFORE_STEP.format("for w in model.parameters(): w.data.clamp_(-1, 1)"),
    ),
    "weights are loaded before the step": (SGD, BEFORE_STEP.format("model.load_state_dict(model.state_dict())")),
    "weights are initialized before the step": (SGD, BEFORE_STEP.format("nn.init.zeros_(model[2].bias)")),
    "a copy is loaded before the step": (
        f"{SGD}\nother = copy.deepcopy(model)",
        BEFORE_STEP.format("other.load_state_dict(model.state_dict())"),
    ),
    "copies in a list are loaded before the step": (
        f"{SGD}\nother = copy.deepcopy(model)\nothers = [other]\nfor m in others: m.eval()",
        BEFORE_STEP.format("[m.load_state_dict(model.state_dict()) for m in others]"),
    ),
    "weights are written before backward": (
        SGD,
        PLAIN.replace("loss.backward()", "model[0].weight.data.mul_(0.99)\n    loss.backward()"),
    ),
    "a weight's gradient is dropped before the step": (
        SGD,
        BEFORE_STEP.format("if step < 2: model[0].bias.grad = None"),
    ),
    "gradients of some weights are dropped before the step": (
        SGD,
        BEFORE_STEP.format(
            "for name, w in model.named_parameters():\n        if step < 2 and name.startswith('2'): w.grad = None"
        ),
    ),
    "gradients are dropped after the step": (
        SGD,
        PLAIN.replace("optimizer.zero_grad()", "pass") + "    for w in model.parameters(): w.grad = None\n",
    ),
    "a weight is frozen before the step": (SGD, BEFORE_STEP.format("model[0].weight.requires_grad_(step % 2 == 0)")),
    "a counter leaves steps out": (
        f"{SGD}\ncount = 0",
        PLAIN.replace("    optimizer.step()", "    count += 1\n    if count % 2 == 0: optimizer.step()"),
    ),
    "a function leaves steps out": (
        f"{SGD}\ndef update(loss, k):\n    loss.backward()\n    if k % 2:\n        return\n    optimizer.step()",
        PLAIN.replace("    loss.backward()\n    optimizer.step()\n", "    update(loss, step)\n"),
    ),
    "one loss of two is cleared": (
        SGD,
        PLAIN.replace("loss.backward()", "loss.backward(); optimizer.zero_grad(); model(x).mean().backward()"),
    ),
    "cleared before the first of three losses": (
        SGD,
        PLAIN.replace("optimizer.zero_grad()", "if step % 3 == 0: optimizer.zero_grad()").replace(
            "optimizer.step()", "if step % 3 == 2: optimizer.step()"
        ),
    ),
    "cleared before the second of three losses": (
        SGD,
        PLAIN.replace("optimizer.zero_grad()", "if step % 3 == 0: optimizer.zero_grad()").replace(
            "optimizer.step()", "if step % 3 == 1: optimizer.step()"
        ),
    ),
    "sharpness-aware": (
        SGD,
        "    optimizer.zero_grad()\n    loss = (model(x) - 1).pow(2).mean()\n    loss.backward()\n    moved = []\n"
        "    with torch.no_grad():\n        for w in model.parameters():\n            e = 0.05 * w.grad\n"
        "            w.add_(e)\n            moved.append(e)\n    optimizer.zero_grad()\n"
        "    (model(x) - 1).pow(2).mean().backward()\n    with torch.no_grad():\n"
        "        for w, e in zip(model.parameters(), moved):\n            w.sub_(e)\n    optimizer.step()\n",
    ),
    "functions of weights, without a call of their model": (
        SGD,
        PLAIN.replace(
            "model(x)",
            "nn.functional.linear(torch.tanh(nn.functional.linear(x, *model[0].parameters())), *model[2].parameters())",
        ),
    ),
    "parameters of no module": (
        "weight, bias = nn.Parameter(torch.ones(4, 1)), nn.Parameter(torch.zeros(1))\n"
        "optimizer = torch.optim.SGD([weight, bias], lr=0.1)",
        PLAIN.replace("model(x)", "(x @ weight + bias)"),
    ),
    "a tensor that is no parameter": (
        "weight = torch.ones(4, 1, requires_grad=True)\noptimizer = torch.optim.SGD([weight], lr=0.1)",
        PLAIN.replace("model(x)", "(x @ weight)"),
    ),
    "a tensor beside the model's weights": (
        "scale = torch.ones(1, requires_grad=True)\noptimizer = torch.optim.SGD([*model.parameters(), scale], lr=0.1)",
        PLAIN.replace("model(x)", "(scale * model(x))"),
    ),
    "an input that is trained, of a frozen model": (
        "model.requires_grad_(False)\nimage = torch.ones(4, 4).requires_grad_()\n"
        "optimizer = torch.optim.Adam([image], lr=0.1)",
        PLAIN.replace("model(x)", "model(image)"),
    ),
    "a step that reads no tensor": (
        "model.requires_grad_(False)\nimage = torch.ones(4, 4).requires_grad_()\n"
        "optimizer = torch.optim.Adam([image], lr=0.1)",
        "    optimizer.zero_grad()\n    loss = (model(image) - 1).pow(2).mean()\n    loss.backward()\n"
        "    (image ** 2).mean().backward()\n    optimizer.step()\n    image.data.clamp_(-1, 1)\n",
    ),
}


def text_of(name: str) -> str:
    """Return the program with a loop."""
    setup, loop = LOOPS[name]
    return PROGRAM.format(setup=setup, loop=loop)


def verdicts(name: str, folder: Path) -> Tuple[Verdict, Verdict]:
    """Return the verdict of `check` on a loop, and that of a run in this process."""
    text = text_of(name)
    judged = judge_source(Source("program.py", text))[2].verdict
    messages = io.StringIO()
    handler, logger = logging.StreamHandler(messages), logging.getLogger("ignite_ipu")
    logger.addHandler(handler)
    try:
        with auto.enabled():
            losses_of(text, folder)
    except IPUError:
        return judged, Verdict.REFUSED
    finally:
        logger.removeHandler(handler)
    return judged, Verdict.TRAINS_ON_HOST if ON_HOST in messages.getvalue() else Verdict.TRAINS


def differences(name: str, folder: Path) -> List[str]:
    """Return the doors with a reason or numbers of their own, in this process; empty if there are none."""
    text = text_of(name)
    expected, verdict = verdicts(name, folder)
    if verdict is not expected:
        return [f"`check` says that `run` {expected.value}, and it {verdict.value}"]
    migration = migrate_source(Source("program.py", text))
    found, native = {}, losses_of(text, folder)
    try:
        with auto.enabled():
            found["auto"] = losses_of(text, folder)
        found["migrate"] = losses_of(migration.text, folder)
    except IPUError as error:
        return [f"refused: {error}"]
    finally:
        auto.off()
    different = [door for door, each in found.items() if each != pytest.approx(native, rel=1e-4, abs=1e-6)]
    return [*different, *(["it is not rewritten"] if migration.outcome != "migrated" else [])]
