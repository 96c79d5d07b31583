"""The factories' treatment of their arguments."""

from __future__ import annotations

import itertools

import pytest
import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy, Average
from torch import nn
from torch.utils.data import DataLoader

import ignite_ipu.emulator as poptorch
from ignite_ipu import IPUConfig, OptionsError, create_ipu_evaluator, create_ipu_trainer, ipu_prepare
from ignite_ipu.errors import RowsError
from ignite_ipu.program.config import WEIGHT_SYNC
from tests.supervised import assert_same_weights, network, pair, task, train_natively

CROSS_ENTROPY = nn.CrossEntropyLoss()


def test_the_callers_options_stay_as_they_are():
    """One `poptorch.Options` describes several models; additions by arguments are in the program's own."""
    options = poptorch.Options()
    options.deviceIterations(2)
    model, optimizer = pair()
    trainer = create_ipu_trainer(
        model, optimizer, CROSS_ENTROPY, options=options, gradient_accumulation_steps=4, config={"output_mode": "Final"}
    )
    assert options.Training.gradient_accumulation == 1
    assert options.defaultOutputMode() and not options.exists("random_seed")
    create_ipu_evaluator(model, options=options)
    trainer.run(DataLoader(task(), batch_size=8))
    options.deviceIterations(4)  # not even frozen
    assert trainer.ipu.training.options.device_iterations == 2
    assert trainer.ipu.training.options.Training.gradient_accumulation == 4


def test_the_programs_options_are_those_that_are_compiled():
    """They are PopTorch's own, the placement included."""
    model, optimizer = pair()
    trainer = create_ipu_trainer(
        model, optimizer, CROSS_ENTROPY, pipeline=["2"], config=IPUConfig(execution="sharded"), device_iterations=2
    )
    trainer.run(DataLoader(task(), batch_size=8))
    program = trainer.ipu.training
    assert program.options is program.executor.options
    with pytest.raises(AttributeError, match="frozen"):
        program.options.deviceIterations(3)


@pytest.mark.parametrize(("policy", "copies"), [*zip(WEIGHT_SYNC, (0, 1, 3, 24))])
def test_weights_are_copied_when_the_policy_says_so_or_when_somebody_asks(policy, copies):
    """In a run of 3 epochs with 8 device calls each, as documented; every read gets the newest."""
    model, optimizer = pair()
    trainer = create_ipu_trainer(model, optimizer, CROSS_ENTROPY, config=IPUConfig(weight_sync=policy))
    trainer.run(DataLoader(task(), batch_size=8), max_epochs=3)
    executor = trainer.ipu.training.executor
    assert poptorch.counters(executor).weight_downloads == copies
    model.state_dict()
    assert poptorch.counters(executor).weight_downloads == max(copies, 1)
    reference, native = pair()
    for _ in range(3):
        train_natively(reference, native, DataLoader(task(), batch_size=8))
    assert_same_weights(model, reference)


@pytest.mark.parametrize(("ipus", "replicas"), [(1, 1), (3, 2), (8, 8)])
def test_as_many_replicas_as_the_machine_has_ipus_for(ipus, replicas, monkeypatch, caplog, tmp_path):
    """Their number multiplies the micro-batches of an update, which is said."""
    caplog.set_level("INFO", "ignite_ipu")
    monkeypatch.setenv("IGNITE_IPU_EMULATED_IPUS", str(ipus))
    monkeypatch.setenv("IGNITE_IPU_RUNTIME_DIR", str(tmp_path))
    model, optimizer = pair()
    factors = {"replication_factor": "auto", "gradient_accumulation_steps": 2}
    trainer = create_ipu_trainer(model, optimizer, CROSS_ENTROPY, **factors)
    trainer.run(DataLoader(task(), batch_size=4))
    assert trainer.state.epoch_length == 64 // (4 * 2 * replicas)
    assert f"{replicas} x 1 IPUs per replica" in caplog.text
    assert f"2 x {replicas} = {2 * replicas} micro-batches" in caplog.text
    reference, native = pair()
    train_natively(reference, native, DataLoader(task(), batch_size=4), 2 * replicas)
    assert_same_weights(model, reference)


