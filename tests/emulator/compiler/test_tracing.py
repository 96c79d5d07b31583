"""One run of forward: hooks, its results, and refused changes of the model's tensors."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, Callable, Iterator, List, Optional

import pytest
import torch
from torch import nn

import ignite_ipu.emulator as poptorch

X = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
Pair = collections.namedtuple("Pair", "left right")


class Calls(nn.Module):
    def __init__(self, function: Callable[..., Any], **tensors: torch.Tensor) -> None:
        super().__init__()
        self.function = function
        for name, tensor in tensors.items():
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(name, tensor)
            else:
                self.register_buffer(name, tensor)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(self, *inputs)


@pytest.fixture
def wrap() -> Iterator[Callable[..., Any]]:
    """Return an inference executor for a module or a function of it and its inputs; destroyed at the end."""
    made: List[Any] = []

    def make(model: Any, options: Optional[poptorch.Options] = None, **tensors: torch.Tensor) -> Any:
        model = model if isinstance(model, nn.Module) else Calls(model, **tensors)
        made.append(poptorch.inferenceModel(model, options))
        return made[-1]

    yield make
    for executor in made:
        executor.destroy()


# -- hooks --------------------------------------------------------------------------------------------------------


@pytest.fixture
def events() -> Iterator[List[str]]:
    """Collect compile hooks' calls; the hooks are removed at the end."""
    seen: List[str] = []
    handles = [
        poptorch.registerPreCompileHook(lambda: seen.append("pre")),
        poptorch.registerPostCompileHook(lambda: seen.append("post")),
    ]
    yield seen
    for handle in handles:
        handle.remove()


def test_compile_hooks_surround_the_trace(wrap, events):
    """Once for each compile, of any executor."""
    model = wrap(lambda self, x: events.append("forward") or x * 1)
    model(X)
    model(X)
    assert events == ["pre", "forward", "post"]
    wrap(lambda self, x: x * 1)(X)
    assert events[3:] == ["pre", "post"]


def test_post_hooks_run_after_a_failed_trace(wrap, events):
    with pytest.raises(poptorch.Error):
        wrap(lambda self, x: x.item())(X[0, 0])
    assert events == ["pre", "post"]


def test_removed_hooks_do_not_run(wrap):
    seen: List[str] = []
    handle = poptorch.registerPreCompileHook(lambda: seen.append("pre"))
    handle.remove()
    handle.remove()
    wrap(lambda self, x: x * 1)(X)
    assert not seen


def test_hooks_are_callable():
    for register in (poptorch.registerPreCompileHook, poptorch.registerPostCompileHook):
        with pytest.raises(RuntimeError, match="must be callable"):
            register("hook")


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is:DeprecationWarning")
@pytest.mark.parametrize("compiled", [torch.compile, torch.jit.script])
@pytest.mark.parametrize("whole", [True, False])
def test_modules_that_pytorch_compiled_are_refused(compiled, whole):
    """PopTorch compiles the model itself."""
    module = compiled(nn.Linear(2, 2))
    executor = poptorch.inferenceModel(module if whole else nn.Sequential(module, nn.ReLU()))
    with pytest.raises(
        poptorch.Error, match=f"torch.{'jit' if compiled is torch.jit.script else 'compile'} is not supported"
    ):
        executor(X)


def test_forward_runs_once_per_compile(wrap):
    """Whatever the number of calls, micro-batches and replicas."""
    runs: List[None] = []
    model = wrap(lambda self, x: runs.append(None) or x * 1, poptorch.Options().deviceIterations(2))
    for _ in range(3):
        model(X)
    assert len(runs) == 1
    model.destroy()
    model(X)
    assert len(runs) == 2


# -- returned values --------------------------------------------------------------------------------------------


class Bag(dict):
    """A dict subclass with an attribute of its own."""

    label = ""


