"""Tensors that a model leaves behind in each call, for the loop: their values and gradients are PyTorch's."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections import defaultdict, deque
from types import SimpleNamespace
from typing import Any, Callable, Dict, List

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Independent, Normal, kl_divergence
from torch.nn.utils import prune

from ignite_ipu import IPUConfig, create_ipu_evaluator, create_ipu_trainer, emulator, ipu_prepare
from ignite_ipu.deferred import CaptureError, capture_model, capture_optimizer
from ignite_ipu.errors import ForwardError

X = torch.randn(5, 6, 4, generator=torch.Generator().manual_seed(1))
Y = (X[:, :, 0] > 0).long()


@dataclasses.dataclass
class Kept:
    """A record of the loop's."""

    h: torch.Tensor
    more: List[torch.Tensor]


class Scaled(nn.Linear):
    """Keeps a record of its call, with a number of the previous one."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(4, 2)
        self.kept: Any = SimpleNamespace(h=torch.zeros(1), scale=1.0)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        h = super().forward(input) * self.kept.scale
        self.kept = SimpleNamespace(h=h, scale=self.kept.scale)
        return h


class Slotted:
    """An object with a slot for an attribute."""

    __slots__ = ("h",)


class Own:
    """An object of the loop's own."""

    def __init__(self, h: torch.Tensor) -> None:
        self.h, self.kind = h, "own"


