"""What a file that `torch.save` has written needs to be loaded."""

from __future__ import annotations

import pickletools
import zipfile
from pathlib import Path

from ignite_ipu.selftest.reference import expect

__all__ = ["expect_plain"]

_NEEDED_HERE = ("ignite_ipu", "popart", "poptorch")


def expect_plain(path: Path) -> None:
    """See that a file loads where there is neither PopTorch nor this library.

    Raises:
        AssertionError: It names something of theirs.
    """
    with zipfile.ZipFile(path) as archive:
        (pickled,) = [name for name in archive.namelist() if name.endswith("data.pkl")]
        # torch.save writes pickle's protocol 2, where every class and function is named by a GLOBAL.
        named = {str(value) for code, value, _ in pickletools.genops(archive.read(pickled)) if code.name == "GLOBAL"}
    ours = sorted(name for name in named if name.split()[0].split(".")[0] in _NEEDED_HERE)
    expect(not ours, f"{path.name} cannot be loaded without {', '.join(ours)}")
