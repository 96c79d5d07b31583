"""`ignite-ipu parity MODULE:FACTORY`: the same training steps natively and on the device, compared layer by layer.

Exit codes: 0 when they agree, 1 when they diverge, 2 when they cannot be compared.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

from ignite_ipu.cli.command import EXIT_DONE, EXIT_FINDINGS
from ignite_ipu.cli.targets import blamed_on, load_factory
from ignite_ipu.errors import OptionsError, ParityError, UserError
from ignite_ipu.program import arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `ignite-ipu parity` takes."""
    parser.add_argument(
        "target",
        metavar="MODULE:FACTORY",
        help="a function without arguments that returns (model, optimizer, loss_fn, batches); MODULE may be a .py file",
    )
    parser.add_argument("--steps", type=_positive, default=3, metavar="N", help="weight updates (default: 3)")
    parser.add_argument(
        "--half",
        dest="assignments",
        action="append_const",
        const="mixed_precision=fp16",
        default=argparse.SUPPRESS,
        help="short for --set mixed_precision=fp16: multiply in half precision on the device",
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        metavar="PART",
        help="part of the largest value that results may differ by (default: 1e-4 in single, 1e-2 in half precision)",
    )
    parser.add_argument("--json", action="store_true", help="print every difference as JSON")
    arguments.add_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Compare and print; return the exit code."""
    # Not at the top: these import torch, and `--help` and completion need only the arguments.
    from ignite_ipu.migration.parity.comparison import compare_training
    from ignite_ipu.migration.trial.notes import raised_at

    config = arguments.given_settings(args)
    with blamed_on(args.target):
        factory = load_factory(args.target)

    def made() -> Any:
        with blamed_on(args.target):
            return factory()

    try:
        report = compare_training(made, args.steps, config=config, tolerance=args.tolerance)
    except (OptionsError, ParityError) as error:
        raise UserError(str(error)) from error
    except UserError:
        raise
    except Exception as error:
        if type(error).__module__.startswith(("ignite_ipu.", "poptorch")):
            raise UserError(_refused(args.target, error)) from error
        place = raised_at(error)
        if place is None:
            raise
        raise UserError(
            f"{place.path}:{place.line}: {place.where} fails on the device: {type(error).__name__}: {error}"
        ) from error
    document = {"agrees": report.agrees, **dataclasses.asdict(report)}
    document["first"] = report.first and dataclasses.asdict(report.first)
    print(json.dumps(document, indent=2) if args.json else report)
    return EXIT_DONE if report.agrees else EXIT_FINDINGS


def _refused(target: str, error: Exception) -> str:
    """Return why the device cannot run a target's model, with what `check --run` finds in its code."""
    from ignite_ipu.migration.findings import Severity
    from ignite_ipu.migration.rules import all_rules
    from ignite_ipu.migration.trial.findings import with_traced
    from ignite_ipu.migration.trial.trial import try_out

    # PopTorch's errors begin with their kind and with where in its back end they come from.
    reason = f"the device cannot run it: {getattr(error, 'message', error)}"
    try:
        findings, _ = with_traced([], try_out(target), all_rules())
    except UserError:
        return reason  # a factory that gives something once
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    return "\n".join([reason, *[f"  {each.path}:{each.line}: {each.message}. {each.remedy}" for each in errors]])


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number