def test_replicas_of_a_pipeline_have_several_ipus_each(monkeypatch, tmp_path):
    monkeypatch.setenv("IGNITE_IPU_EMULATED_IPUS", "8")
    monkeypatch.setenv("IGNITE_IPU_RUNTIME_DIR", str(tmp_path))
    config = IPUConfig(pipeline=["0", "2"], execution="sharded", replication_factor="auto")
    trainer = create_ipu_trainer(*pair(), CROSS_ENTROPY, config=config)
    assert trainer.ipu.training.options.replication_factor == 4
    evaluator = create_ipu_evaluator(network(), replication_factor="auto")
    evaluator.run(DataLoader(task(), batch_size=4))
    assert evaluator.ipu.evaluations[0].options.replication_factor == 8
    with pytest.raises(OptionsError, match=r'is for pipeline="auto" to know\. Say a number'):
        create_ipu_trainer(*pair(), CROSS_ENTROPY, config={"pipeline": "auto", "ipus": 4, "replication_factor": "auto"})


def test_an_evaluation_sees_weights_that_were_set_before_it():
    model = network()
    evaluator = create_ipu_evaluator(model)
    loader = DataLoader(task(), batch_size=64)
    evaluator.run(loader)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    expected = model(task().tensors[0]).detach()
    torch.testing.assert_close(evaluator.run(loader).output[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("mode", "period", "returned"), [("All", None, 32), ("Final", None, 8), ("EveryN", 2, 16)])
@pytest.mark.parametrize("as_options", [True, False])
def test_targets_of_an_evaluation_belong_to_its_predictions(mode, period, returned, as_options):
    """Metrics compare the same samples, whichever come back; each call has 4 x 2 micro-batches of 4 samples."""
    options = poptorch.Options().deviceIterations(4).replicationFactor(2)
    config = None
    if as_options:
        options.outputMode(poptorch.OutputMode[mode], *([period] if period else []))
    else:
        config = IPUConfig(output_mode=mode, output_return_period=period)
    model, seen = network(), []
    evaluator = create_ipu_evaluator(
        model,
        {"accuracy": Accuracy(lambda output: output[1:])},
        options=options,
        output_transform=lambda x, y, y_pred: (x, y_pred, y),
        config=config,
    )
    evaluator.add_event_handler(Events.ITERATION_COMPLETED, lambda: seen.append(evaluator.state.output))
    data = task()
    accuracy = evaluator.run(DataLoader(data, batch_size=4)).metrics["accuracy"]
    x, y_pred, y = map(torch.cat, zip(*seen))
    assert len(x) == len(y_pred) == len(y) == 2 * returned
    torch.testing.assert_close(y_pred, network()(x), rtol=1e-4, atol=1e-4)
    rows = [int((data.tensors[0] == row).all(1).nonzero()) for row in x]
    assert torch.equal(data.tensors[1][rows], y)
    assert accuracy == pytest.approx((network()(x).argmax(1) == y).double().mean().item())


@pytest.mark.parametrize(
    ("mode", "period", "returned"), [("All", None, 64), ("Final", None, 8), ("EveryN", 2, 32), ("Sum", None, 64)]
)
@pytest.mark.parametrize("as_options", [True, False])
def test_targets_and_loss_of_a_training_step_belong_to_its_predictions(mode, period, returned, as_options):
    """Each call has 4 device iterations of 2 x 2 accumulated and replicated micro-batches of 4 samples."""
    options, config, seen = poptorch.Options(), IPUConfig(output_mode=mode, output_return_period=period), []
    arguments = {"config": config}
    if as_options:
        options.outputMode(poptorch.OutputMode[mode], *([period] if period else []))
        arguments = {}
    if mode != "Sum":
        arguments["output_transform"] = lambda x, y, y_pred, loss: (x, y, y_pred, loss)
    factors = {"device_iterations": 4, "gradient_accumulation_steps": 2, "replication_factor": 2}
    trainer = create_ipu_trainer(*pair(lr=1e-9), CROSS_ENTROPY, options=options, **factors, **arguments)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: seen.append(trainer.state.output))
    data = task(128)
    trainer.run(DataLoader(data, batch_size=4))
    if mode == "Sum":
        calls = zip(*(tensor.split(64) for tensor in data.tensors))
        assert seen == pytest.approx([CROSS_ENTROPY(network()(x), y).item() for x, y in calls], rel=1e-4)
        return
    for number, (x, y, y_pred, loss) in enumerate(seen):
        assert len(x) == len(y) == len(y_pred) == returned
        rows = [int((data.tensors[0] == row).all(1).nonzero()) for row in x]
        assert set(rows) <= set(range(64 * number, 64 * number + 64)) and torch.equal(data.tensors[1][rows], y)
        torch.testing.assert_close(y_pred, network()(x), rtol=1e-4, atol=1e-4)
        assert loss.item() == pytest.approx(CROSS_ENTROPY(y_pred, y).item(), rel=1e-4)


