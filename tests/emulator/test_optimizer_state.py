"""The optimizer between host and device: set, replaced, saved, restored; loss scaling and accumulation types."""

from __future__ import annotations

import copy
import gc
import math
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ignite_ipu.emulator as poptorch
from ignite_ipu.emulator.enums import MeanReductionStrategy
from ignite_ipu.emulator.runtime.loss_scaling import AutomaticLossScaling

X = torch.tensor([[1.0, -2.0, 3.0], [0.5, 1.0, -1.0]])


class Net(nn.Module):
    """A layer and a loss."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(3, 3, dtype=dtype)

    def forward(self, x):
        return F.mse_loss(self.fc(x), x)


class PerReplica(nn.Module):
    """A weight with a value for each of two groups of replicas."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 3))

    def forward(self, x):
        return poptorch.identity_loss((self.weight * x).sum(), "none")


def plain_weights(make, updates):
    net = Net()
    optimizer = make(net.parameters())
    for _ in range(updates):
        optimizer.zero_grad()
        net(X).backward()
        optimizer.step()
    return net.state_dict()


def wrap(net, optimizer, options=None):
    return poptorch.trainingModel(net, options, optimizer)


def momentum(parameters, **kwargs):
    return poptorch.optim.SGD(parameters, lr=0.1, momentum=0.9, **kwargs)


def torch_momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


