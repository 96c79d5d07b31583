"""An executor from construction to destruction: errors, structure of results, devices, random state, times."""

from __future__ import annotations

import copy
import gc
from collections import OrderedDict, defaultdict
from datetime import timedelta
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ignite_ipu.emulator as poptorch
from ignite_ipu.emulator import profiling
from ignite_ipu.emulator.enums import ConnectionType, OutputMode
from ignite_ipu.torch_names.dispatch import TorchDispatchMode

X = torch.tensor([[1.0, 2.0], [3.0, 4.0]])


class Net(nn.Module):
    """A layer and a loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(2, 2)
        self.note = "mine"

    def forward(self, x):
        return F.mse_loss(self.fc(x), x)

    def double(self, x):
        return 2 * x


class Fn(nn.Module):
    """A function as a model."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def training(net=None, options=None):
    net = net or Net()
    return poptorch.trainingModel(net, options, torch.optim.SGD(net.parameters(), lr=0.1))


def inference(function=lambda x: x * 2, options=None):
    return poptorch.inferenceModel(Fn(function), options)


class TestConstruction:
    def test_without_options_and_optimizer_there_are_defaults(self):
        net, reference = Net(), Net()
        model = poptorch.trainingModel(net)
        model(X)
        reference(X).backward()
        expected = reference.fc.weight.detach() - 0.01 * reference.fc.weight.grad
        torch.testing.assert_close(net.fc.weight.detach(), expected)
        assert model.options.output_mode == OutputMode.Final
        assert poptorch.inferenceModel(Net()).options.output_mode == OutputMode.All

    @pytest.mark.parametrize("nothing", [None, {}, 0])
    def test_anything_false_means_default_options(self, nothing):
        assert poptorch.inferenceModel(Net(), nothing).options.device_iterations == 1

    @pytest.mark.parametrize("wrap", [poptorch.trainingModel, poptorch.inferenceModel])
    def test_options_of_another_type(self, wrap):
        net = Net()
        with pytest.raises(poptorch.Error, match="Invalid type: 'options'"):
            wrap(net, torch.optim.SGD(net.parameters(), lr=0.1))

    @pytest.mark.parametrize("wrap", [poptorch.trainingModel, poptorch.inferenceModel])
    def test_things_that_are_no_models(self, wrap):
        with pytest.raises(TypeError, match=r"Expected a torch\.nn\.Module or a callable"):
            wrap(3)
        with pytest.raises(AttributeError, match="'function' object has no attribute"):
            wrap(lambda x: x)

    def test_a_callable_with_a_mode_is_a_model(self):
        class Doubles:
            training = False

            def __call__(self, x):
                return 2 * x

        assert torch.equal(poptorch.inferenceModel(Doubles())(X), 2 * X)

    def test_no_parameters_no_default_optimizer(self):
        with pytest.raises(ValueError, match="empty parameter list"):
            poptorch.trainingModel(Fn(lambda x: x))

    def test_each_executor_has_frozen_options_of_its_own(self):
        options = poptorch.Options()
        model = training(options=options)
        assert model.options is not options and options.defaultOutputMode()
        for frozen in (options, model.options):
            with pytest.raises(AttributeError, match="frozen"):
                frozen.deviceIterations(2)

    def test_a_hint_for_pipelines(self):
        options = poptorch.Options()
        options.Training.gradientAccumulation(3)
        with pytest.raises(poptorch.Error, match=r"gradientAccumulation to 1.*deviceIterations"):
            poptorch.inferenceModel(Net(), options)
        options = poptorch.Options().setExecutionStrategy(poptorch.ShardedExecution())
        options.Training.gradientAccumulation(3)
        with pytest.raises(poptorch.Error, match="gradientAccumulation to 1") as refusal:
            poptorch.inferenceModel(Net(), options)
        assert "deviceIterations" not in str(refusal.value)

    def test_the_models_attributes_are_the_executors(self):
        net = Net()
        model = training(net)
        assert model.note == "mine" and model.double(2) == 4 and model.fc is net.fc
        with pytest.raises(AttributeError, match="absent"):
            _ = model.absent
        assert model.model is net
        assert poptorch.inferenceModel(net).model is not net
        poptorch.BeginBlock(net.fc, "A", ipu_id=0)
        assert "BeginBlock" in repr(model) and "Linear" in repr(model)

    def test_attributes_of_the_top_module_diverge_and_those_of_inner_ones_do_not(self):
        class Modes(nn.Module):
            def __init__(self):
                super().__init__()
                self.drop = nn.Dropout(0.5)
                self.factor = 2

            def forward(self, x):
                self.made = True
                return self.drop(x) * self.factor, 1 if self.training else 0

        net = Modes()
        model = poptorch.inferenceModel(net)
        net.eval()
        net.factor = 3
        result, flag = model(X)
        assert torch.equal(result, 2 * X), "dropout is off, the factor is the one at wrapping"
        assert flag == 1, "the copy still trains"
        assert not hasattr(net, "made")
        net.train()
        assert torch.equal(model(X)[0], 2 * X), "flags count when compiling"