SUM = nn.CrossEntropyLoss(reduction="sum")
FACTORS = {"device_iterations": 2, "gradient_accumulation_steps": 4}


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_summed_loss_adds_up_all_samples_of_an_update(replicas, caplog):
    """With `ReductionType.Sum`, as one native batch of them does; nothing is to be said then."""
    options = poptorch.Options()
    options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
    (model, optimizer), (reference, native) = pair(lr=1e-3), pair(lr=1e-3)
    trainer = create_ipu_trainer(model, optimizer, SUM, options=options, replication_factor=replicas, **FACTORS)
    trainer.run(DataLoader(task(), batch_size=4))
    train_natively(reference, native, DataLoader(task(), batch_size=16 * replicas), loss_fn=SUM)
    assert_same_weights(model, reference)
    assert "sum over samples" not in caplog.text


def test_a_summed_loss_that_is_averaged_is_told(caplog):
    """Otherwise micro-batches are averaged, as Ignite's own trainer does over its accumulation steps."""
    (model, optimizer), (reference, native) = pair(lr=1e-2), pair(lr=1e-2)
    create_ipu_trainer(model, optimizer, SUM, **FACTORS).run(DataLoader(task(), batch_size=4))
    ignites = create_supervised_trainer(reference, native, SUM, gradient_accumulation_steps=4)
    ignites.run(DataLoader(task(), batch_size=4))
    assert_same_weights(model, reference)
    assert "x replicationFactor 1 = 4 micro-batches, as Ignite's trainer" in caplog.text
    assert "1/4 of the update by the sum" in caplog.text


@pytest.mark.parametrize(
    "loss_fn",
    [
        CROSS_ENTROPY,
        lambda y_pred, y: SUM(y_pred, y) / len(y_pred),
        lambda y_pred, y: y_pred.std() + y_pred.abs().max(),
    ],
    ids=["mean", "sum / rows", "no mean"],
)
def test_losses_that_are_no_sums_are_averaged_without_a_word(loss_fn, caplog):
    create_ipu_trainer(*pair(), loss_fn, **FACTORS).run(DataLoader(task(), batch_size=4))
    assert "sum over samples" not in caplog.text


@pytest.mark.parametrize(
    "schedule",
    [
        lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
        lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=4),
        lambda optimizer: torch.optim.lr_scheduler.CyclicLR(optimizer, 0.01, 0.02, 1, cycle_momentum=False),
    ],
    ids=["StepLR", "OneCycleLR", "CyclicLR"],
)
def test_a_substitute_trains_as_it_does_natively(schedule):
    """With the user's handle, a scheduler's learning rates, and steps on the host afterwards."""
    (model, _), (reference, _) = pair(), pair()
    optimizer = torch.optim.NAdam(model.parameters(), lr=0.01)
    native = torch.optim.Adam(reference.parameters(), lr=0.01)
    schedules = [schedule(each) for each in (optimizer, native)]
    trainer = create_ipu_trainer(model, optimizer, CROSS_ENTROPY, config={"substitute": "closest"})
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: schedules[0].step())
    trainer.run(DataLoader(task(), batch_size=8), max_epochs=2)
    trainer.ipu.close()
    for number in range(3):
        train_natively(reference, native, DataLoader(task(), batch_size=8))
        if number < 2:
            schedules[1].step()
    train_natively(model, optimizer, DataLoader(task(), batch_size=8))
    assert_same_weights(model, reference, rtol=1e-4, atol=1e-5)