class TestSetOptimizer:
    def test_the_same_values_send_nothing(self):
        net = Net()
        optimizer = momentum(net.parameters())
        model = wrap(net, optimizer)
        model(X)
        sent = poptorch.counters(model).optimizer_uploads
        model.setOptimizer(optimizer)
        assert poptorch.counters(model).optimizer_uploads == sent
        optimizer.param_groups[0]["lr"] = 0.2
        model(X)
        assert poptorch.counters(model).optimizer_uploads == sent, "changing the object alone does nothing"
        model.setOptimizer(optimizer)
        assert poptorch.counters(model).optimizer_uploads == sent + 1

    def test_a_changed_learning_rate_acts_from_the_next_call(self):
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch)
        model = wrap(net, optimizer)
        reference = Net()
        for epoch in range(3):
            model(X)
            reference.zero_grad()
            reference(X).backward()
            with torch.no_grad():
                for parameter in reference.parameters():
                    parameter -= 0.1 * 0.5**epoch * parameter.grad
            optimizer.step()
            scheduler.step()
            model.setOptimizer(optimizer)
        torch.testing.assert_close(net.state_dict(), reference.state_dict())

    def test_detached_it_waits_for_the_next_attach(self):
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        model = wrap(net, optimizer)
        model(X)
        model.detachFromDevice()
        optimizer.param_groups[0]["lr"] = 0.0
        model.setOptimizer(optimizer)
        before = copy.deepcopy(net.state_dict())
        model(X)
        torch.testing.assert_close(net.state_dict(), before)

    def test_inference_has_none(self):
        net = Net()
        with pytest.raises(AttributeError, match="_attribute_tracker"):
            poptorch.inferenceModel(net).setOptimizer(momentum(net.parameters()))

    def test_a_refused_optimizer_trains_nothing(self):
        """The device goes on with its own state; the refused object is the executor's until another one is accepted."""
        net = Net()
        optimizer = momentum(net.parameters())
        model = wrap(net, optimizer)
        model(X)
        with pytest.raises(poptorch.Error, match="is not a valid replacement"):
            model.setOptimizer(poptorch.optim.Adam(net.parameters(), lr=0.1))
        assert optimizer.state_dict()["ipu_state"]
        model(X)
        torch.testing.assert_close(net.state_dict(), plain_weights(torch_momentum, 2))
        with pytest.raises(AssertionError, match="newer on the device and, at once, is to be uploaded"):
            model.destroy()
        model.setOptimizer(optimizer)
        model.destroy()

    def test_after_a_refused_value_the_state_is_out_of_reach_until_one_is_accepted(self):
        """The refused value is noted all the same: giving it again sends nothing, and raises nothing."""
        net = Net()
        optimizer = momentum(net.parameters())
        model = wrap(net, optimizer)
        model(X)
        optimizer.param_groups[0]["weight_decay"] = 0.5
        with pytest.raises(poptorch.Error, match=r"weight_decay of group 0 was compiled in as 0\.0"):
            model.setOptimizer(optimizer)
        model.setOptimizer(optimizer)
        model(X)
        for read in (optimizer.state_dict, model.detachFromDevice, model.destroy):
            with pytest.raises(AssertionError, match=r"call setOptimizer\(\) again"):
                read()
        optimizer.param_groups[0]["weight_decay"] = 0
        model.setOptimizer(optimizer)
        assert optimizer.state_dict()["ipu_state"]
        model(X)
        torch.testing.assert_close(net.state_dict(), plain_weights(torch_momentum, 3))
        model.destroy()

    @pytest.mark.parametrize("when", ["wrapping", "before compiling"])
    def test_half_accumulators_make_means_running(self, when):
        """The executor's own options show it, also if the user's options are frozen or set it otherwise."""
        net = Net()
        options = poptorch.Options()
        half = momentum(net.parameters(), accum_type=torch.float16)
        model = wrap(net, half if when == "wrapping" else momentum(net.parameters()), options)
        model.setOptimizer(half)
        strategy = "meanAccumulationAndReplicationReductionStrategy"
        assert getattr(model.options.Training, strategy) is MeanReductionStrategy.Running
        assert getattr(options.Training, strategy) is MeanReductionStrategy.Post
        model(X)
        half.param_groups[0]["lr"] = 0.2
        model.setOptimizer(half)
        model(X)

    @pytest.mark.parametrize("combined", [False, True])
    def test_other_accumulators_leave_the_strategy_alone(self, combined):
        net = Net()
        more = {"use_combined_accum": True, "accum_type": torch.float16} if combined else {}
        model = wrap(net, momentum(net.parameters(), **more))
        strategy = model.options.Training.meanAccumulationAndReplicationReductionStrategy
        assert strategy is MeanReductionStrategy.Post

    def test_half_accumulators_come_too_late_for_a_compiled_model(self):
        net = Net()
        model = wrap(net, momentum(net.parameters()))
        model(X)
        with pytest.raises(ValueError, match="Invalid optimizer: the new optimizer would"):
            model.setOptimizer(momentum(net.parameters(), accum_type=torch.float16))

    def test_an_unsupported_optimizer_is_refused_when_wrapping(self):
        net = Net()
        with pytest.raises(AssertionError, match="Unsupported optimizer type"):
            wrap(net, torch.optim.Adagrad(net.parameters()))
        assert type(net) is Net

    def test_parameters_of_another_model_are_refused_when_compiling(self):
        net = Net()
        model = wrap(net, momentum(Net().parameters()))
        with pytest.raises(KeyError):
            model(X)
        assert not model.isCompiled()

    def test_a_replaced_optimizer_keeps_what_the_device_had_for_it(self):
        """The device's velocities stay; the old object has their last values."""
        net = Net()
        first, second = momentum(net.parameters()), momentum(net.parameters())
        model = wrap(net, first)
        model(X)
        model.setOptimizer(second)
        velocity = first.state_dict()["ipu_state"]["Accl1___fc.weight"]
        model(X)
        torch.testing.assert_close(net.state_dict(), plain_weights(torch_momentum, 2))
        assert torch.equal(first.state_dict()["ipu_state"]["Accl1___fc.weight"], velocity)
        assert not torch.equal(second.state_dict()["ipu_state"]["Accl1___fc.weight"], velocity)


