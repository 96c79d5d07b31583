"""The executable cache: hits, misses, damaged entries, and the command that looks after it."""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import re
import time

import pytest
import torch
from torch import nn

import ignite_ipu.emulator as poptorch
from ignite_ipu.cli import cache as cache_command
from ignite_ipu.emulator.files import cache, container
from tests.half_precision import needs_half_precision


class Model(nn.Module):
    """A model whose table of squares is computed at compile time."""

    def __init__(self, table=(1, 2, 3), power=2) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("table", torch.tensor(table))
        self.power = power

    def forward(self, x, y):
        out = self.linear(x + (self.table**self.power).float())
        return out, nn.functional.mse_loss(out, y)


X, Y = torch.linspace(-1, 1, 12).view(4, 3), torch.linspace(0, 1, 8).view(4, 2)


def compiled(directory, model=None, optimizer=poptorch.optim.SGD, x=X, y=Y, **settings):
    """Compile, and return (hits, misses) and the loss of the first step from fixed weights."""
    torch.manual_seed(0)
    model = Model() if model is None else model
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
    options = poptorch.Options().enableExecutableCaching(str(directory))
    accumulation = settings.pop("gradientAccumulation", 1)
    options.Training.gradientAccumulation(accumulation)
    made = optimizer(model.parameters(), **{"lr": 0.1, **settings.pop("optimizer_settings", {})})
    for name, value in settings.items():
        getattr(options, name)(value)
    executor = poptorch.trainingModel(model, options, made)
    loss = executor(x, y)[1]
    counted = poptorch.counters(executor)
    executor.destroy()
    return (counted.cache_hits, counted.cache_misses), loss


HIT, MISS = (1, 0), (0, 1)


def test_the_same_program_hits_and_computes_the_same(tmp_path):
    first, loss = compiled(tmp_path)
    second, again = compiled(tmp_path)
    assert (first, second) == (MISS, HIT)
    assert torch.equal(loss, again)
    plain = 0.5 * (X + torch.tensor([1.0, 4.0, 9.0])).sum(1, keepdim=True) + 0.5
    assert torch.allclose(loss, nn.functional.mse_loss(plain.expand(4, 2), Y))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"model": lambda: Model(table=(1, 2, 4))}, MISS),
        ({"model": lambda: Model(power=3)}, MISS),
        ({"x": torch.ones(8, 3), "y": torch.ones(8, 2)}, MISS),
        ({"deviceIterations": 2}, MISS),
        ({"gradientAccumulation": 2}, MISS),
        ({"optimizer": poptorch.optim.Adam}, MISS),
        ({"optimizer_settings": {"lr": 0.2}}, HIT),  # a variable
        ({"optimizer_settings": {"weight_decay": 0.1}}, MISS),  # given, and so variable instead of constant
        ({"randomSeed": 7}, HIT),
        ({"modelName": "other"}, HIT),
        ({"logDir": "/tmp"}, HIT),
        ({"outputMode": poptorch.OutputMode.All}, MISS),
        ({"setAvailableMemoryProportion": {"IPU0": 0.3}}, MISS),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_the_key_covers_what_the_executable_depends_on_and_no_more(tmp_path, change, expected):
    assert compiled(tmp_path)[0] == MISS
    change = {name: value() if name == "model" else value for name, value in change.items()}
    assert compiled(tmp_path, **change)[0] == expected


def test_weights_are_no_part_of_the_key(tmp_path):
    """They are uploaded, not compiled in."""
    model = Model()
    assert compiled(tmp_path, model)[0] == MISS
    torch.manual_seed(5)
    other = Model()
    executor = poptorch.trainingModel(other, poptorch.Options().enableExecutableCaching(str(tmp_path)))
    with torch.no_grad():
        expected = other.linear(X + torch.tensor([1.0, 4.0, 9.0]))
    assert torch.allclose(executor(X, Y)[0], expected)


def test_another_version_of_the_emulator_or_of_torch_misses(tmp_path, monkeypatch):
    compiled(tmp_path)
    monkeypatch.setattr(cache, "__version__", "3.2.0")
    assert compiled(tmp_path)[0] == MISS
    monkeypatch.setattr(torch, "__version__", "9.9.9")
    assert compiled(tmp_path)[0] == MISS


