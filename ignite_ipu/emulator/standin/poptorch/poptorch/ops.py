"""PopTorch's name for `ignite_ipu.emulator.ops`."""

from __future__ import annotations

from ignite_ipu.emulator import ops as _module

globals().update({name: value for name, value in vars(_module).items() if not name.startswith("__")})