class TestState:
    def test_the_record_is_never_read_from_the_device(self):
        """Only the method that the executor puts on the optimizer reads newer state."""
        net = Net()
        optimizer = momentum(net.parameters())
        model = wrap(net, optimizer)
        model(X)
        assert set(optimizer.get_state_dict()) == {"state", "param_groups"}
        newest = optimizer.state_dict()
        assert set(newest) == set(optimizer.get_state_dict()) == {"ipu_state", "ipu_param", "state", "param_groups"}
        velocity = newest["ipu_state"]["Accl1___fc.weight"].clone()
        model(X)
        assert torch.equal(optimizer.get_state_dict()["ipu_state"]["Accl1___fc.weight"], velocity)
        assert not torch.equal(optimizer.state_dict()["ipu_state"]["Accl1___fc.weight"], velocity)
        assert poptorch.counters(model).optimizer_state_downloads == 2

    def test_a_copy_has_the_record_and_no_executor(self):
        net = Net()
        optimizer = momentum(net.parameters())
        model = wrap(net, optimizer)
        model(X)
        before = optimizer.state_dict()["ipu_state"]["Accl1___fc.weight"].clone()
        model(X)
        other = copy.deepcopy(optimizer)
        assert torch.equal(other.state_dict()["ipu_state"]["Accl1___fc.weight"], before)
        assert poptorch.counters(model).optimizer_state_downloads == 1

    def test_whoever_keeps_the_optimizer_keeps_executor_and_ipus(self):
        """Until another optimizer takes its place, which gives it its newest state and its own method back."""
        net = Net()
        optimizer = momentum(net.parameters())
        model = wrap(net, optimizer)
        model(X)
        alive = weakref.ref(model)
        del model
        gc.collect()
        assert alive() is not None and alive().isAttachedToDevice()
        alive().setOptimizer(momentum(net.parameters()))
        assert optimizer.state_dict.__func__ is poptorch.optim.SGD.state_dict
        assert optimizer.state_dict()["ipu_state"]
        gc.collect()
        assert alive() is None

    def test_a_loaded_state_comes_back_as_it_was_loaded_before_anything_runs(self):
        net = Net()
        optimizer = momentum(net.parameters())
        model = wrap(net, optimizer)
        model(X)
        loaded = copy.deepcopy(optimizer.state_dict())
        del loaded["ipu_state"]["Accl1___fc.bias"], loaded["ipu_param"]["scaledMomentum2___specific___fc.bias"]
        model(X)
        optimizer.load_state_dict(loaded)
        found = optimizer.state_dict()
        for entries in ("ipu_state", "ipu_param"):
            torch.testing.assert_close(found[entries], loaded[entries], rtol=0, atol=0)

    def test_loaded_hyper_parameters_are_read_back_and_do_not_train(self, caplog):
        """The next run writes them to the record; names that were missing keep their value, with a warning for each."""
        net = Net()
        optimizer = poptorch.optim.Adam(net.parameters(), lr=0.1, weight_decay=0.25)
        model = wrap(net, optimizer)
        model(X)
        loaded = copy.deepcopy(optimizer.state_dict())
        loaded["ipu_param"] = {"learningRate___specific___fc.weight": torch.tensor(7.0)}
        bias = loaded["ipu_state"].pop("Accl2___fc.bias")
        optimizer.load_state_dict(loaded)
        caplog.clear()
        model(X)
        warned = sorted(record.message.split(" lacks ")[1].split(":")[0] for record in caplog.records)
        assert warned == [
            "Accl2___fc.bias",
            "learningRate___specific___fc.bias",
            "weightDecay___specific___fc.bias",
            "weightDecay___specific___fc.weight",
        ]
        found = optimizer.state_dict()
        assert found["ipu_param"]["learningRate___specific___fc.weight"] == 7.0
        assert found["ipu_param"]["learningRate___specific___fc.bias"].item() == pytest.approx(0.1)
        assert not torch.equal(found["ipu_state"]["Accl2___fc.bias"], bias), "the device went on with its own"
        plain = plain_weights(lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.25), 2)
        torch.testing.assert_close(net.state_dict(), plain)

    def test_a_description_replaces_loaded_hyper_parameters_and_comes_before_them(self):
        net = Net()
        optimizer = poptorch.optim.Adam(net.parameters(), lr=0.1)
        name = "learningRate___specific___fc.weight"
        model = wrap(net, optimizer)
        model(X)
        loaded = copy.deepcopy(optimizer.state_dict())
        loaded["ipu_param"][name].fill_(7.0)
        optimizer.load_state_dict(loaded)
        optimizer.param_groups[0]["lr"] = 0.5
        model.setOptimizer(optimizer)
        model(X)
        assert optimizer.state_dict()["ipu_param"][name] == 7.0, "both were due"
        optimizer.param_groups[0]["lr"] = 0.25
        model.setOptimizer(optimizer)
        model(X)
        assert optimizer.state_dict()["ipu_param"][name] == 0.25

    @pytest.mark.parametrize("replicas", ["OnePerGroup", "AllReplicas"])
    def test_state_of_weights_per_replica_counts_groups_first(self, replicas):
        """Step counts, too: two groups of two replicas; with AllReplicas all four are brought."""
        net = PerReplica()
        optimizer = poptorch.optim.Adam(net.parameters(), lr=0.1)
        model = wrap(net, optimizer, poptorch.Options().replicationFactor(4))
        kind, retrieval = poptorch.CommGroupType.Consecutive, poptorch.VariableRetrievalMode[replicas]
        model.weight.replicaGrouping(kind, 2, retrieval)
        model(torch.arange(12.0).reshape(4, 3))
        state = optimizer.state_dict()["ipu_state"]
        count = 2 if replicas == "OnePerGroup" else 4
        shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
        assert shapes == {"Accl1___weight": (count, 3), "Accl2___weight": (count, 3), "Step___weight": (count,)}
        loaded = copy.deepcopy(optimizer.state_dict())
        loaded["ipu_state"]["Step___weight"].fill_(9.0)
        optimizer.load_state_dict(loaded)
        model(torch.arange(12.0).reshape(4, 3))
        assert optimizer.state_dict()["ipu_state"]["Step___weight"].tolist() == [10.0] * count

    def test_it_is_read_when_stale_and_only_then(self):
        net = Net()
        optimizer = momentum(net.parameters())
        assert optimizer.state_dict()["ipu_state"] is None
        model = wrap(net, optimizer)
        model(X)
        for _ in range(2):
            optimizer.state_dict()
        assert poptorch.counters(model).optimizer_state_downloads == 1
        model(X)
        optimizer.state_dict()
        assert poptorch.counters(model).optimizer_state_downloads == 2

    @pytest.mark.parametrize("how", ["detach", "destroy", "copyWeightsToDevice", "load_state_dict"])
    def test_a_poptorch_optimizer_goes_on_where_it_was(self, how):
        net = Net()
        model = wrap(net, momentum(net.parameters()))
        model(X)
        if how == "detach":
            model.detachFromDevice()
        elif how == "destroy":
            model.destroy()
        else:
            state = copy.deepcopy(net.state_dict())
            model.copyWeightsToDevice() if how == "copyWeightsToDevice" else model.load_state_dict(state)
        model(X)
        torch.testing.assert_close(net.state_dict(), plain_weights(torch_momentum, 2))

    @pytest.mark.parametrize("how", ["detach", "copyWeightsToDevice", "load_state_dict"])
    def test_a_torch_optimizer_starts_afresh(self, how):
        """Its state is nowhere but on the device, and every upload of weights sets it to its start."""
        net = Net()
        model = wrap(net, torch_momentum(net.parameters()))
        model(X)
        state = copy.deepcopy(net.state_dict())
        if how == "detach":
            model.detachFromDevice()
        elif how == "copyWeightsToDevice":
            model.copyWeightsToDevice()
        else:
            model.load_state_dict(state)
        model(X)
        reference = Net()
        reference.load_state_dict(state)
        reference(X).backward()
        expected = reference.fc.weight.detach() - 0.1 * reference.fc.weight.grad
        torch.testing.assert_close(net.fc.weight.detach(), expected)

    def test_a_loaded_state_goes_up_with_the_weights_at_the_next_run(self):
        net = Net()
        optimizer = momentum(net.parameters())
        model = wrap(net, optimizer)
        model(X)
        saved, weights = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(net.state_dict())
        model(X)
        net.copyWeightsToHostIfNeeded()
        net.load_state_dict(weights)
        optimizer.load_state_dict(saved)
        before = poptorch.counters(model)
        model(X)
        since = poptorch.counters(model) - before
        assert (since.optimizer_state_uploads, since.weight_uploads) == (1, 1)
        torch.testing.assert_close(net.state_dict(), plain_weights(torch_momentum, 2))

    def test_a_state_loaded_before_compiling_is_where_training_starts(self):
        net = Net()
        optimizer = momentum(net.parameters())
        model = wrap(net, optimizer)
        model(X)
        saved, weights = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(net.state_dict())
        other = Net()
        other.load_state_dict(weights)
        resumed = momentum(other.parameters())
        resumed.load_state_dict(saved)
        continued = wrap(other, resumed)
        continued(X)
        torch.testing.assert_close(other.state_dict(), plain_weights(torch_momentum, 2))

    def test_parameters_in_no_group_take_the_defaults(self):
        net = Net()
        model = wrap(net, torch.optim.SGD([{"params": [net.fc.weight], "lr": 0.0}], lr=0.1))
        before = copy.deepcopy(net.state_dict())
        model(X)
        assert torch.equal(net.fc.weight.detach(), before["fc.weight"])
        torch.testing.assert_close(
            net.fc.bias.detach(), plain_weights(lambda p: torch.optim.SGD(p, lr=0.1), 1)["fc.bias"]
        )


