"""Loops that are captured as they run: hand-written steps, accelerate's loops, and whole scripts."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import io
import pickletools
import textwrap
import zipfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from ignite.engine import Engine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ignite_ipu import ipu_clip_grad_norm_, ipu_evaluate_batch, ipu_prepare, ipu_step, ipu_train_batch
from ignite_ipu.selftest.bench import Bench
from ignite_ipu.selftest.promise import Promises, Skipped
from ignite_ipu.selftest.reference import Pair, agree, batches, expect, joined, network, sgd, train

PROMISES = Promises("captured", "accelerate.md")


def _step(model: Any, optimizer: Any) -> Any:
    """Return a training step as people write it for Ignite."""

    def train_step(engine: Engine, batch: Any) -> Any:
        optimizer.zero_grad()
        loss: Any = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss.item()

    return train_step


@PROMISES.promise()
def step(bench: Bench) -> None:
    """A hand-written Ignite step in ipu_step trains as natively, and returns its loss."""
    data = batches(4)
    pair = Pair()
    bench.session(pair.model)
    state = Engine(ipu_step(_step(pair.model, pair.optimizer), options=bench.options())).run(data)
    agree(state.output, pair.train(data)[-1], "loss")
    pair.compare(state=True)


@PROMISES.promise()
def accumulating_step(bench: Bench) -> None:
    """A hand-written step may accumulate gradients over iterations."""
    data = batches(4)
    pair = Pair()
    model, optimizer = pair.model, pair.optimizer

    def train_step(engine: Engine, batch: Any) -> Any:
        loss: Any = F.cross_entropy(model(batch[0]), batch[1]) / 2
        loss.backward()
        if engine.state.iteration % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    bench.session(model)
    Engine(ipu_step(train_step, options=bench.options())).run(data)
    pair.train(data, accumulation=2)
    pair.compare()


def _accelerator(**arguments: Any) -> Any:
    if importlib.util.find_spec("accelerate") is None:
        raise Skipped("accelerate is not installed: pip install 'ignite-ipu[accelerate]'")
    from ignite_ipu import IPUAccelerator

    return IPUAccelerator(**arguments)


def _loop(accelerator: Any, prepared: Any, clip: float = 0.0) -> None:
    model, optimizer, data = prepared
    model.train()
    for x, y in data:
        with accelerator.accumulate(model):
            accelerator.backward(F.cross_entropy(model(x), y))
            if clip and accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()


@PROMISES.promise(ipus=2)
def accelerator_loop(bench: Bench) -> None:
    """A loop written for accelerate trains as natively, gradient accumulation and clipping included."""
    data = batches(6, size=4)
    pair = Pair(lambda model: torch.optim.AdamW(model.parameters(), lr=0.02))
    accelerator = _accelerator(options=bench.options(), gradient_accumulation_steps=2)
    bench.afterwards(accelerator.free_memory)
    x, y = joined(data)[0]
    prepared = accelerator.prepare(pair.model, pair.optimizer, DataLoader(TensorDataset(x, y), batch_size=4))
    _loop(accelerator, prepared, clip=0.3)
    pair.train(data, accumulation=2, max_norm=0.3)
    pair.model = accelerator.unwrap_model(prepared[0])
    pair.compare()
    prepared[0].eval()
    with torch.no_grad():
        agree(prepared[0](x), pair.reference(x), "predictions")


@PROMISES.promise()
def accelerator_resumed(bench: Bench) -> None:
    """Accelerate's save_state and load_state bring back weights and the optimizer's newest state."""
    data = batches(6, size=4)
    reference = network()
    for number, part in enumerate((data[:3], data[3:])):
        model = network()
        accelerator = _accelerator(options=bench.options())
        bench.afterwards(accelerator.free_memory)
        loader = DataLoader(TensorDataset(*joined(part)[0]), batch_size=4)
        prepared = accelerator.prepare(model, sgd(model), loader)
        if number:
            accelerator.load_state(str(bench.folder / "state"))
        _loop(accelerator, prepared)
        accelerator.save_state(str(bench.folder / "state"))
        accelerator.free_memory()
    train(reference, sgd(reference), data)
    agree(model, reference, "weights")


@PROMISES.promise(page="migration/index.md", ipus=2)
def portable_functions(bench: Bench) -> None:
    """ipu_train_batch and ipu_evaluate_batch are a step and an evaluation in a loop of one's own."""
    data = batches(4)
    pair = Pair()
    bench.session(pair.model)
    losses = [ipu_train_batch(pair.model, pair.optimizer, F.cross_entropy, x, target=y)[1] for x, y in data]
    agree([float(loss) for loss in losses], pair.train(data), "losses")
    agree(ipu_evaluate_batch(pair.model, data[0][0]), pair.reference.eval()(data[0][0]), "predictions")
    pair.compare()


