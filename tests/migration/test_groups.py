"""One decision for all files that a training reaches."""

from __future__ import annotations

import textwrap

import pytest

from ignite_ipu.migration.code_base import decide_together
from ignite_ipu.migration.migrator import migrate_source
from ignite_ipu.migration.source.discovery import discover
from ignite_ipu.migration.source.file import read_source

STEP = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
"""
TRAIN = "import torch\nfrom torch import nn\nfrom {} import model\n" + STEP
REFUSED = TRAIN.replace(STEP, "\nmodel.share_memory()" + STEP)
NET = "from torch import nn\nmodel = nn.Linear(4, 1).cuda()\n"


@pytest.fixture
def decided(tmp_path):
    """Give the outcome of each file of a code base, and its groups, by relative names."""

    def decide(**files):
        for name, text in files.items():
            path = tmp_path / f"{name.replace('__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        found = discover([str(tmp_path)]).files
        migrations, groups = decide_together([migrate_source(read_source(path)) for path, _ in found])
        names = dict(found)
        outcomes = {names[each.source.path]: each.outcome for each in migrations if each.outcome != "unchanged"}
        reasons = {names[each.source.path]: each.remarks for each in migrations if each.blocked}
        return outcomes, [[names[path] for path in group.paths] for group in groups], reasons

    return decide


def test_what_a_step_needs_stays_with_it(decided):
    """The reason is that of the step, with its place."""
    outcomes, groups, reasons = decided(train=REFUSED.format("net"), net=NET, other="x = x.cuda()\n")
    assert outcomes == {"net.py": "left alone", "other.py": "migrated", "train.py": "left alone"}
    assert groups == [["net.py", "train.py"]]
    (remark,) = reasons["net.py"]
    assert remark.line == 2
    assert "it hangs together with " in remark.message
    assert "train.py:5: a model in shared memory cannot be trained" in remark.message


def test_a_step_stays_with_what_it_needs(decided):
    """Unless a comment excludes it from the finding."""
    shared = NET + "share = model.share_memory()"
    outcomes, _, _ = decided(train=TRAIN.format("net"), net=f"{shared}\n")
    assert outcomes == {"net.py": "left alone", "train.py": "left alone"}
    silenced = f"{shared}  # ignite-ipu: ignore[shared-memory-training]\n"
    outcomes, _, _ = decided(train=TRAIN.format("net"), net=silenced)
    assert outcomes == {"net.py": "migrated", "train.py": "migrated"}


def test_files_that_a_script_brings_together(decided):
    """Neither imports the other."""
    loop = "from torch.optim import SGD\ndef fit(model, optimizer: SGD, x):\n    model.train()\n"
    loop += "    model(x).mean().backward()\n"
    loop += "    optimizer.step()\n"
    outcomes, groups, _ = decided(run="from net import model\nfrom loop import fit\nfit(model)\n", net=NET, loop=loop)
    assert outcomes == {"loop.py": "migrated", "net.py": "migrated"}
    assert groups == [["loop.py", "net.py"]]


def test_trainings_that_share_what_is_to_change(decided):
    """One that is refused stops itself alone: the other is captured by one import, and their common part stays."""
    shared = {"a": TRAIN.format("net"), "b": REFUSED.format("net"), "net": NET}
    alone = {"c": TRAIN.format("plain"), "plain": "from torch import nn\nmodel = nn.Linear(4, 1)\n"}
    outcomes, groups, _ = decided(**shared, **alone)
    assert outcomes == {"a.py": "migrated", "b.py": "left alone", "c.py": "migrated", "net.py": "left alone"}
    assert groups == [["b.py", "net.py"]]


def test_tests_follow_what_they_test(decided):
    """They are left alone with it, and nothing is left alone for them."""
    test = "from train import model\nmodel.share_memory()\n"
    outcomes, _, _ = decided(train=TRAIN.format("net"), net=NET, tests__test_train=test)
    assert outcomes == {"net.py": "migrated", "train.py": "migrated", "tests/test_train.py": "left alone"}
    outcomes, _, _ = decided(train=REFUSED.format("net"), tests__test_train="from train import model\nmodel.cuda()\n")
    assert set(outcomes.values()) == {"left alone"}
