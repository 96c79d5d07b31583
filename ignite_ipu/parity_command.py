"""`ignite-ipu parity MODULE:FACTORY`: the same training steps natively and on the device, compared layer by layer.

Exit codes: 0 when they agree, 1 when they diverge, 2 when they cannot be compared.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.util
import json
import os
import sys
from typing import Any

from ignite_ipu.cli import EXIT_DONE, EXIT_FINDINGS, UserError
from ignite_ipu.parity import ParityError, ParityReport, compare_training

__all__ = ["add_arguments", "main"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `ignite-ipu parity` takes."""
    parser.add_argument(
        "target",
        metavar="MODULE:FACTORY",
        help="a function without arguments that returns (model, optimizer, loss_fn, batches); MODULE may be a .py file",
    )
    parser.add_argument("--steps", type=_positive, default=3, metavar="N", help="weight updates (default: 3)")
    parser.add_argument(
        "--gradient-accumulation", type=_positive, default=1, metavar="N", help="micro-batches per update and replica"
    )
    parser.add_argument("--replication-factor", type=_positive, default=1, metavar="N", help="replicas on the device")
    parser.add_argument("--half", action="store_true", help="multiply in half precision on the device")
    parser.add_argument(
        "--tolerance",
        type=float,
        metavar="PART",
        help="part of the largest value that results may differ by (default: 1e-4 in single, 1e-2 in half precision)",
    )
    parser.add_argument("--json", action="store_true", help="print every difference as JSON")


def main(args: argparse.Namespace) -> int:
    """Compare and print; return the exit code."""
    factory = _factory(args.target)
    try:
        report = compare_training(
            factory,
            args.steps,
            gradient_accumulation_steps=args.gradient_accumulation,
            replication_factor=args.replication_factor,
            half=args.half,
            tolerance=args.tolerance,
        )
    except ParityError as error:
        raise UserError(str(error)) from error
    except Exception as error:
        if type(error).__module__.startswith(("ignite_ipu.", "poptorch")):
            raise UserError(f"the device cannot run it: {error}") from error
        raise
    print(json.dumps(_as_json(report), indent=2) if args.json else report)
    return EXIT_DONE if report.agrees else EXIT_FINDINGS


def _as_json(report: ParityReport) -> Any:
    first = report.first
    return {
        "agrees": report.agrees,
        "steps": report.steps,
        "micro_batches": report.micro_batches,
        "remarks": list(report.remarks),
        "first": None if first is None else dataclasses.asdict(first),
        "differences": [dataclasses.asdict(difference) for difference in report.differences],
    }


def _factory(target: str) -> Any:
    path, _, name = target.rpartition(":")
    if not path or not name:
        raise UserError(f"{target!r} is not of the form MODULE:FACTORY, such as my_model:make or my_model.py:make")
    factory = getattr(_load(path), name, None)
    if not callable(factory):
        raise UserError(f"{path} has no function {name!r}")
    return factory


def _load(path: str) -> Any:
    if path.endswith(".py"):
        if not os.path.isfile(path):
            raise UserError(f"there is no file {path!r}")
        name = os.path.basename(path)[:-3]
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
        spec.loader.exec_module(module)
        return module
    # The command's own directory, not the caller's, is where Python looks first.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not (path == error.name or path.startswith(f"{error.name}.")):
            raise
        raise UserError(f"there is no module {path!r}; a file needs its .py ending") from error


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number
