"""Models put on several IPUs by Ignite's factories: the same learning, and bad plans told before anything compiles."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from ignite.metrics import Accuracy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ignite_ipu.emulator as poptorch
from ignite_ipu import IPUConfig, backend, create_ipu_evaluator, create_ipu_trainer
from ignite_ipu.errors import OptionsError
from ignite_ipu.pipeline import MK2, PipelineRequest, Placement, PlanError, Strategy, measure, plan
from ignite_ipu.program.step import call_model
from tests.supervised import assert_same_weights, train_natively

CROSS_ENTROPY = nn.CrossEntropyLoss()


class Net(nn.Module):
    """An embedding, four blocks and a head, which may share the embedding's weight."""

    def __init__(self, tied=False):
        super().__init__()
        self.embed = nn.Embedding(7, 8)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.head = nn.Linear(8, 7, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + block(x).relu()
        return self.head(x)


def network(tied=False):
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return Net(tied)


def loader(samples=128):
    tokens = torch.arange(samples) % 7
    return DataLoader(TensorDataset(tokens, (3 * tokens + 1) % 7), batch_size=4)


def trainer_of(model, accumulation=8, model_fn=call_model, **settings):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)
    config = IPUConfig(gradient_accumulation_steps=accumulation if accumulation > 1 else None, **settings)
    return create_ipu_trainer(model, optimizer, CROSS_ENTROPY, model_fn=model_fn, config=config)


def trained_natively(tied=False, accumulation=8):
    model = network(tied)
    train_natively(model, torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5), loader(), accumulation)
    return model


def blocks_of(program):
    """The blocks and IPUs that PopTorch compiled, in order."""
    assert program.placing is not None
    return list(zip(program.placing.placement.blocks, program.placing.placement.ipus))


@pytest.mark.parametrize("execution", ["pipelined", "sharded", "serial phased", "parallel phased"])
@pytest.mark.parametrize("tied", [False, True])
def test_no_execution_changes_what_is_learned(execution, tied):
    """Every execution gives a plain PyTorch loop's weights, tied ones included, and its model's keys are untouched."""
    model = network(tied)
    keys = list(model.state_dict())
    trainer = trainer_of(model, pipeline=["embed", "blocks.2"], execution=execution)
    trainer.run(loader())
    assert_same_weights(model, trained_natively(tied))
    assert list(model.state_dict()) == keys
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (["embed", "blocks.1", "head"], [("embed", 0), ("blocks.1", 1), ("head", 2)]),
        ([0, 2, 5], [("embed", 0), ("blocks.1", 1), ("head", 2)]),
        ([2, -1, 1], [("embed", 0), ("blocks.1", 1), ("head", 2)]),
        ([1, -1, -1, 1], [("embed", 0), ("blocks.0", 1), ("blocks.2", 2), ("head", 3)]),
        ([("embed", 0), ("blocks.2", 1), ("head", 0)], [("embed", 0), ("blocks.2", 1), ("head", 0)]),
        ({"embed": 0, "blocks.0": 0, "blocks.2": 1}, [("embed", 0), ("blocks.0", 0), ("blocks.2", 1)]),
    ],
)
def test_what_pipeline_takes(spec, expected):
    options = poptorch.Options().autoRoundNumIPUs(True)
    trainer = trainer_of(network(), pipeline=spec, options=options)
    trainer.run(loader())
    program = trainer.ipu.training
    assert blocks_of(program) == expected
    strategy = program.executor.options._execution_strategy
    assert isinstance(strategy, poptorch.PipelinedExecution)
    assert [strategy.stage(block).blocks for block, _ in expected] == [(block,) for block, _ in expected]
    assert_same_weights(trainer.ipu.model, trained_natively())


def test_a_placement_may_put_the_loss_on_an_ipu_of_its_own():
    model = network()
    placement = Placement.of(model, ["embed", "blocks.2", "head"], loss_ipu=3)
    trainer = trainer_of(model, pipeline=placement)
    trainer.run(loader())
    assert blocks_of(trainer.ipu.training)[-1] == ("loss", 3)
    assert poptorch.counters(trainer.ipu.training.executor).optimizer_updates == 4
    assert_same_weights(model, trained_natively())
    evaluator = create_ipu_evaluator(model, {"accuracy": Accuracy()})
    evaluator.run(loader())
    assert blocks_of(evaluator.ipu.evaluations[0]) == [("embed", 0), ("blocks.2", 1), ("head", 2)]


