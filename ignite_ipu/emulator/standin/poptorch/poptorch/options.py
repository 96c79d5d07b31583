"""PopTorch's name for `ignite_ipu.emulator.options`."""

from __future__ import annotations

from ignite_ipu.emulator import options as _module

globals().update({name: value for name, value in vars(_module).items() if not name.startswith("__")})
