"""Values and calls that a trace sees, freezes, records and refuses."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import DynamicOutputShapeException

import ignite_ipu.emulator as poptorch
from ignite_ipu.emulator.errors import Refusal

X = torch.tensor([[1.0, 2.0], [3.0, 4.0]])


class Calls(nn.Module):
    def __init__(self, function: Callable[..., Any], **buffers: torch.Tensor) -> None:
        super().__init__()
        self.function = function
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs)


@pytest.fixture
def wrap():
    """Return an inference executor for a module or function; it is destroyed at the end."""
    made = []

    def make(model: Any, options: Optional[poptorch.Options] = None) -> Any:
        model = model if isinstance(model, nn.Module) else Calls(model)
        made.append(poptorch.inferenceModel(model, options))
        return made[-1]

    yield make
    for executor in made:
        executor.destroy()


# -- values in the trace ----------------------------------------------------------------------------------------


def test_forward_sees_the_ipu_and_no_values(wrap):
    """Real shapes and types, a device of its own, printed as unavailable."""
    seen: Dict[str, Any] = {}

    def forward(x: torch.Tensor) -> torch.Tensor:
        seen.update(
            device=x.device.type,
            shape=x.shape,
            dtype=x.dtype,
            text=str(x),
            formatted=f"{x}",
            running=poptorch.isRunningOnIpu(),
        )
        seen.update(leaf=x.requires_grad, length=len(x), rows=len(list(x)), dim=x.dim(), numel=x.numel())
        return x * 2

    assert torch.equal(wrap(forward)(X), X * 2)
    assert seen["device"] == "ipu" and seen["shape"] == (2, 2) and seen["dtype"] is torch.float32
    assert "<unavailable>" in seen["text"] and "<unavailable>" in seen["formatted"]
    assert seen["running"] and not poptorch.isRunningOnIpu()
    assert (seen["leaf"], seen["length"], seen["rows"], seen["dim"], seen["numel"]) == (False, 2, 2, 2, 4)


def test_forward_sees_one_micro_batch(wrap):
    shapes = []
    options = poptorch.Options().deviceIterations(2)
    wrap(lambda x: shapes.append(tuple(x.shape)) or x, options)(torch.zeros(6, 5))
    assert shapes == [(3, 5)]


def test_parameters_and_buffers_are_on_the_ipu_only_inside(wrap):
    devices = []

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)
            self.register_buffer("shift", torch.ones(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            devices.append((self.linear.weight.device.type, self.shift.device.type))
            assert isinstance(self.linear.weight, nn.Parameter)
            assert [name for name, _ in self.named_parameters()] == ["linear.weight", "linear.bias"]
            return self.linear(x) + self.shift

    net = Net()
    wrap(net)(X)
    assert devices == [("ipu", "ipu")]
    assert net.linear.weight.device.type == net.shift.device.type == "cpu"


# -- frozen values ---------------------------------------------------------------------------------------------


def test_python_values_are_those_of_the_trace(wrap):
    """Counters, random numbers, flags and branches do not change after the first call."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n, self.factor = 0, 3
            self.dropout = nn.Dropout(0.9)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.n += 1
            drawn = np.random.rand()
            return self.dropout(x) * self.factor + self.n if drawn < 2 else x

    net = Net().eval()
    model = wrap(net)
    assert torch.equal(model(X), X * 3 + 1)
    net.factor = 5
    net.train()
    assert torch.equal(model(X), X * 3 + 1)
    assert net.n == 0, "what forward assigns lands on the executor's shallow copy"


def test_tensors_moved_in_are_constants(wrap):
    """By name of the device, by another tensor's, or as the other tensor; later changes do not reach the device."""
    outside = [torch.ones(2), torch.ones(2), torch.ones(2), torch.ones(2)]

    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.ipu() + outside[0].to("ipu") + outside[1].to(x.device) + outside[2].to(x) + outside[3].ipu()

    model = wrap(forward)
    assert torch.equal(model(X), X + 4)
    for tensor in outside:
        tensor.zero_()
    assert torch.equal(model(X), X + 4)


