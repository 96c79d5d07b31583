"""Options are resolved once: nobody below a factory copies them, or asks for their output mode or number of IPUs."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import pytest
import torch

import ignite_ipu
from ignite_ipu import IPUConfig, OptionsError, backend
from ignite_ipu.session.resolved import Resolved, resolve

poptorch = backend.poptorch()
ROOT = Path(ignite_ipu.__file__).parent
RESOLVING = {"program/options.py", "session/resolved.py"}
ASKED = {"check_ipus", "output_mode"}


def resolved(training: bool = True, mode: str = "All", **factors: int) -> Resolved:
    options = poptorch.Options().outputMode(poptorch.OutputMode[mode])
    options.deviceIterations(factors.get("d", 1)).replicationFactor(factors.get("r", 1))
    options.Training.gradientAccumulation(factors.get("a", 1))
    return Resolved.of(options, training)


def test_options_are_resolved_in_one_place() -> None:
    """Whoever needs another program's options has `Resolved.changed` make them."""
    found = []
    for file in ROOT.rglob("*.py"):
        place, text = file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8")
        if place.startswith("emulator/") or place in RESOLVING:
            continue
        if not any(name in text for name in (*ASKED, "options.clone()")):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module == "ignite_ipu.program.options":
                found += [f"{place} imports {each.name}" for each in node.names if each.name in ASKED]
            if isinstance(node, ast.Attribute) and node.attr == "clone":
                owner = getattr(node.value, "id", getattr(node.value, "attr", ""))
                found += [f"{place} copies {owner}"] if owner.endswith("options") else []
    assert found == []


def test_the_factors_of_a_call_and_its_mode_are_known_at_once() -> None:
    found = resolved(d=2, a=3, r=4, mode="Final")
    assert (found.micro_batches, found.micro_batches_per_replica, found.replicas, found.ipus) == (24, 6, 4, 4)
    assert found.output_mode == "Final"
    assert Resolved.of(poptorch.Options(), True).output_mode == "Final"  # PopTorch's default in training
    assert Resolved.of(poptorch.Options(), False).output_mode == "All"


def test_a_change_makes_other_options_and_leaves_these() -> None:
    before = resolved(d=2)
    after = before.changed(lambda options: options.deviceIterations(5))
    assert (before.options.device_iterations, before.geometry.device_iterations) == (2, 2)
    assert (after.options.device_iterations, after.geometry.device_iterations) == (5, 5)
    smaller = before.with_factors(dataclasses.replace(before.geometry, device_iterations=1, gradient_accumulation=4))
    assert (smaller.options.device_iterations, smaller.micro_batches) == (1, 4)
    with pytest.raises(OptionsError, match="not a power of two"):
        before.changed(lambda options: options.replicationFactor(3))


def test_targets_are_those_of_the_returned_outputs() -> None:
    """Final returns the last micro-batch of each replica, EveryN each N-th."""
    batch = torch.arange(12)
    assert resolved(d=2, a=3, r=2).returned(batch) is batch
    assert resolved(d=2, a=3, r=2, mode="Final").returned(batch).tolist() == [10, 11]


def test_the_mean_loss_is_of_one_micro_batch() -> None:
    """A sum is over the micro-batches of one replica."""
    losses = torch.tensor([6.0, 12.0])
    assert float(resolved(r=2).mean_loss(losses, maximizes=False)) == 9.0
    assert float(resolved(d=1, a=3, r=2, mode="Sum").mean_loss(losses, maximizes=False)) == 3.0
    assert float(resolved(r=2).mean_loss(losses, maximizes=True)) == -9.0


def test_a_trainers_settings_are_resolved_with_its_pipeline() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    found = resolve(IPUConfig(pipeline=["0", "1"], gradient_accumulation_steps=4), model)
    assert found.pipeline is not None and found.training and found.output_mode == "All"
    assert found.ipus_for(2) == 2
    assert resolve(IPUConfig(), model).pipeline is None
