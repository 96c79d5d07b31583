"""autocast and GradScaler are on in native runs only, whatever a configuration says besides."""

from __future__ import annotations

import pytest

REWRITE = "mixed-precision"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("torch.autocast('cuda')", "torch.autocast('cuda', enabled=is_native())"),
        ("torch.autocast('cuda', torch.float16, amp)", "torch.autocast('cuda', torch.float16, amp and is_native())"),
        ("torch.autocast('cuda', enabled=a or b)", "torch.autocast('cuda', enabled=(a or b) and is_native())"),
        ("torch.cuda.amp.autocast(use_amp)", "torch.cuda.amp.autocast(use_amp and is_native())"),
        ("torch.cuda.amp.GradScaler()", "torch.cuda.amp.GradScaler(enabled=is_native())"),
        ("torch.cuda.amp.GradScaler(enabled=True)", "torch.cuda.amp.GradScaler(enabled=is_native())"),
        (
            "torch.amp.GradScaler(enabled=c['amp'])",
            "torch.amp.GradScaler(enabled=c['amp'] and is_native())",
        ),
        ("torch.autocast('cpu', enabled=False)", "torch.autocast('cpu', enabled=False)"),
        ("torch.autocast(**options)", "torch.autocast(**options)"),
    ],
)
def test_calls(rewritten, before, after):
    imported = "from ignite_ipu import is_native\n" if after != before else ""
    result = rewritten(REWRITE, f"import torch\nx = {before}\n")
    assert result == f"import torch\n{imported}x = {after}\n"
    assert rewritten(REWRITE, result) == result


def test_imported_names_and_decorators(rewritten):
    before = "from torch.cuda.amp import autocast\n@autocast()\ndef f(): pass\nwith autocast(amp): pass\n"
    after = before.replace("autocast()", "autocast(enabled=is_native())").replace("(amp)", "(amp and is_native())")
    assert rewritten(REWRITE, before) == after.replace("autocast\n", "autocast\nfrom ignite_ipu import is_native\n", 1)


@pytest.mark.parametrize(
    "factory", ["ignite.engine import create_supervised_trainer", "ignite_ipu import create_ipu_trainer"]
)
def test_scalers_that_a_trainer_is_given(rewritten, factory):
    """They mean automatic loss scaling there."""
    name = factory.split()[-1]
    before = f"import torch\nfrom {factory}\nscaler = torch.cuda.amp.GradScaler()\n{name}(m, o, l, scaler=scaler)\n"
    assert rewritten(REWRITE, before) == before