def test_a_models_own_loss_stays_with_its_layers():
    model = network()
    placement = Placement.of(model, ["embed", "head"], loss_ipu=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(PlanError, match="loss on IPU 0, but the model computes its own loss"):
        create_ipu_trainer(model, optimizer, None, gradient_accumulation_steps=8, pipeline=placement)


def test_a_plan_brings_its_settings():
    """Stages, batching factors and the optimizer's location come from the plan; arguments override the factors."""
    tokens = torch.zeros(4, dtype=torch.long)
    strategy = Strategy(pipelined=True, recompute=True, offload_optimizer=True)
    planned = plan(measure(network(), tokens), 4, accumulation=16, device_iterations=2, strategy=strategy)
    trainer = trainer_of(network(), accumulation=1, pipeline=planned)
    trainer.run(loader())
    program = trainer.ipu.training
    options = program.executor.options
    assert (options.device_iterations, options.Training.gradient_accumulation) == (2, 16)
    assert options.TensorLocations.location_optimizer == {"onChip": 0}
    assert blocks_of(program) == [(stage.layers[0], stage.ipu) for stage in planned.stages]
    assert_same_weights(trainer.ipu.model, trained_natively(accumulation=16))
    other = trainer_of(network(), accumulation=8, device_iterations=4, pipeline=planned)
    assert (other.ipu.training.options.device_iterations, other.ipu.training.resolved.micro_batches) == (4, 32)
    with pytest.raises(PlanError, match="plan is for training, but this is inference"):
        create_ipu_evaluator(network(), pipeline=planned)


def test_auto_spreads_a_model_that_is_too_large():
    """With so little memory four IPUs are needed, in training; one is enough without gradients."""
    model = network()
    trainer = trainer_of(model, pipeline="auto", ipus=4, memory_per_ipu=3000)
    assert trainer.ipu.training.ipus is None and "planned from the first batch" in repr(trainer.ipu)
    trainer.run(loader())
    program = trainer.ipu.training
    assert program.ipus == 4 and program.placing.plan.fits
    assert program.placing.plan.fullest <= 1 and program.placing.plan.accumulation == 8
    assert_same_weights(model, trained_natively())
    evaluator = create_ipu_evaluator(model, {"accuracy": Accuracy()})
    state = evaluator.run(loader())
    assert evaluator.ipu.evaluations[0].placing.plan.profile.training is False
    expected = sum(int((model(x).argmax(1) == y).sum()) for x, y in loader()) / 128
    assert state.metrics["accuracy"] == pytest.approx(expected)


def test_auto_keeps_to_the_execution_and_the_location_that_were_asked_for():
    for execution in ("sharded", "pipelined"):
        settings = {"execution": execution, "offload": ["optimizer"], "memory_per_ipu": 3500}
        trainer = trainer_of(network(), pipeline="auto", ipus=4, **settings)
        trainer.run(loader())
        plan = trainer.ipu.training.placing.plan
        assert plan.strategy.pipelined == (execution == "pipelined" and plan.ipus_per_replica > 1)
        assert plan.strategy.offload_optimizer
        assert trainer.ipu.training.executor.options.TensorLocations.location_optimizer == {"onChip": 0}


def test_auto_says_what_does_not_fit():
    """The stage, its biggest tensors and the way out; nothing was compiled or wrapped, and the next batch may."""
    model = network()
    trainer = trainer_of(model, pipeline="auto", ipus=2, memory_per_ipu=1000)
    with pytest.raises(PlanError, match=r"(?s)No plan fits.*Stage \d .*needs an estimated.*Biggest tensors: \w+"):
        trainer.run(loader())
    assert trainer.ipu.training.executor is None
    assert type(model.head.weight) is nn.Parameter


def test_a_described_pipeline_is_held_to_the_memory_of_an_ipu():
    model = network()
    trainer = trainer_of(model, pipeline=["embed", "blocks.3"], memory_per_ipu=3000)
    with pytest.raises(PlanError, match=r"Stage 0 \(IPU 0, embed to blocks\.2\) needs an estimated .* Biggest tensors"):
        trainer.run(loader())
    trainer = trainer_of(network(), pipeline=["embed", "blocks.3"], memory_per_ipu=10**6)
    trainer.run(loader())
    assert trainer.ipu.training.placing.plan.fullest < 1


def test_a_described_pipeline_that_may_not_fit_is_warned_of(monkeypatch, caplog):
    """An estimate that was not requested stops no run; the plan it made can be drawn."""
    monkeypatch.setattr(PipelineRequest, "machine", replace(MK2, memory=3000))
    trainer = trainer_of(network(), pipeline=["embed", "blocks.3"])
    trainer.run(loader())
    (record,) = [record for record in caplog.records if "may not fit" in record.getMessage()]
    assert "Stage 0 (IPU 0, embed to blocks.2) needs an estimated" in record.getMessage()
    assert [stage.layers[0] for stage in trainer.ipu.training.placing.plan.stages] == ["embed", "blocks.3"]
    assert_same_weights(trainer.ipu.model, trained_natively())


def test_training_and_inference_are_placed_separately():
    """Two placements and a model on one IPU take turns on one model, all with the newest weights."""
    model = network()
    trainer = trainer_of(model, pipeline=[2, 2, 1, 1])
    metrics = {"accuracy": Accuracy()}
    evaluators = {
        "same": create_ipu_evaluator(model, metrics),
        "other": create_ipu_evaluator(model, {"accuracy": Accuracy()}, pipeline=["embed", "blocks.2"]),
        "one": create_ipu_evaluator(model, {"accuracy": Accuracy()}, pipeline=[0]),
    }
    for _ in range(2):
        trainer.run(loader(), max_epochs=1)
        expected = sum(int((copy.deepcopy(model)(x).argmax(1) == y).sum()) for x, y in loader()) / 128
        for evaluator in evaluators.values():
            assert evaluator.run(loader()).metrics["accuracy"] == pytest.approx(expected)
    assert [program.ipus for program in trainer.ipu.evaluations] == [4, 2, 1]
    again = create_ipu_evaluator(model, {"accuracy": Accuracy()}, pipeline=["embed", "blocks.2"])
    again.run(loader())
    assert len(trainer.ipu.evaluations) == 4 or again.ipu.evaluations[1].placing is not None


def test_replicas_multiply_the_ipus_and_the_batch():
    """2 replicas of 2 IPUs learn from 4 x 4 x 2 samples per update, as the session says before anything runs."""
    model = network()
    trainer = trainer_of(model, accumulation=4, replication_factor=2, pipeline=["embed", "blocks.2"], ipus=4)
    trainer.ipu.data = None
    text = repr(trainer.ipu)
    assert "IPUs        4 for training" in text
    trainer.run(loader())
    assert "4 (micro-batch) x 4 (gradientAccumulation) x 2 (replicationFactor) = 32 samples per weight" in repr(
        trainer.ipu
    )
    assert_same_weights(model, trained_natively())


def test_a_model_that_is_one_layer_trains_and_evaluates_on_one_ipu():
    """`[0]` puts the whole of it on one IPU, though it has no layers inside."""
    model, native = nn.EmbeddingBag(7, 7, mode="sum"), nn.EmbeddingBag(7, 7, mode="sum")
    native.load_state_dict(model.state_dict())
    tokens = torch.arange(32) % 7
    data = DataLoader(TensorDataset(tokens[:, None], (3 * tokens + 1) % 7), batch_size=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    create_ipu_trainer(model, optimizer, CROSS_ENTROPY, pipeline=[0]).run(data)
    train_natively(native, torch.optim.SGD(native.parameters(), lr=0.2), data, 1)
    assert_same_weights(model, native)
    evaluator = create_ipu_evaluator(model, {"accuracy": Accuracy()}, pipeline=[0])
    right = sum(int((native(x).argmax(1) == y).sum()) for x, y in data)
    assert evaluator.run(data).metrics["accuracy"] == right / 32


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"pipeline": ["embed", "tail"]}, PlanError, "no layer named 'tail'. Its layers are: embed, blocks.0"),
        ({"pipeline": ["embed", "head", "embed"]}, PlanError, "'embed' is used twice"),
        ({"pipeline": [3, 4]}, PlanError, "7 layers, but the model has 6"),
        ({"pipeline": [2, 2, 1, 1], "accumulation": 6}, PlanError, r"at least 2 \* 4 - 1 = 7. Set the gradient acc"),
        ({"pipeline": [2, 2, 2]}, OptionsError, "IPUs per replica \\(3\\) = 3 IPUs, which is not a power of two"),
        ({"pipeline": [3, 3], "replication_factor": 3}, OptionsError, "= 6 IPUs, .*Use 4 or 8 of them"),
        ({"pipeline": [3, 3], "replication_factor": 64}, OptionsError, "128 IPUs, more than the 64"),
        ({"pipeline": [2, 2, 1, 1], "ipus": 2}, PlanError, "takes 4 IPUs, but ipus=2"),
        ({"pipeline": [3, 3], "replication_factor": 2, "ipus": 2}, PlanError, "takes 4 IPUs, but ipus=2"),
        ({"pipeline": "auto"}, PlanError, "needs a number of IPUs: pass ipus=4"),
        ({"pipeline": "auto", "ipus": 2, "replication_factor": 4}, PlanError, "takes 4 IPUs, but ipus=2"),
        ({"pipeline": "automatic", "ipus": 2}, PlanError, "'automatic'; the only word it knows"),
        ({"pipeline": "auto", "ipus": 2, "execution": "serial phased"}, PlanError, "not serial phased"),
        (
            {"pipeline": [3, 3], "execution": "parallel"},
            OptionsError,
            "execution is 'parallel'; it must be one of",
        ),
        (
            {"pipeline": [("embed", 0), ("head", 1)], "execution": "serial phased"},
            PlanError,
            "name layers without IPUs",
        ),
        ({"pipeline": 4}, PlanError, "pipeline is 4; it must be a list of layers"),
        ({"ipus": 4}, PlanError, "ipus=4 says nothing without pipeline="),
        ({"pipeline": [3, 3], "ipus": 0}, OptionsError, "ipus must be at least 1, got 0"),
        ({"pipeline": [3, 3], "memory_per_ipu": 0.5}, OptionsError, "memory_per_ipu must be an integer, got 0.5"),
        ({"shard": ["optimizer"]}, OptionsError, r"there is one \(replicationFactor 1\)"),
        (
            {"offload": ["gradients"]},
            OptionsError,
            "'gradients'. Choose from: accumulators, activations",
        ),
        ({"offload": "optimizer"}, OptionsError, r"must be a list: offload=\['optimizer'\]"),
    ],
)
def test_bad_plans_are_told_before_anything_compiles(settings, error, words):
    """Each with its numbers and a way out, when the trainer is made; the model is left as it was."""
    model = network()
    with pytest.raises(error, match=words):
        trainer_of(model, **settings)
    assert type(model) is Net and type(model.head.weight) is nn.Parameter


