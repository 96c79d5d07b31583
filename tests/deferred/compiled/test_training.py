"""A captured update gives the weights of the native loop, from one program that is reused while the body stays."""

from __future__ import annotations

import collections
import copy
import logging
from typing import Any, Callable, Dict, List, Tuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ignite_ipu.emulator as poptorch
from ignite_ipu import IPUConfig, SessionError, backend
from ignite_ipu.deferred import CaptureError, capture_model, capture_optimizer, captured

Loop = Callable[[nn.Module, torch.optim.Optimizer], Any]
X = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()


def batches(size: int = 8, count: int = 8) -> List[Tuple[torch.Tensor, torch.Tensor]]:
    return [(X[i * size : i * size + size], Y[i * size : i * size + size]) for i in range(count)]


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.05)


def prepared() -> Tuple[nn.Module, torch.optim.Optimizer]:
    """Return a captured network and its optimizer."""
    model = network()
    capture_model(model)
    optimizer = adam(model)
    capture_optimizer(optimizer)
    return model, optimizer


def both(
    loop: Loop,
    make: Callable[[], nn.Module] = network,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = adam,
    **settings: Any,
) -> Tuple[Any, Any, nn.Module]:
    """Run a loop in eager PyTorch and captured; check the weights, return both results and the captured model."""
    native, model = make(), make()
    expected = loop(native, optimizer(native))
    capture_model(model, IPUConfig(**settings))
    own = optimizer(model)
    capture_optimizer(own)
    found = loop(model, own)
    same_weights(native, model)
    return expected, found, model


def same_weights(native: nn.Module, model: nn.Module) -> None:
    states: List[Dict[str, torch.Tensor]] = [native.state_dict(), model.state_dict()]
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        if value.is_floating_point():
            torch.testing.assert_close(states[1][name], value, rtol=1e-5, atol=1e-6)


def counters(model: nn.Module) -> Any:
    capture = captured(model)
    assert capture is not None and capture.session.training is not None
    return backend.poptorch().counters(capture.session.training.executor)


def compilations(model: nn.Module) -> int:
    capture = captured(model)
    assert capture is not None
    return capture.compilations


def test_plain_loop() -> None:
    """Losses and weights are the native ones, by one compilation and one device call per update."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> List[float]:
        losses = []
        for x, y in batches():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    expected, found, model = both(loop)
    assert found == pytest.approx(expected, rel=1e-5)
    count = counters(model)
    assert (count.compiles, count.device_calls, count.optimizer_updates, count.weight_uploads) == (1, 8, 8, 1)


def test_accumulated_gradients_are_summed_in_one_call() -> None:
    """Four backward calls before a step are one device call over four micro-batches."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
        total: Any = 0
        for number, (x, y) in enumerate(batches()):
            loss = F.cross_entropy(model(x), y) / 4
            total += loss.detach()
            loss.backward()
            if number % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
        return float(total)

    expected, found, model = both(loop)
    assert found == pytest.approx(expected, rel=1e-5)
    assert (counters(model).device_calls, counters(model).micro_batches) == (2, 8)
    assert compilations(model) == 1


def test_replicas_share_the_micro_batches_of_an_update() -> None:
    """Two replicas with two micro-batches each are four accumulated ones."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> List[float]:
        losses = []
        for number, (x, y) in enumerate(batches()):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            losses.append(loss.detach())
            if number % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
        return [float(loss) for loss in losses]

    expected, found, model = both(loop, replication_factor=2)
    assert found == pytest.approx(expected, rel=1e-5)
    training = captured(model).session.training  # type: ignore[union-attr]
    assert (training.options.replication_factor, training.options.Training.gradient_accumulation) == (2, 2)


def test_replicas_need_their_share() -> None:
    """One micro-batch cannot be shared by two replicas."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        F.cross_entropy(model(X), Y).backward()
        optimizer.step()

    model = network()
    capture_model(model, IPUConfig(replication_factor=2))
    optimizer = adam(model)
    capture_optimizer(optimizer)
    with pytest.raises(CaptureError, match=r"replicationFactor is 2, but 1 micro-batches"):
        loop(model, optimizer)


