"""Accelerator becomes IPUAccelerator where it is made; everything else of the script stays."""

from __future__ import annotations

from ignite_ipu.migration.migrator import migrate_source
from ignite_ipu.migration.source.file import Source

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


def test_every_use_of_the_class(rewritten):
    """Annotations and questions stay: an IPUAccelerator is an Accelerator."""
    before = """\
import functools
import accelerate
from accelerate import Accelerator
make = functools.partial(Accelerator, cpu=False)
other = accelerate.Accelerator
def train(accelerator: Accelerator) -> "Accelerator":
    assert isinstance(accelerator, Accelerator)
"""
    after = before.replace("partial(Accelerator", "partial(IPUAccelerator").replace(
        "other = accelerate.A", "other = IPUA"
    )
    after = after.replace("import Accelerator\n", "import Accelerator\nfrom ignite_ipu import IPUAccelerator\n")
    assert rewritten(REWRITE, before) == after


def test_derived_classes_are_left_alone():
    text = "from accelerate import Accelerator\nclass Mine(Accelerator):\n    pass\naccelerator = Mine()\n"
    migration = migrate_source(Source("code.py", text))
    assert migration.blocked
    assert migration.reason.startswith("code.py:2: a class derived from accelerate's Accelerator trains on the host")
