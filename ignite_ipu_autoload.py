"""Entry point of the group `torch.backends`: PyTorch 2.5 and later call `load` when they are imported.

It is a module of its own beside the package, so that `import torch` does not import `ignite_ipu` where
`IGNITE_IPU_AUTO` is not set.
"""

from __future__ import annotations

import os
import sys


def load() -> None:
    """Turn `ignite_ipu.auto` on if `IGNITE_IPU_AUTO` is set, to anything but 0."""
    if os.environ.get("IGNITE_IPU_AUTO", "").strip() in ("", "0"):
        return
    from importlib import import_module

    # PyTorch may be imported by one of these, which is not complete then: Python takes the complete one in its place.
    for package in ("ignite", "accelerate"):
        spec = getattr(sys.modules.get(package), "__spec__", None)
        if getattr(spec, "_initializing", False):
            for name in [name for name in sys.modules if name.split(".")[0] == package]:
                del sys.modules[name]
            import_module(package)
    import_module("ignite_ipu.auto")
