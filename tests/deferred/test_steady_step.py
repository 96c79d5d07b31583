"""Calls of this package in one iteration of a steady loop: each earns its place, and the list does not grow unseen.

An iteration is `zero_grad`, a forward pass, a loss, `backward`, `step` and a read of the loss. Comprehensions are left
out, which are no calls in newer versions of Python, and so is the emulator.
"""

from __future__ import annotations

import gc
import sys
from types import FrameType
from typing import Any, Callable, Counter, Iterator, List, Set, Tuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import IPUConfig, create_ipu_trainer, ipu_clip_grad_norm_, ipu_prepare
from ignite_ipu.deferred.graph.operations import USES
from ignite_ipu.deferred.tensor.lost_gradients import LOST
from ignite_ipu.deferred.tensor.written_tensors import WAITING
from ignite_ipu.errors import CaptureError
from ignite_ipu.optimizers.host_steps import warn_of_host_steps
from tests.steady_calls import CallCounter, is_counted

MOST = {"device": (54, 24), "auto": (55, 25), "host": (145, 43)}
"""How many calls there are at most, and in how many files, by the kind of update."""
CAPTURED = {
    "compiled.fused_programs": "forget_losses",
    "compiled.modes": "are now",
    "compiled.repeated_update": "run",
    "graph.leaves": "__init__",
    "graph.operations": "__init__ finish_all take unknown_values",
    "graph.signatures": "look_up",
    "graph.step_graph": "__init__ match",
    "model.buffers": "is_empty",
    "model.capturing_class": "call",
    "model.edits": "look",
    "model.gradient_views": "appear",
    "model.kept_weights": "note_call",
    "model.model": "call",
    "model.optimizer": "_step _zero_grad",
    "model.recording": "record",
    "model.steady": "backward clear holds step",
    "tensor.losses": "mark_loss",
    "tensor.tensor": "__torch_function__ backward deferred_results item",
}
"""Functions of captured loops that are called, by the module."""


def steady_calls(update: str, hidden: int = 0) -> Counter[Tuple[str, str]]:
    """Return the calls of one iteration, after the loop has made ten, of a model with so many hidden layers."""
    warn_of_host_steps()  # as host_device() asks, for the rest of a process
    torch.manual_seed(0)
    layers = [nn.Linear(8, 8) for _ in range(hidden)]
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), *layers, nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters())
    ipu_prepare(optimizer, model, config=IPUConfig(update=update))
    x, y = torch.randn(3, 4), torch.randint(2, (3,))

    def iterate() -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    for _ in range(10):
        iterate()
    return calls_in(iterate)


def calls_in(work: Callable[[], Any]) -> Counter[Tuple[str, str]]:
    """Return the calls of this package's functions, by module and name, without those of a garbage collection."""
    count = CallCounter()
    before = sys.getprofile()
    gc.collect()
    gc.disable()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
        gc.enable()
    return count.calls


_COPIES_AT_ONCE = hasattr(torch, "_foreach_copy_")


@pytest.fixture(autouse=True)
def nothing_else() -> Iterator[None]:
    """Other loops of this process, which wait for values, would be looked at in each iteration."""
    waiting, uses, lost = list(WAITING), dict(USES), dict(LOST)
    WAITING.clear()
    USES.clear()
    LOST.clear()
    yield
    WAITING.extend(waiting)
    USES.update(uses)
    LOST.update(lost)


@pytest.mark.parametrize("update", MOST)
def test_a_steady_iteration_makes_few_calls(update: str) -> None:
    """The numbers may become smaller; a larger one is to be explained."""
    if update == "host" and not _COPIES_AT_ONCE:
        pytest.skip("PyTorch 2.0 copies tensors one by one")
    calls = steady_calls(update)
    most, files = MOST[update]
    assert sum(calls.values()) <= most
    assert len({file for file, _ in calls}) <= files


