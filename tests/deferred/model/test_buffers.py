"""Calls that write buffers, and whose models others give values to: an encoder and a decoder with an optimizer each."""

from __future__ import annotations

import copy
import itertools
from typing import Any, Callable, Dict, List

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import IPUConfig, ipu_prepare
from ignite_ipu.errors import CaptureError

UPDATES = ["device", "auto", "host"]


class Pair:
    """An encoder, a decoder that writes statistics of batches, and the values that the loop has seen.

    The encoder writes such statistics, too, if it is `normalised`.
    """

    def __init__(self, update: str, normalised: bool = False) -> None:
        torch.manual_seed(0)
        norm = nn.BatchNorm1d(6) if normalised else nn.LayerNorm(6)
        self.encoder = nn.Sequential(nn.Linear(4, 6), norm, nn.Tanh(), nn.Linear(6, 3))
        # A bias before batch normalisation has gradients of rounding alone, which Adam makes steps of.
        first = nn.Linear(3, 6, bias=False)
        self.decoder = nn.Sequential(first, nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 4))
        self.encoding = torch.optim.SGD(self.encoder.parameters(), lr=0.5)
        self.decoding = torch.optim.Adam(self.decoder.parameters(), lr=0.05)
        self.seen: List[Any] = []
        if update != "eager":
            for optimizer, model in ((self.encoding, self.encoder), (self.decoding, self.decoder)):
                ipu_prepare(optimizer, model, config=IPUConfig(update=update))

    def look(self) -> None:
        self.seen.append(copy.deepcopy((self.encoder.state_dict(), self.decoder.state_dict())))

    def reconstruct(self) -> torch.Tensor:
        x = torch.randn(6, 4)
        return F.mse_loss(self.decoder(self.encoder(x)), x)


def check_native(loop: Callable[[Pair], None], update: str, normalised: bool = False) -> None:
    seen: Dict[str, List[Any]] = {}
    for each in ("eager", update):
        pair = Pair(each, normalised)
        torch.manual_seed(1)
        loop(pair)
        pair.look()
        seen[each] = pair.seen
    torch.testing.assert_close(seen[update], seen["eager"], rtol=1e-4, atol=1e-6)


def train_encoder(pair: Pair) -> None:
    code = pair.encoder(torch.randn(6, 4))
    kept = pair.decoder(code.detach())
    code.pow(2).mean().backward()
    pair.encoding.step()
    pair.encoding.zero_grad()
    pair.seen.append(kept.mean().item())


def write_encoder(pair: Pair) -> None:
    with torch.no_grad():
        pair.encoder[0].weight.mul_(2.0)


def clamp_encoder(pair: Pair) -> None:
    pair.encoder[0].weight.data.clamp_(-0.1, 0.1)


def load_encoder(pair: Pair) -> None:
    pair.encoder.load_state_dict({name: value * 2 for name, value in pair.encoder.state_dict().items()})


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("change", [train_encoder, write_encoder, clamp_encoder, load_encoder])
def test_a_call_of_one_model_has_the_weights_that_another_had_then(change: Callable[[Pair], None], update: str) -> None:
    """No loss joins the two models, and the encoder's weights change before the decoder's statistics are read."""

    def loop(pair: Pair) -> None:
        for _ in range(3):
            pair.decoder(pair.encoder(torch.randn(6, 4)))
            change(pair)
            pair.look()

    check_native(loop, update)


@pytest.mark.parametrize("update", UPDATES)
def test_a_call_from_before_models_are_joined(update: str) -> None:
    """The loss joins them, and a later call that no loss is of writes the same statistics."""

    def loop(pair: Pair) -> None:
        for _ in range(2):
            loss = pair.reconstruct()
            pair.decoder(pair.encoder(torch.randn(6, 4)).detach())
            loss.backward()
            pair.encoding.step()
            pair.decoding.step()
            pair.encoding.zero_grad()
            pair.decoding.zero_grad()

    check_native(loop, update)