class Scaled(nn.Module):
    """The gradient of its one weight is the mean of its input."""

    def __init__(self, dtype=torch.float16):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, dtype=dtype))

    def forward(self, x):
        return poptorch.identity_loss((self.weight * x).float(), "mean")


def half_model(net, accumulation=1, strategy=None, automatic=False, **optimizer):
    options = poptorch.Options()
    options.Training.gradientAccumulation(accumulation).setAutomaticLossScaling(automatic)
    if strategy is not None:
        options.Training.setMeanAccumulationAndReplicationReductionStrategy(strategy)
    return wrap(net, poptorch.optim.SGD(net.parameters(), lr=1.0, **optimizer), options)


class TestAccumulation:
    def test_half_gradients_accumulate_in_float32_by_default(self):
        """In float16 the sum 60000 + 60000 would be infinite."""
        net = Scaled()
        model = half_model(net, accumulation=2)
        model(torch.full((2, 1), 60000.0, dtype=torch.float16))
        assert net.weight.item() == -60000.0
        assert model.isCompiled()

    def test_half_accumulators_keep_a_running_mean(self):
        """They are accurate to float16, and do not overflow either."""
        net = Scaled()
        model = half_model(net, accumulation=4, strategy=MeanReductionStrategy.Post, accum_type=torch.float16)
        model(torch.tensor([[60000.0], [60000.0], [30000.0], [30000.0]], dtype=torch.float16))
        assert net.weight.item() == pytest.approx(-45000.0, rel=2e-3)
        assert model.isCompiled()

    def test_summed_half_accumulators_overflow(self):
        net = Scaled()
        options = poptorch.Options()
        options.Training.gradientAccumulation(2)
        options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
        model = wrap(net, poptorch.optim.SGD(net.parameters(), lr=1.0, accum_type=torch.float16), options)
        model(torch.full((2, 1), 60000.0, dtype=torch.float16))
        assert math.isinf(net.weight.item())

    @pytest.mark.parametrize("strategy", [MeanReductionStrategy.Running, MeanReductionStrategy.Post])
    @pytest.mark.parametrize("accum_type", [torch.float16, torch.float32])
    def test_strategies_agree_up_to_rounding(self, strategy, accum_type):
        net, reference = Net(), Net()
        options = poptorch.Options().replicationFactor(2)
        options.Training.gradientAccumulation(2)
        options.Training.setMeanAccumulationAndReplicationReductionStrategy(strategy)
        model = wrap(net, poptorch.optim.SGD(net.parameters(), lr=0.1, accum_type=accum_type), options)
        x = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
        model(x)
        reference(x).backward()
        expected = reference.fc.weight.detach() - 0.1 * reference.fc.weight.grad
        tolerance = 1e-3 if accum_type is torch.float16 else 1e-6
        torch.testing.assert_close(net.fc.weight.detach(), expected, rtol=tolerance, atol=tolerance)

    def test_the_third_strategy_is_refused_when_compiling(self):
        net = Net()
        options = poptorch.Options()
        options.Training.setMeanAccumulationAndReplicationReductionStrategy(MeanReductionStrategy.PostAndLoss)
        with pytest.raises(poptorch.Error, match="MeanReductionStrategy out of range"):
            wrap(net, momentum(net.parameters()), options)(X)


