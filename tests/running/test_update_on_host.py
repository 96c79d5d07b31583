"""Scripts whose updates PyTorch makes on the host: they run as they are written, with the result of eager PyTorch."""

from __future__ import annotations

import pytest

from ignite_ipu import IPUConfig
from ignite_ipu.running import RunError

SCRIPT = """
    import torch
    from torch import nn
    from torch.nn import functional as F

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    optimizer = torch.optim.{optimizer}(model.parameters(), lr=0.05)
    x, y = torch.randn(24, 6), torch.arange(24) % 3
    for number in range(6):
        batch = slice(number % 3 * 8, number % 3 * 8 + 8)

        def closure():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[batch]), y[batch])
            loss.backward()
            {between}
            return loss

        print("%.4f" % optimizer.step(closure).item())
    model.eval()
    with torch.no_grad():
        print("%.4f" % F.cross_entropy(model(x), y).item())
"""
WRITES = "model[0].weight.grad[0] = 0; nn.utils.clip_grad_value_(model.parameters(), 0.1)"
CLIPS = "nn.utils.clip_grad_norm_(model.parameters(), 0.5, norm_type=1, error_if_nonfinite=True)"


@pytest.mark.parametrize(("optimizer", "between"), [("LBFGS", "pass"), ("Adamax", WRITES), ("NAdam", CLIPS)])
def test_a_script_runs_as_natively(optimizer, between, run, natively):
    text = SCRIPT.format(optimizer=optimizer, between=between)
    ran = run(text, config=IPUConfig(update="host"))
    assert ran.output == natively(text) and len(ran.output) == 7
    assert ran.became(f"{optimizer}.step()") == "on the host, by PyTorch"


def test_an_update_on_the_device_names_the_way_out(run):
    with pytest.raises(RunError, match=r"step\(closure\)|PyTorch makes the updates"):
        run(SCRIPT.format(optimizer="LBFGS", between="pass"), config=IPUConfig(update="device"))


def test_a_closure_with_a_parametrization(run, natively):
    """The parametrization is called when it is registered, before the model."""
    text = SCRIPT.format(optimizer="SGD", between="pass")
    text = text.replace("nn.Linear(6, 5)", "nn.utils.parametrizations.spectral_norm(nn.Linear(6, 5))")
    ran = run(text, config=IPUConfig(update="auto"))
    assert ran.output == natively(text) and len(ran.output) == 7


META = """
    import copy
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for step in range(3):
        optimizer.zero_grad()
        for task in range(2):
            x, y = torch.randn(8, 4), torch.randn(8, 1)
            fast = copy.deepcopy(model)
            inner = torch.optim.SGD(fast.parameters(), lr=0.1)
            for _ in range(2):
                inner.zero_grad()
                nn.functional.mse_loss(fast(x), y).backward()
                inner.step()
            fast.zero_grad()
            loss = nn.functional.mse_loss(fast(-x), y)
            loss.backward()
            print("%.4f" % loss.item())
            for p, q in zip(model.parameters(), fast.parameters()):
                {outer}
        {step}
    print(*["%.3f" % p.sum().item() for p in model.parameters()])
"""
ADDS = "p.grad = q.grad if p.grad is None else p.grad + q.grad"
MOVES = "p.data += 0.5 * (q.data - p.data)"


@pytest.mark.parametrize("update", ["auto", "host"])
@pytest.mark.parametrize(("outer", "step"), [(ADDS, "optimizer.step()"), (MOVES, "pass")])
def test_a_loop_over_copies_of_the_model_learns_to_learn(update, outer, step, run, natively, caplog):
    """Each copy trains on the device; its gradients (first-order MAML) or its weights (Reptile) move the model."""
    text = META.format(outer=outer, step=step)
    ran = run(text, config=IPUConfig(update=update))
    assert ran.output == natively(text) and len(ran.output) == 7
    reported = [line for line in caplog.messages if "the loop has set their gradients" in line]
    assert len(reported) == (outer is ADDS and update == "auto")


def test_gradients_that_the_host_computes_are_refused(run):
    """A loss of weights in a function of PyTorch's that no model calls would run on the host altogether."""
    text = META.format(outer="p.grad = torch.autograd.grad(p.square().sum(), p)[0]", step="optimizer.step()")
    with pytest.raises(RunError, match="host"):
        run(text, config=IPUConfig(update="auto"))
