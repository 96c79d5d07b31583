"""PopTorch's name for `ignite_ipu.emulator.testing`."""

from __future__ import annotations

from ignite_ipu.emulator import testing as _module

globals().update({name: value for name, value in vars(_module).items() if not name.startswith("__")})