def scaling_of(model):
    """Return the loss scaling that the next run takes: the user's times the factor by which the device adapts it."""
    state = model._life.state.optimizer._optimizer.state_dict()
    return state["ipu_param"]["lossScaling_FLOAT"].item() * state["ipu_state"]["lossScaleUpdateFactor"].item()


class Sums(nn.Module):
    """Parameters whose gradients autograd keeps in the same memory."""

    def __init__(self):
        super().__init__()
        for name in "abc":
            setattr(self, name, nn.Parameter(torch.zeros(3)))

    def forward(self, x):
        return poptorch.identity_loss((self.a + self.b) * x.sum() + self.c, "sum")


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("loss_scaling", [1.0, 4.0])
@pytest.mark.parametrize("accum_type", [torch.float32, torch.float16])
def test_gradients_that_share_memory_are_counted_once(accumulation, loss_scaling, accum_type):
    """Of (a + b) * s + c, a and b have the gradient s, and c has 1."""
    net = Sums()
    options = poptorch.Options()
    options.Training.gradientAccumulation(accumulation)
    optimizer = poptorch.optim.SGD(net.parameters(), lr=1.0, loss_scaling=loss_scaling, accum_type=accum_type)
    model = wrap(net, optimizer, options)
    model(torch.full((2 * accumulation,), 2.0))
    expected = {"a": [-4.0] * 3, "b": [-4.0] * 3, "c": [-1.0] * 3}
    for name, value in net.state_dict().items():
        assert value.tolist() == pytest.approx(expected[name], rel=1e-2)
    assert model.isCompiled()