def test_losses_that_share_a_forward_are_one_loss() -> None:
    """Two backward calls over one forward add up, as gradients do."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for x, y in batches():
            output = model(x)
            F.cross_entropy(output, y).backward(retain_graph=True)
            (output.pow(2).mean() * 0.1).backward()
            optimizer.step()
            optimizer.zero_grad()

    _, _, model = both(loop)
    assert counters(model).micro_batches == 8


def test_model_called_twice_in_a_step() -> None:
    """Consistency training calls a model on two views of a batch."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for x, y in batches():
            first, second = model(x), model(x * 1.1)
            loss = F.cross_entropy(first, y) + F.mse_loss(first, second)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    both(loop)


def test_a_loss_that_goes_backward_twice_keeps_its_value() -> None:
    """Its gradient counts twice, as in PyTorch; the number that is read is the loss."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> List[float]:
        losses = []
        for x, y in batches():
            loss = F.cross_entropy(model(x), y)
            loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    expected, found, _ = both(loop, optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1))
    assert found == pytest.approx(expected)


def test_weights_in_the_loss() -> None:
    """A penalty on parameters that the loop itself computes is differentiated, too."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        weight = model[0].weight  # type: ignore[index]
        for x, y in batches():
            output = model(x)
            loss = F.cross_entropy(output, y) + 0.1 * (output.mean() * 0 + weight).pow(2).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    both(loop)


def test_the_factor_of_an_addition_may_change() -> None:
    """`alpha=` stays the Python number that PyTorch wants; another one is another program."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> List[float]:
        losses = []
        for number, (x, y) in enumerate(batches(count=4)):
            output = model(x)
            loss = torch.add(F.cross_entropy(output, y), output.pow(2).mean() + 0.5, alpha=0.1 * (number // 2))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    expected, found, model = both(loop)
    assert found == pytest.approx(expected)
    assert compilations(model) == 2


def test_changing_number_becomes_an_input(caplog: pytest.LogCaptureFixture) -> None:
    """A loss weight that is annealed costs one more compilation, not one per step."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for number, (x, y) in enumerate(batches()):
            output = model(x)
            loss = F.cross_entropy(output, y) + output.pow(2).mean() * (0.1 * number)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    with caplog.at_level(logging.WARNING, "ignite_ipu"):
        _, _, model = both(loop)
    assert compilations(model) == 2
    assert "numbers in it change ([0.0])" in caplog.text