def test_inference_needs_device_iterations_for_the_pipelines_depth():
    evaluator = create_ipu_evaluator(network(), pipeline=[2, 2, 1, 1], device_iterations=3)
    with pytest.raises(PlanError, match=r"Device iterations are 3, .* 4 stages .* Set the device iterations to 4"):
        evaluator.run(loader())
    assert create_ipu_evaluator(network(), pipeline=[2, 2, 1, 1], device_iterations=4).run(loader()).iteration == 8


def test_every_nth_output_is_refused_in_a_pipeline():
    """PopTorch returns none from a pipeline; sharded execution has no such rule."""
    options = poptorch.Options().deviceIterations(4).outputMode(poptorch.OutputMode.EveryN, 2)
    with pytest.raises(OptionsError, match="EveryN does not work with a pipeline over 2 IPUs"):
        trainer_of(network(), pipeline=[3, 3], options=options)
    trainer_of(network(), pipeline=[3, 3], options=options, execution="sharded").run(loader())


def test_layers_out_of_order_or_never_run_are_told_while_compiling():
    """The trace finds them, before PopTorch compiles; the hooks come off again."""
    model = network()
    trainer = trainer_of(model, pipeline=["embed", "blocks.2", "blocks.1"], options=_rounded())
    with pytest.raises(PlanError, match=r"'blocks\.1' runs before layer 'blocks\.2'"):
        trainer.run(loader())
    assert not any(module._forward_pre_hooks for module in model.modules())
    model = network()
    model.spare = nn.Linear(8, 8)
    trainer = trainer_of(model, pipeline=["embed", "spare"])
    with pytest.raises(PlanError, match=r"never reached these layers of the placement: spare"):
        trainer.run(loader())


