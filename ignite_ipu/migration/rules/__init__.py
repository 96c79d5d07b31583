"""The registry of rules: every module of this package is one, under its own name, described by its docstring."""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache
from typing import Mapping

from ignite_ipu.migration.docstrings import texts_of
from ignite_ipu.migration.findings import Rule


@lru_cache(maxsize=None)
def all_rules() -> Mapping[str, Rule]:
    """Return every rule by name, in alphabetical order."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return {rule.name: rule for rule in map(_rule, names)}


def _rule(name: str) -> Rule:
    module = importlib.import_module(f"{__name__}.{name}")
    return Rule(
        name.replace("_", "-"),
        module.SEVERITY,
        module.RUN,
        *texts_of(module),
        check=getattr(module, "check", None),
        latent=getattr(module, "latent", None),
        rewritten=getattr(module, "REWRITTEN", False),
    )
