"""Loops written out: captured where they can be, refused where they cannot, never run on the host."""

from __future__ import annotations

import re
import textwrap

import pytest

from ignite_ipu import IPUConfig, emulator
from ignite_ipu.errors import RunError

NUMBER = r"-?\d+\.\d+(?:e-\d+)?"
HEAD = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).cuda()
x, y = torch.randn(8, 3).cuda(), torch.randn(8, 1).cuda()
"""


def test_every_update_of_a_plain_loop_is_one_device_call(run):
    before = emulator.counters()
    run(
        HEAD
        + """
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
"""
    )
    done = emulator.counters() - before
    assert (done.optimizer_updates, done.device_calls, done.compiles) == (5, 5, 1)


def test_evaluation_runs_on_the_device_with_the_newest_weights(run):
    before = emulator.counters()
    ran = run(
        HEAD
        + """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
nn.functional.mse_loss(model(x), y).backward()
optimizer.step()
model.eval()
with torch.no_grad():
    found = model(x)
with torch.inference_mode():
    again = model(x)
weights = [p.detach().clone() for p in model.parameters()]
expected = torch.tanh(x @ weights[0].T + weights[1]) @ weights[2].T + weights[3]
print(torch.allclose(found, expected, atol=1e-6), torch.equal(found, again))
"""
    )
    assert ran.output == ["True True"]
    assert (emulator.counters() - before).device_calls == 3


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("(x * torch.ones(3, requires_grad=True)).sum().backward()", "would run on the host"),
        ("(model[0].weight.clone() @ x.T).sum().backward()", "without a call of their model"),
        ("model.eval()\nmodel(x).sum().backward()", "in training mode with gradients enabled"),
        (
            "torch.optim.SGD(model.parameters(), 0.1)\nprint(torch.bernoulli(model(x).sigmoid()).sum())",
            "before the step has run",
        ),
        ("torch.autograd.grad(model(x).sum(), [x])", "exist on the device alone"),
        ("torch.autograd.grad(outputs=model(x).sum(), inputs=x)", "exist on the device alone"),
        ("nn.utils.clip_grad_value_(model.parameters(), 1.0)", "global norm"),
    ],
)
def test_what_cannot_be_captured_is_refused_at_its_line(run, body, reason):
    before = emulator.counters().optimizer_updates
    with pytest.raises(RunError, match=r"script\.py:\d+") as refused:
        run(HEAD + body)
    assert reason in str(refused.value)
    assert emulator.counters().optimizer_updates == before


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("model(x).sum().backward()", "updated by hand"),
        ("torch.optim.LBFGS(model.parameters()).step(lambda: model(x).sum())", "closure"),
        (
            "for p in model.parameters():\n    p.grad = torch.ones_like(p)\n"
            "torch.optim.SGD(model.parameters(), 0.1).step()",
            "no captured step computed its gradients",
        ),
    ],
)
def test_what_only_pytorch_can_update(run, natively, body, reason):
    """It is refused in updates on the device, and else works as in eager PyTorch."""
    with pytest.raises(RunError, match=r"script\.py:\d+") as refused:
        run(HEAD + body, config=IPUConfig(update="device"))
    assert reason in str(refused.value)
    show = "\nprint(*[p.grad is None or p.grad.sum().item() for p in model.parameters()])"
    assert run(HEAD + body + show).output == natively(HEAD.replace(".cuda()", "") + body + show)


def test_a_refusal_reports_no_lost_gradients(run, caplog):
    """The run ends with it, and nothing uses gradients that went backward before."""
    body = """
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model(x).sum().backward()
        print(torch.bernoulli(model(x).sigmoid()).sum())
    """
    with pytest.raises(RunError, match="before the step has run"):
        run(HEAD + textwrap.dedent(body))
    assert "given back" not in caplog.text


def test_mixed_precision_is_switched_off(run):
    ran = run(
        HEAD
        + """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler)()
for _ in range(2):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
print(loss.dtype, scaler.is_enabled())
"""
    )
    assert ran.output == ["torch.float32 False"]
    assert "single precision" in ran.became("autocast()")


def test_engines_over_written_out_steps_return_ordinary_tensors(run):
    ran = run(
        HEAD
        + """
from ignite.engine import Engine
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step(engine, batch):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(batch[0]), batch[1])
    loss.backward()
    optimizer.step()
    return {"loss": loss}
trainer = Engine(step)
trainer.run([(x, y)] * 3)
print(type(trainer.state.output["loss"]).__name__)
"""
    )
    assert ran.output == ["Tensor"]


def test_a_step_before_any_gradient_does_nothing(run):
    """As in PyTorch, whose schedules may count such steps."""
    ran = run(
        HEAD
        + """
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
before = [p.detach().clone() for p in model.parameters()]
optimizer.step()
schedule.step()
print(all(map(torch.equal, before, model.parameters())), len(optimizer.state), optimizer.param_groups[0]["lr"])
nn.functional.mse_loss(model(x), y).backward()
optimizer.step()
print(any(map(torch.equal, before, model.parameters())))
"""
    )
    assert ran.output == ["True 0 0.05", "False"]


WITH_A_FROZEN_MODEL = """
import torch
from torch import nn
torch.manual_seed(0)
x = torch.randn(8, 3)
model, frozen = nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3), nn.Tanh()).{mode}()
frozen.requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for _ in range(3):
    optimizer.zero_grad()
    loss = {loss}.square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(losses, [p.sum().item() for p in model.parameters()])
"""


@pytest.mark.parametrize(
    ("mode", "loss", "became"),
    [
        ("train", "frozen(model(x))", "recorded for the device step"),
        ("eval", "frozen(model(x))", "recorded for the device step"),
        ("train", "model(frozen(x))", "recorded for the device step"),
        ("eval", "model(frozen(x))", "an inference program"),
    ],
)
def test_a_frozen_model_belongs_to_the_step_of_the_trained_one(run, capsys, mode, loss, became):
    """Before it and behind it, with native numbers."""
    text = WITH_A_FROZEN_MODEL.format(mode=mode, loss=loss)
    exec(text, {})
    expected = re.findall(NUMBER, capsys.readouterr().out)
    ran = run(text)
    found = re.findall(NUMBER, ran.output[0])
    assert list(map(float, found)) == pytest.approx(list(map(float, expected)), rel=1e-4) and len(found) == 5
    assert ran.became("Sequential()").startswith(became)


def test_a_state_dictionary_from_before_the_loop_is_the_newest_when_it_is_saved(run):
    """As in eager PyTorch, where it is the memory of the model's weights; a part's, too."""
    ran = run(
        HEAD
        + """
import io
state, part = model.state_dict(), model[0].state_dict()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    file = io.BytesIO()
    torch.save([state, part], file)
    file.seek(0)
    whole, first = torch.load(file, weights_only=True)
    print(type(whole).__name__, all(torch.equal(whole[name], value) for name, value in model.state_dict().items()),
          torch.equal(first["weight"], whole["0.weight"]))
"""
    )
    assert ran.output == ["OrderedDict True True"] * 3


def test_the_optimizer_of_a_device_program_is_none_of_the_scripts(run, natively):
    """Where updates move to the host, a program is made with an optimizer of its own, over parameters of its own."""
    script = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    loss = model(torch.ones(2, 4)).pow(2).mean()
    loss.backward()
    for parameter in model.parameters():
        parameter.grad.mul_(0.5)
    optimizer.step()
    print(loss.item())
"""
    found, expected = run(script).output, natively(script)
    assert [float(each) for each in found] == pytest.approx([float(each) for each in expected])