@pytest.mark.skipif(not _COPIES_AT_ONCE, reason="PyTorch 2.0 copies tensors one by one")
def test_updates_on_the_host_make_no_call_for_each_parameter() -> None:
    assert steady_calls("host", hidden=9) == steady_calls("host")


@pytest.mark.parametrize("update", MOST)
def test_calls_of_another_loop_that_wait_cost_no_call(update: str) -> None:
    """They write buffers, and get no results of this loop."""
    expected = steady_calls(update)
    other = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))
    ipu_prepare(torch.optim.SGD(other.parameters(), lr=0.1), other, config=IPUConfig(update=update))
    waiting = other(torch.randn(3, 4))
    assert steady_calls(update) == expected
    waiting.sum().backward()


def test_a_steady_step_of_a_trainer_makes_few_calls() -> None:
    """As above, without the events of the iteration."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    trainer = create_ipu_trainer(model, torch.optim.Adam(model.parameters()), F.cross_entropy)
    batch = torch.randn(3, 4), torch.randint(2, (3,))
    for _ in range(10):
        trainer._process_function(trainer, batch)
    calls = calls_in(lambda: trainer._process_function(trainer, batch))
    assert sum(calls.values()) <= 27
    assert len({file for file, _ in calls}) <= 12


def instructions(update: str, layers: int) -> int:
    """Return the instructions of this package, without the emulator, in one iteration of a steady loop."""
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(layers)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    ipu_prepare(optimizer, model, config=IPUConfig(update=update))
    x, y, found = torch.randn(2, 3), torch.tensor([0, 2]), [0]

    def iterate() -> None:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        loss.item()

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        if not is_counted(frame.f_code.co_filename):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return count

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        found[0] += event == "opcode"
        return count

    for _ in range(12):
        iterate()
    before = sys.gettrace()
    sys.settrace(enter)
    try:
        iterate()
    finally:
        sys.settrace(before)
    return found[0]


@pytest.mark.parametrize("update", ["device", "auto"])
def test_more_layers_take_no_more_instructions(update: str) -> None:
    few, many = [instructions(update, layers) for layers in (48, 96)]
    assert few == many


class Loop:
    """A loop of small steps, whose model has more parameters than are asked for gradients in one step."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(20)), nn.Linear(3, 3))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.x, self.y = torch.randn(2, 3), torch.tensor([0, 2])
        self.last = self.model[-1]
        # A graph of two parameters on the host, which needs none of their values to go backward.
        self.before = self.last.bias.sum() + self.last.weight.sum()

    def step(self, clears: bool = True) -> None:
        if clears:
            self.optimizer.zero_grad()
        F.cross_entropy(self.model(self.x), self.y).backward()
        self.optimizer.step()


def set_by_hand(loop: Loop) -> None:
    loop.optimizer.zero_grad()
    loop.last.bias.grad = torch.ones(3)


def computed_on_the_host(loop: Loop) -> None:
    loop.optimizer.zero_grad()
    loop.before.backward()


def freeze(loop: Loop) -> None:
    loop.optimizer.zero_grad()
    loop.last.requires_grad_(False)


def leave_out(loop: Loop) -> None:
    loop.optimizer.zero_grad()
    loop.optimizer.param_groups[0]["params"].pop()


def add_a_group(loop: Loop) -> None:
    loop.optimizer.zero_grad()
    bias = loop.optimizer.param_groups[0]["params"].pop()
    loop.optimizer.add_param_group({"params": [bias], "lr": 0.5})


def write(loop: Loop) -> None:
    loop.optimizer.zero_grad()
    loop.last.weight.data.mul_(0.5)


def hook(loop: Loop) -> None:
    loop.optimizer.zero_grad()
    loop.last.bias.register_hook(lambda gradient: 2 * gradient)


EVENTS = [set_by_hand, computed_on_the_host, freeze, leave_out, add_a_group, write, hook]