class TestCompiling:
    def test_compile_runs_nothing_and_a_second_one_is_ignored(self, caplog):
        model = training()
        model.compile(X)
        assert model.isCompiled() and poptorch.counters(model).device_calls == 0
        model.compile(X[:1])
        assert "Call to compile() ignored" in caplog.text
        model(X)
        assert poptorch.counters(model).compiles == 1

    def test_a_failed_compile_restores_the_model_and_can_be_retried(self):
        class Fails(Net):
            broken = True

            def forward(self, x):
                loss = super().forward(x)
                if Fails.broken:
                    raise RuntimeError("mine")
                return loss

        net = Fails()
        before = dict(net.named_parameters())
        model = training(net)
        with pytest.raises(RuntimeError, match="mine"):
            model(X)
        assert not model.isCompiled() and not poptorch.isRunningOnIpu()
        assert all(value is before[name] for name, value in net.named_parameters())
        Fails.broken = False
        model(X)
        assert model.isCompiled()

    def test_hooks_frame_every_compile_also_one_that_fails(self):
        seen = []
        handles = [
            poptorch.registerPreCompileHook(lambda: seen.append("before")),
            poptorch.registerPostCompileHook(lambda: seen.append("after")),
        ]
        try:
            inference()(X)
            with pytest.raises(ZeroDivisionError):
                inference(lambda x: 1 / 0)(X)
        finally:
            for handle in handles:
                handle.remove()
        inference()(X)
        assert seen == ["before", "after"] * 2
        with pytest.raises(RuntimeError, match="must be callable"):
            poptorch.registerPreCompileHook(3)

    def test_the_name_of_a_tensor_that_the_model_replaced(self):
        class Replaces(nn.Module):
            def __init__(self, what):
                super().__init__()
                self.what = what
                self.register_buffer("b", torch.ones(2))
                self.weight = nn.Parameter(torch.ones(2))

            def forward(self, x):
                if self.what == "buffer":
                    self.b = self.b + 1
                elif self.what == "removed":
                    del self.b
                else:
                    self.b.copy_(self.b + 1)
                return x * self.weight

        for what, words in (
            ("buffer", "is reassigned within the model"),
            ("removed", "is removed from the model when"),
        ):
            net = Replaces(what)
            buffer = net.b
            with pytest.raises(poptorch.Error, match=words):
                poptorch.inferenceModel(net)(X)
            assert net.b is buffer and torch.equal(net.b, torch.ones(2))
        poptorch.inferenceModel(Replaces("in place"))(X)

    def test_a_very_long_error_is_cut_and_kept_in_a_file(self, tmp_path):
        def long(x):
            raise poptorch.createPoptorchError("x" * 20_000)

        model = inference(long, poptorch.Options().logDir(str(tmp_path)))
        for call in (model, model.compile):
            with pytest.raises(poptorch.Error) as refusal:
                call(X)
            assert len(str(refusal.value)) < 11_000
        assert "x" * 20_000 in (tmp_path / "poptorch_error.log").read_text()


class Pair(NamedTuple):
    left: torch.Tensor
    right: object


class Tagged(OrderedDict):
    """A dict with an attribute."""