def test_a_tied_head_kept_away_from_its_embedding_is_refused():
    model = network(tied=True)
    placement = Placement(Placement.of(network(), ["embed", "head"]).starts)
    with pytest.raises(PlanError, match=r"embed\.weight is shared by embed on IPU 0 and head on IPU 1"):
        trainer_of(model, pipeline=placement).run(loader())


def test_a_model_fn_that_goes_around_the_model_is_refused():
    """No stage could begin, and the model would run on one IPU unnoticed."""
    trainer = trainer_of(network(), pipeline=[3, 3], model_fn=lambda model, x: model.head(model.embed(x)))
    with pytest.raises(PlanError, match="The model itself was not called"):
        trainer.run(loader())


def _rounded():
    return poptorch.Options().autoRoundNumIPUs(True)


def test_tensor_locations():
    """Off-chip memory and sharding between replicas, from the factory, and never said twice."""
    settings = {"offload": ["optimizer", "activations"], "shard": ["optimizer"], "replication_factor": 2}
    model = network()
    trainer = trainer_of(model, accumulation=4, **settings)
    locations = trainer.ipu.training.options.TensorLocations
    assert locations.location_optimizer == {"onChip": 0, "useReplicatedTensorSharding": 1}
    assert locations.location_activation == {"onChip": 0}
    assert not locations.exists("location_weight")
    trainer.run(loader())
    assert_same_weights(model, trained_natively())
    options = poptorch.Options()
    options.TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
    with pytest.raises(OptionsError, match="already place optimizer"):
        trainer_of(network(), options=options, offload=["optimizer"])