@pytest.mark.parametrize(
    "scaled",
    [
        lambda loss, number: loss / (20 + number),
        lambda loss, number: (number - loss) * -2,
        lambda loss, number: loss / np.float64(20 + number),
        lambda loss, number: loss * np.float32(1.5 + number),
        lambda loss, number: loss / np.int64(20 + number),
        lambda loss, number: torch.mul(loss, number + 1),
    ],
)
def test_whole_numbers_and_those_of_numpy_become_inputs(scaled: Callable[[torch.Tensor, int], torch.Tensor]) -> None:
    """As a number of tokens that a loss is divided by."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> List[float]:
        losses = []
        for number, (x, y) in enumerate(batches()):
            loss = scaled(F.cross_entropy(model(x), y), number)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    expected, found, model = both(loop)
    assert found == pytest.approx(expected)
    assert compilations(model) == 2


def test_whole_numbers_stay_exact_with_whole_numbers(caplog: pytest.LogCaptureFixture) -> None:
    """Those of shapes, too: another one is another program, and the remedy is named where it changes."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> List[Any]:
        seen: List[Any] = []
        for number, (x, y) in enumerate(batches(count=4)):
            output = model(x)
            best = output.argmax(-1) * (2**24 + 1) + number // 2
            part = (output * 2).view(2 * (1 + number % 2), -1)
            chosen = F.one_hot(best % 2, 2) * output
            (F.cross_entropy(output, y) + part.pow(2).mean(0).sum() + (chosen / 4).mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
            seen += [best.tolist(), best.dtype, (best / 4).tolist(), tuple(part.shape)]
        return seen

    with caplog.at_level(logging.WARNING, "ignite_ipu"):
        expected, found, _ = both(loop)
    assert found == expected
    assert "an argument of" in caplog.text and "is passed as a tensor" in caplog.text


def test_changed_body_is_compiled_again_and_named(caplog: pytest.LogCaptureFixture) -> None:
    """Weights and the optimizer's moments go on in the new program."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for number, (x, y) in enumerate(batches()):
            output = model(x)
            loss = F.cross_entropy(output, y) if number < 4 else F.mse_loss(output, F.one_hot(y, 2).float())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    with caplog.at_level(logging.WARNING, "ignite_ipu"):
        _, _, model = both(loop)
    assert compilations(model) == 2
    assert "cross_entropy" in caplog.text and "mse_loss" in caplog.text and "test_training.py" in caplog.text


def test_incomplete_last_batch_is_trained_on(caplog: pytest.LogCaptureFixture) -> None:
    """A smaller batch is another program; it trains as in eager PyTorch."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for x, y in (*batches(), (X[:3], Y[:3])):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

    with caplog.at_level(logging.WARNING, "ignite_ipu"):
        both(loop)
    assert "input 0 is now a torch.float32 tensor of shape (3, 6), it was" in caplog.text


def test_incomplete_batch_inside_an_accumulation() -> None:
    """Micro-batches that differ are one graph, since a device call repeats one recipe."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for x, y in ((X[:8], Y[:8]), (X[8:11], Y[8:11])):
            F.cross_entropy(model(x), y).backward()
        optimizer.step()

    both(loop)


def test_gradients_that_are_dropped() -> None:
    """zero_grad before the step drops the pending losses."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for number, (x, y) in enumerate(batches()):
            F.cross_entropy(model(x), y).backward()
            if number % 2:
                optimizer.step()
            optimizer.zero_grad()

    _, _, model = both(loop)
    assert counters(model).device_calls == 4


def test_learning_rates_reach_the_device_once_per_change() -> None:
    """A schedule is sent when it changes a number."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
        for x, y in batches():
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()

    _, _, model = both(loop)
    assert counters(model).optimizer_uploads == 3


def test_dropout_and_batch_norm_train() -> None:
    """Running statistics come back; a sub-module that the user put in eval mode stays there."""

    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model.train()
        model[2].eval()  # type: ignore[index]
        for x, y in batches():
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

    both(loop, make)


def test_unfreezing_compiles_again() -> None:
    """Parameters that begin to require gradients are trained from then on."""

    def make() -> nn.Module:
        model = network()
        model[0].requires_grad_(False)  # type: ignore[index]
        return model

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for epoch in range(2):
            model[0].requires_grad_(epoch == 1)  # type: ignore[index]
            model.train()
            for x, y in batches():
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()

    both(loop, make, lambda model: torch.optim.SGD(model.parameters(), lr=0.1))


def test_weights_edited_by_the_loop() -> None:
    """Clipping weights by hand after each step reaches the device."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for x, y in batches():
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                model[0].weight.clamp_(-0.2, 0.2)  # type: ignore[index]

    both(loop)


_TELLS_MEMORY = pytest.mark.skipif(
    not hasattr(torch.UntypedStorage, "resizable"),
    reason="PyTorch 2.0 does not tell whose memory a tensor has, so that it is copied",
)


@_TELLS_MEMORY
def test_input_changed_before_the_step_is_refused() -> None:
    """A buffer that the loop reuses would train on the wrong values, if it did not so in its first update."""
    model, optimizer = prepared()
    x = X[:8].clone()
    for _ in range(2):
        optimizer.step()
        optimizer.zero_grad()
        F.cross_entropy(model(x), Y[:8]).backward()
    x.zero_()
    with pytest.raises(CaptureError, match="changed in place afterwards"):
        optimizer.step()


@_TELLS_MEMORY
def test_a_metric_read_after_its_tensor_was_written_into_is_refused() -> None:
    """It is computed when it is read; read before the write, or of a copy, it is PyTorch's."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, how: str = "read") -> List[Any]:
        targets = torch.zeros(8, dtype=torch.long)
        seen: List[Any] = []
        for x, y in batches(count=4):
            targets.copy_(y)
            scores = model(x)
            right = (scores.argmax(-1) == (targets.clone() if how == "copy" else targets)).float().mean()
            F.cross_entropy(scores, targets).backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.append(right.item() if how == "read" else right)
        return [float(right) for right in seen]

    for how in ("read", "copy"):
        expected, found, _ = both(lambda model, optimizer, how=how: loop(model, optimizer, how))  # type: ignore[misc]
        assert found == expected
    with pytest.raises(
        CaptureError, match=r"\(8,\) was used at .*test_training\.py.*no part of the loss.*Read the value"
    ):
        loop(*prepared(), how="late")


def test_weights_outside_the_model_are_refused() -> None:
    """Unprepared parameters of an optimizer would be trained by gradients that the host lacks."""
    model = network()
    capture_model(model)
    capture_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    scale = nn.Parameter(torch.ones(2))
    (model(X[:8]) * scale).sum().backward()
    with pytest.raises(CaptureError, match="If it is a parameter, make it one of the model that is prepared"):
        torch.optim.SGD([scale], lr=0.1).step()


@pytest.mark.parametrize("first", [False, True])
def test_a_model_on_detached_values_of_another(first: bool) -> None:
    """The step of the one runs before its values go into the other, or after both losses."""

    def loop(models: List[nn.Module], captures: bool) -> None:
        optimizers = [adam(model) for model in models]
        for model, optimizer in zip(models, optimizers) if captures else ():
            capture_model(model)
            capture_optimizer(optimizer)
        for x, y in batches(count=4):
            values = models[0](x)
            values.pow(2).mean().backward()
            if first:
                optimizers[0].step()
            F.cross_entropy(models[1](values.detach()), y).backward()
            for optimizer in optimizers[first:]:
                optimizer.step()
            for optimizer in optimizers:
                optimizer.zero_grad()

    pairs = [[nn.Linear(6, 6), network()]]
    pairs.append(copy.deepcopy(pairs[0]))
    loop(pairs[0], captures=False)
    loop(pairs[1], captures=True)
    for native, model in zip(*pairs):
        same_weights(native, model)


def test_two_models_side_by_side() -> None:
    """Two models with losses of their own are two captured steps."""
    models = [network(0), network(1)]
    natives = copy.deepcopy(models)
    for model in models:
        capture_model(model)
    for pair in (natives, models):
        optimizers = [adam(model) for model in pair]
        for optimizer in optimizers if pair is models else ():
            capture_optimizer(optimizer)
        for x, y in batches():
            losses = [F.cross_entropy(model(x), y) for model in pair]
            for loss, optimizer in zip(losses, optimizers):
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
    for native, model in zip(natives, models):
        same_weights(native, model)


def test_teacher_and_student() -> None:
    """A teacher in eval mode runs by itself; the student trains on its output."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        teacher = network(5).eval()
        if captured(model) is not None:
            capture_model(teacher)
        for x, _ in batches():
            with torch.no_grad():
                wanted = teacher(x).softmax(-1)
            F.kl_div(model(x).log_softmax(-1), wanted, reduction="batchmean").backward()
            optimizer.step()
            optimizer.zero_grad()

    both(loop)


def test_closing_gives_everything_back() -> None:
    """After close the model and its optimizer train on the host, from the device's state."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for x, y in batches():
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        capture = captured(model)
        if capture is not None:
            capture.close()
        for x, y in batches():
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

    native, model = network(), network()
    loop(native, adam(native))
    capture_model(model)
    optimizer = adam(model)
    capture_optimizer(optimizer)
    loop(model, optimizer)
    assert captured(model) is None and type(model) is nn.Sequential
    same_weights(native, model)


def test_closing_says_what_is_lost_and_gives_everything_back() -> None:
    """A copy that fails leaves an ordinary model and an ordinary optimizer behind."""
    model, optimizer = prepared()
    for x, y in batches(count=2):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    capture = captured(model)
    assert capture is not None
    with poptorch.inject_faults({}, copies={0: poptorch.Fault()}), pytest.raises(SessionError, match="newest weights"):
        capture.close()
    assert captured(model) is None and type(model) is nn.Sequential and type(optimizer) is torch.optim.AdamW
    assert isinstance(F.cross_entropy(model(X), Y).item(), float)


def test_hooks_on_steps_are_called() -> None:
    """One that clamps weights after each step, and one that schedules before it, have their native effect."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> List[float]:
        rates: List[float] = []

        def before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            optimizer.param_groups[0]["lr"] *= 0.9
            rates.append(optimizer.param_groups[0]["lr"])

        def after(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            with torch.no_grad():
                model[0].weight.clamp_(-0.2, 0.2)  # type: ignore[index,operator]

        optimizer.register_step_pre_hook(before)
        optimizer.register_step_post_hook(after)
        for x, y in batches():
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        return rates

    expected, found, _ = both(loop)
    assert found == pytest.approx(expected) and len(found) == 8


def test_a_hook_that_changes_the_arguments_of_a_step_is_refused() -> None:
    """A step of the device takes none."""
    model, optimizer = prepared()
    optimizer.register_step_pre_hook(lambda optimizer, args, kwargs: ((optimizer, None), {}))
    F.cross_entropy(model(X), Y).backward()
    with pytest.raises(CaptureError, match=r"hook before AdamW\.step\(\) at .*test_training\.py.*other arguments"):
        optimizer.step()


def zero_moments(optimizer: torch.optim.Optimizer, number: int) -> None:
    for entries in optimizer.state.values():
        entries["exp_avg"].zero_()


def zero_moments_by_data(optimizer: torch.optim.Optimizer, number: int) -> None:
    for entries in optimizer.state.values():
        entries["exp_avg"].data.zero_()


def zero_moments_by_arrays(optimizer: torch.optim.Optimizer, number: int) -> None:
    for entries in optimizer.state.values():
        entries["exp_avg"].numpy()[...] = 0


def replace_moments(optimizer: torch.optim.Optimizer, number: int) -> None:
    for entries in optimizer.state.values():
        entries["exp_avg_sq"] = entries["exp_avg_sq"] * 2 + 1e-3
        entries["a note of the script's"] = number


def forget_moments(optimizer: torch.optim.Optimizer, number: int) -> None:
    optimizer.state = collections.defaultdict(dict)


def clear_moments(optimizer: torch.optim.Optimizer, number: int) -> None:
    optimizer.state.clear()


def restart(optimizer: torch.optim.Optimizer, number: int) -> None:
    optimizer.__setstate__({"state": collections.defaultdict(dict)})


@pytest.mark.parametrize(
    "write",
    [
        zero_moments,
        zero_moments_by_data,
        zero_moments_by_arrays,
        replace_moments,
        forget_moments,
        clear_moments,
        restart,
    ],
)
def test_what_is_written_into_the_optimizers_state_reaches_the_device(write: Callable[[Any, int], None]) -> None:
    """As writes into weights do; an optimizer that is restarted begins anew."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for number, (x, y) in enumerate(batches()):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            if number in (2, 5):
                write(optimizer, number)

    both(loop)


def test_another_optimizer_of_the_class_of_a_linked_one() -> None:
    """`type(optimizer)(...)` is an ordinary one, and trains on when it is prepared."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for number, (x, y) in enumerate(batches()):
            if number == 3:
                kind = type(optimizer)
                captures = captured(model) is not None
                optimizer = kind(model.parameters(), lr=0.05)  # type: ignore[call-arg]
                assert isinstance(optimizer, kind) and type(optimizer) in kind.__mro__
                if captures:
                    capture_optimizer(optimizer)
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

    both(loop)


def test_reading_the_optimizers_state_sends_nothing() -> None:
    """Only written tensors go back."""
    model, optimizer = prepared()
    for x, y in batches():
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        assert len(optimizer.state_dict()["state"]) == len(optimizer.state) == 4
        capture = captured(model)
        assert capture is not None and capture.session.link is not None and not capture.session.link.has_unsent()


@pytest.mark.parametrize("accumulated", [1, 2])
def test_memory_that_the_loop_uses_again(accumulated: int) -> None:
    """A numpy array that holds each batch in turn, which PyTorch does not see written into."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> List[float]:
        memory, losses = np.zeros((8, 6), dtype="float32"), []
        inputs = torch.from_numpy(memory)
        for number, (x, y) in enumerate(batches()):
            memory[:] = x.numpy()
            loss = F.cross_entropy(model(inputs) + model(inputs * 2), y)
            loss.backward()
            losses.append(loss.detach())
            if number % accumulated == accumulated - 1:
                optimizer.step()
                optimizer.zero_grad()
        return [loss.item() for loss in losses]

    expected, found, model = both(loop)
    assert found == pytest.approx(expected)
    assert compilations(model) == 1


@pytest.mark.parametrize("accumulated", [1, 2])
def test_metrics_of_memory_that_the_loop_uses_again(accumulated: int) -> None:
    """Values beside the loss that are read at the end are of the batch that they were recorded for."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> List[float]:
        memory, right = np.zeros(8, dtype="int64"), []
        for number, (x, y) in enumerate(batches()):
            memory[:] = y.numpy()
            targets = torch.from_numpy(memory)
            scores = model(x)
            right.append((scores.argmax(-1) == targets).float().mean())
            F.cross_entropy(scores, targets).backward()
            if number % accumulated == accumulated - 1:
                optimizer.step()
                optimizer.zero_grad()
        memory[:] = -1
        return torch.stack(right).tolist()

    expected, found, _ = both(loop)
    assert found == expected


def test_a_model_is_captured_again_after_close() -> None:
    """Also while the user holds values from before."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> List[torch.Tensor]:
        held = []
        for _ in range(2):
            for x, y in batches():
                held.append(F.cross_entropy(model(x), y))
                held[-1].backward()
                optimizer.step()
                optimizer.zero_grad()
            capture = captured(model)
            if capture is not None:
                capture.close()
                capture_model(model)
                capture_optimizer(optimizer)
        return held

    expected, found, _ = both(loop)
    assert [loss.item() for loss in found] == pytest.approx([loss.item() for loss in expected])


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_lazy_layers() -> None:
    """The first call gives them their weights, which are no edits."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for x, y in batches():
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

    def lazy() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.LazyLinear(2))

    torch.manual_seed(0)
    native = lazy()
    native(X)
    loop(native, torch.optim.SGD(native.parameters(), lr=0.1))
    model = lazy()
    capture_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    capture_optimizer(optimizer)
    torch.manual_seed(0)
    loop(model, optimizer)
    same_weights(native, model)


def test_a_copy_is_an_ordinary_model() -> None:
    """Copies and pickles capture nothing."""
    model = network()
    capture_model(model)
    twin = copy.deepcopy(model)
    assert type(twin) is nn.Sequential and captured(twin) is None
    assert type(twin(X)) is torch.Tensor


class Heads(nn.Module):
    """A trunk with a head for each task, of which some are never asked."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk, self.heads = nn.Linear(6, 4), nn.ModuleList(nn.Linear(4, 2) for _ in range(3))

    def forward(self, x: torch.Tensor, task: int) -> Any:
        return self.heads[task](self.trunk(x).tanh())


def test_weights_that_no_update_moved_have_no_state() -> None:
    """As in PyTorch, which makes it with a weight's first gradient; each head counts its own updates."""
    states = []
    for captures in (False, True):
        net = Heads()
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        if captures:
            capture_model(net)
            capture_optimizer(optimizer)
        for task in (0, 1, 0, 0, 1):
            F.cross_entropy(net(torch.ones(3, 6), task), torch.tensor([0, 1, 1])).backward()
            optimizer.step()
            optimizer.zero_grad()
        states.append(optimizer.state_dict()["state"])
    assert states[1].keys() == states[0].keys() == {0, 1, 2, 3, 4, 5}
    for number, entries in states[0].items():
        torch.testing.assert_close(states[1][number], entries, rtol=1e-4, atol=1e-6)