STRUCTURES = {
    "tensor": lambda x: x * 1,
    "tuple": lambda x: (x * 1, x * 2),
    "list": lambda x: [x * 1, 4, None],
    "named tuple": lambda x: Pair(x * 1, "text"),
    "dict": lambda x: {"b": x * 1, "a": {"deep": [x * 2, Pair(x * 3, 1.5)]}},
    "dict subclass": lambda x: Tagged(z=x * 1, a=(x * 2,)),
    "default dict": lambda x: defaultdict(list, {"k": [x * 1]}),
    "none": lambda x: None,
    "empty": lambda x: (),
}


class TestResults:
    @pytest.mark.parametrize("name", STRUCTURES)
    def test_their_structure_is_that_of_forward(self, name):
        function = STRUCTURES[name]
        result, expected = inference(function)(X), function(X)
        assert self.described(result) == self.described(expected)

    def described(self, value):
        if isinstance(value, torch.Tensor):
            return value.tolist()
        if isinstance(value, dict):
            return type(value), [(key, self.described(item)) for key, item in value.items()]
        if isinstance(value, (list, tuple)):
            return type(value), [self.described(item) for item in value]
        return value

    def test_they_are_new_on_every_call(self):
        model = inference(lambda x: (x * 2, torch.ones(2, device=x.device)))
        first = model(X)
        for tensor in first:
            tensor.zero_()
        second = model(X)
        assert torch.equal(second[0], 2 * X) and second[1].tolist() == [1.0, 1.0]
        assert first[0].sum() == 0

    def test_weights_and_buffers_among_them_are_those_of_each_micro_batch(self):
        class Counts(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("count", torch.zeros(1))
                self.weight = nn.Parameter(torch.ones(1))

            def forward(self, x):
                self.count.add_(1)
                return self.count, self.count.view(1, 1), self.weight, poptorch.identity_loss(self.weight * x, "sum")

        options = poptorch.Options().deviceIterations(3).outputMode(OutputMode.All)
        net = Counts()
        model = poptorch.trainingModel(net, options, torch.optim.SGD(net.parameters(), lr=1.0))
        count, view, weight, _ = model(torch.ones(3))
        assert count.tolist() == view.flatten().tolist() == [1.0, 2.0, 3.0]
        assert weight.tolist() == [1.0, 0.0, -1.0]
        again = model(torch.ones(3))[0]
        assert (count.tolist(), again.tolist()) == ([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])

    def test_they_cannot_be_differentiated(self):
        model = inference(lambda x: [x * 2, torch.ones(2, device=x.device)])
        for tensor in model(X):
            with pytest.raises(poptorch.Error, match=r"there was no training step. Wrap .* poptorch.trainingModel"):
                tensor.backward()
        with pytest.raises(poptorch.Error, match=r"backward\(\) cannot be called explicitly"):
            training()(X).backward()

    def test_a_result_on_the_host_is_frozen_with_a_warning(self):
        values = [1.0]
        model = inference(lambda x: (x * 2, torch.tensor(values, device="cpu")))
        with pytest.warns(UserWarning, match="Output expected to be on the IPU"):
            model(X)
        values[0] = 5.0
        assert model(X)[1].tolist() == [1.0]

    def test_constants_are_not_stacked(self):
        model = inference(lambda x: (x * 2, torch.ones(2, device=x.device)), poptorch.Options().deviceIterations(2))
        stacked, constant = model(X)
        assert stacked.shape == (2, 2) and constant.shape == (2,)

    def test_the_loss_need_not_be_returned(self):
        class Silent(Net):
            def forward(self, x):
                super().forward(x)
                return self.fc(x)

        net, reference = Silent(), Net()
        model = training(net)
        assert model(X).shape == (2, 2)
        reference(X).backward()
        expected = reference.fc.weight.detach() - 0.1 * reference.fc.weight.grad
        torch.testing.assert_close(net.fc.weight.detach(), expected)


class TestDevices:
    def test_attached_from_the_first_call_to_the_last(self):
        model = training()
        assert not model.isCompiled() and not model.isAttachedToDevice()
        model(X)
        assert model.isCompiled() and model.isAttachedToDevice()
        with pytest.raises(poptorch.Error, match="Device is already attached"):
            model.attachToDevice()
        model.detachFromDevice()
        assert model.isCompiled() and not model.isAttachedToDevice()
        with pytest.raises(poptorch.Error, match="Device is not attached"):
            model.detachFromDevice()
        model.attachToDevice()
        model.destroy()
        assert not model.isCompiled() and not model.isAttachedToDevice()
        counts = poptorch.counters(model)
        assert (counts.attaches, counts.detaches) == (2, 2)

    def test_on_demand_compiles_without_a_device(self):
        model = training(options=poptorch.Options().connectionType(ConnectionType.OnDemand))
        model.compile(X)
        assert not model.isAttachedToDevice() and poptorch.counters(model).weight_uploads == 0
        model(X)
        assert model.isAttachedToDevice()

    @pytest.mark.parametrize("offline", [poptorch.Options.useOfflineIpuTarget, None])
    def test_offline_compiles_and_does_no_more(self, offline):
        options = poptorch.Options()
        offline(options) if offline else options.connectionType(ConnectionType.Never)
        model = training(options=options)
        model.compile(X)
        assert model.isCompiled()
        with pytest.raises(AssertionError, match="Trying to run a model on an offline device"):
            model(X)
        with pytest.raises(AssertionError, match="Trying to attach to an offline device"):
            model.attachToDevice()

    def test_a_graph_without_work_needs_no_device(self):
        model = inference(
            lambda x: torch.ones(2, device=x.device), poptorch.Options().connectionType(ConnectionType.OnDemand)
        )
        model.compile(X)
        assert model.isAttachedToDevice()
        assert model(X).tolist() == [1.0, 1.0]
        assert poptorch.counters(model).attaches == 0

    def test_destroy_lets_other_shapes_compile(self):
        model = inference()
        model(X)
        with pytest.raises(poptorch.Error, match="Shape mismatch"):
            model(X[:1])
        model.destroy()
        model.destroy()
        assert torch.equal(model(X[:1]), 2 * X[:1])

    def test_an_executor_that_is_dropped_gives_its_ipus_back(self, monkeypatch, tmp_path):
        monkeypatch.setenv("IGNITE_IPU_EMULATED_IPUS", "1")
        monkeypatch.setenv("IGNITE_IPU_RUNTIME_DIR", str(tmp_path / "run"))  # of which no other test has IPUs
        first = inference()
        first(X)
        with pytest.raises(poptorch.Error, match="Failed to acquire"):
            inference()(X)
        del first
        gc.collect()
        inference()(X)


class TestRandomState:
    def draw(self, seed=None):
        options = poptorch.Options()
        if seed is not None:
            options.randomSeed(seed)
        return inference(lambda x: torch.rand_like(x), options)

    def test_equal_seeds_give_equal_sequences_and_executors_share_no_state(self):
        first, second = self.draw(7), self.draw(7)
        mine = [first(X) for _ in range(3)]
        assert not torch.equal(mine[0], mine[1])
        for values in mine:
            assert torch.equal(second(X), values)
        assert not torch.equal(self.draw(8)(X), mine[0])

    def test_it_is_read_and_written(self):
        model = self.draw(7)
        model.compile(X)
        state = model.rng_state
        assert isinstance(state, list) and state[0] == 7 and all(isinstance(value, int) for value in state)
        values = [model(X) for _ in range(2)]
        assert model.rng_state != state
        model.rng_state = state
        assert torch.equal(model(X), values[0])
        state.clear()
        assert torch.equal(model(X), values[1]), "setting it copies it"

    def test_detached_it_is_kept_and_applied_when_attached(self):
        model, other = self.draw(7), self.draw(7)
        values = [other(X) for _ in range(3)]
        assert torch.equal(model(X), values[0])
        start = other.rng_state
        model.detachFromDevice()
        assert model.rng_state != start
        assert torch.equal(model(X), values[1])
        model.detachFromDevice()
        model.rng_state = other.rng_state
        expected = other(X)
        assert torch.equal(model(X), expected)

    def test_the_hosts_stream_is_left_alone(self):
        model = self.draw()
        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)
        model(X)
        assert torch.equal(torch.rand(3), expected)


