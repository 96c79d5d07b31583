"""Models that are compiled for a GPU: in native runs alone."""

from __future__ import annotations

import pytest

REWRITE = "compiled-models"
IMPORTS = "import torch\nfrom ignite_ipu import is_native\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("model = torch.compile(model)", "model = torch.compile(model) if is_native() else model"),
        (
            "if compiled:\n    net.body = torch.compile(model=net.body, mode='x')",
            "if compiled:\n    net.body = torch.compile(model=net.body, mode='x') if is_native() else net.body",
        ),
        ("model = wrap(torch.compile(model))", "model = wrap((torch.compile(model) if is_native() else model))"),
    ],
)
def test_a_model_that_has_a_name(rewritten, before, after):
    assert rewritten(REWRITE, f"import torch\n{before}\n") == f"{IMPORTS}{after}\n"
    assert rewritten(REWRITE, f"{IMPORTS}{after}\n") == f"{IMPORTS}{after}\n"


@pytest.mark.parametrize("code", ["model = torch.compile(Net())", "@torch.compile\ndef loss(x, y):\n    return x - y"])
def test_others_stay(rewritten, code):
    """A choice would make the model twice; `check` says what to write."""
    assert rewritten(REWRITE, f"import torch\n{code}\n") == f"import torch\n{code}\n"
