"""Files from an untrusted source: damaged, and made to do harm. Each may be refused; none may do anything else."""

from __future__ import annotations

import codecs
import collections
import hashlib
import io
import json
import os
import pickle
import random
import resource
import signal
import struct
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch
from torch import nn

import ignite_ipu.emulator as poptorch
from ignite_ipu import IPUConfig, OptionsError
from ignite_ipu.checkpoints import CheckpointError
from ignite_ipu.checkpoints.random_states import read_device_states
from ignite_ipu.checkpoints.resuming import load_checkpoint
from ignite_ipu.emulator.device import machine
from ignite_ipu.emulator.executor import saving
from ignite_ipu.emulator.files import cache, container
from ignite_ipu.engines.remembered_sizes import RememberedSize
from ignite_ipu.errors import SessionError, SourceError
from ignite_ipu.migration.checker import check_source
from ignite_ipu.migration.migrator import migrate_source
from ignite_ipu.migration.source.file import read_source
from ignite_ipu.pipeline import PlanError, load_plan, measure, plan, save_plan
from ignite_ipu.session.executables import ExportedProgram
from tests.resilience.children import Child

SECONDS_PER_INPUT = 10
MEMORY = 1 << 30
_BATCH = 500
_RUNS_CODE = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "subprocess.Popen", "socket.connect", "pty.spawn")


class Target(NamedTuple):
    """Something that reads files.

    Attributes:
        make: Gives valid files to damage.
        read: Reads one, given its content and a path to put it at.
        refusals: Exceptions that it may raise.
        repack: Damages the inside of a file and makes checksums fit again.
    """

    make: Callable[[], List[bytes]]
    read: Callable[[bytes, Path], Any]
    refusals: Tuple[type, ...]
    repack: Callable[[bytes, random.Random], bytes]


# -- checkpoints ------------------------------------------------------------------------------------------------------


def _objects() -> Dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 3])
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler}


def _checkpoints() -> List[bytes]:
    stream = io.BytesIO()
    torch.save({name: value.state_dict() for name, value in _objects().items()}, stream)
    return [stream.getvalue()]


def _read_checkpoint(data: bytes, path: Path) -> None:
    path.write_bytes(data)
    objects = _objects()
    before = {name: value.clone() for name, value in objects["model"].state_dict().items()}
    try:
        load_checkpoint(path, objects)
    except CheckpointError:
        after = objects["model"].state_dict()
        assert all(torch.equal(before[name], after[name]) for name in before), "a refused checkpoint changed the model"
        raise


def _parts(data: bytes) -> Dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def archive_of(parts: Dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return stream.getvalue()


def _repack_checkpoint(data: bytes, drawn: random.Random) -> bytes:
    parts = _parts(data)
    name = next(name for name in parts if name.endswith("data.pkl"))
    if drawn.random() < 0.2:
        name = drawn.choice(list(parts))
    parts[name] = damage(parts[name], drawn)
    return archive_of(parts)


def checkpoint_with(pickled: bytes) -> bytes:
    """Return a file of torch.save with this pickle in it."""
    parts = _parts(_checkpoints()[0])
    parts[next(name for name in parts if name.endswith("data.pkl"))] = pickled
    return archive_of(parts)


# -- executables and caches -------------------------------------------------------------------------------------------


def _executables() -> List[bytes]:
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for export in (False, True):
            executor = poptorch.inferenceModel(nn.Linear(3, 2))
            path = os.path.join(folder, "model.poptorch")
            executor.compileAndExport(path, torch.randn(4, 3), export_model=export)
            found.append(Path(path).read_bytes())
            executor.destroy()
    return found


def _read_executable(data: bytes, path: Path) -> None:
    path.write_bytes(data)
    executor = poptorch.inferenceModel(nn.Linear(3, 2))
    try:
        executor.loadExecutable(str(path))
    finally:
        executor.destroy()
    if data not in _TRUSTED:
        _read_foreign(path)


def _read_foreign(path: Path) -> None:
    # The key that signs this user's own files is out of reach here.
    before, os.environ["IGNITE_IPU_STATE_DIR"] = os.environ.get("IGNITE_IPU_STATE_DIR"), str(path.parent / "none")
    try:
        poptorch.load(str(path)).destroy()
    except AssertionError as error:
        if "Invalid file" not in str(error) and "valid PopTorch file" not in str(error):
            raise
    finally:
        del os.environ["IGNITE_IPU_STATE_DIR"]
        if before is not None:
            os.environ["IGNITE_IPU_STATE_DIR"] = before


_TRUSTED: List[bytes] = []


def _repack_container(data: bytes, drawn: random.Random) -> bytes:
    magic = data[: data.index(b"\n") + 1]
    content = data[len(magic) + 32 :]
    end = 8 + struct.unpack_from("<Q", content)[0]
    return _packed(magic, damage(content[8:end], drawn), content[end:])


def _packed(magic: bytes, text: bytes, data: bytes = b"", length: Optional[int] = None) -> bytes:
    content = struct.pack("<Q", len(text) if length is None else length) + text + data
    return magic + hashlib.sha256(content).digest() + content


def _entries() -> List[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "x" + cache.SUFFIX)
        values = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(1)}
        container.write(path, cache.MAGIC, {"key": "x" * 40, "name": "1", "values": values})
        return [Path(path).read_bytes()]


