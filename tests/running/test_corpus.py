"""The corpus of realistic scripts through `run`: the result of a native run, or a refusal with its reason."""

from __future__ import annotations

import inspect
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from ignite_ipu.migration.checker import check_source
from ignite_ipu.migration.findings import Outcome
from ignite_ipu.migration.source.file import read_source
from tests.half_precision import needs_half_precision
from tests.scripts import RUN

if find_spec("sklearn") is None:  # only the scripts' own process imports it
    pytest.skip("the scripts load their data by it", allow_module_level=True)

CORPUS = Path(__file__).parents[1] / "migration" / "corpus"
SCRIPTS = sorted(path.stem for path in CORPUS.glob("*.py"))

# Script -> line of its file that the refusal names, and a part of the reason.
REFUSED = {
    "actor_critic": ("action.item()", "it was sampled from the model's output"),
    "gradient_penalty": ("torch.autograd.grad(", "create_graph=True"),
    "hogwild": ("model.share_memory()", "Hogwild"),
    "reinforce": ("action.item()", "as in reinforcement learning"),
}
# Why results differ by more than rounding.
TOLERANCE = {
    "amp_ignite": (0.01, "products are in half precision; natively without a GPU they are not"),
    "lr_finder": (
        0.02,
        "the finder puts the random states back too, so the next epoch shuffles otherwise",
    ),
    "vae": (0.02, "its noise is drawn on the device"),
}
# With PyTorch 2.0, whose Adam rounds its averages otherwise, which many steps magnify.
OLDER_TOLERANCE = (
    {}
    if "lerp_(" in inspect.getsource(inspect.getmodule(torch.optim.Adam))
    else {
        "reid_hard_mining": 1e-3,
        "triplets": 0.01,
    }
)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=needs_half_precision if name == "amp_ignite" else ())
        for name in SCRIPTS
        if name not in REFUSED
    ],
)
def test_scripts_end_with_the_native_result(name, scripts):
    native, run = (scripts.run(CORPUS / f"{name}.py", how) for how in ("native", RUN))
    assert run.numbers == pytest.approx(
        native.numbers, rel=OLDER_TOLERANCE.get(name, TOLERANCE.get(name, (1e-4,))[0]), abs=1e-6
    )
    assert run.updates > 0, "nothing was trained on the device"
    assert run.substitutions


@pytest.mark.parametrize("name", SCRIPTS)
def test_check_says_whether_a_script_is_refused(name):
    """Where its text shows it."""
    findings, _ = check_source(read_source(CORPUS / f"{name}.py"))
    refused = any(finding.run is Outcome.REFUSED for finding in findings)
    assert refused is (name in REFUSED)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_scripts_are_refused_at_their_line(name, scripts):
    line, reason = REFUSED[name]
    run = scripts.run(CORPUS / f"{name}.py", RUN).error
    assert run.startswith("refused:"), run
    assert reason in run
    text = (CORPUS / f"{name}.py").read_text(encoding="utf-8").splitlines()
    places = [number for number, content in enumerate(text, start=1) if line in content]
    assert any(f"{name}.py:{number}" in run for number in places), run