@pytest.mark.parametrize("event", EVENTS)
def test_a_steady_loop_notices(event: Callable[[Loop], None]) -> None:
    """What happens after many steps has the effect that it has in PyTorch."""
    found: List[List[torch.Tensor]] = []
    for captures in (False, True):
        loop = Loop()
        if captures:
            ipu_prepare(loop.optimizer, loop.model, config=IPUConfig(update="auto"))
        for _ in range(12):
            loop.step()
        event(loop)
        loop.step(clears=False)
        loop.step()
        found.append([each.detach().clone() for each in loop.model.parameters()])
    torch.testing.assert_close(found[1], found[0])


def accumulate(loop: Loop) -> None:
    F.cross_entropy(loop.model(loop.x), loop.y).backward()
    loop.step(clears=False)


def step_without_gradients(loop: Loop) -> None:
    loop.optimizer.zero_grad()
    loop.optimizer.step()


def take_a_shorter_batch(loop: Loop) -> None:
    F.cross_entropy(loop.model(loop.x[:1]), loop.y[:1]).backward()
    loop.optimizer.step()


def use_a_result_twice(loop: Loop) -> None:
    found = loop.model(loop.x)
    (F.cross_entropy(found, loop.y) + found.square().mean()).backward()
    loop.optimizer.step()


def slow_down_in_a_hook(loop: Loop) -> None:
    loop.optimizer.register_step_post_hook(lambda optimizer, *_: optimizer.param_groups[0].update(lr=0.01))
    loop.step()


def read_the_weights(loop: Loop) -> None:
    loop.model.state_dict()
    loop.step()


def list_the_weights_in_another_order(loop: Loop) -> None:
    (group,) = loop.optimizer.param_groups
    group["params"] = group["params"][::-1]
    loop.step()


IN_BETWEEN = [
    *(accumulate, step_without_gradients, take_a_shorter_batch, use_a_result_twice, read_the_weights),
    *(slow_down_in_a_hook, list_the_weights_in_another_order),
]


def test_a_steady_loop_goes_on_after_other_steps() -> None:
    """Steps of another kind, and then those of before, have the effects that they have in PyTorch."""
    loops = Loop(), Loop()
    ipu_prepare(loops[1].optimizer, loops[1].model, config=IPUConfig(update="device"))
    for event in IN_BETWEEN:
        for loop in loops:
            for _ in range(3):
                loop.step()
            loop.optimizer.zero_grad()
            event(loop)
        pairs = zip(loops[1].model.parameters(), loops[0].model.parameters())
        for found, expected in pairs:
            torch.testing.assert_close(found.detach(), expected.detach(), msg=event.__name__)


def test_a_steady_loop_that_clips_no_more_is_compiled_again() -> None:
    found: List[torch.Tensor] = []
    for captures in (False, True):
        loop = Loop()
        loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.1)
        if captures:
            ipu_prepare(loop.optimizer, loop.model, config=IPUConfig(update="device"))
        for clips in (True, True, True, False, False, False):
            loop.optimizer.zero_grad()
            F.cross_entropy(loop.model(loop.x), loop.y).backward()
            if clips:
                ipu_clip_grad_norm_(loop.model.parameters(), 0.01)
            loop.optimizer.step()
        found.append(loop.last.weight.detach().clone())
    torch.testing.assert_close(found[1], found[0])


def test_a_steady_loop_refuses_to_use_gradients_again() -> None:
    loop = Loop()
    ipu_prepare(loop.optimizer, loop.model, config=IPUConfig(update="device"))
    for _ in range(3):
        loop.step()
    with pytest.raises(CaptureError, match="nothing has cleared them"):
        loop.step(clears=False)


def test_these_functions_of_captured_loops_are_called() -> None:
    """Every one of them, for the kind of update that most loops have."""
    found: Set[str] = {f"{file} {name}" for file, name in steady_calls("auto") if file.startswith("deferred.")}
    expected = {f"deferred.{file} {name}" for file, names in CAPTURED.items() for name in names.split()}
    assert found - expected == set()
    assert expected - found == set(), "leave these out of the list"
