"""Captured loops whose updates PyTorch makes on the host, against the same loops in eager PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune

from ignite_ipu import IPUConfig, ipu_prepare
from ignite_ipu.deferred import capture_model
from ignite_ipu.deferred.compiled.host_programs import HostPrograms
from ignite_ipu.errors import IPUOutOfMemoryError

X = torch.randn(24, 6, generator=torch.Generator().manual_seed(1))
Y = torch.arange(24) % 3
BATCHES = [(X[start : start + 8], Y[start : start + 8]) for start in (0, 8, 16)] * 2
HOST = IPUConfig(update="host")


def network(norm: bool = True) -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5) if norm else nn.Tanh(), nn.Tanh(), nn.Linear(5, 3))


def both(loop, make_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9), norm=True):
    """Run a loop, called with a model and its optimizer, natively and captured; compare all of its results."""
    found = []
    for captures in (False, True):
        torch.manual_seed(3)
        model = network(norm)
        optimizer = make_optimizer(model.parameters())
        if captures:
            ipu_prepare(optimizer, model, config=HOST)
        seen = loop(model, optimizer)
        gradients = [None if each.grad is None else each.grad.clone() for each in model.parameters()]
        found.append((seen, gradients, dict(model.state_dict()), optimizer.state_dict()["state"]))
    torch.testing.assert_close(found[1], found[0])


def steady(model, optimizer):
    seen = []
    for x, y in BATCHES:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    return seen


def test_a_loop_trains():
    both(steady)


@pytest.mark.parametrize(("update", "clips"), [("device", False), ("auto", True), ("host", False)])
def test_a_model_of_64_bits(update, clips):
    """The device narrows it: gradients and moments come back in the types of the weights."""

    def run(captures):
        model = network(norm=False).double()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        if captures:
            ipu_prepare(optimizer, model, config=IPUConfig(update=update))
        seen = []
        for x, y in BATCHES:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x.double()), y)
            loss.backward()
            seen += [each.grad.clone() for each in model.parameters()]
            if clips:
                nn.utils.clip_grad_value_(model.parameters(), 0.01)
            optimizer.step()
            seen.append(loss.detach())
        with torch.no_grad():
            seen.append(model.eval()(X.double()))
        return seen, dict(model.state_dict()), optimizer.state_dict()["state"]

    torch.testing.assert_close(run(True), run(False), rtol=1e-4, atol=1e-5)


def test_an_optimizer_evaluates_its_closure():
    def loop(model, optimizer):
        seen = []
        for x, y in BATCHES:

            def closure(x=x, y=y):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                return loss

            seen.append(optimizer.step(closure).item())
        return seen

    both(loop, lambda parameters: torch.optim.LBFGS(parameters, lr=0.1, max_iter=3))


@pytest.mark.parametrize("update", ["auto", "host"])
def test_the_first_step_has_a_closure_and_a_parameter_of_no_module(update):
    """The optimizer holds a temperature of the loss beside the model's parameters."""

    def trained(captures):
        model, temperature = network(), nn.Parameter(torch.zeros(()))
        optimizer = torch.optim.SGD([*model.parameters(), temperature], lr=0.1, momentum=0.9)
        if captures:
            ipu_prepare(optimizer, model, config=IPUConfig(update=update))
        seen = []
        for x, y in BATCHES[:3]:

            def closure(x=x, y=y):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x) * temperature.exp(), y)
                loss.backward()
                return loss

            seen.append(optimizer.step(closure).item())
        return seen, dict(model.state_dict()), temperature.detach().clone()

    torch.testing.assert_close(trained(True), trained(False))


def trained_with_two_heads(captures):
    """Return the loss of a step of the body, whose evaluations use two heads in turn, and all weights."""
    torch.manual_seed(3)
    body, heads = nn.Sequential(nn.Linear(6, 5), nn.Tanh()), [nn.Linear(5, 3), nn.Linear(5, 3)]
    optimizer = torch.optim.LBFGS(body.parameters(), lr=0.1, max_iter=3)
    others = [torch.optim.Adam(head.parameters()) for head in heads]
    if captures:
        ipu_prepare(body, *heads, optimizer, *others, config=HOST)
    heads_in_turn = iter(heads * 3)

    def evaluate():
        optimizer.zero_grad()
        loss = F.cross_entropy(next(heads_in_turn)(body(X)), Y)
        loss.backward()
        return loss

    evaluate()
    return optimizer.step(evaluate).item(), [each.state_dict() for each in (body, *heads)]


def test_a_closure_joins_models_within_a_step():
    """Its later evaluations find the weights that the step has changed."""
    torch.testing.assert_close(trained_with_two_heads(True), trained_with_two_heads(False))