class TestTimes:
    def test_cycles_are_counted_by_hardware_alone(self):
        model = inference()
        with pytest.raises(poptorch.Error, match="Cycle count logging is disabled"):
            model.cycleCount()
        model = inference(options=poptorch.Options().logCycleCount(True))
        with pytest.raises(poptorch.Error, match="run the model at least once"):
            model.cycleCount()
        with pytest.raises(poptorch.Error, match="only supported on actual IPU hardware"):
            model(X)
        assert not model.isCompiled()
        offline = poptorch.Options().useOfflineIpuTarget().logCycleCount(True)
        with pytest.raises(poptorch.Error, match="only supported on actual IPU hardware"):
            inference(options=offline).compile(X)

    def test_compilation_time_is_known_after_a_watched_compile(self):
        model = inference()
        with pytest.raises(poptorch.Error, match="compile the model before obtaining"):
            model.compilationTime()
        model(X)
        assert timedelta() < model.compilationTime() < timedelta(seconds=60)
        model = inference(options=poptorch.Options().showCompilationProgressBar(False))
        model(X)
        with pytest.raises(poptorch.Error, match="Please set showCompilationProgressBar"):
            model.compilationTime()

    def test_counters_have_an_entry_for_each_micro_batch_and_output(self):
        options = poptorch.Options().deviceIterations(4).replicationFactor(2).outputMode(OutputMode.EveryN, 2)
        model = inference(lambda x: (x * 1, x.sum()), options)
        model(torch.ones(8, 2))
        counters = model.getPerfCounters()
        assert {name: [len(steps) for steps in tensors] for name, tensors in counters.items()} == {
            "input": [8],
            "input_complete": [8],
            "output": [4, 4],
            "output_complete": [4, 4],
        }

    def test_latencies_are_minimum_maximum_and_mean(self):
        model = inference()
        kinds = (model.getLatency, model.getHostIpuLatency, model.getComputeLatency, model.getIpuHostLatency)
        assert [kind() for kind in kinds] == [(0.0, 0.0, 0.0)] * 4
        model(X)
        for kind in kinds:
            low, high, mean = kind()
            assert 0 <= low <= mean <= high
        assert model.getLatency()[2] >= model.getComputeLatency()[2] > 0

    def test_calls_are_trace_points_of_the_models_channel(self, monkeypatch):
        class Recorder:
            spans = []

            def record(self, channel, label, start_ns, stop_ns):
                self.spans.append((channel, label))

        monkeypatch.setattr(profiling, "_RECORDER", Recorder())
        net = Net().eval()
        model = training(net)
        model(X)
        net.state_dict()
        channels = {channel for channel, _ in Recorder.spans}
        labels = [label for _, label in Recorder.spans]
        assert channels == {"poptorch.inferenceModel"}, "named after the model's flag, not the wrapper"
        assert {"modelCompilation", "modelExecution", "copyWeightsToHost"} <= set(labels)


