"""The registry of rules: every module of this package holds one, under the rule's own name."""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache
from typing import Mapping

from ignite_ipu.migration.findings import Rule


@lru_cache(maxsize=None)
def all_rules() -> Mapping[str, Rule]:
    """Return every rule by name, in alphabetical order."""
    rules = {}
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
        rule = importlib.import_module(f"{__name__}.{module.name}").RULE
        rules[rule.name] = rule
    return rules