def _read_entry(data: bytes, path: Path) -> None:
    folder = path.parent / "cache"
    folder.mkdir(exist_ok=True)
    entry = folder / ("x" * 40 + cache.SUFFIX)
    entry.write_bytes(data)
    cache.entries(str(folder))
    container.read(str(entry), cache.MAGIC)


# -- options ----------------------------------------------------------------------------------------------------------

_OPTIONS = b"""# options
deviceIterations(4)
replicationFactor(2)
Training.gradientAccumulation(8)
outputMode(poptorch.OutputMode.All)
setExecutionStrategy(poptorch.PipelinedExecution(poptorch.Stage("a").ipu(0), poptorch.Stage("b").ipu(1)))
TensorLocations.setWeightLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
Precision.enableFloatingPointExceptions(True)
setAvailableMemoryProportion({"IPU0": 0.5, "IPU1": 0.25})
"""
_JSON = json.dumps(
    {
        "deviceIterations": 4,
        "Training.gradientAccumulation": 2,
        "outputMode": "OutputMode.All",
        "Precision.enableStochasticRounding": True,
        "anchorTensor": ["a", "b"],
        "randomSeed": 42,
    }
).encode()


def _read_options(data: bytes, path: Path) -> None:
    path.write_bytes(data)
    poptorch.Options().loadFromFile(str(path))


def _read_json(data: bytes, path: Path) -> None:
    from ignite_ipu.emulator.options.text import apply_json

    apply_json(poptorch.Options(), data.decode("utf-8", "replace"))


def _read_table(data: bytes, path: Path) -> None:
    folder = path.parent / "runtime"
    folder.mkdir(mode=0o700, exist_ok=True)
    shared = machine.SharedMachine(str(folder))
    Path(shared._path).write_bytes(data)
    shared.users()


_SETTINGS: Dict[str, Any] = {
    "seed": 3,
    "weight_sync": "on demand",
    "options": {"deviceIterations": 4, "Training.gradientAccumulation": 2},
    "max_grad_norm": 1.5,
    "pipeline": ["0", "2"],
}
_SETTINGS_YAML = b"""# Settings of a run.
seed: 3
weight_sync: on demand
options: {deviceIterations: 4, Training.gradientAccumulation: 2}
max_grad_norm: 1.5
pipeline:
  - "0"
  - "2"
"""


def _read_settings(data: bytes, path: Path, ending: str = ".json") -> None:
    file = path.with_suffix(ending)
    file.write_bytes(data)
    IPUConfig.load(file)


def _read_yaml(data: bytes, path: Path) -> None:
    _read_settings(data, path, ".yaml")


# -- plans, random states ---------------------------------------------------------------------------------------------


def _planned() -> nn.Module:
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))


