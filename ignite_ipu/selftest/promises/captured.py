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
from ignite_ipu.selftest.bench import Bench, Pair, agree, batches, expect, joined, network, sgd
from ignite_ipu.selftest.promises import Skipped, needs

PAGE = "accelerate.md"


def _step(model: Any, optimizer: Any) -> Any:
    """Return a training step as people write it for Ignite."""

    def train_step(engine: Engine, batch: Any) -> Any:
        optimizer.zero_grad()
        loss: Any = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss.item()

    return train_step


def step(bench: Bench) -> None:
    """A hand-written Ignite step in ipu_step trains as in PyTorch, and returns its loss."""
    data, pair = batches(), bench.captured()
    state = Engine(ipu_step(_step(pair.model, pair.optimizer), options=bench.options())).run(data)
    agree(state.output, pair.train(data)[-1], "loss")
    pair.compare(state=True)


def accumulating_step(bench: Bench) -> None:
    """A hand-written step may accumulate gradients over iterations."""
    data, pair = batches(), bench.captured()
    model, optimizer = pair.model, pair.optimizer

    def train_step(engine: Engine, batch: Any) -> Any:
        loss: Any = F.cross_entropy(model(batch[0]), batch[1]) / 2
        loss.backward()
        if engine.state.iteration % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    Engine(ipu_step(train_step, options=bench.options())).run(data)
    pair.train(data, accumulation=2)
    pair.compare()


def _accelerator(bench: Bench, **arguments: Any) -> Any:
    if importlib.util.find_spec("accelerate") is None:
        raise Skipped("accelerate is not installed: pip install 'ignite-ipu[accelerate]'")
    from ignite_ipu import IPUAccelerator

    return IPUAccelerator(**{"options": bench.options(), **arguments})


def _loop(accelerator: Any, model: Any, optimizer: Any, micro_batches: Any, state: str = "", clip: float = 0.0) -> Any:
    """Train on micro-batches of 4, on from a state if there is one; return the prepared model."""
    loader = DataLoader(TensorDataset(*joined(micro_batches)[0]), batch_size=4)
    model, optimizer, data = accelerator.prepare(model, optimizer, loader)
    if state:
        accelerator.load_state(state)
    model.train()
    for x, y in data:
        with accelerator.accumulate(model):
            accelerator.backward(F.cross_entropy(model(x), y))
            if clip and accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
    return model


@needs(ipus=2)
def accelerator_loop(bench: Bench) -> None:
    """A loop written for accelerate trains as in PyTorch, gradient accumulation and clipping included."""
    data, pair = batches(6, size=4), Pair(lambda model: torch.optim.AdamW(model.parameters(), lr=0.02))
    accelerator = _accelerator(bench, gradient_accumulation_steps=2)
    model = _loop(accelerator, pair.model, pair.optimizer, data, clip=0.3)
    pair.train(data, accumulation=2, max_norm=0.3)
    pair.model = accelerator.unwrap_model(model)
    pair.compare()
    x = joined(data)[0][0]
    with torch.no_grad():
        agree(model.eval()(x), pair.reference(x), "predictions")


def accelerator_resumed(bench: Bench) -> None:
    """Accelerate's save_state and load_state bring back weights and the optimizer's newest state."""
    data, saved = batches(6, size=4), str(bench.folder / "state")
    for part, state in ((data[:3], ""), (data[3:], saved)):
        pair, accelerator = Pair(), _accelerator(bench)
        _loop(accelerator, pair.model, pair.optimizer, part, state)
        accelerator.save_state(saved)
        accelerator.free_memory()
    pair.train(data)
    pair.compare()


@needs(page="migration/index.md", ipus=2)
def portable_functions(bench: Bench) -> None:
    """ipu_train_batch and ipu_evaluate_batch are a step and an evaluation in a loop of one's own."""
    data, pair = batches(), bench.captured()
    losses = [ipu_train_batch(pair.model, pair.optimizer, F.cross_entropy, x, target=y)[1] for x, y in data]
    agree([float(loss) for loss in losses], pair.train(data), "losses")
    agree(ipu_evaluate_batch(pair.model, data[0][0]), pair.reference.eval()(data[0][0]), "predictions")
    pair.compare()


@needs(page="migration/index.md", ipus=2)
def prepared_loops(bench: Bench) -> None:
    """A loop written for PyTorch trains as it stands once its model and optimizer are prepared, clipping included."""
    data, pair = batches(), bench.captured(lambda model: sgd(model, momentum=0.0))
    ipu_prepare(pair.optimizer, pair.model)
    for x, y in data:
        pair.optimizer.zero_grad()
        F.cross_entropy(pair.model(x), y).backward()  # type: ignore[no-untyped-call]
        ipu_clip_grad_norm_(pair.model.parameters(), 0.5)
        pair.optimizer.step()
    pair.train(data, max_norm=0.5)
    pair.compare()


def _expect_plain(path: Path) -> None:
    """See that a file loads where there is neither PopTorch nor this library: it names nothing of theirs."""
    with zipfile.ZipFile(path) as archive:
        (pickled,) = [name for name in archive.namelist() if name.endswith("data.pkl")]
        # torch.save writes pickle's protocol 2, where every class and function is named by a GLOBAL.
        named = {str(value) for code, value, _ in pickletools.genops(archive.read(pickled)) if code.name == "GLOBAL"}
    ours = sorted(name for name in named if name.split()[0].split(".")[0] in ("ignite_ipu", "popart", "poptorch"))
    expect(not ours, f"{path.name} cannot be loaded without {', '.join(ours)}")


def plain_files(bench: Bench) -> None:
    """Files of a captured loop, of the model or the model as a whole, load without PopTorch, buffers included."""
    pair = bench.captured(model=lambda: network(lambda: nn.BatchNorm1d(8)))
    model, optimizer = pair.model, pair.optimizer
    Engine(ipu_step(_step(model, optimizer), options=bench.options())).run(batches(2))
    for name, content in {"weights": model.state_dict(), "state": optimizer.state_dict(), "model": model}.items():
        torch.save(content, bench.folder / name)
        _expect_plain(bench.folder / name)


def dropping(bench: Bench) -> None:
    """Dropping a captured step, or an accelerator, gives its IPUs back."""
    for kind in ("step", "accelerator", "step"):
        model = network()
        if kind == "step":
            Engine(ipu_step(_step(model, sgd(model)), options=bench.on_the_first())).run(batches(1))
        else:
            _loop(_accelerator(bench, options=bench.on_the_first()), model, sgd(model), batches(1))
        del model
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


@needs(page="run.md")
def script(bench: Bench) -> None:
    """ignite-ipu run trains an unmodified GPU script on IPUs, and saves plain tensors of the newest weights."""
    from ignite_ipu.cli.command import main

    data, pair = batches(), Pair()
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
