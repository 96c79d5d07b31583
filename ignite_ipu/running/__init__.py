"""Running an unmodified GPU script on IPUs: what it asks of CUDA, Ignite and PyTorch is substituted while it runs."""

from __future__ import annotations

from ignite_ipu.errors import RunError
from ignite_ipu.running.script import run_module, run_script
from ignite_ipu.running.script_code import Substitution

__all__ = ["RunError", "Substitution", "run_module", "run_script"]