class TestAnchors:
    def test_their_values_follow_the_output_mode(self):
        probe = inference(lambda x: torch.relu(x) + 1)
        with pytest.raises(AssertionError, match="Model must be compiled"):
            probe.getTensorNames()
        probe(X)
        (name,) = [name for name in probe.getTensorNames() if "relu" in name]
        options = poptorch.Options().deviceIterations(2)
        options.anchorTensor("activation", name)
        model = inference(lambda x: torch.relu(x) + 1, options)
        with pytest.raises(AssertionError, match="No tensor with name"):
            model.getAnchoredTensor("activation")
        model(-X)
        assert torch.equal(model.getAnchoredTensor("activation"), torch.zeros(2, 2))
        with pytest.raises(AssertionError, match="No tensor with name"):
            model.getAnchoredTensor("other")

    @pytest.mark.parametrize("mode", ["Final", "All", "Sum", "EveryN"])
    def test_they_are_not_what_is_written_over_them_later(self, mode):
        """By an in-place layer, in all output modes."""
        net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(inplace=True))
        with torch.no_grad():
            net[0].weight.copy_(-torch.eye(2))
        options = poptorch.Options().deviceIterations(2)
        options.outputMode(poptorch.OutputMode[mode], 2 if mode == "EveryN" else 1)
        options.anchorTensor("before", "linear")
        options.anchorTensor("after", "relu")
        model = poptorch.inferenceModel(net, options)
        x = torch.tensor([[1.0, -2.0], [3.0, -4.0]])
        kept = {"Final": x[1:], "All": x, "Sum": x.sum(0, keepdim=True), "EveryN": x[1:]}[mode]
        assert torch.equal(model(x), torch.relu(-kept))
        assert torch.equal(model.getAnchoredTensor("before"), -kept)
        assert torch.equal(model.getAnchoredTensor("after"), torch.relu(-kept))
        assert "clone" not in model.getTensorNames()

    def test_each_of_several_writes_has_a_value(self):
        """In training, where gradients are those of the whole; of an input and a view, too."""

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(0)
                self.fc = nn.Linear(2, 2)

            def forward(self, x, seen=None):
                seen = {} if seen is None else seen
                seen["input"] = x.clone()
                x.sub_(1)
                h = self.fc(x)
                seen["linear"] = h.clone()
                row = h[0]
                seen["getitem"] = row.clone()
                h.mul_(2)
                seen["mul"] = h.clone()
                row.add_(1)
                seen["add"] = row.clone()
                loss = nn.functional.mse_loss(h, torch.ones_like(h))
                seen["mse_loss"] = loss.clone()
                loss *= 3
                return loss

        net, native, seen = Net(), Net(), {}
        optimizer = torch.optim.SGD(native.parameters(), lr=0.1)
        native(X.clone(), seen)
        seen["mse_loss"].backward()
        optimizer.step()
        options = poptorch.Options()
        names = {"input": "input_x"}
        for short in seen:
            options.anchorTensor(short, names.get(short, short))
        model = poptorch.trainingModel(net, options, torch.optim.SGD(net.parameters(), lr=0.1))
        model(X.clone())
        for short, value in seen.items():
            torch.testing.assert_close(model.getAnchoredTensor(short), value.detach())
        torch.testing.assert_close(net.state_dict(), native.state_dict())


