"""`save`, `compileAndExport`, `loadExecutable` and `poptorch.load`: round trips, damage, and who may run what."""

from __future__ import annotations

import json
import os
import pickle
from typing import NamedTuple

import pytest
import torch
from torch import nn

import ignite_ipu.emulator as poptorch
from ignite_ipu.emulator.errors import Error
from ignite_ipu.emulator.executor import saving
from ignite_ipu.emulator.files import container, trust


class Model(nn.Module):
    """A model with weights, an updated buffer, a compiled-in table and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("table", torch.tensor([3, 1, 2]))
        self.traced = 0

    def forward(self, x, y=None, scale=1.0):
        self.traced += 1
        with torch.no_grad():
            self.calls.add_(1)
        out = self.linear(x) * scale + self.table[:2]
        return out if y is None else (out, nn.functional.mse_loss(out, y))


class Point(NamedTuple):
    x: torch.Tensor
    scale: int


class TakesAPoint(nn.Module):
    def forward(self, point):
        return point.x * point.scale


class OtherModel(Model):
    def forward(self, x, y=None, scale=1.0):
        return self.linear(x) * scale - self.table[:2]


class Noise(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x, 0.5, training=True)


X, Y = torch.linspace(-1, 1, 12).view(4, 3), torch.linspace(0, 1, 8).view(4, 2)


def trained(**settings) -> poptorch.PoplarExecutor:
    torch.manual_seed(1)
    model = Model()
    options = poptorch.Options().deviceIterations(2)
    for name, value in settings.items():
        getattr(options, name)(value)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    executor = poptorch.trainingModel(model, options, optimizer)
    executor(X, Y)
    return executor


def test_a_loaded_training_model_goes_on_as_the_saved_one_would(tmp_path):
    """Weights, buffers, momentum and options: the next steps of both are the same, bit for bit."""
    executor = trained()
    executor.save(str(tmp_path / "model"))
    loaded = poptorch.load(str(tmp_path / "model"))
    assert loaded.isCompiled() and loaded.isAttachedToDevice()
    assert type(loaded.model).__name__ == "PoptorchModel" and loaded.options.device_iterations == 2
    for _ in range(3):
        for one, two in zip(executor(X, Y), loaded(X, Y)):
            assert torch.equal(one, two)
    for name, value in executor.model.state_dict().items():
        assert value.tolist() == loaded.model.state_dict()[name].tolist(), name


class WithLoss(nn.Module):
    """Asks for a target in training alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x, target=None):
        out = self.layer(x)
        return (out, nn.functional.mse_loss(out, target)) if self.training else out


def test_an_inference_executor_saves_its_shallow_copy_with_the_flag_of_the_copy(tmp_path):
    """The trainer's model stays in training mode, and is neither saved nor wrapped again."""
    x = torch.ones(1, 2)
    trainer = poptorch.trainingModel(WithLoss())
    trainer(x, x)
    executor = poptorch.inferenceModel(trainer)
    copied = executor.model
    assert copied is not trainer.model and copied.layer is trainer.model.layer
    copied.eval()
    copied.marked = 7
    assert trainer.model.training and executor.training is False and executor.marked == 7
    again = poptorch.inferenceModel(executor)
    assert again.marked == 7 and not again.model.training
    executor.compileAndExport(str(tmp_path / "model"), x)
    loaded = poptorch.load(str(tmp_path / "model"))
    assert torch.equal(loaded(x), executor(x)) and not loaded.model.training


def test_a_loaded_inference_model_gives_the_same_outputs(tmp_path):
    model = Model().eval()
    executor = poptorch.inferenceModel(model, poptorch.Options().deviceIterations(4))
    executor.compileAndExport(str(tmp_path / "model"), X, scale=0.5)
    loaded = poptorch.load(str(tmp_path / "model"))
    with torch.no_grad():
        expected = model.linear(X) * 0.5 + torch.tensor([3.0, 1.0])
    assert torch.allclose(loaded(X, scale=0.5), expected)
    with pytest.raises(Error, match="Value mismatch for scale"):
        loaded(X, scale=0.25)