class Net(nn.Module):
    """Keeps tensors as its kind requires."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.inner, self.last = kind, nn.Linear(4, 4), nn.Linear(4, 3)
        self.kept: Any = {"dictionary": {}, "cleared list": []}.get(kind)

    def forward(self, x: torch.Tensor) -> Any:
        h = self.inner(x)
        if self.kind == "tensor":
            self.kept = h.square().mean()
        elif self.kind == "its output":
            self.kept = h = self.last(h)
            return h
        elif self.kind == "its input":
            self.kept = x
        elif self.kind == "new list":
            self.kept = [h]
            self.kept.append(h.relu())
        elif self.kind == "cleared list":
            self.kept.clear()
            self.kept += [h, h.relu()]
        elif self.kind == "tuple":
            self.kept = h, 2
        elif self.kind == "dictionary":
            self.kept["h"] = h
            self.kept["more"] = {"positive": h.relu()}
        elif self.kind == "distribution":
            self.kept = Independent(Normal(h, h.exp()), 1)
            return self.last(self.kept.mean)
        elif self.kind == "dataclass":
            self.kept = Kept(h, [h.relu()])
        elif self.kind == "object":
            self.kept = Own(h)
        return self.last(h)


LOSSES: Dict[str, Callable[[Any], torch.Tensor]] = {
    "tensor": lambda kept: kept,
    "its output": lambda kept: kept.square().mean(),
    "its input": lambda kept: kept.square().mean(),
    "new list": lambda kept: sum(each.square().mean() for each in kept),
    "cleared list": lambda kept: sum(each.square().mean() for each in kept),
    "tuple": lambda kept: kept[0].square().mean() * kept[1],
    "dictionary": lambda kept: kept["h"].square().mean() + kept["more"]["positive"].mean(),
    "distribution": lambda kept: kl_divergence(kept, Independent(Normal(torch.zeros(4), 1.0), 1)).mean(),
    "dataclass": lambda kept: kept.h.square().mean() + kept.more[0].mean(),
    "object": lambda kept: kept.h.square().mean(),
}


def trained(
    net: Any,
    added: Callable[[Any], torch.Tensor],
    captures: bool,
    accumulates: bool = False,
    reads: bool = False,
    clear: Callable[[], None] = lambda: None,
) -> List[float]:
    """Return the losses of a few updates, tensors that a call in evaluation mode stores, and the trained weights."""
    optimizer: Any = torch.optim.Adam(net.parameters(), lr=0.02)
    if captures:
        optimizer = ipu_prepare(optimizer, net)
    found = []
    for number, (x, y) in enumerate(zip(X, Y)):
        clear()
        loss = F.cross_entropy(net(x), y) + 0.5 * added(net)
        if reads:
            found.append(loss.item())
        loss.backward()
        if not accumulates or number % 2:
            if reads:
                found.append(float(net.inner.weight.grad.norm()))
            optimizer.step()
            optimizer.zero_grad()
        found += [loss.item(), added(net).item()] if not accumulates or number % 2 else []
    optimizer.zero_grad()
    net.eval()
    clear()
    with torch.no_grad():
        net(X[0])
    return [*found, added(net).item(), *(float(value.sum()) for value in net.state_dict().values())]


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize(("accumulates", "reads"), [(False, False), (True, False), (False, True)])
def test_losses_of_what_a_call_has_left(kind: str, accumulates: bool, reads: bool) -> None:
    """The gradient flows through it, in micro-batches and on the host, too, and evaluations leave the newest."""

    def added(net: Any) -> torch.Tensor:
        return LOSSES[kind](net.kept)

    native, device = (trained(Net(kind), added, captures, accumulates, reads) for captures in (False, True))
    assert device == pytest.approx(native, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("update", ["device", "host"])
def test_a_number_of_an_object_that_calls_make_may_be_set(update: str) -> None:
    """The next call computes with it, in training and in evaluation."""

    def values(captures: bool) -> List[float]:
        net, found = Scaled(), []
        optimizer: Any = torch.optim.SGD(net.parameters(), lr=0.02)
        if captures:
            ipu_prepare(optimizer, net, config={"update": update})
        for number, (x, y) in enumerate(zip(X, Y)):
            loss = F.cross_entropy(net.train()(x), y) + net.kept.h.square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
            if number % 2:
                net.kept.scale += number
            with torch.no_grad():
                found.append(net.eval()(x).square().sum().item())
        return found

    assert values(True) == pytest.approx(values(False), rel=1e-4)


def features(net: Any) -> Dict[str, Any]:
    found: Dict[str, Any] = {}

    def keep(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        found["inner"] = output

    net.inner.register_forward_hook(keep)
    return found


def test_what_hooks_put_into_a_dictionary() -> None:
    """A student follows a teacher's features, both taken by hooks; each model is compiled once for each mode."""
    found = []
    for captures in (False, True):
        net, teacher = Net(""), Net("").eval().requires_grad_(False)
        teacher.inner.weight.data.mul_(0.5)
        mine, theirs = features(net), features(teacher)
        if captures:
            capture_model(teacher)

        def added(net: Any, mine: Any = mine, theirs: Any = theirs, teacher: Any = teacher) -> torch.Tensor:
            with torch.no_grad():
                teacher(X[1])
            return F.mse_loss(mine["inner"], theirs["inner"])

        before = emulator.counters()
        found.append(trained(net, added, captures))
    assert (emulator.counters() - before).compiles == 3
    assert found[1] == pytest.approx(found[0], rel=1e-4, abs=1e-6)


class Keeper:
    """Keeps the arguments of a hook, in the named way, and shows them."""

    ours: Any = None

    def __init__(self) -> None:
        self.mine: Any = None
        self.space, self.slotted = SimpleNamespace(), Slotted()
        self.list: List[Any] = []
        self.lists: Any = defaultdict(list)
        self.latest: Any = deque(maxlen=1)
        self.variable, self.shown = variable()
        self.by_argument: Dict[str, Any] = {}
        self.known_lists: Dict[str, List[Any]] = {"inner": [], "outer": []}

    def clear(self) -> None:
        """Called by the loop before each call."""
        self.list.clear()
        self.lists = defaultdict(list)
        self.known_lists["inner"].clear()

    def hooks(self) -> Dict[str, Callable[..., Any]]:
        def attribute(module: nn.Module, inputs: Any, output: Any) -> None:
            self.mine = output

        def of_class(module: nn.Module, inputs: Any, output: Any) -> None:
            Keeper.ours = output

        def namespace(module: nn.Module, inputs: Any, output: Any) -> None:
            self.space.h = output

        def slot(module: nn.Module, inputs: Any, output: Any) -> None:
            self.slotted.h = output

        def cleared_list(module: nn.Module, inputs: Any, output: Any) -> None:
            self.list.append(("inner", output))

        def new_lists(module: nn.Module, inputs: Any, output: Any) -> None:
            self.lists["inner"].append(output)

        def known_lists(module: nn.Module, inputs: Any, output: Any) -> None:
            self.known_lists["inner"].append(output)

        def default(module: nn.Module, inputs: Any, output: Any, kept: List[Any] = self.list) -> None:
            kept.append(("inner", output))

        def newest(module: nn.Module, inputs: Any, output: Any) -> None:
            self.latest.append(output)

        def of_module(module: nn.Module, inputs: Any, output: Any) -> None:
            global KEPT
            KEPT = output

        def given(kept: Dict[str, Any], module: nn.Module, inputs: Any, output: Any) -> None:
            kept["h"] = output

        kinds = (attribute, of_class, namespace, slot, cleared_list, new_lists, known_lists, default, newest, of_module)
        named = {function.__name__: function for function in kinds}
        return {**named, "variable": self.variable, "argument": functools.partial(given, self.by_argument)}