def test_velocities_are_misread_when_the_loss_scaling_changes_during_an_absence():
    """They are saved multiplied by the loss scaling at that time, and read as if it had been the current one."""
    net = Scaled()
    optimizer = poptorch.optim.SGD(net.parameters(), lr=1.0, momentum=0.5, loss_scaling=4.0)
    model = wrap(net, optimizer)
    model(torch.ones(1, 1, dtype=torch.float16))
    model.detachFromDevice()
    optimizer.loss_scaling = 64.0
    model.setOptimizer(optimizer)
    model(torch.ones(1, 1, dtype=torch.float16))
    assert net.weight.item() == pytest.approx(-1 - (0.5 / 16 + 1), abs=1e-3)


class TestAutomaticLossScaling:
    @pytest.mark.parametrize(
        ("large", "expected"), [(0, 256.0), (1, 64.0), (10, 64.0)], ids=["none", "one in ten", "all"]
    )
    def test_it_halves_or_doubles(self, large, expected):
        scaling = AutomaticLossScaling()
        edge = 0.125 * 65504
        gradient = torch.full((10,), edge, dtype=torch.float16)
        gradient[:large] = 2 * edge
        scaling.look([gradient, torch.full((5,), 1e30)])
        assert scaling.after_update(128.0) == expected

    @pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
    def test_values_that_are_not_finite_are_large(self, bad):
        scaling = AutomaticLossScaling()
        scaling.look([torch.tensor([bad], dtype=torch.float16)])
        assert scaling.after_update(128.0) == 64.0

    def test_the_proportion_decides(self):
        gradient = torch.zeros(10, dtype=torch.float16)
        gradient[0] = 60000
        for threshold, expected in ((0.1, 2.0), (0.0999, 0.5)):
            scaling = AutomaticLossScaling(threshold=threshold)
            scaling.look([gradient])
            assert scaling.after_update(1.0) == expected

    def test_it_looks_every_few_updates_at_all_gradients_since(self):
        scaling = AutomaticLossScaling(period=3)
        values = []
        for size in (60000.0, 0.0, 0.0, 0.0, 0.0, 0.0):
            scaling.look([torch.tensor([size], dtype=torch.float16)])
            values.append(scaling.after_update(values[-1] if values else 8.0))
        assert values == [8.0, 8.0, 4.0, 4.0, 4.0, 8.0]

    def test_it_has_bounds(self):
        up, down = torch.zeros(1, dtype=torch.float16), torch.full((1,), math.inf, dtype=torch.float16)
        for start, gradient, expected in ((2.0**15, up, 2.0**15), (2.0**16, up, 2.0**16), (2.0**-24, down, 2.0**-24)):
            scaling = AutomaticLossScaling()
            scaling.look([gradient])
            assert scaling.after_update(start) == expected

    def test_without_half_gradients_nothing_changes(self, caplog):
        net = Net()
        model = half_model(net, automatic=True, loss_scaling=64.0)
        model(X)
        assert scaling_of(model) == 64.0
        assert "no gradient is of type float16" in caplog.text

    def test_the_device_adapts_and_the_weights_do_not_notice(self):
        net = Scaled()
        model = half_model(net, automatic=True, loss_scaling=1024.0)
        seen = []
        for _ in range(6):
            model(torch.ones(1, 1, dtype=torch.float16))
            seen.append(scaling_of(model))
        assert seen == [2048.0, 4096.0, 8192.0, 4096.0, 8192.0, 4096.0]
        assert net.weight.item() == -6.0

    def test_an_overflow_reaches_the_weights_and_halves_the_scaling(self):
        net = Scaled()
        model = half_model(net, automatic=True, loss_scaling=1024.0)
        model(torch.full((1, 1), 100.0, dtype=torch.float16))
        assert scaling_of(model) == 512.0
        assert math.isinf(net.weight.item())

    @pytest.mark.parametrize("combined", [False, True])
    def test_it_goes_on_where_it_was_after_an_absence(self, combined):
        """Velocities are kept multiplied by the scaling, so both must come back; a torch optimizer starts anew."""

        def train(away):
            net = Scaled()
            momentum = {"momentum": 0.5, "use_combined_accum": combined}
            model = half_model(net, automatic=True, loss_scaling=4.0, **momentum)
            for call in range(6):
                model(torch.ones(1, 1, dtype=torch.float16))
                if away and call == 3:
                    model.detachFromDevice()
                    model.attachToDevice()
            return net.weight.item(), scaling_of(model)

        assert train(away=True) == train(away=False) == (pytest.approx(-10.03125), 256.0)

    def test_the_users_settings_are_read_and_checked(self):
        net = Scaled()
        options = poptorch.Options()
        options.Training.setAutomaticLossScaling(True)
        options._Popart.set("automaticLossScalingSettings.binEdgeLocation", 2.0)
        with pytest.raises(poptorch.Error, match="binEdgeLocation must be between 0 and 1"):
            wrap(net, poptorch.optim.SGD(net.parameters(), lr=1.0), options)(torch.ones(1, 1, dtype=torch.float16))

    def test_the_loss_scaling_is_variable_then(self):
        """The device takes a new one, and adapts that: the gradient is small."""
        net = Scaled()
        optimizer = poptorch.optim.SGD(net.parameters(), lr=1.0)
        options = poptorch.Options()
        options.Training.setAutomaticLossScaling(True)
        model = wrap(net, optimizer, options)
        model(torch.ones(1, 1, dtype=torch.float16))
        optimizer.loss_scaling = 32.0
        model.setOptimizer(optimizer)
        assert scaling_of(model) == 64.0
        model(torch.ones(1, 1, dtype=torch.float16))
        assert scaling_of(model) == 128.0
        assert optimizer.state_dict()["ipu_param"]["lossScaling_FLOAT"] == 32.0

    def test_the_factor_is_state_that_can_be_anchored_with_the_loss_scaling_as_product(self):
        """A run takes loss_scaling times the factor that was shown before it."""
        net = Scaled()
        optimizer = poptorch.optim.AdamW(net.parameters(), lr=0.5, loss_scaling=8.0)
        options = poptorch.Options()
        options.anchorTensor("scale", "finalLossScale")
        options.Training.setAutomaticLossScaling(True)
        model = wrap(net, optimizer, options)
        x = torch.ones(1, 1, dtype=torch.float16)
        model.compile(x)
        shown = [optimizer.state_dict()["ipu_state"]["lossScaleUpdateFactor"].item()]
        anchored = []
        for _ in range(3):
            model(x)
            anchored.append(model.getAnchoredTensor("scale"))
            shown.append(optimizer.state_dict()["ipu_state"]["lossScaleUpdateFactor"].item())
        assert shown == [1.0, 2.0, 4.0, 8.0]
        assert [each.shape for each in anchored] == [torch.Size()] * 3
        assert [each.item() for each in anchored] == [8.0, 16.0, 32.0]
        assert optimizer.state_dict()["ipu_param"]["lossScaling_FLOAT"] == optimizer.loss_scaling == 8.0

    def test_without_it_there_is_no_such_tensor(self):
        net = Net()
        options = poptorch.Options()
        options.anchorTensor("scale", "finalLossScale")
        with pytest.raises(poptorch.Error, match="Unknown tensor to anchor: 'finalLossScale'"):
            wrap(net, momentum(net.parameters()), options)(X)


def test_stochastic_rounding_draws_from_the_devices_stream_and_is_right_on_average():
    """An update of a third of float16's step moves a third of the weights."""
    net = Scaled()
    net.weight = nn.Parameter(torch.ones(3000, dtype=torch.float16))
    options = poptorch.Options().randomSeed(3)
    options.Precision.enableStochasticRounding(True)
    step = 2.0**-11  # below 1 the neighbours are this far apart
    model = wrap(net, poptorch.optim.SGD(net.parameters(), lr=step / 3 * 3000), options)
    host = torch.get_rng_state()
    model(torch.ones(1, 1, dtype=torch.float16))
    assert torch.equal(host, torch.get_rng_state())
    assert set(net.weight.tolist()) == {1.0, 1.0 - step}
    assert (1 - net.weight.detach().float()).mean().item() == pytest.approx(step / 3, rel=0.1)