def test_gradients_are_pytorchs():
    """Clipped by value, scaled, masked, set to None and looked at between backward() and step()."""

    def loop(model, optimizer):
        seen = []
        for number, (x, y) in enumerate(BATCHES):
            optimizer.zero_grad(set_to_none=number % 2 == 0)
            F.cross_entropy(model(x), y).backward()
            first, *others = model.parameters()
            seen.append([each.grad.norm().item() for each in (first, *others)])
            nn.utils.clip_grad_value_(others, 0.05)
            first.grad.mul_(2.0)
            others[-1].grad[0] = 0
            if number == 2:
                others[0].grad = None
            if nn.utils.clip_grad_norm_(model.parameters(), 1.0) < 0.9:
                optimizer.step()
        return seen

    both(loop)


def test_gradients_accumulate_over_backward_calls_and_iterations():
    def loop(model, optimizer):
        for number, (x, y) in enumerate(BATCHES):
            (F.cross_entropy(model(x), y) / 2).backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()

    both(loop)


def test_hooks_on_gradients_run():
    def loop(model, optimizer):
        seen = []
        first, second, *_ = model.parameters()
        first.register_hook(lambda gradient: gradient * 0.5)
        if hasattr(second, "register_post_accumulate_grad_hook"):
            second.register_post_accumulate_grad_hook(lambda parameter: seen.append(parameter.grad.sum().item()))
        return steady(model, optimizer), seen

    both(loop)


def test_two_losses_go_backward_through_one_call():
    def loop(model, optimizer):
        for x, y in BATCHES:
            optimizer.zero_grad()
            out = model(x)
            F.cross_entropy(out, y).backward(retain_graph=True)
            out.square().mean().backward()
            optimizer.step()

    both(loop)


def test_a_tensor_goes_backward_with_a_gradient():
    def loop(model, optimizer):
        for x, y in BATCHES:
            optimizer.zero_grad()
            out = model(x)
            out.backward(torch.softmax(out.detach(), dim=1) - F.one_hot(y, 3))
            optimizer.step()

    both(loop)


def test_the_same_loss_goes_backward_twice():
    def loop(model, optimizer):
        for x, y in BATCHES:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward(retain_graph=True)
            loss.backward()
            optimizer.step()

    both(loop)


def test_sharpness_aware_minimisation_trains():
    """Two backward passes for an update, with weights that are moved by hand in between."""

    def loop(model, optimizer):
        for x, y in BATCHES:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            moved = []
            with torch.no_grad():
                norm = torch.stack([each.grad.norm() for each in model.parameters()]).norm()
                for each in model.parameters():
                    moved.append(each.grad * (0.05 / norm))
                    each.add_(moved[-1])
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            with torch.no_grad():
                for each, shift in zip(model.parameters(), moved):
                    each.sub_(shift)
            optimizer.step()

    both(loop)


def test_a_value_read_before_backward_costs_no_other_call():
    def loop(model, optimizer):
        seen = []
        for x, y in BATCHES:
            optimizer.zero_grad()
            out = model(x)
            loss = F.cross_entropy(out, y)
            seen.append((loss.item(), out.argmax(dim=1).tolist()))
            loss.backward()
            optimizer.step()
        return seen

    both(loop)


def test_weights_of_the_forward_count_where_an_optimizer_has_changed_them_since():
    """The gradient of the last layer's bias is that of the earlier weights."""

    def loop(model, optimizer):
        for (x, _), (other, labels) in zip(BATCHES[::2], BATCHES[1::2]):
            waiting = model(x).sum(dim=1).mean()
            optimizer.zero_grad()
            F.cross_entropy(model(other), labels).backward()
            with torch.no_grad():
                optimizer.step()
            del waiting

    both(loop, norm=False)


def test_updates_that_are_not_finite_are_skipped_by_the_loop():
    """A gradient that is not finite has made the weights of the device NaN, and the next call has those of the host."""

    def loop(model, optimizer):
        seen = []
        for number, (x, y) in enumerate(BATCHES):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y) * (float("inf") if number == 2 else 1.0)
            loss.backward()
            if all(bool(each.grad.isfinite().all()) for each in model.parameters()):
                optimizer.step()
            seen.append(bool(loss.isfinite()))
        return seen

    both(loop)
    both(loop, norm=False)


def test_evaluation_in_between_has_the_newest_weights():
    def loop(model, optimizer):
        seen = []
        for x, y in BATCHES:
            model.train()
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            model.eval()
            with torch.no_grad():
                seen.append(F.cross_entropy(model(x), y).item())
        return seen

    both(loop)


def test_schedules_step_without_a_warning(recwarn):
    def loop(model, optimizer):
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        seen = []
        for x, y in BATCHES:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            schedule.step()
            seen.append(schedule.get_last_lr())
        return seen

    both(loop)
    assert not [warning for warning in recwarn if "lr_scheduler" in str(warning.message)]


