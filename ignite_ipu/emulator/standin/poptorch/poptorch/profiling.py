"""PopTorch's name for `ignite_ipu.emulator.profiling`."""

from __future__ import annotations

from ignite_ipu.emulator import profiling as _module

globals().update({name: value for name, value in vars(_module).items() if not name.startswith("__")})