def test_the_random_state_goes_along_if_asked(tmp_path):
    x = torch.ones(1, 64)
    executor = poptorch.inferenceModel(Noise(), poptorch.Options().randomSeed(3))
    executor(x)
    executor.save(str(tmp_path / "with"))
    executor.save(str(tmp_path / "without"), save_rng_state=False)
    following = executor(x)
    assert torch.equal(poptorch.load(str(tmp_path / "with"))(x), following)
    assert not torch.equal(poptorch.load(str(tmp_path / "without"))(x), following)


def test_load_executable_traces_once_and_takes_the_compiled_in_values_of_the_file(tmp_path):
    """The table was [3, 1, 2] when the executable was built; its current value does not matter."""
    first = poptorch.inferenceModel(Model())
    first.compileAndExport(str(tmp_path / "model"), X, export_model=False)
    other = Model()
    other.table.zero_()
    executor = poptorch.inferenceModel(other)
    executor.loadExecutable(str(tmp_path / "model"))
    assert executor._model.traced == 1
    with torch.no_grad():
        assert torch.allclose(executor(X), other.linear(X) + torch.tensor([3.0, 1.0]))
    assert executor._model.traced == 1


def test_load_executable_refuses_what_was_not_made_for_this_executor(tmp_path):
    path = str(tmp_path / "model")
    poptorch.inferenceModel(Model()).compileAndExport(path, X)
    with pytest.raises(Error, match=r"Invalid file.*from another model"):
        poptorch.inferenceModel(OtherModel()).loadExecutable(path)
    with pytest.raises(Error, match=r"Invalid file.*it is for inference, this executor for training"):
        poptorch.trainingModel(Model()).loadExecutable(path)
    executor = poptorch.inferenceModel(Model(), poptorch.Options().deviceIterations(2))
    with pytest.raises(Error, match=r"Invalid file.*device_iterations=1"):
        executor.loadExecutable(path)
    assert not executor.isCompiled()
    executor.compile(X)  # still usable


def test_edit_opts_fn_sees_thawed_options_without_the_offline_target(tmp_path):
    executor = poptorch.inferenceModel(Model(), poptorch.Options().useOfflineIpuTarget(2))
    executor.compileAndExport(str(tmp_path / "model"), X)
    seen = []

    def edit(options):
        seen.append((options.exists("ipu_version"), options.connection_type))
        options.modelName("edited")

    loaded = poptorch.load(str(tmp_path / "model"), edit)
    assert seen == [(False, poptorch.ConnectionType.Always)]
    assert loaded.options.model_name == "edited"
    assert loaded(X).shape == (4, 2)


def test_where_a_file_goes(tmp_path, caplog):
    executor = trained()
    executor.save(str(tmp_path / "new" / "directories" / "model"))
    assert (tmp_path / "new" / "directories" / "model").is_file()
    executor.save(str(tmp_path))
    assert (tmp_path / "model.poptorch").is_file()
    assert "is a directory" in caplog.text
    with pytest.raises(AssertionError, match="is not a directory"):
        executor.save(str(tmp_path / "model.poptorch" / "x"))


def test_only_a_compiled_model_can_be_saved(tmp_path):
    with pytest.raises(Error, match="has not been compiled or has been destroyed"):
        poptorch.inferenceModel(Model()).save(str(tmp_path / "model"))


def test_a_file_without_a_model_is_for_load_executable(tmp_path):
    executor = trained()
    executor.save(str(tmp_path / "model"), export_model=False)
    assert b"pickle" not in (tmp_path / "model").read_bytes()
    with pytest.raises(AssertionError, match="is a valid PopTorch file but"):
        poptorch.load(str(tmp_path / "model"))


def test_another_version_is_refused(tmp_path, monkeypatch):
    path = str(tmp_path / "model")
    with monkeypatch.context() as patch:
        patch.setattr(saving, "__version__", "3.2.0")
        trained().save(path)
    with pytest.raises(AssertionError, match=r"Invalid file.*version mismatch"):
        poptorch.load(path)
    with pytest.raises(Error, match="Invalid file"):
        poptorch.inferenceModel(Model()).loadExecutable(path)