@PROMISES.promise(page="migration/index.md", ipus=2)
def prepared_loops(bench: Bench) -> None:
    """A loop written for PyTorch trains as it stands once its model and optimizer are prepared, clipping included."""
    data = batches(4)
    pair = Pair(lambda model: sgd(model, momentum=0.0))
    bench.session(pair.model)
    ipu_prepare(pair.optimizer, pair.model)
    for x, y in data:
        pair.optimizer.zero_grad()
        F.cross_entropy(pair.model(x), y).backward()  # type: ignore[no-untyped-call]
        ipu_clip_grad_norm_(pair.model.parameters(), 0.5)
        pair.optimizer.step()
    pair.train(data, max_norm=0.5)
    pair.compare()


_NEEDED_HERE = ("ignite_ipu", "popart", "poptorch")


def _expect_plain(path: Path) -> None:
    """See that a file loads where there is neither PopTorch nor this library.

    Raises:
        AssertionError: It names something of theirs.
    """
    with zipfile.ZipFile(path) as archive:
        (pickled,) = [name for name in archive.namelist() if name.endswith("data.pkl")]
        # torch.save writes pickle's protocol 2, where every class and function is named by a GLOBAL.
        named = {str(value) for code, value, _ in pickletools.genops(archive.read(pickled)) if code.name == "GLOBAL"}
    ours = sorted(name for name in named if name.split()[0].split(".")[0] in _NEEDED_HERE)
    expect(not ours, f"{path.name} cannot be loaded without {', '.join(ours)}")


@PROMISES.promise()
def plain_files(bench: Bench) -> None:
    """Files of a captured loop, of the model or the model as a whole, load without PopTorch, buffers included."""
    model = network(lambda: nn.BatchNorm1d(8))
    optimizer = sgd(model)
    bench.session(model)
    Engine(ipu_step(_step(model, optimizer), options=bench.options())).run(batches(2))
    for name, content in {"weights": model.state_dict(), "state": optimizer.state_dict(), "model": model}.items():
        torch.save(content, bench.folder / name)
        _expect_plain(bench.folder / name)


@PROMISES.promise()
def dropping(bench: Bench) -> None:
    """Dropping a captured step, or an accelerator, gives its IPUs back."""

    def step_on_the_first() -> None:
        model = network()
        Engine(ipu_step(_step(model, sgd(model)), options=bench.options().useIpuId(0))).run(batches(1))

    def loop_on_the_first() -> None:
        model = network()
        accelerator = _accelerator(options=bench.options().useIpuId(0))
        prepared = accelerator.prepare(model, sgd(model), DataLoader(TensorDataset(*batches(1)[0]), batch_size=8))
        _loop(accelerator, prepared)

    for use in (step_on_the_first, loop_on_the_first, step_on_the_first):
        use()
        gc.collect()


_SCRIPT = """
import sys

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
folder = sys.argv[1]
saved = torch.load(folder + "/begin.pt")
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
model.load_state_dict(saved["model"])
model.to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
for x, y in saved["data"]:
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device))
    loss.backward()
    optimizer.step()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder + "/end.pt")
"""


@PROMISES.promise(page="run.md")
def script(bench: Bench) -> None:
    """ignite-ipu run trains an unmodified GPU script on IPUs, and what it saves is plain and the newest."""
    from ignite_ipu.cli.command import main

    data = batches(4)
    pair = Pair()
    torch.save({"model": pair.reference.state_dict(), "data": data}, bench.folder / "begin.pt")
    (bench.folder / "train.py").write_text(textwrap.dedent(_SCRIPT), encoding="utf-8")
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        code = main(["run", str(bench.folder / "train.py"), str(bench.folder)])
    expect(code == 0, f"exit code {code}: {told.getvalue()}")
    found = torch.load(bench.folder / "end.pt", weights_only=True)
    pair.model.load_state_dict(found["model"])
    pair.optimizer.load_state_dict(found["optimizer"])
    pair.train(data)
    pair.compare(state=True)
