"""PopTorch 3.3's public API on the host's CPU, with an IPU's semantics.

`import ignite_ipu.emulator as poptorch` gives the same names as `import poptorch` on a machine with Graphcore's SDK;
`install` makes `import poptorch` itself work. `NOT_IN_POPTORCH` lists the names of `__all__` that are the emulator's
own.

The modules behind the names are imported with the first use of one. `torch.nn.Module.autocast`, which is a method and
no name of the package, exists from the import on. The room imports `operators` and `torch_names`, and nothing of the
shim. Start reading with `api`, then `compiler.tracing` and `runtime`.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, List

from ignite_ipu.emulator.trace import autocasting as autocasting

if TYPE_CHECKING:
    from ignite_ipu.emulator.api import *  # noqa: F403
    from ignite_ipu.emulator.api import NOT_IN_POPTORCH as NOT_IN_POPTORCH


def __getattr__(name: str) -> Any:
    if name.startswith("__") and name not in ("__all__", "__version__"):
        raise AttributeError(name)  # the import system reads these of each module
    if find_spec(f"{__name__}.{name}") is not None:
        return import_module(f"{__name__}.{name}")
    api = import_module(f"{__name__}.api")
    globals().update({each: getattr(api, each) for each in (*api.__all__, "__all__", "NOT_IN_POPTORCH")})
    try:
        return globals()[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__() -> List[str]:
    return sorted({*globals(), *import_module(f"{__name__}.api").__all__})
