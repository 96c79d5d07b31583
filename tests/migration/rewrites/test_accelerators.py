"""Accelerator becomes IPUAccelerator where it is made; everything else of the script stays."""

from __future__ import annotations

from pathlib import Path

from ignite_ipu.migration.migrator import migrate_source
from ignite_ipu.migration.source.file import read_source

REWRITE = "accelerators"


def test_names_that_are_used_for_something_else_stay(rewritten):
    before = """\
import accelerate
from accelerate import Accelerator
def train(accelerator: Accelerator): ...
train(Accelerator(mixed_precision="fp16"))
train(accelerate.Accelerator())
"""
    after = """\
import accelerate
from accelerate import Accelerator
from ignite_ipu import IPUAccelerator
def train(accelerator: Accelerator): ...
train(IPUAccelerator(mixed_precision="fp16"))
train(IPUAccelerator())
"""
    assert rewritten(REWRITE, before) == after


def test_the_pair_of_examples():
    """The script for GPUs becomes its twin, but for an empty line."""
    examples = Path(__file__).parents[3] / "examples"
    before, after = (examples / name for name in ("accelerate_digits_gpu.py", "accelerate_digits.py"))
    migrated = migrate_source(read_source(before))
    assert migrated.applied == ["accelerators"]
    assert [line for line in migrated.text.splitlines() if line] == [
        line for line in after.read_text(encoding="utf-8").splitlines() if line
    ]