def test_frozen_options_take_locations_too():
    """A loader made from them does not care where tensors are; the object itself stays as it is."""
    options = poptorch.Options()
    options.Training.gradientAccumulation(8)
    data = poptorch.DataLoader(options, loader().dataset, batch_size=4)
    trainer = trainer_of(network(), options=options, offload=["weights"])
    trainer.run(data)
    assert trainer.ipu.training.executor.options.TensorLocations.location_weight == {"onChip": 0}
    assert not options.TensorLocations.exists("location_weight")


def test_the_users_options_stay_without_stages():
    """A loader made from them can go to a worker process, and one object serves several trainers."""
    options = poptorch.Options()
    options.Training.gradientAccumulation(8)
    trainer = trainer_of(network(), options=options, pipeline=[3, 3])
    data = poptorch.DataLoader(options, loader().dataset, batch_size=4, mode=poptorch.DataLoaderMode.Async)
    trainer.run(data)
    data.terminate()
    assert_same_weights(trainer.ipu.model, trained_natively())


def test_a_released_pipeline_compiles_again():
    model = network()
    trainer = trainer_of(model, pipeline=[2, 2, 1, 1])
    trainer.run(loader())
    trainer.ipu.release()
    trainer.run(loader(), max_epochs=1)
    reference = network()
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.2, momentum=0.5)
    for _ in range(2):
        train_natively(reference, optimizer, loader(), 8)
    assert_same_weights(model, reference)


def test_hardware_that_is_not_there(monkeypatch):
    """On real IPUs the machine is asked before anything compiles."""
    monkeypatch.setattr(backend, "is_emulator", lambda: False)
    monkeypatch.setattr(backend.poptorch(), "ipuHardwareIsAvailable", lambda ipus: False)
    with pytest.raises(OptionsError, match="2 IPUs per replica x replicationFactor 1 takes 2 IPUs, and this machine"):
        trainer_of(network(), pipeline=[3, 3])
