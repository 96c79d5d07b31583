"""Settings come from the command line, files, inline JSON and the environment, in one order."""

from __future__ import annotations

import argparse
import json

import pytest

from ignite_ipu import IPUConfig, OptionsError
from ignite_ipu.errors import UserError
from ignite_ipu.program.arguments import add_arguments, given_settings
from ignite_ipu.program.settings import VARIABLE, read_assignment


def given(*words):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return given_settings(parser.parse_args(words))


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("seed=3", "seed", 3),
        ("max_grad_norm=1e-3", "max_grad_norm", 1e-3),
        ("share_ipus=true", "share_ipus", True),
        ("share_ipus=True", "share_ipus", True),
        ("replication_factor=auto", "replication_factor", "auto"),
        ("execution=serial phased", "execution", "serial phased"),
        ("weight_sync='on demand'", "weight_sync", "on demand"),
        ("variable=lr", "variable", ("lr",)),
        ("offload=optimizer,weights", "offload", ("optimizer", "weights")),
        ("pipeline=[4, -1, -1, 4]", "pipeline", (4, -1, -1, 4)),
        ("pipeline=fc1,3", "pipeline", ("fc1", 3)),
        ('pipeline=[["fc1", 0], ["fc2", 1]]', "pipeline", (("fc1", 0), ("fc2", 1))),
        ("options.deviceIterations=4", "options", {"deviceIterations": 4}),
        ("options.outputMode=OutputMode.Final", "options", {"outputMode": "OutputMode.Final"}),
        ('options={"anchorTensor": {"a": "b"}}', "options", {"anchorTensor": {"a": "b"}}),
    ],
)
def test_a_value_is_json_a_literal_a_list_of_words_or_a_word(text, name, value):
    assert given("--set", text).said() == {name: value}


def test_every_setting_can_be_set():
    """Each default is written as JSON and read back."""
    for name, default in vars(IPUConfig()).items():
        value = json.dumps(list(default) if isinstance(default, tuple) else default)
        assert given("--set", f"{name}={value}") == IPUConfig(), name


def test_the_highest_place_that_names_a_setting_decides(monkeypatch, tmp_path):
    """Environment, file, command line; of the last, the last word. Settings that only a lower place names stay."""
    monkeypatch.setenv(
        VARIABLE, json.dumps({"seed": 1, "device_iterations": 2, "share_ipus": True, "drop_last": False})
    )
    file = tmp_path / "ipu.json"
    file.write_text(json.dumps({"seed": 2, "share_ipus": False, "replication_factor": 2}))
    assert given() == IPUConfig(seed=1, device_iterations=2, share_ipus=True, drop_last=False)
    with_file = given("--ipu-config", str(file))
    assert with_file == IPUConfig(seed=2, device_iterations=2, replication_factor=2, drop_last=False)
    words = ["--set", "seed=3", "--replication-factor", "4", "--set", "seed=4", "--set", "replication_factor=8"]
    found = given("--ipu-config", str(file), *words)
    assert found == IPUConfig(seed=4, device_iterations=2, replication_factor=8, drop_last=False)


def test_null_resets_and_options_are_merged():
    inline = json.dumps({"seed": 2, "options": {"deviceIterations": 2, "replicationFactor": 2}})
    found = given("--ipu-config", inline, "--set", "seed=null", "--set", "options.deviceIterations=8")
    assert found == IPUConfig(options={"deviceIterations": 8, "replicationFactor": 2})


def test_the_environment_holds_a_path_or_inline_json(monkeypatch, tmp_path):
    """An empty variable says nothing."""
    IPUConfig(seed=3).save(tmp_path / "ipu.yaml")
    for text, wanted in ((str(tmp_path / "ipu.yaml"), 3), (' {"seed": 4}', 4), ("", None)):
        monkeypatch.setenv(VARIABLE, text)
        assert IPUConfig.from_environment() == IPUConfig(seed=wanted)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "sead=3"], "--set sead=3: There is no setting 'sead'. Did you mean 'seed'?"),
        (["--set", "replication-factor=2"], "Did you mean 'replication_factor'?"),
        (["--set", "seed"], "--set seed: write NAME=VALUE"),
        (["--set", "=3"], "--set =3: write NAME=VALUE"),
        (["--set", "seed=many"], "--set seed=many: seed must be an integer, got 'many'"),
        (["--replication-factor", "0"], "--set replication_factor=0: replication_factor must be at least 1, got 0"),
        (["--set", "ipus=-3"], "ipus must be at least 1, got -3"),
        (["--set", "max_grad_norm=-1"], "max_grad_norm must be positive, got -1"),
        (["--set", "execution=many"], "execution is 'many'; it must be one of: 'pipelined', "),
        (["--ipu-config", '{"sead": 3}'], "the inline settings: There is no setting 'sead'"),
        (["--ipu-config", '{"seed": '], "the inline settings: Expecting value"),
        (["--ipu-config", "nowhere.json"], "No such file or directory: 'nowhere.json'"),
    ],
)
def test_a_mistake_is_shown_with_its_place(words, message):
    with pytest.raises(UserError) as raised:
        given(*words)
    assert message in str(raised.value)


def test_a_mistake_in_the_environment_names_the_variable(monkeypatch):
    for text in ("nowhere.yaml", '{"sead": 3}', "[3]"):
        monkeypatch.setenv(VARIABLE, text)
        with pytest.raises(OptionsError, match=f"^{VARIABLE}"):
            IPUConfig.from_environment()


def test_a_list_of_one_word_is_for_the_command_line_alone(tmp_path):
    """In a file a word in the place of a list is a mistake."""
    (tmp_path / "ipu.json").write_text('{"variable": "lr"}')
    with pytest.raises(OptionsError, match=r"variable='lr' must be a list"):
        IPUConfig.load(tmp_path / "ipu.json")
    assert read_assignment("variable=lr").from_words