@pytest.mark.parametrize("update", ["auto", "host"])
def test_an_update_after_a_call_that_may_still_go_backward(update: str) -> None:
    """The call writes its statistics first, and the update itself writes those of its own."""

    def loop(pair: Pair) -> None:
        kept = pair.reconstruct()

        def closure() -> torch.Tensor:
            pair.encoding.zero_grad()
            loss = pair.reconstruct()
            loss.backward()
            return loss

        pair.seen.append(pair.encoding.step(closure).item())
        pair.seen.append(kept.item())

    check_native(loop, update)


@pytest.mark.parametrize(("update", "reads"), [("device", False), *itertools.product(["auto", "host"], [False, True])])
def test_a_call_that_is_kept_over_steps_of_its_weights(update: str, reads: bool) -> None:
    """It goes backward in no update, and is let go before another optimizer steps."""

    def loop(pair: Pair) -> None:
        for _ in range(3):
            kept = pair.reconstruct()
            pair.reconstruct().backward()
            pair.encoding.step()
            if reads:
                pair.seen.append(kept.item())
            del kept
            pair.decoding.step()
            pair.encoding.zero_grad()
            pair.decoding.zero_grad()

    check_native(loop, update)


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("evaluates", [False, True])
def test_a_model_scores_results_without_gradients_before_their_step(evaluates: bool, update: str) -> None:
    """It does so with the weights that it has then, and writes its statistics in training mode."""

    def loop(pair: Pair) -> None:
        for _ in range(3):
            pair.encoding.zero_grad()
            pair.decoding.zero_grad()
            code = pair.encoder(torch.randn(6, 4))
            pair.decoder.train(not evaluates)
            with torch.no_grad():
                pair.seen.append(pair.decoder(code).mean())
            pair.decoder.train()
            pair.decoder(code.detach()).pow(2).mean().backward()
            pair.decoding.step()
            pair.decoder(code).pow(2).mean().backward()
            pair.encoding.step()
            pair.look()

    check_native(loop, update, normalised=True)


@pytest.mark.parametrize("update", ["auto", "host"])
def test_statistics_are_read_between_two_calls_of_a_loss_that_is_computed_from_a_known_one(update: str) -> None:
    def loop(pair: Pair) -> None:
        for _ in range(3):
            pair.encoding.zero_grad()
            pair.decoding.zero_grad()
            code = pair.encoder(torch.randn(6, 4))
            code.pow(2).mean().backward(retain_graph=True)  # type: ignore[no-untyped-call]
            first = pair.decoder(code).pow(2).mean()
            pair.look()
            (first + pair.decoder(torch.randn(6, 3)).pow(2).mean()).backward()
            pair.encoding.step()
            pair.decoding.step()

    check_native(loop, update)


