"""Code bases, examples and their ports compute on the device what they compute on the host, as parity compares them.

`python -m tests.parity` compares all of them, and these are the quick ones.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from ignite_ipu.parity.report import as_text
from tests.half_precision import needs_half_precision
from tests.parity.in_process import compare_both
from tests.parity.programs import compare, pages, programs, script_of

QUICK_PAGES = ("distributed", "loops", "metrics", "quickstart")
SLOW = ("transformer", "ignite_trainer", "cpu_to_ipu", "dqn", "lm/", "segmentation", "vision")

if find_spec("sklearn") is None:  # only the programs' own process imports it
    pytest.skip("some programs load their data by it", allow_module_level=True)


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(each, marks=needs_half_precision if "half_precision" in each.script else (), id=str(each))
        for each in programs()
        if not any(name in str(each) for name in SLOW)
    ],
)
def test_every_value_is_that_of_the_host(program, scripts, tmp_path):
    ran = compare(program, scripts, tmp_path)
    assert not ran.error, ran.error
    assert ran.updates > 0


@pytest.mark.parametrize("page", [page for page in pages() if page.stem in QUICK_PAGES], ids=lambda page: page.stem)
def test_code_of_a_page_computes_what_it_computes_on_the_host(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = script_of(page, tmp_path).read_text(encoding="utf-8")
    parity = compare_both(text, tmp_path, updates=4)
    assert parity.agrees and parity.updates == 4, as_text(parity)


def test_models_of_several_optimizers_have_names_of_their_own(tmp_path):
    """Layers of both are called alike, and have other shapes."""
    text = """
import torch
from torch import nn
first = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
models = first, nn.Sequential(nn.Linear(2, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))
optimizers = [torch.optim.Adam(model.parameters(), lr=0.01) for model in models]
for _ in range(2):
    x = torch.randn(8, 3)
    loss = models[1](models[0](x)).pow(2).mean()
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
"""
    parity = compare_both(text, tmp_path)
    assert parity.agrees, as_text(parity)
    assert {each.name for each in parity.differences if each.kind == "parameter" and "weight" in each.name} == {
        *(f"{number}.weight" for number in range(3)),
        *(f"Sequential 1.{number}.weight" for number in range(3)),
    }
