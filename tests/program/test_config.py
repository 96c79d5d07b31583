"""Settings of a run say the same as an object, as a dictionary, in a file and as arguments."""

from __future__ import annotations

import dataclasses
import json
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from ignite_ipu import (
    IPUConfig,
    OptionsError,
    backend,
    create_ipu_evaluator,
    create_ipu_trainer,
    ipu_prepare,
    ipu_step,
)
from ignite_ipu.checkpoints import CheckpointSaver
from ignite_ipu.emulator.compiler import inductor
from ignite_ipu.errors import CaptureError
from tests.supervised import pair, task

poptorch = backend.poptorch()
SETTINGS = {
    "device_iterations": 2,
    "gradient_accumulation_steps": 4,
    "max_grad_norm": 1.5,
    "variable": ["weight_decay"],
    "pipeline": [["0", 0], ["2", 1]],
    "accum_type": "float32",
    "drop_last": False,
    "options": {"Precision.enableStochasticRounding": True, "replicationFactor": 2},
}


def test_only_what_differs_from_the_defaults_is_printed():
    assert repr(IPUConfig()) == "IPUConfig()"
    assert repr(IPUConfig(seed=3, drop_last=True, variable=["betas"])) == "IPUConfig(variable=('betas',), seed=3)"


def test_compile_has_the_emulator_compile_programs(monkeypatch):
    """Training and evaluation go through torch.compile's back end, here without its work, with the same results."""
    lowered = []
    monkeypatch.setenv("CXX", "c++")
    monkeypatch.setattr(inductor, "lowered", lambda module, examples: lowered.append(module) or module)
    results = []
    for compiled in (False, True):
        model, optimizer = pair()
        trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss(), config={"compile": compiled})
        evaluator = create_ipu_evaluator(model)
        for engine in (trainer, evaluator):
            engine.run(DataLoader(task(), batch_size=16))
        inductor.wait()
        results.append((model.state_dict(), evaluator.state.output))
        trainer.ipu.close()
    inductor.compile_steps(False)
    assert len(lowered) == 2
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("name", ["settings.json", "settings.yaml", ""])
def test_a_file_says_what_was_saved(tmp_path, name):
    """A folder keeps it in a JSON file of its own, which others can read."""
    config = IPUConfig(**SETTINGS, output_mode=poptorch.OutputMode.Final, velocity_accum_type=torch.float16)
    config.save(tmp_path / name)
    assert IPUConfig.load(tmp_path / name) == config
    if not name:
        plain = {**SETTINGS, "output_mode": "Final", "velocity_accum_type": "float16"}
        assert json.loads((tmp_path / "ipu_config.json").read_text()) == plain


def test_a_trainer_is_the_same_by_arguments_object_dictionary_and_file(tmp_path):
    """The same samples make the same updates, with the same number of calls."""
    wanted = {"device_iterations": 2, "gradient_accumulation_steps": 2, "max_grad_norm": 0.5, "seed": 3}
    IPUConfig(**wanted).save(tmp_path / "ipu.yaml")
    results = []
    for said in (wanted, {"config": IPUConfig(**wanted)}, {"config": wanted}, {"config": tmp_path / "ipu.yaml"}):
        model, _ = pair()
        trainer = create_ipu_trainer(model, torch.optim.AdamW(model.parameters()), nn.CrossEntropyLoss(), **said)
        assert trainer.run(DataLoader(task(), batch_size=4)).epoch_length == 64 // (4 * 2 * 2)
        assert trainer.config == IPUConfig(**wanted)
        results.append(model.state_dict())
        trainer.ipu.close()
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=0, atol=0)


def test_options_are_set_by_the_names_of_their_setters():
    model, optimizer = pair()
    options = {"deviceIterations": 2, "Precision.enableStochasticRounding": True, "outputMode": "OutputMode.Final"}
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss(), options=options)
    compiled = trainer.ipu.training.options
    assert (compiled.device_iterations, compiled.output_mode) == (2, poptorch.OutputMode.Final)
    assert compiled.toDict()["enableStochasticRounding"]
    with pytest.raises(OptionsError, match=r"outputMode='Final': .* Enumerations are written .* 'OutputMode.All'"):
        create_ipu_trainer(*pair(), nn.CrossEntropyLoss(), options={"outputMode": "Final"})