def test_damaged_files_are_invalid(tmp_path):
    """A few hundred damages, spread over the file; test_container does every byte."""
    path = tmp_path / "model"
    poptorch.inferenceModel(nn.Linear(2, 2)).compileAndExport(str(path), torch.ones(1, 2))
    good = path.read_bytes()
    for index in range(0, len(good), len(good) // 200):
        for content in (good[:index] + bytes([good[index] ^ 0x10]) + good[index + 1 :], good[:index]):
            path.write_bytes(content)
            with pytest.raises(Error, match="Invalid file"):
                poptorch.load(str(path))
            with pytest.raises(Error, match="Invalid file"):
                poptorch.inferenceModel(nn.Linear(2, 2)).loadExecutable(str(path))


class Bomb:
    """A payload that an attacker would put into a pickle."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_somebody_elses_model_is_unpickled_only_when_trusted(tmp_path, monkeypatch):
    """The file carries code; it runs only in the `with` block or with the variable set."""
    path = str(tmp_path / "model")
    model = nn.Linear(2, 2)
    executor = poptorch.inferenceModel(model)
    executor.compile(torch.ones(1, 2))
    executor.model.extra = Bomb(str(tmp_path / "ran"))
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("IGNITE_IPU_STATE_DIR", str(tmp_path / "attacker"))
        executor.save(path)
    with pytest.raises(Error, match=r"not saved by this user.*trust_pickled_models"):
        poptorch.load(path)
    poptorch.importPoptorchMetadataFromFile(path)
    poptorch.inferenceModel(nn.Linear(2, 2)).loadExecutable(path)
    assert not (tmp_path / "ran").exists()
    with poptorch.trust_pickled_models():
        poptorch.load(path)
    assert (tmp_path / "ran").exists()
    with pytest.raises(Error, match="not saved by this user"):
        poptorch.load(path)
    (tmp_path / "ran").rmdir()
    monkeypatch.setenv("IGNITE_IPU_TRUST_PICKLED_MODELS", "1")
    poptorch.load(path)
    assert (tmp_path / "ran").exists()


def test_what_this_user_saved_loads_in_another_process(tmp_path, processes):
    poptorch.inferenceModel(nn.Linear(3, 2)).compileAndExport(str(tmp_path / "model"), X)
    code = "import sys, torch, ignite_ipu.emulator as p; print(tuple(p.load(sys.argv[1])(torch.ones(4, 3)).shape))"
    run = processes.run(["-c", code, tmp_path / "model"], check=True)
    assert run.stdout.strip() == "(4, 2)"


def test_a_key_that_others_can_read_signs_nothing(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("IGNITE_IPU_STATE_DIR", str(tmp_path))
    signature = trust.sign(b"data")
    assert signature and os.stat(tmp_path / "signing-key").st_mode & 0o777 == 0o600
    trust.check_trusted(b"data", signature, "it")
    with pytest.raises(Error, match="not saved by this user"):
        trust.check_trusted(b"changed", signature, "it")
    (tmp_path / "signing-key").chmod(0o644)
    assert trust.sign(b"data") == ""
    assert "can be read or written by others" in caplog.text
    with pytest.raises(Error, match="not saved by this user"):
        trust.check_trusted(b"data", signature, "it")


def test_arguments_of_a_users_class_are_a_pickle_of_their_own(tmp_path, monkeypatch):
    """A named tuple is rebuilt by its class: code, which needs the same trust as the model."""
    executor = poptorch.inferenceModel(TakesAPoint())
    executor.compileAndExport(str(tmp_path / "model"), Point(torch.ones(2), 3), export_model=False)
    fresh = poptorch.inferenceModel(TakesAPoint())
    fresh.loadExecutable(str(tmp_path / "model"))
    assert fresh(Point(torch.ones(2), 3)).tolist() == [3, 3]
    monkeypatch.setenv("IGNITE_IPU_STATE_DIR", str(tmp_path / "somebody else"))
    with pytest.raises(Error, match="not saved by this user"):
        poptorch.inferenceModel(TakesAPoint()).loadExecutable(str(tmp_path / "model"))


def test_the_metadata_of_a_file_tell_version_and_kind(tmp_path):
    trained().save(str(tmp_path / "model"))
    found = json.loads(poptorch.importPoptorchMetadataFromFile(str(tmp_path / "model")))
    assert found["version"] == poptorch.__version__ and found["training"] is True
    (tmp_path / "model").write_bytes(b"something else")
    with pytest.raises(Error, match="Invalid file"):
        poptorch.importPoptorchMetadataFromFile(str(tmp_path / "model"))


def options_with_everything() -> poptorch.Options:
    options = poptorch.Options().deviceIterations(3).replicationFactor(4).outputMode(poptorch.OutputMode.EveryN, 3)
    options.inputReplicaGrouping(2, poptorch.CommGroupType.Orthogonal).randomSeed(5).useIpuId(2).modelName("m")
    options.setAvailableMemoryProportion({"IPU1": 0.25}).anchorTensor("short", "long", poptorch.OutputMode.All)
    options.Training.gradientAccumulation(2).setConvolutionDithering(True)
    options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
    options.Precision.setPartialsType(torch.half).autocastPolicy(poptorch.autocasting.Policy(fp16=[nn.Conv2d, "bmm"]))
    options.TensorLocations.setWeightLocation(poptorch.TensorLocationSettings().useOnChipStorage(False)).numIOTiles(64)
    options.Distributed.configureProcessId(1, 2)
    options._Popart.set("customCodelets", ["a"]).setPatterns({"A": True}, 1)
    return options.sourceLocationExcludes(["x"]).showCompilationProgressBar(False)


@pytest.mark.parametrize(
    "strategy",
    [
        poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement),
        poptorch.PipelinedExecution(poptorch.Stage("a").ipu(1), "b", ["c", "d"]),
        poptorch.ShardedExecution("a"),
        poptorch.SerialPhasedExecution(["a"], [poptorch.Stage("b").ipu(1)]).useSeparateBackwardPhase(),
        poptorch.ParallelPhasedExecution("a", "b").sendTensorsOffChipAfterFwd(),
    ],
    ids=repr,
)
def test_options_are_pickled_as_they_are(strategy):
    """Clones of them, so that those of a loaded model can be changed."""
    options = options_with_everything().setExecutionStrategy(strategy)
    options._freeze()
    again = pickle.loads(pickle.dumps(options.clone()))
    assert repr(again) == repr(options)
    assert again.toDict().keys() == options.toDict().keys()
    again.deviceIterations(6)


class OwnPipeline(poptorch.PipelinedExecution):
    """A strategy of a user's own."""


def test_options_with_a_users_own_strategy_are_loaded_with_the_model(tmp_path):
    executor = poptorch.inferenceModel(nn.Linear(2, 2), poptorch.Options().setExecutionStrategy(OwnPipeline()))
    executor.compileAndExport(str(tmp_path / "model"), torch.ones(1, 2))
    assert type(poptorch.load(str(tmp_path / "model")).options._execution_strategy) is OwnPipeline


def test_a_wrong_content_is_an_invalid_file(tmp_path):
    """A file may have the right digest and the wrong content."""
    path = str(tmp_path / "model")
    trained().save(path, export_model=False)
    good = container.read(path, saving.MAGIC)
    wrong = [
        {"rng_state": ["x"]},
        {"rng_state": 1},
        {"training": 1},
        {"version": None},
        {"arguments": [1]},
        {"arguments": None},
        {"signed": []},
        {"signed": {"model": b""}},
        {"frozen": {0: 1}},
        {"more": 1},
    ]
    for change in wrong:
        container.write(path, saving.MAGIC, {**good, **change})
        with pytest.raises(Error, match="Invalid file"):
            poptorch.load(path)
    for missing in good:
        container.write(path, saving.MAGIC, {name: value for name, value in good.items() if name != missing})
        with pytest.raises(Error, match="Invalid file"):
            poptorch.load(path)
    container.write(path, saving.MAGIC, [good])
    with pytest.raises(Error, match="Invalid file"):
        poptorch.load(path)