FACTORIES = {
    "arange": lambda: torch.arange(2),
    "full": lambda: torch.full((2,), 3.0),
    "linspace": lambda: torch.linspace(0, 1, 2),
    "ones": lambda: torch.ones(2),
    "tensor": lambda: torch.tensor([1.0, 2.0]),
    "zeros": lambda: torch.zeros(2),
    "logspace": lambda: torch.logspace(0, 1, 2),
    "zeros_like": lambda: torch.zeros_like(torch.ones(2, device="cpu")),
    "full_like": lambda: torch.full_like(torch.ones(2, device="cpu"), 3.0),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_factories_make_tensors_on_the_ipu(name, wrap, caplog):
    """With a warning for each."""
    assert torch.equal(wrap(lambda x: x + FACTORIES[name]())(X), X + FACTORIES[name]())
    assert f"{name} was called without a device: forcing to IPU" in caplog.text


@pytest.mark.filterwarnings("ignore:torch.range is deprecated")
def test_the_range_that_pytorch_deprecates_is_a_factory_too(wrap, caplog):
    assert torch.equal(wrap(lambda x: x + torch.range(0, 1))(X), X + torch.tensor([0.0, 1.0]))
    assert "range was called without a device: forcing to IPU" in caplog.text
    assert torch.range.__module__ is None or "ignite_ipu" not in torch.range.__module__


def test_normal_numbers_around_a_host_tensor_stay_on_the_host(wrap):
    with pytest.raises(poptorch.Error, match="Expected an IPU tensor but got tensor"):
        wrap(lambda x: x + torch.normal(torch.zeros(2, device="cpu"), 1.0))(X)


@pytest.mark.filterwarnings("ignore:Output expected to be on the IPU")
def test_constants_of_the_device_are_returned_in_its_types(wrap):
    """There is no int64 on it; a tensor that stayed on the host comes back as it is."""
    on_device, on_host = wrap(lambda x: (torch.arange(2), torch.arange(2, device="cpu")))(X)
    assert (on_device.dtype, on_host.dtype) == (torch.int32, torch.int64)


def test_a_factory_with_the_cpu_as_device_makes_a_host_tensor(wrap):
    with pytest.raises(poptorch.Error, match="Expected an IPU tensor but got tensor"):
        wrap(lambda x: x + torch.ones(2, device="cpu"))(X)
    assert torch.equal(wrap(lambda x: x + torch.ones(2, device=x.device))(X), X + 1)


def test_random_factories_draw_at_every_execution(wrap):
    """For every micro-batch too; the host's stream stays where it was."""
    model = wrap(lambda x: x * 0 + torch.randn(50), poptorch.Options().deviceIterations(2))
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    one, two = model(torch.zeros(2, 50)), model(torch.zeros(2, 50))
    assert len({tuple(row.tolist()) for row in (*one, *two)}) == 4
    assert torch.equal(torch.rand(1), expected)


def test_outputs_that_depend_on_no_input(wrap):
    """They are computed once and returned as they are, without stacking; host tensors with a warning."""
    model = wrap(lambda x: (x, torch.ones(1) * 3, 7, None, "text"), poptorch.Options().deviceIterations(2))
    first, constant, *rest = model(X)
    assert torch.equal(first, X) and constant.tolist() == [3] and rest == [7, None, "text"]
    with pytest.warns(UserWarning, match="Output expected to be on the IPU"):
        host = wrap(lambda x: (x, torch.ones(1, device="cpu")))(X)[1]
    assert host.tolist() == [1]


def test_int64_and_float64_are_narrowed(wrap):
    """Inside and in returned values; other types are kept."""
    inside = []

    def forward(x: torch.Tensor) -> Any:
        wide = x.double() + x.to(torch.float64)
        inside.append(wide.dtype)
        return wide, x.long(), x.half(), x > 1, x.to(torch.uint8)

    dtypes = [output.dtype for output in wrap(forward)(X)]
    assert dtypes == [torch.float32, torch.int32, torch.float16, torch.bool, torch.uint8]
    assert inside == [torch.float32]


@pytest.mark.parametrize("forward", [lambda x: x[:0], lambda x: torch.cat([x, x[:0]])], ids=["result", "within"])
def test_results_may_be_without_elements(forward, wrap):
    """Inputs, weights, buffers and constants may not."""
    assert torch.equal(wrap(forward)(X), forward(X))


@pytest.mark.parametrize(
    "forward",
    [lambda x: (x, torch.empty(0, 3, device="cpu").to("ipu"))],
    ids=["constant"],
)
def test_tensors_without_elements_do_not_exist_on_the_device(forward):
    with pytest.raises(poptorch.Error, match="Zero-sized tensors are unsupported"):
        poptorch.inferenceModel(Calls(forward))(torch.zeros(2, 3))


# -- in place -----------------------------------------------------------------------------------------------------


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.count[0].mul_(2)
        return x + self.count


def test_buffers_keep_what_forward_writes(wrap):
    """On the device, for every micro-batch; the host's copy waits for a download."""
    net = Counter()
    model = wrap(net, poptorch.Options().deviceIterations(2))
    assert model(torch.zeros(2, 1)).flatten().tolist() == [2, 6]
    assert model(torch.zeros(2, 1)).flatten().tolist() == [14, 30]
    assert net.count.item() == 0
    model.copyWeightsToHost()
    assert net.count.item() == 30


@given(st.lists(st.sampled_from(["add", "view", "column", "rebind", "fill", "swap"]), max_size=6))
def test_in_place_work_equals_eager(steps):
    """Writes through views, into inputs and into results, in any order; results have the values of the end."""

    def forward(x: torch.Tensor) -> Any:
        y = x * 2
        for index, step in enumerate(steps):
            if step == "add":
                y.add_(x)
            elif step == "view":
                y.view(-1)[index % 4] = index
            elif step == "column":
                y[:, 0] += y[:, 1]
            elif step == "rebind":
                y = y + 1
            elif step == "fill":
                x[0, 0] = index
            else:
                y, x = x, y
        tail = y[1:]
        y[1:].mul_(3)
        return y.clone(), x + 0, y, tail, x

    given_input, expected_input = X.clone(), X.clone()
    expected = forward(expected_input)
    executor = poptorch.inferenceModel(Calls(forward))
    found = executor(given_input)
    executor.destroy()
    assert all(torch.equal(one, two) for one, two in zip(found, expected))
    assert torch.equal(given_input, expected_input)


def test_inputs_written_in_place_come_back_to_the_caller(wrap):
    given_input = X.clone()
    wrap(lambda x: x.mul_(3).sum(), poptorch.Options().deviceIterations(2))(given_input)
    assert torch.equal(given_input, X * 3)


# -- refused operations ------------------------------------------------------------------------------------------

EAGER_ONLY: Dict[str, Callable[[torch.Tensor], Any]] = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(x.sum() > 0),
    "int": lambda x: int(x.sum()),
    "float": lambda x: float(x.sum()),
    "if": lambda x: x if x.sum() > 0 else -x,
    "while": lambda x: [None for _ in iter(lambda: x.sum() > 0, False)],
    "in": lambda x: 1.0 in x,
    "tolist": lambda x: x.tolist(),
    "index": lambda x: [1, 2][x.sum().long()],
    "equal": lambda x: torch.equal(x, x),
    "slice": lambda x: x[: x.sum().long()],
}