def test_setters_of_a_name_and_a_value_take_several_as_a_mapping(tmp_path):
    """In a file, too, where a key is there once; one that takes a mapping itself is called with it."""
    path = tmp_path / "ipu.yaml"
    path.write_text(
        "options:\n"
        "  _Popart.set: {autoRecomputation: 3, rearrangeAnchorsOnHost: true}\n"
        "  anchorTensor: {weight: model.0.weight, bias: model.0.bias}\n"
        "  setAvailableMemoryProportion: {IPU0: 0.5}\n"
    )
    trainer = create_ipu_trainer(*pair(), nn.CrossEntropyLoss(), config=path)
    trainer.run(DataLoader(task(), batch_size=8), epoch_length=1)
    settings, executor = trainer.ipu.training.options, trainer.ipu.training.executor
    assert settings._Popart.options["autoRecomputation"] == 3 and settings._Popart.options["rearrangeAnchorsOnHost"]
    assert settings.available_memory_proportion == {0: 0.5}
    assert executor.getAnchoredTensor("bias").shape == (8,) and executor.getAnchoredTensor("weight").shape == (8, 6)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"device_iteration": 2}, "no setting 'device_iteration'. Did you mean 'device_iterations'"),
        ({"zzz": 2}, "Choose from: accum_type"),
        ({"device_iterations": "4"}, "device_iterations must be an integer, got '4'"),
        ({"max_grad_norm": "1e-3"}, r"must be a number, got '1e-3' \(str\). YAML takes 1e-3 for a word; write 1.0e-3"),
        ({"loss_scaling": float("nan")}, "loss_scaling must be a number, got nan"),
        ({"drop_last": "no"}, "drop_last must be True or False"),
        ({"mixed_precision": "bf16"}, "mixed_precision is 'bf16'; it must be one of: 'no', 'fp16'"),
        ({"offload": "weights"}, r"must be a list: offload=\['weights'\]"),
        ({"accum_type": torch.float64}, "accum_type is 'float64'"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(said, message):
    """Be it in a file, with the file's path, or an argument."""
    with pytest.raises(OptionsError, match=message):
        IPUConfig.of(said)


def test_a_misspelt_setter_of_options_is_refused_with_the_one_that_may_be_meant():
    """Before PopTorch meets it, which names none."""
    for name, meant in (
        ("deviceIteration", "deviceIterations"),
        ("device_iterations", "deviceIterations"),
        ("Trainings.gradientAccumulation", "Training"),
        ("Precision.enableStochasticRound", "enableStochasticRounding"),
    ):
        with pytest.raises(OptionsError, match=rf"no setter '{name}'. Did you mean '{meant}'"):
            create_ipu_trainer(*pair(), nn.CrossEntropyLoss(), options={name: 2})


def test_a_misspelt_setting_of_the_back_end_is_refused_with_the_one_that_may_be_meant():
    """PopTorch takes every name until it compiles, and then names none, be it in a mapping or an object."""
    options = poptorch.Options()
    options._Popart.set("autoRecomputaion", 3)
    for said in (options, {"_Popart.set": ["autoRecomputaion", 3]}):
        trainer = create_ipu_trainer(*pair(), nn.CrossEntropyLoss(), options=said)
        with pytest.raises(OptionsError, match=r"autoRecomputaion.*Did you mean _Popart.set\('autoRecomputation'"):
            trainer.run(DataLoader(task(), batch_size=4))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "[1]", r"a.json: it holds a list"),
        ("a.json", "{", r"a.json: Expecting"),
        ("a.yaml", "a: [", r"a.yaml: while parsing"),
        ("a.yaml", "!!python/object/apply:os.getcwd []", r"a.yaml: could not determine a constructor"),
        ("a.yaml", "!!int ''", r"a.yaml: a value has a tag that does not fit it"),
        ("a.yaml", "options: &all {a: 1}\npipeline: *all", r"a.yaml: it refers by \*all to another place"),
        ("a.yaml", "sed: 3", r"a.yaml: There is no setting 'sed'. Did you mean 'seed'"),
    ],
)
def test_a_file_without_settings_is_refused_by_its_path(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(OptionsError, match=message):
        IPUConfig.load(tmp_path / name)


def test_without_pyyaml_files_are_json(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(OptionsError, match="pip install pyyaml, or use a JSON file"):
        IPUConfig(seed=3).save(tmp_path / "ipu.yaml")
    IPUConfig(seed=3).save(tmp_path / "ipu.json")
    assert IPUConfig.load(tmp_path / "ipu.json").seed == 3


def test_what_is_said_twice_must_be_the_same():
    config = IPUConfig(device_iterations=2, drop_last=False)
    assert IPUConfig.of(IPUConfig(max_grad_norm=1), max_grad_norm=1.0) == IPUConfig(max_grad_norm=1)
    assert IPUConfig.of(config, device_iterations=2, drop_last=True, seed=4) == dataclasses.replace(config, seed=4)
    with pytest.raises(OptionsError, match="device_iterations is 2 in the config but the arguments say 4"):
        create_ipu_trainer(*pair(), nn.CrossEntropyLoss(), config=config, device_iterations=4)


def test_what_nobody_would_honour_is_refused():
    model, optimizer = pair()
    with pytest.raises(OptionsError, match="seed=3: it is about training"):
        create_ipu_evaluator(model, config={"seed": 3})
    with pytest.raises(CaptureError, match=r"weight_sync is 'epoch', but weights of a captured loop are copied when"):
        ipu_prepare(optimizer, model, config={"weight_sync": "epoch"})
    with pytest.raises(CaptureError, match="device_iterations is 4, but in a captured step the loop decides"):
        ipu_step(lambda engine, batch: None, config={"device_iterations": 4})


def test_settings_are_kept_beside_checkpoints(tmp_path, caplog):
    """Settings that no file can hold are left out with a warning there, and refused elsewhere."""
    config = IPUConfig(seed=3, options=poptorch.Options())
    CheckpointSaver(tmp_path / "new", config=config)
    assert IPUConfig.load(tmp_path / "new") == IPUConfig(seed=3)
    assert "saved without one: options is a Options" in caplog.text
    with pytest.raises(OptionsError, match="options is a Options, which no file can hold"):
        config.save(tmp_path)