def test_without_a_cache_nothing_is_counted(tmp_path, monkeypatch):
    assert compiled(tmp_path, enableExecutableCaching=None)[0] == (0, 0)
    assert os.listdir(tmp_path) == []
    monkeypatch.setenv("POPTORCH_IPU_MODEL", "1")  # caching doesn't work with the IPU model
    assert compiled(tmp_path)[0] == (0, 0)


def test_the_variable_caches_every_model(tmp_path, monkeypatch):
    monkeypatch.setenv("POPTORCH_CACHE_DIR", str(tmp_path / "made"))
    executor = poptorch.inferenceModel(nn.Linear(3, 2))
    executor(X)
    assert poptorch.counters(executor).cache_misses == 1
    assert len(os.listdir(tmp_path / "made")) == 1


def only_entry(directory) -> str:
    (name,) = os.listdir(directory)
    return os.path.join(directory, name)


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "foreign", "extra", "unlike"])
def test_a_damaged_or_foreign_entry_is_reported_and_replaced(tmp_path, caplog, damage):
    _, loss = compiled(tmp_path)
    path = only_entry(tmp_path)
    with open(path, "rb") as file:
        good = file.read()
    entry = container.read(path, cache.MAGIC)
    if damage == "foreign":
        container.write(path, cache.MAGIC, {**entry, "key": "0" * 64})
    elif damage == "extra":
        container.write(path, cache.MAGIC, {**entry, "values": {"nowhere": torch.ones(1)}})
    elif damage == "unlike":
        container.write(path, cache.MAGIC, [entry])
    else:
        with open(path, "wb") as file:
            file.write({"cut": good[:-1], "flip": good[:-1] + bytes([good[-1] ^ 1]), "empty": b""}[damage])
    again, recompiled = compiled(tmp_path)
    assert again == MISS and torch.equal(loss, recompiled)
    assert re.search(r"Cache entry .* is not used, because .*; the model is compiled again", caplog.text)
    assert compiled(tmp_path)[0] == HIT