@pytest.mark.parametrize("name", EAGER_ONLY)
def test_values_are_not_available(name, wrap):
    with pytest.raises(poptorch.Error, match="is only supported in eager mode"):
        wrap(EAGER_ONLY[name])(X)


MOVES: Dict[str, Callable[[torch.Tensor], Any]] = {
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "to device": lambda x: x.to(device=torch.device("cpu")),
    "numpy": lambda x: x.numpy(),
    "asarray": lambda x: np.asarray(x),
}


@pytest.mark.parametrize("name", MOVES)
def test_moves_to_the_host(name, wrap):
    with pytest.raises(poptorch.Error, match="Illegal move to CPU"):
        wrap(MOVES[name])(X)


DYNAMIC: Dict[str, Callable[[torch.Tensor], Any]] = {
    "nonzero": lambda x: x.nonzero(),
    "masked_select": lambda x: x.masked_select(x > 1),
    "unique": lambda x: x.unique(),
    "where": lambda x: torch.where(x > 1),
}


KINDS: Dict[Refusal, Callable[[torch.Tensor], Any]] = {
    Refusal.HOST_READ: lambda x: x.sum().item(),
    Refusal.MOVE_TO_HOST: lambda x: x.cpu(),
    Refusal.MOVE_TO_GPU: lambda x: x.to("cuda:0"),
    Refusal.HOST_TENSOR: lambda x: x + torch.ones(2, device="cpu"),
    Refusal.GRADIENT: lambda x: x.sum().backward(),
    Refusal.DYNAMIC_SHAPE: lambda x: x.unique(),
    Refusal.UNSUPPORTED_OPERATOR: lambda x: x.erfinv(),
    Refusal.RESTRICTED_ARGUMENT: lambda x: torch.nn.functional.interpolate(
        x[None, None], scale_factor=(2.0, 3.0), mode="bilinear"
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_refusal_says_of_what_kind_it_is(kind, wrap):
    with pytest.raises(poptorch.Error) as error:
        wrap(KINDS[kind])(X)
    assert error.value.kind is kind


@pytest.mark.parametrize("name", DYNAMIC)
def test_shapes_that_depend_on_data(name, wrap):
    with pytest.raises(poptorch.Error, match="dynamic output shape"):
        wrap(DYNAMIC[name])(X)


def test_a_mask_is_refused_as_pytorch_does(wrap):
    """The error is PyTorch's, of a shape that it cannot infer."""
    with pytest.raises(DynamicOutputShapeException, match=r"dynamic output shape.*test_capture\.py"):
        wrap(lambda x: x[x > 1])(X)


@pytest.mark.parametrize("host", [torch.ones(2), torch.tensor(2.0)])
def test_host_tensors_do_not_mix(host, wrap):
    """Even of no dimensions; Python numbers do."""
    with pytest.raises(poptorch.Error, match="Expected an IPU tensor but got tensor"):
        wrap(lambda x: x + host)(X)
    assert torch.equal(wrap(lambda x: x + 2.0)(X), X + 2)


def test_a_host_tensor_moves_by_type_as_and_copy(wrap):
    """Its value is compiled in, in the other's type."""
    host, trained = torch.tensor([3, 4]), torch.ones(2, requires_grad=True)
    assert wrap(lambda x: host.type_as(x))(X).tolist() == [3.0, 4.0]
    assert wrap(lambda x: (x * 1).copy_(host))(X).tolist() == [[3.0, 4.0], [3.0, 4.0]]
    with pytest.raises(poptorch.Error, match="can not have requires_grad"):
        wrap(lambda x: (x * 1).copy_(trained))(X)


def test_tensors_of_the_host_bound_slices(wrap):
    """Their values are read while tracing; those on the IPU have none."""
    first, last = torch.tensor(0), torch.tensor([1])
    assert wrap(lambda x: x[first : first + 1, last:])(X).tolist() == [[2.0]]
    with pytest.raises(poptorch.Error, match="needs the value of a tensor"):
        wrap(lambda x, bound: x[bound:])(X, first)


def test_gradients_are_not_asked_for_in_forward(wrap):
    weight = nn.Parameter(torch.ones(2))

    class Net(nn.Module):
        def __init__(self, function: Callable[..., Any]) -> None:
            super().__init__()
            self.weight, self.function = weight, function

        def forward(self, x: torch.Tensor) -> Any:
            return self.function((self.weight * x).sum(), self.weight)

    for function in (lambda y, w: y.backward(), lambda y, w: torch.autograd.grad(y, w)):
        with pytest.raises(poptorch.Error, match="not supported inside a traced model"):
            wrap(Net(function))(X)


def test_a_traced_tensor_ends_with_the_trace(wrap):
    """Kept and used later, it raises."""
    kept = []
    wrap(lambda x: kept.append(x) or x * 1)(X)
    with pytest.raises(poptorch.Error, match="after the trace it belongs to"):
        kept[0] + 1
    assert "<unavailable>" in repr(kept[0])


def test_an_exception_in_forward_restores_the_model(wrap):
    """The tensors are the host's again, and the next compile may succeed."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.fail = nn.Linear(2, 2), [True]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.fail[0]:
                raise KeyError("mine")
            return self.linear(x)

    net = Net()
    model = wrap(net)
    with pytest.raises(KeyError, match="mine"):
        model(X)
    assert net.linear.weight.device.type == "cpu" and not model.isCompiled() and not poptorch.isRunningOnIpu()
    net.fail[0] = False
    assert torch.allclose(model(X), net.linear(X))


# -- gradients ----------------------------------------------------------------------------------------------------


class Two(nn.Module):
    def __init__(self, loss: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.tensor([2.0])), nn.Parameter(torch.tensor([3.0]))
        self.loss = loss

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return poptorch.identity_loss(self.loss(self.a, self.b, x), "sum")


def gradients(loss: Callable[..., torch.Tensor], freeze: str = "") -> Dict[str, float]:
    net = Two(loss)
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name != freeze)
    executor = poptorch.trainingModel(net, optimizer=poptorch.optim.SGD(net.parameters(), lr=1.0))
    executor(torch.tensor([5.0]))
    found = {"a": 2 - net.a.item(), "b": 3 - net.b.item()}
    executor.destroy()
    return found


@torch.no_grad()
def without_gradient(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * 1


class Doubles(torch.autograd.Function):
    """A function whose own backward would multiply the gradient by a hundred."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 100


def hooked(tensor: torch.Tensor) -> torch.Tensor:
    doubled = tensor * 1
    doubled.register_hook(lambda gradient: gradient * 100)
    return doubled


def test_gradients_flow_and_are_cut():
    """Against the derivative on paper: d(a*b*x)/da = b*x = 15, d/db = a*x = 10."""
    assert gradients(lambda a, b, x: a * b * x) == {"a": 15, "b": 10}
    assert gradients(lambda a, b, x: a.detach() * b * x) == {"a": 0, "b": 10}
    assert gradients(lambda a, b, x: without_gradient(a) * b * x) == {"a": 0, "b": 10}
    assert gradients(lambda a, b, x: a * b * x, freeze="a") == {"a": 0, "b": 10}
    with_enabled = gradients(lambda a, b, x: (torch.no_grad()(lambda: torch.enable_grad()(lambda: a * b)())()) * x)
    assert with_enabled == {"a": 15, "b": 10}


def test_custom_backward_code_does_not_run():
    """Functions and tensor hooks: the device differentiates the operators of the forward."""
    assert gradients(lambda a, b, x: Doubles.apply(a) * x) == {"a": 10, "b": 0}
    assert gradients(lambda a, b, x: hooked(a) * x) == {"a": 5, "b": 0}
    assert torch.autograd.grad(Doubles.apply(z := torch.ones(1, requires_grad=True)), z)[0].item() == 100


def test_inputs_that_require_gradients_are_detached(wrap, caplog):
    assert not wrap(lambda x: x * 2)(X.clone().requires_grad_()).requires_grad
    assert "requires_grad=True" in caplog.text


# -- other libraries' ways in -------------------------------------------------------------------------------------


def test_scripted_functions_and_aten_calls_are_recorded(wrap):
    """They bypass PyTorch's Python functions."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.relu(torch.ops.aten.sub.Tensor(x, torch.full((2,), 2.0)))

    assert torch.equal(wrap(forward)(X), torch.relu(X - 2))


def test_forward_hooks_are_traced_once(wrap):
    calls = []

    def hook(module: nn.Module, args: Any, result: torch.Tensor) -> torch.Tensor:
        calls.append(None)
        return result + 1

    net = nn.Sequential(nn.ReLU())
    net[0].register_forward_hook(hook)
    model = wrap(net)
    for _ in range(3):
        assert torch.equal(model(X), X + 1)
    assert len(calls) == 1


def test_the_source_line_of_each_operator_is_known(wrap):
    model = wrap(lambda x: torch.relu(x))
    model(X)
    (node,) = [node for node in model._executable.compiled.graph.nodes.nodes if node.meta.get("operator") == "relu"]
    file, line = node.meta["source"]
    assert file == __file__
    with open(file) as source:
        assert "torch.relu(x)" in source.readlines()[line - 1]
