"""Batches of a poptorch.DataLoader in an asynchronous mode that are kept beyond their iteration.

An asynchronous loader writes later batches into the same memory: a label that is kept shows a later batch's values.

Remedy: Keep a clone: `labels.append(y.clone())`.

Example:
      import poptorch

      loader = poptorch.DataLoader(poptorch.Options(), data, mode=poptorch.DataLoaderMode.Async)
      labels = []
      for x, y in loader:
    -     labels.append(y)
    +     labels.append(y.clone())
"""

from __future__ import annotations

import ast

from ignite_ipu.migration.analysis.names import argument, dotted, method_calls, names_bound, walk
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.ERROR, Outcome.UNCHANGED


def check(program: Program) -> Hits:
    asynchronous = {target for target, value in program.assigned if _is_asynchronous(program, value)}
    for loop in program.nodes(ast.For):
        if not any(dotted(part) in asynchronous for part in walk(loop.iter)):
            continue
        batch = names_bound(loop.target)
        for call, _ in method_calls(walk(loop), "append"):
            kept = call.args[0] if call.args else None
            if isinstance(kept, ast.Name) and kept.id in batch:
                yield Hit(call, f"{kept.id} is kept, and the loader will write another batch into it")


def _is_asynchronous(program: Program, value: ast.expr) -> bool:
    if program.names.called(value) == "poptorch.AsynchronousDataAccessor":
        return True
    if program.names.called(value) != "poptorch.DataLoader" or not isinstance(value, ast.Call):
        return False
    mode = argument(value, "mode")
    return mode is not None and (program.names.resolve(mode) or "").startswith("poptorch.DataLoaderMode.Async")