def test_a_cache_that_cannot_be_written_is_reported(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    assert compiled(tmp_path / "file" / "cache")[0] == MISS
    assert "could not be cached" in caplog.text


def test_what_a_users_function_computes_at_compile_time_is_not_cached(tmp_path):
    """Nothing in the graph shows the reads of such a function."""
    from ignite_ipu.emulator.trace.active import active

    class Calls(nn.Module):
        def forward(self, x):
            capture = active()
            table = torch.zeros(3)
            return x if capture is None else x + capture.record(lambda values: values + factor[0], table)

    factor = [1]
    results = []
    for factor[0] in (1, 2):
        executor = poptorch.inferenceModel(Calls(), poptorch.Options().enableExecutableCaching(str(tmp_path)))
        results.append(executor(torch.zeros(1, 3))[0, 0].item())
        assert poptorch.counters(executor).cache_hits == 0
    assert results == [1, 2]


# -- the command -------------------------------------------------------------------------------------------------------


def command(capsys, *arguments):
    parser = argparse.ArgumentParser()
    cache_command.add_arguments(parser)
    code = cache_command.main(parser.parse_args([str(argument) for argument in arguments]))
    said = capsys.readouterr()
    return code, said.out or said.err


def test_list_shows_the_entries(tmp_path, capsys):
    compiled(tmp_path, modelName="first")
    compiled(tmp_path, deviceIterations=2)
    code, out = command(capsys, "list", tmp_path)
    assert code == 0
    assert "first" in out and "training" in out and out.endswith("2 entries, 0.0 MB, 0 damaged\n")


def test_verify_fails_for_damage_that_list_shows(tmp_path, capsys):
    compiled(tmp_path)
    path = only_entry(tmp_path)
    with open(path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xff")
    code, out = command(capsys, "list", tmp_path)
    assert code == 0 and "is damaged" in out
    code, out = command(capsys, "verify", tmp_path)
    assert code == 1 and "is damaged" in out and "1 damaged" in out


def test_prune_deletes_what_it_is_told_to(tmp_path, capsys):
    for iterations in (1, 2, 4):
        compiled(tmp_path, deviceIterations=iterations)
    old, middle, new = (entry.path for entry in cache.entries(str(tmp_path)))
    now = time.time()
    for path, days in ((old, 9), (middle, 5), (new, 1)):
        os.utime(path, (now - days * 86400, now - days * 86400))
    assert command(capsys, "prune", tmp_path, "--older-than", 7, "--dry-run")[1].endswith("to delete\n")
    assert len(os.listdir(tmp_path)) == 3
    command(capsys, "prune", tmp_path, "--older-than", 7)
    assert not os.path.exists(old) and os.path.exists(middle)
    command(capsys, "prune", tmp_path, "--max-size", os.path.getsize(new) / 1e6)
    assert [entry.path for entry in cache.entries(str(tmp_path))] == [new]
    with open(new, "ab") as file:
        file.write(b"x")
    leftover = tmp_path / f".{os.path.basename(new)}-1-00.tmp"
    leftover.write_text("")
    os.utime(leftover, (now - 7200, now - 7200))
    (tmp_path / "unrelated").write_text("")
    command(capsys, "prune", tmp_path)
    assert os.listdir(tmp_path) == ["unrelated"]


def test_a_hit_makes_an_entry_recently_used(tmp_path):
    compiled(tmp_path)
    os.utime(only_entry(tmp_path), (0, 0))
    assert compiled(tmp_path)[0] == HIT
    assert cache.entries(str(tmp_path))[0].used > time.time() - 60


def test_the_command_says_what_is_missing(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("POPTORCH_CACHE_DIR", raising=False)
    code, text = command(capsys, "list")
    assert code == 2 and "POPTORCH_CACHE_DIR" in text
    code, text = command(capsys, "list", tmp_path / "no")
    assert code == 2 and f"there is no directory {tmp_path / 'no'}" in text


# -- several processes -------------------------------------------------------------------------------------------------


def options_of(process: int, processes: int, directory=None) -> poptorch.Options:
    options = poptorch.Options()
    options.Distributed.configureProcessId(process, processes)
    return options if directory is None else options.enableExecutableCaching(str(directory))


def _compile_in_turn(process: int, directory: str, log) -> None:
    with cache.compile_turn(options_of(process, 3, directory), nn.Linear(1, 1)):
        log.put(("in", process))
        time.sleep(0.05)
        log.put(("out", process))


def test_processes_compile_one_after_the_other_and_the_last_removes_the_lock(tmp_path):
    context = multiprocessing.get_context("fork")
    log = context.SimpleQueue()
    processes = [context.Process(target=_compile_in_turn, args=(number, str(tmp_path), log)) for number in range(3)]
    for process in processes:
        process.start()
    events = [log.get() for _ in range(6)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert [what for what, _ in events] == ["in", "out"] * 3
    assert all(events[index][1] == events[index + 1][1] for index in (0, 2, 4))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("processes", [3, 5, 12])
def test_a_lock_remains_until_all_processes_are_through(tmp_path, processes):
    for process in range(processes):
        assert [name.endswith(".lock") for name in os.listdir(tmp_path)] == [True] * (process > 0)
        with cache.compile_turn(options_of(process, processes, tmp_path), nn.Linear(1, 1)):
            pass
    assert os.listdir(tmp_path) == []


def test_a_process_that_fails_to_compile_raises_its_own_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="vocabulary"):
        with cache.compile_turn(options_of(0, 2, tmp_path), nn.Linear(1, 1)):
            raise FileNotFoundError("vocabulary.txt")


def test_processes_without_a_cache_are_advised_to_have_one(caplog):
    with cache.compile_turn(options_of(0, 2), nn.Linear(1, 1)):
        pass
    assert "enableExecutableCaching" in caplog.text


def test_a_cache_for_several_processes_must_be_writable(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(AssertionError, match="is not writable"):
        with cache.compile_turn(options_of(0, 2, tmp_path / "file"), nn.Linear(1, 1)):
            pass


@needs_half_precision
def test_methods_of_tensors_that_were_replaced(tmp_path, monkeypatch):
    """Replacements of them run in the trace, once, and the program is kept all the same."""

    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, x, y):
            out = self.linear(x.half()).to(torch.float32)
            return out, nn.functional.mse_loss(out, y).sum() * x.new_ones(())

    loss = compiled(tmp_path / "plain", Half())[1]
    for name, factor in (("to", 1), ("new_ones", 1), ("sum", 2)):
        original, owner = getattr(torch.Tensor, name), object()

        def replaced(self, *args, original=original, factor=factor, owner=owner, **kwargs):
            result = original(self, *args, **kwargs)
            return result * 2 if factor == 2 else result

        monkeypatch.setattr(torch.Tensor, name, functools.wraps(original)(replaced))
    found = [compiled(tmp_path, Half()) for _ in range(2)]
    assert [events for events, _ in found] == [MISS, HIT]
    torch.testing.assert_close([value for _, value in found], [2 * loss] * 2)