KEPT: Any = None


def variable() -> Any:
    kept = None

    def keep(module: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal kept
        kept = output

    return keep, lambda: kept


SHOWN: Dict[str, Callable[[Keeper], torch.Tensor]] = {
    "attribute": lambda keeper: keeper.mine,
    "of_class": lambda keeper: Keeper.ours,
    "namespace": lambda keeper: keeper.space.h,
    "slot": lambda keeper: keeper.slotted.h,
    "cleared_list": lambda keeper: keeper.list[0][1],
    "new_lists": lambda keeper: keeper.lists["inner"][0],
    "known_lists": lambda keeper: keeper.known_lists["inner"][0],
    "default": lambda keeper: keeper.list[0][1],
    "newest": lambda keeper: keeper.latest[0],
    "of_module": lambda keeper: KEPT,
    "variable": lambda keeper: keeper.shown(),
    "argument": lambda keeper: keeper.by_argument["h"],
}


@pytest.mark.parametrize("kind", SHOWN)
@pytest.mark.parametrize("accumulates", [False, True])
def test_what_hooks_keep_in_other_ways(kind: str, accumulates: bool) -> None:
    """Of the model itself, and of a frozen one that goes on from its output, as a perceptual loss does."""
    found = []
    for captures in (False, True):
        net, frozen = Net(""), Net("").eval().requires_grad_(False)
        mine, theirs = Keeper(), Keeper()
        net.inner.register_forward_hook(mine.hooks()[kind])
        frozen.inner.register_forward_hook(theirs.hooks()[kind])
        if captures:
            capture_model(frozen)

        def added(net: Any, mine: Any = mine, theirs: Any = theirs, frozen: Any = frozen) -> torch.Tensor:
            kept = SHOWN[kind](mine)
            if kind in ("of_class", "of_module"):
                return kept.square().mean()
            theirs.clear()
            frozen(kept)
            return kept.square().mean() + SHOWN[kind](theirs).square().mean()

        found.append(trained(net, added, captures, accumulates, clear=mine.clear))
    assert found[1] == pytest.approx(found[0], rel=1e-4, abs=1e-6)


def test_a_list_that_grows_over_calls_is_refused() -> None:
    """A compiled program leaves the tensors of one call."""
    net, kept = Net(""), []
    net.inner.register_forward_hook(lambda module, inputs, output: kept.append(output))
    optimizer = ipu_prepare(torch.optim.SGD(net.parameters(), lr=0.1), net)
    F.cross_entropy(net(X[0]) + kept[-1].mean(), Y[0]).backward()
    optimizer.step()
    with pytest.raises(CaptureError, match=r"adds tensors to a list that still has those of the previous call.*Clear"):
        net(X[1])


def test_a_list_that_had_tensors_when_a_call_was_first_seen_is_refused() -> None:
    """A second kind of call finds those of the first, and later makes its call with an empty list."""
    net, kept = Net(""), []
    net.inner.register_forward_hook(lambda module, inputs, output: kept.append(output))
    ipu_prepare(torch.optim.SGD(net.parameters(), lr=0.1), net)
    net(X[0])
    net(X[0][:1])
    kept.clear()
    with pytest.raises(CaptureError, match="adds tensors to a list that still has those of the previous call"):
        net(X[0][:1])


@pytest.mark.parametrize("trains", [True, False])
def test_a_hook_that_fills_a_list_is_removed_before_that_is_read(trains: bool) -> None:
    """In evaluation mode an inference program makes the call when the list has what stands for its tensors."""
    found = []
    for captures in (False, True):
        net = Net("").train(trains)
        if captures:
            ipu_prepare(torch.optim.SGD(net.parameters(), lr=0.1), net)
        for x in X[:2]:
            kept: List[torch.Tensor] = []
            hook = net.inner.register_forward_hook(lambda module, inputs, output, kept=kept: kept.append(output))
            scores = net(x)
            hook.remove()
            found.append([len(kept), kept[0].sum().item(), scores.sum().item()])
    assert found[2:] == [pytest.approx(each, rel=1e-5) for each in found[:2]]


class Experts(nn.Module):
    """Reads the tensors that its layers have stored in this call."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.second = Net("tensor"), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.second(self.inner(x)), self.inner.kept * 2


def test_what_a_layer_leaves_for_the_model_around_it() -> None:
    """It is no state: the model reads it after the layer has computed it anew."""
    found = []
    for captures in (False, True):
        net = Experts()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        if captures:
            capture_model(net)
            capture_optimizer(optimizer)
        before = emulator.counters()
        for x, y in zip(X, Y):
            scores, balance = net(x)
            loss = F.cross_entropy(scores, y) + balance
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append([loss.item(), net.inner.kept.item()])
    assert (emulator.counters() - before).compiles == 1
    for native, device in zip(found[:5], found[5:]):
        assert device == pytest.approx(native, rel=1e-4)


def test_weights_that_pruning_computes_are_those_of_the_call() -> None:
    """A penalty on the weight of a pruned layer trains the parameters that it is computed from."""
    found = []
    for captures in (False, True):
        net = Net("")
        prune.l1_unstructured(net.inner, "weight", 0.5)
        found.append(trained(net, lambda net: net.inner.weight.abs().sum(), captures))
    assert found[1] == pytest.approx(found[0], rel=1e-4, abs=1e-6)


class Carries(nn.Module):
    """Goes on from the tensors that the previous call has stored."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.kept = nn.Linear(4, 4), torch.zeros(())

    def forward(self, x: torch.Tensor) -> Any:
        h = self.inner(x) + self.kept
        self.kept = h.mean()
        return h


def test_a_model_that_goes_on_from_what_it_has_left_is_refused() -> None:
    """It would go on from that of the first call in every step."""
    net = Carries()
    capture_model(net)
    with pytest.raises(CaptureError, match=r"changes Python values in every call.*\(kept\)"):
        net(X[0])


class ReadsInEvaluation(nn.Module):
    """Evaluates with the tensor that the last call in training mode has stored."""

    kept: torch.Tensor

    def __init__(self, registers: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(4, 3)
        if registers:
            self.register_buffer("kept", torch.zeros(3), persistent=False)
        else:
            self.kept = torch.zeros(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h: torch.Tensor = self.inner(x)
        if self.training:
            self.kept = h.detach().mean(0)
            return h
        return h - self.kept


def evaluated(registers: bool, captures: bool) -> List[torch.Tensor]:
    net, found = ReadsInEvaluation(registers), []
    optimizer: Any = torch.optim.SGD(net.parameters(), lr=0.1)
    if captures:
        optimizer = ipu_prepare(optimizer, net)
    for x, y in zip(X, Y):
        net.train()
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
        net.eval()
        with torch.no_grad():
            found.append(net(X[0]))
    return found


def test_evaluation_reads_a_buffer_that_training_assigns() -> None:
    """Each evaluation has the newest."""
    torch.testing.assert_close(evaluated(True, True), evaluated(True, False), rtol=1e-5, atol=1e-6)


def test_evaluation_reads_an_attribute_that_training_assigns() -> None:
    """Programs share weights and buffers alone."""
    with pytest.raises(CaptureError, match=r"reads at .*test_left_behind.py:\d+ a tensor .*register_buffer"):
        evaluated(False, True)


def test_an_evaluator_reads_an_attribute_that_the_trainer_assigns() -> None:
    """The engines' programs share no more."""
    net = ReadsInEvaluation(registers=False)
    trainer = create_ipu_trainer(net, torch.optim.SGD(net.parameters(), lr=0.1), nn.CrossEntropyLoss())
    trainer.run(list(zip(X, Y)))
    with pytest.raises(CaptureError, match=r"reads at .*test_left_behind.py:\d+ a tensor .*register_buffer"):
        create_ipu_evaluator(net).run(list(zip(X, Y)))


class Masked(nn.Module):
    """Leaves a tensor in a dictionary beside one that the loop writes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.last = nn.Linear(4, 4), nn.Linear(4, 3)
        self.state = {"mask": torch.ones(4), "kept": torch.zeros(())}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.inner(x) * self.state["mask"]
        self.state["kept"] = h.square().mean()
        return self.last(h)


def test_what_lies_beside_a_tensor_that_is_left_still_counts() -> None:
    losses = []
    for captures in (False, True):
        net = Masked()
        optimizer: Any = torch.optim.SGD(net.parameters(), lr=0.1)
        optimizer = ipu_prepare(optimizer, net) if captures else optimizer
        for number, (x, y) in enumerate(zip(X, Y)):
            net.state["mask"][number % 4] *= 0.5
            loss = F.cross_entropy(net(x), y) + net.state["kept"]
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    assert losses[len(X) :] == pytest.approx(losses[: len(X)], rel=1e-5)


class Remembers(nn.Module):
    """Computes something once, until the loop requests it again."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.table, self.last, self.known = nn.Linear(4, 4), nn.Embedding(3, 4), nn.Linear(4, 3), None

    def forward(self, x: torch.Tensor) -> Any:
        if self.known is None:
            self.known = self.inner(self.table.weight).mean(0)
        return self.last(x * self.known)


def test_what_a_model_computes_from_weights_once_for_several_calls_is_refused() -> None:
    """In PyTorch the loop clears it for each step, and gradients flow through it."""
    net = Remembers()
    capture_model(net)
    with pytest.raises(CaptureError, match=r"computed from weights and kept.*Compute it in each call"):
        net(X[0])


class Fixed(dict):  # type: ignore[type-arg]
    """Settings that forbid changes."""

    def _refuse(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError("these settings are fixed")

    __setitem__ = __delitem__ = update = clear = pop = _refuse  # type: ignore[assignment]


def test_settings_that_forbid_changes_are_left_alone() -> None:
    """As of diffusers' models, which are evaluated between updates."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.settings, self.layer = Fixed(scale=2.0), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> Any:
            return Fixed(scores=self.layer(x) * self.settings["scale"])

    def losses(captures: bool) -> List[float]:
        model = Scaled()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        if captures:
            ipu_prepare(optimizer, model)
        seen = []
        for _ in range(2):
            optimizer.zero_grad()
            loss = F.cross_entropy(model.train()(X[:, 0])["scores"], Y[:, 0])
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                seen += [loss.item(), model.eval()(X[:, 0])["scores"].abs().sum().item()]
        return seen

    assert losses(captures=True) == pytest.approx(losses(captures=False), rel=1e-5)


def test_attributes_that_a_loop_lists_are_those_of_the_last_call() -> None:
    """No code names the attribute: the loop reads all of them by `vars`."""

    def kept(net: nn.Module) -> List[torch.Tensor]:
        return [value.detach().clone() for value in vars(net).values() if isinstance(value, torch.Tensor)]

    found = []
    for captures in (False, True):
        net = Net("its input")
        optimizer: Any = torch.optim.SGD(net.parameters(), lr=0.1)
        if captures:
            ipu_prepare(optimizer, net)
        for x, y in zip(X[:2], Y[:2]):
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
        found.append(kept(net))
    eager, captured = found
    assert len(eager) == len(captured) == 1
    torch.testing.assert_close(captured[0] + 0, eager[0])


class Shows(nn.Module):
    """Leaves tensors for the loop as long as it is asked to."""

    def __init__(self, instead: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.last = nn.Linear(4, 4), nn.Linear(4, 3)
        self.kept: Any = instead
        self.instead, self.shows = instead, False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.inner(x)
        if isinstance(self.instead, list):
            self.kept.clear()
            self.kept += [h.mean(), h.std()] if self.shows else [h.mean()]
        else:
            self.kept = {"h": h.mean()} if self.shows else self.instead
        out: torch.Tensor = self.last(h)
        return out


@pytest.mark.parametrize("instead", [None, 0.5, {}, []], ids=str)
@pytest.mark.parametrize("shown", [(0, 2, 3), (1, 4)], ids=["at first", "later"])
def test_what_a_call_stores_in_the_place_of_tensors(instead: Any, shown: Any) -> None:
    """A flag decides whether it leaves tensors: else the loop finds None and the like, and not those of before."""

    def added(net: Any) -> Any:
        kept = net.kept.values() if isinstance(net.kept, dict) else net.kept
        return kept if isinstance(kept, float) else sum(kept or ())

    def found(captures: bool) -> List[float]:
        net, seen = Shows(copy.copy(instead)), []
        optimizer: Any = torch.optim.SGD(net.parameters(), lr=0.1)
        if captures:
            optimizer = ipu_prepare(optimizer, net)
        for number, (x, y) in enumerate(zip(X, Y)):
            net.train().shows = number in shown
            loss = F.cross_entropy(net(x), y) + added(net)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            net.eval().shows = number + 1 in shown
            with torch.no_grad():
                seen += [loss.item(), net(x).sum().item(), float(added(net))]
        return seen

    assert found(captures=True) == pytest.approx(found(captures=False), rel=1e-4, abs=1e-5)


class Moves(nn.Module):
    """Goes on from the tensors of the last two calls, the older of which each call drops."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.kind = nn.Linear(4, 3), kind
        self.queue: Any = deque(maxlen=2) if kind == "deque" else []
        self.by_age: Dict[str, torch.Tensor] = {}
        self.old: Any = None
        self.new: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h: torch.Tensor = self.inner(x)
        earlier = self.by_age.values() if self.kind == "dictionary" else (self.old, self.new, *self.queue)
        for each in list(earlier):
            h = h if each is None else h + each
        now = h.detach().mean(0)
        if self.kind == "attributes":
            self.old = self.new
            self.new = now
        elif self.kind == "dictionary":
            if "new" in self.by_age:
                self.by_age["old"] = self.by_age["new"]
            self.by_age["new"] = now
        else:
            self.queue.append(now)
            if len(self.queue) > 2:
                self.queue.pop(0)
        return h


@pytest.mark.parametrize("update", ["auto", "device"])
@pytest.mark.parametrize(
    ("kind", "calls"), [("deque", "te"), ("list", "te"), ("attributes", "eee"), ("dictionary", "eee")]
)
def test_tensors_of_earlier_calls_that_an_evaluation_moves(kind: str, calls: str, update: str) -> None:
    """Python runs such code; a program, which returns its own results, is refused."""

    def outputs(captures: bool) -> List[torch.Tensor]:
        net, found = Moves(kind), []
        optimizer: Any = torch.optim.SGD(net.parameters(), lr=0.1)
        if captures:
            ipu_prepare(optimizer, net, config=IPUConfig(update=update))
        for call, x, y in zip(calls, X, Y):
            if call == "t":
                optimizer.zero_grad()
                F.cross_entropy(net(x), y).backward()
                optimizer.step()
            else:
                with torch.no_grad():
                    found.append(net(x).clone())
        return found

    if update == "device":
        with pytest.raises(
            ForwardError, match=r"moves a tensor of an earlier call to another place|changes Python values"
        ):
            outputs(True)
    else:
        torch.testing.assert_close(outputs(True), outputs(False), rtol=1e-4, atol=1e-5)