STRUCTURES = {
    "tensor": lambda x: x,
    "tuple": lambda x: (x, 3),
    "list": lambda x: [x, None, x + 1],
    "dict": lambda x: {"a": (x, 3), "b": [x.long()]},
    "named tuple": lambda x: Pair(x, [x + 1]),
    "ordered dict": lambda x: collections.OrderedDict(b=x, a=x + 1),
    "nested": lambda x: [{"deep": ((x,), "text")}],
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_the_structure_is_forwards(name, wrap):
    """With its container types, and everything that is no tensor as it was when traced."""
    from ignite_ipu.emulator.testing import allclose

    expected = STRUCTURES[name](X)
    found = wrap(lambda self, x: STRUCTURES[name](x))(X)
    assert type(found) is type(expected)
    assert allclose(expected, found)


def test_custom_types_come_back(wrap):
    @dataclasses.dataclass
    class Box:
        value: torch.Tensor
        name: str

    class BoxParser(poptorch.ICustomArgParser):
        def yieldTensors(self, struct: Box) -> Iterator[torch.Tensor]:
            yield struct.value

        def reconstruct(self, original_structure: Box, tensor_iterator: Iterator[torch.Tensor]) -> Box:
            return Box(next(tensor_iterator), original_structure.name)

    poptorch.registerCustomArgParser(Box, BoxParser())
    try:
        found = wrap(lambda self, box: Box(box.value * 2, box.name + "!"))(Box(X, "box"))
        assert isinstance(found, Box) and found.name == "box!" and torch.equal(found.value, X * 2)
    finally:
        poptorch.registerCustomArgParser(Box, None)


def test_outputs_are_new_on_every_call_and_have_no_backward(wrap):
    model = wrap(lambda self, x: x)
    one, two = model(X), model(X)
    assert one.data_ptr() != two.data_ptr() != X.data_ptr()
    with pytest.raises(poptorch.Error, match=r"backward\(\) cannot be called"):
        one.backward()


# -- buffers and parameters ---------------------------------------------------------------------------------------


def test_integer_buffers_are_constants(wrap, caplog):
    """Their value of the compile is used on every call, whatever forward or an upload writes."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        return x + self.step

    step = torch.zeros(1, dtype=torch.int32)
    model = wrap(forward, step=step)
    assert torch.equal(model(X), X + 1)
    assert "was downgraded to constant" in caplog.text
    step.fill_(7)
    model.copyWeightsToDevice()
    assert torch.equal(model(X), X + 1)


def test_host_changes_of_weights_wait_for_an_upload(wrap):
    weight = nn.Parameter(torch.ones(1))
    model = wrap(lambda self, x: x * self.weight, weight=weight)
    assert torch.equal(model(X), X)
    with torch.no_grad():
        weight.fill_(4)
    assert torch.equal(model(X), X)
    model.copyWeightsToDevice()
    assert torch.equal(model(X), X * 4)


def test_tied_parameters_stay_tied():
    """One tensor on the device, one gradient: the sum over its uses."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
            self.two.weight = self.one.weight
            nn.init.constant_(self.one.weight, 3.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return poptorch.identity_loss(self.two(self.one(x)), "sum")

    net = Tied()
    executor = poptorch.trainingModel(net, optimizer=poptorch.optim.SGD(net.parameters(), lr=0.1))
    executor(torch.ones(1, 1))
    assert net.one.weight.item() == pytest.approx(3 - 0.1 * 2 * 3)
    assert net.one.weight is net.two.weight
    executor.destroy()


def rebind_buffer(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.shift = self.shift + 1
    return x + self.shift


def delete_buffer(self: Any, x: torch.Tensor) -> torch.Tensor:
    shift = self.shift
    del self.shift
    return x + shift


def rebind_parameter(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.weight = nn.Parameter(torch.ones(2))
    return x


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (rebind_buffer, "Buffer shift is reassigned within the model"),
        (delete_buffer, "Buffer shift is removed from the model when"),
        (rebind_parameter, "Parameter weight is reassigned within the model"),
    ],
)
def test_tensors_keep_their_identity(forward, message, wrap):
    """The error comes after the model was restored."""
    tensors = {"shift": torch.zeros(2), "weight": nn.Parameter(torch.zeros(2))}
    net = Calls(forward, **tensors)
    with pytest.raises(poptorch.Error, match=message):
        wrap(net)(X)
    assert net.shift is tensors["shift"] and net.weight is tensors["weight"]


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nn.Linear(2, 2, device="meta"), "weight is on the device 'meta'.* call .cpu"),
        (lambda: nn.BatchNorm1d(2, affine=False, device="meta"), "running_mean is on the device 'meta'"),
        (lambda: nn.Sequential(nn.LazyLinear(2)), "0.weight is uninitialized.*Call the model once on the host"),
    ],
)
def test_tensors_are_on_the_host_and_have_a_shape(make, words, wrap):
    with pytest.raises(poptorch.Error, match=words):
        wrap(make())(X)


def test_batch_norm_may_rebind_its_buffers(wrap):
    """Its count of batches is rebound by PyTorch itself, and does not advance here."""
    net = nn.Sequential(nn.BatchNorm1d(2)).train()
    wrap(net)(X)
    assert net[0].num_batches_tracked.item() == 0


def test_replicas_may_not_share_a_buffer_that_changes():
    """Unless each has its own copy; a download then brings the first replica's."""

    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.total += x.sum()
            return self.total + 0

    net = Sums()
    options = poptorch.Options().replicationFactor(2)
    with pytest.raises(poptorch.Error, match="PopTorch does not support broadcasting buffers"):
        poptorch.inferenceModel(net, options)(torch.tensor([9.0, 2.0]))
    model = poptorch.inferenceModel(net, poptorch.Options().replicationFactor(2).broadcastBuffers(False))
    assert model(torch.tensor([9.0, 2.0])).tolist() == [9, 2]
    assert model(torch.tensor([9.0, 2.0])).tolist() == [18, 4]
    model.copyWeightsToHost()
    assert net.total.item() == 18
    model.destroy()


# -- tensors by name ----------------------------------------------------------------------------------------------


def test_tensors_have_names_and_can_be_anchored(wrap):
    """An anchored tensor follows the output mode."""
    scout = wrap(lambda self, x: torch.relu(x - 2) * 10)
    scout(X)
    names = scout.getTensorNames()
    assert any(name.startswith("relu") for name in names)
    options = poptorch.Options().deviceIterations(2)
    options.anchorTensor("hidden", next(name for name in names if name.startswith("relu")))
    model = wrap(lambda self, x: torch.relu(x - 2) * 10, options)
    with pytest.raises(AssertionError, match="No tensor with name"):
        model.getAnchoredTensor("hidden")
    model(X)
    assert torch.equal(model.getAnchoredTensor("hidden"), torch.relu(X - 2))


def test_unknown_tensors_cannot_be_anchored(wrap):
    options = poptorch.Options()
    options.anchorTensor("hidden", "no such tensor")
    with pytest.raises(poptorch.Error, match="no such tensor"):
        wrap(lambda self, x: x * 1, options)(X)
