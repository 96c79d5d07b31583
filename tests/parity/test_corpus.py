"""The corpus of realistic scripts: everything that they compute in their first updates is the same on the device."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.half_precision import needs_half_precision
from tests.running.test_corpus import REFUSED
from tests.scripts import PARITY

if find_spec("sklearn") is None:  # only the scripts' own process imports it
    pytest.skip("the scripts load their data by it", allow_module_level=True)

CORPUS = Path(__file__).parents[1] / "migration" / "corpus"
SCRIPTS = sorted(path.stem for path in CORPUS.glob("*.py"))
DIFFERENT = {
    "template_config": "prints a warning where there is no GPU",
    "vae": "draws noise in its forward, on the device",
    "vae_ragged": "draws noise in its forward, on the device",
}
"""Scripts that are different by what a device is, and why."""
WITHOUT_OPTIMIZER = ("functional_updates",)  # their losses are compared


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=needs_half_precision if name == "amp_ignite" else ())
        for name in SCRIPTS
        if name not in REFUSED
    ],
)
def test_every_value_is_that_of_the_host(name, scripts):
    ran = scripts.run(CORPUS / f"{name}.py", PARITY)
    if name in DIFFERENT:
        assert "They differ" in ran.error
    else:
        assert not ran.error, ran.error
        assert ran.result["loss"] > 3 if name in WITHOUT_OPTIMIZER else ran.updates >= 3 and ran.result["parameter"] > 0