@pytest.mark.parametrize("update", ["host", "auto"])
@pytest.mark.parametrize("split", [None, 2])
def test_replicas_share_the_pieces_of_a_batch(update, split, caplog):
    """A batch that is not cut runs on one of them, and the log reports it; gradients are PyTorch's either way."""
    found = []
    for captures in (False, True):
        model = network(norm=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if captures:
            config = IPUConfig(update=update, replication_factor=2, split_batch=split)
            ipu_prepare(optimizer, model, config=config)
        seen = []
        for x, y in BATCHES:
            optimizer.zero_grad()
            for rows in (slice(4), slice(4, 8)):
                F.cross_entropy(model(x[rows]), y[rows]).backward()
            torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)
            optimizer.step()
            seen.append([each.grad.clone() for each in model.parameters()])
        found.append((seen, dict(model.state_dict())))
    torch.testing.assert_close(found[1], found[0])
    assert ("runs on 1 replicas" in caplog.text) is (split is None)


def test_hooks_before_a_step_are_called_once_where_updates_move_to_the_host():
    """The device refuses the step after the hooks were called, and PyTorch makes the same step."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    ipu_prepare(optimizer, model, config=IPUConfig(update="auto"))
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).pow(2).mean().backward()
        optimizer.step()
    assert calls == ["before", "after"] * 2


@pytest.mark.parametrize("returns", [False, True])
def test_a_hook_before_a_step_uses_gradients(returns):
    """It leaves the device before the step, or returns other arguments, and is called once for each step."""
    found = []
    for captures in (False, True):
        model = network(norm=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        calls = []

        def hook(optimizer, args, kwargs, model=model, calls=calls):
            calls.append(len(calls))
            if returns:
                return (*args, lambda: calls.append(-1)), kwargs
            if len(calls) > 2:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)

        optimizer.register_step_pre_hook(hook)
        if captures:
            ipu_prepare(optimizer, model, config=IPUConfig(update="auto"))
        found.append((steady(model, optimizer), list(calls), dict(model.state_dict())))
    torch.testing.assert_close(found[1], found[0])


def test_no_parameter_is_passed_over_where_updates_move_to_the_host_within_a_loop_over_them():
    """A layer that was pruned has a table of parameters in which one is missing."""
    found = []
    for update in (None, "auto"):
        torch.manual_seed(0)
        model = nn.Sequential(prune.l1_unstructured(nn.Linear(4, 5), "weight", 0.4), nn.Tanh(), nn.Linear(5, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if update is not None:
            ipu_prepare(optimizer, model, config=IPUConfig(update=update))
        model(torch.ones(2, 4)).pow(2).mean().backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.mul_(0.5)
        optimizer.step()
        found.append([parameter.detach().clone() for parameter in model.parameters()])
    torch.testing.assert_close(found[1], found[0])


def test_a_layer_that_is_pruned_between_updates_keeps_its_new_parameters():
    """Twins that stood in the model for the program before leave the tensors that pruning has put there."""
    losses = []
    for update in (None, "host"):
        torch.manual_seed(0)
        model = nn.Linear(3, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if update is not None:
            ipu_prepare(optimizer, model, config=IPUConfig(update=update))
        for number in range(4):
            if number == 2:
                prune.l1_unstructured(model, "weight", 0.4)
            optimizer.zero_grad()
            loss = model(torch.ones(2, 3)).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[:4] == pytest.approx(losses[4:])


def test_a_frozen_parameter_that_no_optimizer_holds_does_not_keep_updates_on_the_device():
    """Losses of updates that were made have no gradients for it, so none of them is computed again."""
    found = []
    for update in (None, "auto"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
        first, *others = model.parameters()
        first.requires_grad_(False)
        optimizer = torch.optim.SGD(others, lr=0.1)
        if update is not None:
            ipu_prepare(optimizer, model, config=IPUConfig(update=update))
        for number in range(5):
            (model(torch.full((2, 4), 0.1 * number)).pow(2).mean() / 2).backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
        optimizer.zero_grad()
        found.append([parameter.detach().clone() for parameter in model.parameters()])
    torch.testing.assert_close(found[1], found[0])


class Codebook(nn.Module):
    """A layer that follows its inputs through `.data`, as codebooks do, first where these are large."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("mean", torch.ones(4))
        self.register_buffer("largest", torch.full((4,), 1.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.layer(x)
        result = hidden * self.mean + self.largest
        if self.training:
            found = hidden.detach()
            self.mean.data.mul_(0.9).add_(found.mean(0), alpha=0.1)
            self.largest.data.copy_(torch.maximum(self.largest, found.amax(0)))
        return result


@pytest.mark.parametrize("update", ["device", "host"])
def test_buffers_that_forward_writes_through_data(update: str) -> None:
    """PyTorch does not count such writes, and the first call may leave the values as they were."""
    found = []
    for prepared in (False, True):
        torch.manual_seed(0)
        model = Codebook()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if prepared:
            ipu_prepare(optimizer, model, config=IPUConfig(update=update))
        values = []
        for number in range(4):
            optimizer.zero_grad()
            loss = (model(torch.randn(6, 4) * (1 + number)) - 1).square().mean()
            loss.backward()
            optimizer.step()
            values.append(loss.item())
        found.append([*values, *model.mean.tolist(), *model.largest.tolist()])
    assert found[1] == pytest.approx(found[0], rel=1e-4)
    assert found[0][-4:] != [1.5] * 4


def test_losses_go_backward_again_in_their_order_where_updates_move_to_the_host():
    """The first retains the graph of the second, which was computed before it."""
    found = []
    for update in (None, "auto"):
        model = network()
        optimizer = torch.optim.Adadelta(model.parameters(), lr=0.5)
        if update is not None:
            ipu_prepare(optimizer, model, config=IPUConfig(update=update))
        for x, y in BATCHES[:2]:
            optimizer.zero_grad()
            scores = model(x)
            loss = F.cross_entropy(scores, y)
            (0.1 * scores.pow(2).mean()).backward(retain_graph=True)
            loss.backward()
            optimizer.step()
        found.append(dict(model.state_dict()))
    torch.testing.assert_close(found[1], found[0])


def test_a_part_that_was_called_before_the_model_is_trained_with_it():
    """Registering a parametrization calls it, and it is no model of its own."""
    found = []
    for update in (None, "host"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if update is not None:
            capture_model(model[2], HOST)
        model[2](torch.ones(2, 5))
        if update is not None:
            ipu_prepare(optimizer, model, config=HOST)
        found.append((steady(model, optimizer), dict(model.state_dict())))
    torch.testing.assert_close(found[1], found[0])


def test_buffers_that_are_read_between_losses_are_written_once_where_updates_move_to_the_host():
    """The device's update fails after it was prepared, and the buffers are those from before it again."""
    found = []
    for update in (None, "auto"):
        model = network()
        optimizer = torch.optim.Adadelta(model.parameters(), lr=0.5)
        if update is not None:
            ipu_prepare(optimizer, model, config=IPUConfig(update=update))
        seen = []
        for number, (x, y) in enumerate(BATCHES[:4]):
            F.cross_entropy(model(x), y).backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
            else:
                seen.append(model[1].running_mean.clone())
        found.append((seen, dict(model.state_dict())))
    torch.testing.assert_close(found[1], found[0])


def test_the_device_goes_on_where_the_change_to_the_host_fails(monkeypatch):
    """The error is the program's, lost gradients are lost, and the next updates are those of a loop without them."""

    def fails(self, *args, **kwargs):
        raise IPUOutOfMemoryError("The program that brings gradients back does not fit.")

    found = []
    for captures in (False, True):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if captures:
            ipu_prepare(optimizer, model, config=IPUConfig(update="auto"))
        steady(model, optimizer)
        optimizer.zero_grad()
        if captures:
            F.cross_entropy(model(X), Y).backward()
            with monkeypatch.context() as patch:
                patch.setattr(HostPrograms, "compute", fails)
                with pytest.raises(IPUOutOfMemoryError):
                    model[0].weight.grad.mul_(2.0)
            optimizer.step()
            assert all(each.grad is None for each in model.parameters())
        else:
            with torch.no_grad():
                model(X)  # the call whose loss is lost has written statistics
        found.append((steady(model, optimizer), dict(model.state_dict())))
    torch.testing.assert_close(found[1], found[0])


def test_gradients_on_the_device_are_kept_where_a_model_is_joined_with_one_on_the_host():
    """The optimizer of one model steps on the host alone, and the other's loss waits for its step."""
    found = []
    for captures in (False, True):
        torch.manual_seed(3)
        encoder, head = nn.Linear(6, 5), nn.Linear(5, 3)
        steps = torch.optim.Adagrad(encoder.parameters(), lr=0.1), torch.optim.SGD(head.parameters(), lr=0.5)
        for step, model in zip(steps, (encoder, head)) if captures else ():
            ipu_prepare(step, model, config=IPUConfig(update="auto"))
        encoder(X).pow(2).mean().backward()
        steps[0].step()
        steps[0].zero_grad()
        F.cross_entropy(head(X[:, :5]), Y).backward()
        F.cross_entropy(head(encoder(X)), Y).backward()
        gradients = [each.grad.clone() for model in (encoder, head) for each in model.parameters()]
        for step in steps:
            step.step()
        found.append((gradients, dict(encoder.state_dict()), dict(head.state_dict())))
    torch.testing.assert_close(found[1], found[0])