class Counting(nn.Module):
    """A linear layer whose results depend on a count of its calls."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("calls", torch.tensor(0.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        out: torch.Tensor = self.linear(x) * (1 + self.calls % 3)
        return out


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))


def losses_of_two_calls(
    make: Callable[[], nn.Module], update: str, read: List[int], keeps: bool = True, alike: bool = False
) -> List[Any]:
    """Return a loop's numbers, with losses read before `backward()`.

    The two calls have other modes, unless they are `alike`: then the loop looks at gradients, too.
    """
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if update != "eager":
        ipu_prepare(model, optimizer, config=IPUConfig(update=update))
    seen: List[Any] = []
    torch.manual_seed(1)
    for _ in range(3):
        optimizer.zero_grad()
        losses = [model.train()(torch.randn(6, 4)).pow(2).mean()]
        if isinstance(model, nn.Sequential) and not alike:
            model[1].eval()
        losses.append(model(torch.randn(6, 4)).pow(2).mean())
        if not keeps:
            del losses[0]
        seen += [losses[which].item() for which in read]
        total = torch.stack(losses).sum()
        total.backward()
        if alike:
            seen += [each.grad.clone() for each in model.parameters() if each.grad is not None]
        optimizer.step()
    return [*seen, copy.deepcopy(model.state_dict())]


@pytest.mark.parametrize("read", [[1], [1, 0], [0, 1]])
@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("make", [normalised, Counting])
def test_a_value_is_read_that_depends_on_buffers_of_an_earlier_call(
    make: Callable[[], nn.Module], update: str, read: List[int]
) -> None:
    """The host replays that call first: no update has written them yet."""
    expected = losses_of_two_calls(make, "eager", read)
    torch.testing.assert_close(losses_of_two_calls(make, update, read), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("read", [[0], [1], [1, 0]])
@pytest.mark.parametrize("update", ["auto", "host"])
@pytest.mark.parametrize("make", [normalised, Counting])
def test_a_call_whose_loss_was_read_is_made_again_with_one_that_was_not(
    make: Callable[[], nn.Module], update: str, read: List[int]
) -> None:
    """The device computes the loss that is read with its gradients, and then both losses: buffers are written once."""
    expected = losses_of_two_calls(make, "eager", read, alike=True)
    torch.testing.assert_close(losses_of_two_calls(make, update, read, alike=True), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("make", [normalised, Counting])
def test_a_value_is_read_after_a_call_that_no_loss_is_of(make: Callable[[], nn.Module], update: str) -> None:
    """The first call has written buffers, and nothing can go backward through it."""
    expected = losses_of_two_calls(make, "eager", [0], keeps=False)
    torch.testing.assert_close(losses_of_two_calls(make, update, [0], keeps=False), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("reads_first", [False, True])
@pytest.mark.parametrize("joined", [False, True])
def test_a_call_that_is_computed_from_one_without_an_update(joined: bool, reads_first: bool, update: str) -> None:
    """Both write statistics, and the gradients of the first call are cleared before its update."""

    def loop(pair: Pair) -> None:
        if joined:
            pair.reconstruct().backward()  # type: ignore[no-untyped-call]
            pair.encoding.step()
            pair.decoding.step()
        for _ in range(3):
            code = pair.encoder(torch.randn(6, 4))
            kept = pair.decoder(code.detach())
            code.pow(2).mean().backward()
            if reads_first:
                pair.seen.append(copy.deepcopy(pair.encoder.state_dict()))
            pair.encoding.zero_grad()
            pair.seen.append(copy.deepcopy(pair.decoder.state_dict()))
            pair.look()
            del kept

    check_native(loop, update, normalised=True)


@pytest.mark.parametrize("update", UPDATES)
def test_an_update_of_a_call_that_an_unused_call_is_computed_from(update: str) -> None:
    """One loop trains both models, and both write statistics."""

    def loop(pair: Pair) -> None:
        for number in range(4):
            code = pair.encoder(torch.randn(6, 4))
            result = pair.decoder(code)
            loss = result.pow(2).mean() if number == 0 else code.pow(2).mean()
            del result
            loss.backward()
            pair.encoding.step()
            pair.decoding.step()
            pair.encoding.zero_grad()
            pair.decoding.zero_grad()
            pair.look()

    check_native(loop, update, normalised=True)


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize("reads_first", [False, True])
@pytest.mark.parametrize("trains", [False, True])
def test_a_loop_goes_on_after_a_refused_backward(trains: bool, reads_first: bool, writes: bool) -> None:
    """The call that the refused loss has in common with the loop's own writes its statistics once."""

    def seen(captured: bool) -> List[Any]:
        torch.manual_seed(0)
        model, other = normalised(), normalised()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if captured:
            ipu_prepare(model, optimizer, config=IPUConfig(update="host"))
            ipu_prepare(other, torch.optim.SGD(other.parameters(), lr=0.1), config=IPUConfig(update="host"))
        found: List[Any] = []
        for _ in range(2):
            optimizer.zero_grad()
            first = model(torch.randn(6, 4))
            first.mean().backward(retain_graph=True)
            if writes:
                with torch.no_grad():
                    model[3].weight.mul_(0.5)
            model[3].bias.requires_grad_(False)  # the calls of one loss are one program
            second = model(torch.randn(6, 4))
            if reads_first:
                found.append(copy.deepcopy(model.state_dict()))
            if captured:
                # PyTorch refuses it, too, if the weight was written.
                with pytest.raises(RuntimeError if writes else CaptureError):
                    (first + second).mean().backward()
            found.append(copy.deepcopy((model.state_dict(), other.state_dict())))
            found.append(other(torch.randn(6, 4)).mean().item())
            if trains:
                second.pow(2).mean().backward()
                optimizer.step()
            model[3].bias.requires_grad_(True)
            found.append(copy.deepcopy(model.state_dict()))
        return found

    torch.testing.assert_close(seen(True), seen(False), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("writes", [False, True], ids=["read", "written"])
def test_memory_of_a_weight_that_is_held_over_an_update_without_a_call(update: str, writes: bool) -> None:
    """The update begins with the buffers of its own call, and the memory of weights is handed out there."""
    seen: Dict[str, List[Any]] = {}
    for each in ("eager", update):
        torch.manual_seed(0)
        model: Any = nn.Sequential(nn.Linear(3, 4), nn.utils.spectral_norm(nn.Linear(4, 4)), nn.BatchNorm1d(4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if each != "eager":
            model = ipu_prepare(model, optimizer, config=IPUConfig(update=each))
        found: List[Any] = seen.setdefault(each, [])
        held: List[torch.Tensor] = []
        for number in range(4):
            optimizer.zero_grad()
            out = model(torch.randn(8, 3))
            if number == 1:
                held.append(model[0].weight.data)
            loss = (out - 1).pow(3).mean()
            model(torch.randn(8, 3))
            loss.backward()
            optimizer.step()
            for memory in held:
                found.append(memory.clone())
                if writes:
                    memory.mul_(0.5)
        found.append(copy.deepcopy(model.state_dict()))
    torch.testing.assert_close(seen[update], seen["eager"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("update", UPDATES)
def test_a_buffer_that_the_loop_writes_between_two_calls_of_one_update(update: str) -> None:
    """The update begins with the buffers of its first call, so that the written value would be lost."""
    model = Counting()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ipu_prepare(model, optimizer, config=IPUConfig(update=update))
    x = torch.ones(2, 4)
    first = model(x).mean()
    with torch.no_grad():
        next(model.buffers()).add_(1)
    last = model(x).mean()

    def go_on() -> None:
        (first + last).backward()
        optimizer.step()

    with pytest.raises(CaptureError, match=r"between them the loop has written buffers|were written after that"):
        go_on()


Calls = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]


def labels_between(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return a loss of two calls between which the model has made labels."""
    scores = model(x)
    with torch.no_grad():
        labels = model(x + 0.1).argmax(1)
    return F.cross_entropy(scores, y) + F.cross_entropy(model(x - 0.1), labels)


def targets_between(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return a loss of three calls, with targets that were computed between each two."""
    scores = [model(x)]
    loss = F.cross_entropy(scores[0], y)
    for shift in (0.1, 0.2):
        with torch.no_grad():
            target = model(x + shift)
        scores.append(model(x - shift))
        loss = loss + F.mse_loss(scores[-1], target)
    return loss


def goes_backward_twice(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    F.cross_entropy(model(x), y).backward()
    with torch.no_grad():
        labels = model(x + 0.1).argmax(1)
    return F.cross_entropy(model(x - 0.1), labels)


def looks_at_statistics(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    first = model(x)
    with torch.no_grad():
        target = model(x + 0.1) + next(model.buffers()).sum()
    return F.cross_entropy(first, y) + F.mse_loss(model(x - 0.1), target)


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("calls", [labels_between, targets_between, goes_backward_twice, looks_at_statistics])
def test_an_evaluation_between_two_calls_of_one_update_writes_the_same_statistics(calls: Calls, update: str) -> None:
    """As PyTorch, which writes the statistics of each call at once."""
    seen: Dict[str, List[Any]] = {}
    for each in ("eager", update):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5, bias=False), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if each != "eager":
            ipu_prepare(model, optimizer, config=IPUConfig(update=each))
        found: List[Any] = seen.setdefault(each, [])
        for _ in range(4):
            x, y = torch.randn(6, 4), torch.randint(0, 3, (6,))
            optimizer.zero_grad()
            loss = calls(model, x, y)
            loss.backward()
            optimizer.step()
            found.append((loss.item(), copy.deepcopy(model.state_dict())))
    torch.testing.assert_close(seen[update], seen["eager"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("update", UPDATES)
def test_an_evaluation_updates_statistics_that_a_loss_was_normalised_with(update: str) -> None:
    """PyTorch's gradient would be one with the later statistics; after `backward()` it makes no difference."""
    x, y = torch.randn(6, 4), torch.zeros(6, dtype=torch.long)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ipu_prepare(model, optimizer, config=IPUConfig(update=update))

    def train(before_backward: bool) -> None:
        model.eval()
        loss = F.cross_entropy(model(x), y)
        model.train()
        if not before_backward:
            loss.backward()
        with torch.no_grad():
            model(x + 3)
        if before_backward:
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    twin = copy.deepcopy(model)
    stepped = torch.optim.SGD(twin.parameters(), lr=0.1)
    F.cross_entropy(twin.eval()(x), y).backward()
    stepped.step()
    train(False)
    torch.testing.assert_close(list(model.parameters()), list(twin.parameters()))
    with pytest.raises(CaptureError, match="an evaluation updates them before backward"):
        train(True)


@pytest.mark.parametrize("update", UPDATES)
def test_statistics_are_looked_at_for_a_batch_that_is_left_out(update: str) -> None:
    """A look that gets their memory is no write, neither then nor at a later look for writes."""
    seen: Dict[str, List[Any]] = {}
    for each in ("eager", update):
        torch.manual_seed(0)
        model: Any = nn.Sequential(nn.Linear(4, 5, bias=False), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        if each != "eager":
            ipu_prepare(model, optimizer, config=IPUConfig(update=each))
        found: List[Any] = seen.setdefault(each, [])
        for number in range(8):
            optimizer.zero_grad()
            scores = model(torch.randn(6, 4))
            if number == 3:
                found.append(model[1].running_mean.detach().sum().item())
                continue
            loss = F.cross_entropy(scores, torch.arange(6) % 3)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        found.append(copy.deepcopy(model.state_dict()))
    torch.testing.assert_close(seen[update], seen["eager"], rtol=1e-4, atol=1e-5)


def test_an_update_is_taken_back_that_leaves_out_a_call() -> None:
    """It ran for a read of a loss in evaluation mode; gradients need the statistics from before the other call."""
    seen: List[Any] = []
    for captured in (False, True):
        torch.manual_seed(0)
        model: Any = nn.Sequential(nn.Linear(4, 5, bias=False), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        if captured:
            ipu_prepare(model, optimizer, config=IPUConfig(update="auto"))
        for _ in range(2):
            optimizer.zero_grad()
            loss = F.cross_entropy(model.eval()(torch.randn(6, 4)), torch.arange(6) % 3)
            loss.backward()
            unused = model.train()(torch.randn(6, 4))
            seen += [loss.item(), copy.deepcopy(model.state_dict())]
            optimizer.step()
        seen.append([unused.detach().clone(), copy.deepcopy(model.state_dict())])
    torch.testing.assert_close(seen[5:], seen[:5], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("update", ["device", "auto", "host"])
def test_a_layer_is_wrapped_before_the_update_of_a_call_that_writes_its_buffers(update: str) -> None:
    """As in PyTorch's graph, the update is of the model as it was when it was called."""
    seen: List[Any] = []
    for captured in (False, True):
        torch.manual_seed(0)
        model: Any = nn.Sequential(nn.utils.spectral_norm(nn.Linear(4, 5)), nn.Linear(5, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        if captured:
            ipu_prepare(model, optimizer, config=IPUConfig(update=update))
        for number in range(3):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(torch.randn(6, 4)), torch.arange(6) % 3)
            if number == 1:
                model[0] = nn.Sequential(model[0], nn.Tanh())
            loss.backward()
            optimizer.step()
            seen.append([loss.item(), copy.deepcopy(model.state_dict())])
    torch.testing.assert_close(seen[3:], seen[:3], rtol=1e-4, atol=1e-5)