def _plans() -> List[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        save_plan(plan(measure(_planned(), torch.zeros(2, 4)), 2), path)
        return [path.read_bytes()]


def _read_plan(data: bytes, path: Path) -> None:
    path.write_bytes(data)
    load_plan(path, _planned())


def _read_states(data: bytes, path: Path) -> None:
    path.write_bytes(data)
    read_device_states(str(path))


def _read_description(data: bytes, path: Path) -> None:
    path.write_bytes(b"")
    Path(f"{path}.json").write_bytes(data)
    ExportedProgram(path)


# -- programs and notebooks -------------------------------------------------------------------------------------------

_PROGRAM = b"""import torch
from ignite.engine import create_supervised_trainer
model = torch.nn.Linear(4, 2).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
trainer = create_supervised_trainer(model, optimizer, torch.nn.CrossEntropyLoss(), device="cuda")
model.load_state_dict(torch.load("model.pt"))
trainer.run([(torch.randn(2, 4), torch.zeros(2).long())], max_epochs=2)
"""
_NOTEBOOK = json.dumps(
    {
        "cells": [
            {"cell_type": "code", "source": [line + "\n" for line in _PROGRAM.decode().splitlines()], "outputs": []},
            {"cell_type": "markdown", "source": "text"},
            {"cell_type": "code", "source": "%matplotlib inline\nx?", "metadata": {}},
        ],
        "metadata": {"kernelspec": {"language": "python"}},
        "nbformat": 4,
    }
).encode()


def _read_program(data: bytes, path: Path, ending: str = ".py") -> None:
    """Read it as `check` and `migrate` do."""
    file = path.with_suffix(ending)
    file.write_bytes(data)
    source = read_source(file)
    check_source(source)
    source.encode(migrate_source(source).text)


def _read_notebook(data: bytes, path: Path) -> None:
    _read_program(data, path, ".ipynb")


_TABLE = json.dumps({"0": [1, "123", "training", 0], "1": [os.getpid(), "x", "inference", 1]}).encode()
_VALUES = (ValueError, TypeError, AttributeError, AssertionError, KeyError, NotImplementedError, poptorch.Error)


def _sizes() -> List[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        remembered = RememberedSize(folder, {"model": "Net"})
        remembered.write(48)
        return [remembered.path.read_bytes()]


def _read_size(data: bytes, path: Path) -> None:
    path.write_bytes(data)
    remembered = RememberedSize(str(path.parent), {})
    remembered.path = path
    size = remembered.read()
    assert size is None or type(size) is int


TARGETS: Dict[str, Target] = {
    "checkpoints": Target(_checkpoints, _read_checkpoint, (CheckpointError,), _repack_checkpoint),
    "executables": Target(_executables, _read_executable, (poptorch.Error,), _repack_container),
    "caches": Target(_entries, _read_entry, (container.DamagedFile,), _repack_container),
    "options files": Target(
        lambda: [_OPTIONS], _read_options, (poptorch.ConfigFileError, *_VALUES), lambda data, drawn: damage(data, drawn)
    ),
    "options as JSON": Target(lambda: [_JSON], _read_json, _VALUES, lambda data, drawn: damage(data, drawn)),
    "tables of IPUs": Target(lambda: [_TABLE], _read_table, (), lambda data, drawn: damage(data, drawn)),
    "plans": Target(_plans, _read_plan, (PlanError,), lambda data, drawn: damage(data, drawn)),
    "random states": Target(
        lambda: [b"[[3, 18446744073709551615], null, [1]]"],
        _read_states,
        (CheckpointError,),
        lambda data, drawn: damage(data, drawn),
    ),
    "descriptions of executables": Target(
        lambda: [
            b'{"the kind": "training", "0.weight": "torch.float32 of shape (4, 2)", "what forward computes": "0a1b"}'
        ],
        _read_description,
        (SessionError,),
        lambda data, drawn: damage(data, drawn),
    ),
    "remembered sizes": Target(_sizes, _read_size, (), lambda data, drawn: damage(data, drawn)),
    "settings as JSON": Target(
        lambda: [json.dumps(_SETTINGS).encode()],
        _read_settings,
        (OptionsError,),
        lambda data, drawn: damage(data, drawn),
    ),
    "settings as YAML": Target(
        lambda: [_SETTINGS_YAML], _read_yaml, (OptionsError,), lambda data, drawn: damage(data, drawn)
    ),
    "programs": Target(lambda: [_PROGRAM], _read_program, (SourceError,), lambda data, drawn: damage(data, drawn)),
    "notebooks": Target(lambda: [_NOTEBOOK], _read_notebook, (SourceError,), lambda data, drawn: damage(data, drawn)),
}


# -- inputs -----------------------------------------------------------------------------------------------------------


def damage(data: bytes, drawn: random.Random) -> bytes:
    """Return the data cut short, with flipped bits, with parts repeated, removed, or replaced."""
    changed = bytearray(data)
    for _ in range(drawn.choice([1, 1, 1, 2, 5])):
        size = len(changed)
        if not size:
            break
        at, length = drawn.randrange(size), drawn.choice([1, 1, 2, 4, 8, drawn.randint(1, 64)])
        kind = drawn.randrange(9)
        if kind == 0:
            del changed[at:]
        elif kind in (1, 2):
            changed[at] ^= 1 << drawn.randrange(8)
        elif kind == 3:
            changed[at] = drawn.randrange(256)
        elif kind == 4:
            changed[at:at] = changed[at : at + length] * drawn.choice([1, 2, 50])
        elif kind == 5:
            del changed[at : at + length]
        elif kind == 6:
            changed[at : at + length] = drawn.choice([b"\xff", b"\0", b"9", b"(", b"["]) * length
        elif kind == 7:
            changed[at : at + 8] = struct.pack("<Q", drawn.choice([0, 1, 2**31, 2**32, 2**40, 2**63, 2**64 - 1]))
        else:
            other = drawn.randrange(size)
            changed[at : at + length] = changed[other : other + length]
    return bytes(changed)


class _Runs:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> Any:
        return self._call


def _laughs(holding: bytes) -> bytes:
    """Return YAML of which each line holds the one before nine times."""
    lines = [b"a0: &a0 {x: 1}"]
    lines += [b"a%d: &a%d " % (n, n) + holding % b", ".join([b"*a%d" % (n - 1)] * 9) for n in range(1, 40)]
    return b"\n".join(lines)


def crafted() -> Iterator[Tuple[str, str, bytes]]:
    """Yield inputs that are made to do harm: their target, their attack, and their content."""
    command = "touch /tmp/ignite-ipu-was-here"
    attacks: Dict[str, bytes] = {}
    for name, function, arguments in (
        ("os.system", os.system, (command,)),
        ("eval", eval, ("__import__('os').system('true')",)),
        ("getattr", getattr, ("torch", "load")),
        ("exec", exec, ("raise SystemExit",)),
        ("bytearray", bytearray, (1 << 40,)),
        ("tensor", torch.Tensor, (1 << 40,)),
        ("codec", codecs.encode, ("a" * 100, "idna")),
    ):
        for protocol in (2, 4):
            attacks[f"{name}, protocol {protocol}"] = pickle.dumps({"model": _Runs(function, *arguments)}, protocol)
    attacks["INST"] = b"\x80\x02(S'true'\nios\nsystem\n."
    attacks["STACK_GLOBAL"] = b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R."
    attacks["nested tuples as a key"] = b"\x80\x02})" + b"\x85" * 200_000 + b"Ns."
    attacks["nested lists"] = b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b"."
    laughs = b"\x80\x02}X\x01\x00\x00\x00a]q\x00(K\x01K\x02e"
    attacks["billion laughs"] = laughs + b"".join(
        b"]q%c(h%ch%ce" % (number, number - 1, number - 1) for number in range(1, 60)
    )
    attacks["itself"] = b"\x80\x02]q\x00h\x00a."
    attacks["huge memo"] = b"\x80\x02Nr\xff\xff\xff\x7f."
    attacks["huge string"] = b"\x80\x02X\xff\xff\xff\x7fabc."
    attacks["huge integer"] = b"\x80\x02\x8b\xff\xff\xff\x7f."
    attacks["digits"] = b"\x80\x02I" + b"9" * 1_000_000 + b"\n."
    attacks["empty"] = b""
    attacks["marks"] = b"\x80\x02" + b"(" * 200_000
    attacks["colliding keys"] = (
        b"\x80\x02}("
        + b"".join(b"\x8a\x0a" + ((2**61 - 1) * n).to_bytes(10, "little") + b"N" for n in range(1, 20_000))
        + b"u."
    )
    for name, pickled in attacks.items():
        yield "checkpoints", name, checkpoint_with(pickled)
    yield "checkpoints", "an old torch file", pickle.dumps(_Runs(os.system, command))
    whole = _parts(_checkpoints()[0])
    prefix = next(iter(whole)).split("/")[0]
    bomb = {**whole, f"{prefix}/data/0": bytes(200 << 20)}
    yield "checkpoints", "zip bomb", archive_of(bomb, zipfile.ZIP_DEFLATED)
    for traversal in ("../../etc/x", "/etc/x", f"{prefix}/../../x", "C:\\x"):
        yield "checkpoints", f"path {traversal}", archive_of({**whole, traversal: b"x"})
    yield "checkpoints", "two of a name", archive_of({**whole, f"{prefix}/DATA.PKL": pickle.dumps(1)})
    yield "checkpoints", "TorchScript", archive_of({**whole, f"{prefix}/constants.pkl": pickle.dumps(1)})
    for name, tensor in (("expanded", torch.zeros(1).expand(1 << 40)), ("sparse", torch.eye(2).to_sparse())):
        stream = io.BytesIO()
        torch.save({"model": {"0.weight": tensor}}, stream)
        yield "checkpoints", name, stream.getvalue()
    for target in ("options as JSON", "tables of IPUs", "plans", "random states", "notebooks", "settings as JSON"):
        for opening in (b"[", b'{"a":', b'{"deviceIterations":['):
            yield target, "nesting", opening * 200_000
        yield target, "digits", b'{"deviceIterations":' + b"9" * 1_000_000 + b"}"
    whole_plan = json.loads(_plans()[0])
    for entry, value in (("accumulation", 2**31), ("replicas", 2**31), ("reasons", ["x" * 1_000_000])):
        yield "plans", f"a huge {entry}", json.dumps({**whole_plan, entry: value}).encode()
    layers = [{**whole_plan["profile"]["layers"][0], "name": str(number)} for number in range(10_000)]
    profile = {**whole_plan["profile"], "layers": layers}
    yield "plans", "ten thousand layers", json.dumps({**whole_plan, "profile": profile}).encode()
    machine_of_nothing = {**whole_plan["machine"], "memory_bandwidth": 5e-324}
    yield "plans", "a machine that takes for ever", json.dumps({**whole_plan, "machine": machine_of_nothing}).encode()
    for text in (
        b"(" * 100_000,
        b"x = " + b"-" * 100_000 + b"1",
        *(b"x = 1" + b" + 1" * depth for depth in (150, 900, 2000, 50_000)),
        *(b"import torch\nx" + b".x" * depth + b"()" for depth in (150, 900, 2000, 50_000)),
        b"if x:\n" + b"".join(b" " * depth + b"if x:\n" for depth in range(1, 150)),
        b"x" * 1_000_000,
        b"\0import torch",
        b"# coding: nonsense\n",
        b"# coding: utf-7\n+AGkAbQBwAG8AcgB0-\n",
        b"lambda: " * 5_000,
        b"x[" * 1_000 + b"]" * 1_000,
    ):
        yield "programs", "a crafted program", text
        yield (
            "notebooks",
            "a crafted cell",
            json.dumps({"cells": [{"cell_type": "code", "source": text.decode("latin-1")}], "nbformat": 4}).encode(),
        )
    for line in (
        b"deviceIterations(__import__('os').system('true'))",
        b"deviceIterations(4) or __import__('os').system('true')",
        b"__class__.__init__.__globals__['os'].system('true')",
        b"setExecutionStrategy(poptorch.load('x'))",
        b"_Popart.set('a', (lambda: 1)())",
        b"deviceIterations(" + b"(" * 100_000 + b")" * 100_000 + b")",
        b"deviceIterations(" + b"-" * 100_000 + b"1)",
        b"deviceIterations(9**9**9)",
        b"deviceIterations('a' * 10**10)",
        b"deviceIterations(" + b"9" * 100_000 + b")",
        b"loadFromFile('/dev/zero')",
        b"\0\xff\xfe",
    ):
        yield "options files", "a crafted line", line
    for text in (
        b"seed: !!python/object/apply:os.system ['true']",
        b"seed: !!python/name:os.system",
        *(b"[" * size for size in (60_000, 1_000_000)),
        b"- " * 30_000,
        b"seed: " + b"9" * 60_000,
        b"seed: 1\n" * 8_000,
        b"options: {" + b"a: 1, " * 10_000 + b"}",
        *(b"seed: !!%s ''" % kind for kind in (b"int", b"float", b"bool", b"timestamp", b"binary", b"set", b"omap")),
        b"? [seed]\n: 1",
        b"seed: 2001-99-99",
        b"seed: &seed [*seed]",
        _laughs(b"[%s]"),
        _laughs(b"{<<: [%s]}"),
    ):
        yield "settings as YAML", "crafted settings", text
    yield "settings as JSON", "nesting", b"[" * 60_000
    magic = {"executables": saving.MAGIC, "caches": cache.MAGIC}
    for target, start in magic.items():
        for text in (b"[" * 500_000, b"{}", b'{"tensor":["torch.float32",[],{"bytes":[0,1e999]}]}', b"null"):
            yield target, "a crafted text", _packed(start, text)
        yield target, "a huge length", _packed(start, b"", length=2**62)
        for kind in ("meta", "tensor"):
            what = {kind: ["torch.float32", [0, 2**62, 2**62], {"bytes": [0, 0]}]}
            yield target, "a huge shape", _packed(start, json.dumps(what).encode())


# -- the campaign -----------------------------------------------------------------------------------------------------


def fuzz(inputs: int, seed: int = 0) -> Dict[str, Dict[str, int]]:
    """Read so many damaged files and all crafted ones; returns how they ended, by target and outcome.

    Raises:
        AssertionError: One crashed, hung, ran code, took too much memory, or raised another exception.
    """
    seeds = {name: target.make() for name, target in TARGETS.items()}
    _TRUSTED[:] = seeds["executables"]
    outcomes: Dict[str, Dict[str, int]] = {name: {} for name in TARGETS}
    whole = [(name, "whole", data) for name, files in seeds.items() for data in files]
    _in_child(whole, outcomes)
    assert sum(counts.get("read", 0) for counts in outcomes.values()) == len(whole), "a file is refused undamaged"
    _in_child(list(crafted()), outcomes)
    # Programs are analysed, which takes a hundred times as long as anything else.
    names = [name for name in TARGETS for _ in range(1 if name in ("programs", "notebooks") else 10)]
    drawn = random.Random(seed)
    left = inputs
    while left > 0:
        batch = []
        for _ in range(min(left, _BATCH)):
            name = drawn.choice(names)
            data = drawn.choice(seeds[name])
            change = TARGETS[name].repack if drawn.random() < 0.7 else damage
            batch.append((name, "damaged", change(data, drawn)))
        _in_child(batch, outcomes)
        left -= len(batch)
    return outcomes


def _in_child(inputs: List[Tuple[str, str, bytes]], outcomes: Dict[str, Dict[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report"
        child = Child(lambda note: _read_all(inputs, Path(folder), report))
        code = child.wait(limit=len(inputs) * 0.5 + 120)
        lines = report.read_text().splitlines() if report.exists() else []
        if code or len(lines) != len(inputs):
            name, what, data = inputs[min(len(lines), len(inputs) - 1)]
            kept = Path(tempfile.gettempdir()) / f"fuzz-{hashlib.sha256(data).hexdigest()[:8]}"
            kept.write_bytes(data)
            raise AssertionError(f"{name} ({what}) ended the process with {code}; the input is kept in {kept}")
        for (name, _, _), outcome in zip(inputs, lines):
            outcomes[name][outcome] = outcomes[name].get(outcome, 0) + 1


def _read_all(inputs: List[Tuple[str, str, bytes]], folder: Path, report: Path) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + MEMORY, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def watch(event: str, arguments: Any) -> None:
        if event.startswith(_RUNS_CODE):
            os._exit(99)

    sys.addaudithook(watch)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    path = folder / "input"
    with open(report, "w", buffering=1) as log:
        for name, _, data in inputs:
            target = TARGETS[name]
            # Of computing, so that a busy machine is no hang; the parent finds sleeping processes.
            signal.setitimer(signal.ITIMER_PROF, SECONDS_PER_INPUT)
            try:
                target.read(data, path)
                log.write("read\n")
            except target.refusals:
                log.write("refused\n")
            signal.setitimer(signal.ITIMER_PROF, 0)


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def summary(outcomes: Dict[str, Dict[str, int]]) -> str:
    total = collections.Counter()
    for counts in outcomes.values():
        total.update(counts)
    return f"{sum(total.values())} inputs: {dict(total)}"
