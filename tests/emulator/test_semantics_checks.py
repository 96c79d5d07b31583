"""Thirty expectations that follow from PopTorch's rules, each as short as it can be told."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ignite_ipu.emulator as poptorch

TRACED = []


class Net(nn.Module):
    """One linear layer with a loss."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.fc = nn.Linear(3, 2)
        self.n = 0

    def forward(self, x, y=None):
        TRACED.append(1)
        self.n += 1
        out = self.fc(x)
        return out if y is None else F.mse_loss(out, y)


class Calls(nn.Module):
    """Any function as a model."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, *args, **kwargs):
        return self.function(self.weight, *args, **kwargs)


def batch(rows=4):
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, 3, generator=generator), torch.randn(rows, 2, generator=generator)


def trained(net, lr=0.1, options=None):
    return poptorch.trainingModel(net, options, torch.optim.SGD(net.parameters(), lr=lr))


def test_1_options_check_types():
    with pytest.raises(AssertionError, match="Unexpected type"):
        poptorch.Options().deviceIterations(2.0)
    with pytest.raises(AssertionError):
        poptorch.Options().outputMode(2)
    with pytest.raises(AttributeError, match="Invalid attribute"):
        _ = poptorch.Options().foo


def test_2_a_wrapper_freezes_its_options_and_a_clone_is_free():
    options = poptorch.Options()
    poptorch.inferenceModel(Net(), options)
    with pytest.raises(AttributeError, match="frozen"):
        options.deviceIterations(2)
    assert options.clone().deviceIterations(2).device_iterations == 2


def test_3_setters_chain_except_anchorTensor():
    options = poptorch.Options()
    assert options.anchorTensor("a", "b") is None
    assert options.deviceIterations(1).replicationFactor(1).randomSeed(1).modelName("x") is options
    assert options.Training.gradientAccumulation(1).setAutomaticLossScaling(False) is options.Training
    assert options.Precision.enableStochasticRounding(False) is options.Precision


@pytest.mark.parametrize("mode", ["All", "EveryN", "Final", "Sum"])
def test_4_output_modes_in_inference(mode):
    torch.manual_seed(0)
    layer, x = nn.Linear(6, 20), torch.randn(10, 1, 5, 6)
    expected = layer(x).detach()
    expected = {
        "All": expected,
        "EveryN": expected[[4, 9]],
        "Final": expected[9:],
        "Sum": expected.sum(0, keepdim=True),
    }[mode]
    period = (5,) if mode == "EveryN" else ()
    options = poptorch.Options().deviceIterations(10).outputMode(poptorch.OutputMode[mode], *period)
    torch.testing.assert_close(poptorch.inferenceModel(layer, options)(x), expected)


def test_5_shapes_of_the_loss_in_training():
    assert trained(Net())(*batch()).shape == ()
    ten = poptorch.Options().deviceIterations(10)
    assert trained(Net(), options=ten)(*batch(20)).shape == ()
    every = poptorch.Options().deviceIterations(10).outputMode(poptorch.OutputMode.All)
    assert trained(Net(), options=every)(*batch(20)).shape == (10,)
    assert trained(Net(), options=poptorch.Options().replicationFactor(2))(*batch()).shape == (2,)


def test_6_accumulating_means_is_one_larger_batch():
    accumulating, large = Net(), Net()
    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    for net, given in ((accumulating, options), (large, None)):
        model = trained(net, options=given)
        model(*batch(8))
        model(*batch(8))
        model.copyWeightsToHost()
    torch.testing.assert_close(accumulating.state_dict(), large.state_dict())


def test_7_a_batch_that_cannot_be_cut_is_an_AssertionError():
    model = poptorch.inferenceModel(Net(), poptorch.Options().deviceIterations(2))
    with pytest.raises(AssertionError, match="Invalid batch dimension"):
        model(torch.zeros(5, 3))


@pytest.mark.parametrize(
    ("compiled", "given", "words"),
    [
        ((torch.zeros(4, 3), None, 1), (torch.zeros(8, 3), None, 1), "Shape mismatch for x"),
        ((torch.zeros(4, 3), None, 1), (torch.zeros(4, 3).double(), None, 1), "Data type mismatch for"),
        ((torch.zeros(4, 3), None, 1), (torch.zeros(4, 3), torch.zeros(4), 1), "Type mismatch for"),
        ((torch.zeros(4, 3), None, 1), (torch.zeros(4, 3), None, 2), "Value mismatch for"),
    ],
)
def test_8_later_calls_must_look_like_the_compiled_one(compiled, given, words):
    class Optional(nn.Module):
        def forward(self, x, mask=None, factor=1):
            return x * factor

    model = poptorch.inferenceModel(Optional())
    model(*compiled)
    with pytest.raises(poptorch.Error, match=words):
        model(*given)


def test_9_the_structure_of_the_result_is_kept():
    model = poptorch.inferenceModel(Calls(lambda w, x, y: {"a": (x * 1, 3), "b": [y.long()]}))
    result = model(torch.ones(2), torch.tensor([1.0, 7.0]))
    assert list(result) == ["a", "b"] and isinstance(result["a"], tuple) and isinstance(result["b"], list)
    assert result["a"][0].tolist() == [1.0, 1.0] and result["a"][1] == 3
    assert result["b"][0].dtype is torch.int32 and result["b"][0].tolist() == [1, 7]


def test_10_outputs_cannot_be_differentiated():
    with pytest.raises(poptorch.Error, match=r"backward\(\) cannot be called"):
        trained(Net())(*batch()).backward()


def test_11_exactly_one_final_loss():
    x = torch.ones(2, 3)
    none = trained(Calls(lambda w, x: (w * x).mean()))
    with pytest.raises(poptorch.Error, match="Couldn't find a loss in graph"):
        none(x)
    two = trained(Calls(lambda w, x: (F.mse_loss(w * x, x), F.mse_loss(w + x, x))))
    with pytest.raises(poptorch.Error, match="Multiple independent losses found"):
        two(x)
    joined = trained(Calls(lambda w, x: poptorch.identity_loss(F.mse_loss(w * x, 2 * x) + F.mse_loss(w + x, x), "sum")))
    assert joined(x) == 2.0


def test_12_wrapping_renames_the_class_until_destroy():
    net = Net()
    model = trained(net)
    assert type(net).__name__ == "PoptorchNet" and isinstance(net, Net)
    with pytest.raises(RuntimeError, match="Model has already been wrapped in"):
        trained(net)
    model(*batch())
    model.destroy()
    assert type(net) is Net


def test_13_reading_a_weight_downloads_once():
    net, plain = Net(), Net()
    model = trained(net)
    model(*batch())
    plain(*batch()).backward()
    expected = plain.fc.weight.detach() - 0.1 * plain.fc.weight.grad
    for _ in range(3):
        torch.testing.assert_close(net.fc.weight.detach(), expected)
    assert poptorch.counters(model).weight_downloads == 1


def test_14_host_edits_reach_the_device_with_copyWeightsToDevice_only():
    net, plain = Net(), Net()
    model = trained(net, lr=0.0)
    x, y = batch()
    before = model(x, y)
    with torch.no_grad():
        net.fc.weight.zero_()
    torch.testing.assert_close(model(x, y), before)
    with torch.no_grad():
        net.fc.weight.zero_()
        plain.fc.weight.zero_()
    model.copyWeightsToDevice()
    torch.testing.assert_close(model(x, y), plain(x, y).detach())


def test_15_inference_follows_a_training_wrapper_created_before_it():
    x, y = batch()
    net = Net()
    training, inference = trained(net), poptorch.inferenceModel(net)
    inference(x)
    training(x, y)
    torch.testing.assert_close(inference(x), net.fc(x).detach())
    net = Net()
    inference = poptorch.inferenceModel(net)
    training = trained(net)
    old = inference(x)
    training(x, y)
    torch.testing.assert_close(inference(x), old)


def test_16_forward_runs_once_per_compile():
    net = Net()
    model = poptorch.inferenceModel(net)
    TRACED.clear()
    for _ in range(3):
        model(batch()[0])
    assert len(TRACED) == 1
    model.destroy()
    model(batch()[0])
    assert len(TRACED) == 2
    assert net.n == 0


def test_17_a_learning_rate_left_to_its_default_is_a_constant():
    net = Net()
    optimizer = poptorch.optim.Adam(net.parameters())
    model = poptorch.trainingModel(net, optimizer=optimizer)
    model(*batch())
    optimizer.param_groups[0]["lr"] = 0.5
    with pytest.raises(poptorch.Error, match="constant"):
        model.setOptimizer(optimizer)
    net = Net()
    optimizer = poptorch.optim.Adam(net.parameters(), lr=0.001)
    model = poptorch.trainingModel(net, optimizer=optimizer)
    model(*batch())
    optimizer.param_groups[0]["lr"] = 0.5
    model.setOptimizer(optimizer)


@pytest.mark.parametrize(("first", "then", "refused"), [(0.0, 0.9, True), (0.9, 0.8, False), (0.9, 0.0, True)])
def test_18_a_torch_momentum_of_zero_is_a_constant(first, then, refused):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=first)
    model = poptorch.trainingModel(net, optimizer=optimizer)
    model(*batch())
    optimizer.param_groups[0]["momentum"] = then
    if refused:
        with pytest.raises(poptorch.Error, match="is not a valid replacement"):
            model.setOptimizer(optimizer)
    else:
        model.setOptimizer(optimizer)


def test_19_dampening_scales_the_first_update():
    net, plain = Net(), Net()
    optimizer = poptorch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, dampening=0.25)
    model = poptorch.trainingModel(net, optimizer=optimizer)
    model(*batch())
    plain(*batch()).backward()
    torch.testing.assert_close(
        net.fc.weight.detach(), plain.fc.weight.detach() - 0.1 * 0.75 * plain.fc.weight.grad.detach()
    )


def test_20_a_loader_combines_batches(caplog):
    options = poptorch.Options().deviceIterations(2)
    options.Training.gradientAccumulation(3)
    dataset = torch.utils.data.TensorDataset(torch.arange(20))
    loader = poptorch.DataLoader(options, dataset)
    assert loader.combinedBatchSize == 6 and len(loader) == 3
    rest = poptorch.DataLoader(options, dataset, drop_last=False)
    assert len(rest) == 4
    assert [len(rows) for (rows,) in rest] == [6, 6, 6, 2]


def test_21_a_batch_sampler_excludes_a_batch_size():
    dataset = torch.utils.data.TensorDataset(torch.arange(20))
    with pytest.raises(poptorch.Error, match="mutually exclusive"):
        poptorch.DataLoader(poptorch.Options(), dataset, batch_size=2, batch_sampler=[[0, 1], [2, 3]])


@pytest.mark.parametrize(("drop_last", "parts"), [(True, [(0, 4), (4, 8)]), (False, [(0, 6), (6, 11)])])
def test_22_processes_read_their_own_part(drop_last, parts):
    dataset = torch.utils.data.TensorDataset(torch.arange(11))
    for process, (start, end) in enumerate(parts):
        options = poptorch.Options().deviceIterations(4)
        options.Distributed.configureProcessId(process, 2)
        loader = poptorch.DataLoader(options, dataset, drop_last=drop_last)
        assert torch.cat([rows for (rows,) in loader]).tolist() == list(range(start, end))


def test_23_a_module_begins_one_block():
    layer = nn.Linear(1, 1)
    assert poptorch.BeginBlock(layer, ipu_id=0) is layer
    with pytest.raises(poptorch.Error, match="already been assigned to a block"):
        poptorch.BeginBlock(layer)
    poptorch.removeBlocks(layer)
    assert poptorch.BeginBlock(layer) is layer


def test_24_strategies_refuse_what_they_cannot_place():
    with pytest.raises(AssertionError, match="more than one stage"):
        poptorch.PipelinedExecution("A", "A")
    with pytest.raises(AssertionError, match="no AutoStage"):
        poptorch.SerialPhasedExecution()


def test_25_outside_a_trace_helpers_are_plain(capsys):
    assert not poptorch.isRunningOnIpu()
    assert poptorch.for_loop(5, lambda x: x + 1, [torch.zeros(1)]) == [torch.ones(1)]
    (made,) = poptorch.custom_op([torch.ones(2)], "Op", "domain", 1, [torch.ones(3)])
    assert made.tolist() == [0.0, 0.0, 0.0]
    x = torch.ones(2)
    assert poptorch.ipu_print_tensor(x, "title") is x
    assert "title" not in "".join(capsys.readouterr())


def test_26_arguments_of_helpers_are_checked():
    with pytest.raises(ValueError, match="to be a list of tensors"):
        poptorch.for_loop(5, lambda x: x, (torch.ones(1),))
    with pytest.raises(AssertionError, match="Unsupported reduction"):
        poptorch.identity_loss(torch.ones(1), "avg")


def test_27_without_a_run_there_are_no_times():
    model = poptorch.inferenceModel(Net())
    events = ("input", "input_complete", "output", "output_complete")
    assert model.getPerfCounters() == {name: [[]] for name in events}
    assert model.getLatency() == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("level", [5, "VERBOSE"])
def test_28_unknown_log_levels(level):
    before = logging.getLogger("poptorch::python").level
    with pytest.raises(ValueError, match="log level"):
        poptorch.setLogLevel(level)
    assert logging.getLogger("poptorch::python").level == before


def test_29_only_ipu_states_can_be_loaded():
    parameters = [nn.Parameter(torch.ones(1))]
    with pytest.raises(RuntimeError, match="Only IPU optimizer states"):
        poptorch.optim.SGD(parameters, lr=1.0).load_state_dict(torch.optim.SGD(parameters, lr=1.0).state_dict())


def test_30_inference_does_not_accumulate():
    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    with pytest.raises(poptorch.Error, match="gradientAccumulation to 1"):
        poptorch.inferenceModel(Net(), options)
    with pytest.raises(AttributeError, match="frozen"):
        options.deviceIterations(2)