def test_an_executor_cannot_be_deep_copied_into_a_second_one():
    """Its weights are on a device; the copy would be two executors for one."""
    model = training()
    with pytest.raises(RecursionError, match="cannot be deep-copied"):
        copy.deepcopy(model)


def test_a_tensor_that_is_returned_twice_is_two_outputs():
    """Writing into one leaves the other alone, and an anchor of it."""

    class Twice(nn.Module):
        def forward(self, x):
            y = x + 1
            return y, {"again": y}

    options = poptorch.Options()
    options.anchorTensor("sum", "add")
    model = poptorch.inferenceModel(Twice(), options)
    one, other = model(X)
    one.zero_()
    assert torch.equal(other["again"], X + 1) and torch.equal(model.getAnchoredTensor("sum"), X + 1)


def test_a_call_that_fails_freezes_the_options_all_the_same():
    """Even where the model is none."""
    for wrap, model in ((poptorch.inferenceModel, 3), (poptorch.trainingModel, lambda x: x)):
        options = poptorch.Options()
        with pytest.raises((TypeError, AttributeError)):
            wrap(model, options)
        with pytest.raises(AttributeError, match="frozen"):
            options.deviceIterations(2)


def test_inference_uses_the_kernels_that_pytorch_chooses_for_weights_that_require_gradients():
    """PyTorch computes a layer of a transposed batch by another product where its weight is frozen."""
    used = []

    class Kernels(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            used.append(func)
            return func(*args, **(kwargs or {}))

    class Transposed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            return self.layer(x.transpose(0, 1))

    net, x = Transposed(), torch.randn(3, 5, 8)
    model = poptorch.inferenceModel(net)
    model(x)
    with torch.no_grad(), Kernels():
        net(x)
    natively, used[:] = [*used], []
    with Kernels():
        model(x)
    assert used[: len(natively)] == natively