def test_types_of_sums_and_moments_reach_the_device():
    """They are the device's: its state has them, and with float16 sums its mean is a running one."""
    model = network()
    types = {"accum_type": "float16", "first_order_momentum_accum_type": torch.float16}
    trainer = create_ipu_trainer(model, torch.optim.Adam(model.parameters()), CROSS_ENTROPY, config=types)
    trainer.run(DataLoader(task(), batch_size=8))
    state = trainer.ipu.link.conversion.optimizer.state_dict()["ipu_state"]
    assert state["Accl1___model.0.weight"].dtype is torch.float16
    assert state["Accl2___model.0.weight"].dtype is torch.float32
    strategy = trainer.ipu.training.options.Training.meanAccumulationAndReplicationReductionStrategy
    assert strategy is poptorch.MeanReductionStrategy.Running
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer = create_ipu_trainer(model, optimizer, CROSS_ENTROPY, config={"velocity_accum_type": "float16"})
    assert trainer.ipu.link.conversion.optimizer.velocity_accum_type is torch.float16


def test_an_evaluation_of_some_outputs_leaves_the_incomplete_call_out(caplog):
    evaluator = create_ipu_evaluator(network(), device_iterations=2, config={"output_mode": "Final"})
    assert evaluator.run(DataLoader(task(22), batch_size=4)).iteration == 2
    assert "22 samples / 8 per device call = 2 steps per epoch, 6 samples dropped" in caplog.text
    x, y = task(12).tensors
    with pytest.raises(
        RowsError, match=r"3 micro-batches of 1 shapes do not fill calls of 2.*Final.*output_mode='All'"
    ):
        evaluator.run([(x, y)])


@pytest.mark.parametrize("count", [1, 2])
def test_an_evaluator_beside_a_loop_that_accumulates_has_the_batches_of_its_data(count):
    """An iteration of Ignite's is one, by which metrics of numbers are averaged."""
    batches = DataLoader(task(10), batch_size=4)
    model, values = network(), []
    optimizers = [ipu_prepare(torch.optim.SGD(model[part].parameters(), lr=0.1), model) for part in (0, 2)[:count]]
    if count == 1:
        model[2].requires_grad_(False)
    for inputs, targets in itertools.islice(batches, 2):
        nn.functional.cross_entropy(model(inputs), targets).backward()
    for optimizer in optimizers:
        optimizer.step()
    model[0].weight.requires_grad_()  # an access, after which a program may be no longer the model's
    for make in (create_ipu_evaluator, create_supervised_evaluator):
        metrics = {"mean": Average(output_transform=lambda output: output[0].mean().item())}
        state = make(model, metrics).run(batches)
        values.append([state.iteration, state.metrics["mean"]])
    assert values[0] == pytest.approx(values[1], rel=1e-5)


def test_predictions_that_are_added_up_have_no_targets():
    options = poptorch.Options()
    options.outputMode(poptorch.OutputMode.Sum)
    with pytest.raises(OptionsError, match=r"Sum adds up the predictions.*Use All, Final or EveryN"):
        create_ipu_evaluator(network(), options=options)
    model, optimizer = pair()
    with pytest.raises(OptionsError, match="Sum adds up the predictions"):
        create_ipu_trainer(
            *(model, optimizer, CROSS_ENTROPY),
            config={"output_mode": "Sum"},
            output_transform=lambda x, y, y_pred, loss: (y_pred, y),
        )
    create_ipu_trainer(model, optimizer, CROSS_ENTROPY, config={"output_mode": "Sum"})  # a loss can be added up


def test_predictions_lie_in_memory_as_on_the_host():
    """Which decides on the numbers that `torch.randn_like` draws for each element."""

    class Channels(nn.Conv2d):
        def forward(self, x):
            return super().forward(x).permute(0, 2, 3, 1)

    model = Channels(3, 5, 1)
    evaluator = create_ipu_evaluator(model)
    for rows in (2, 2, 1):
        x = torch.randn(rows, 3, 4, 4)
        evaluator.run([(x, torch.zeros(rows))])
        predictions = evaluator.state.output[0]
        expected = model(x)
        assert predictions.shape == expected.shape and predictions[0].stride() == expected[0].stride()
        torch.testing.assert_close(predictions, expected.detach())
