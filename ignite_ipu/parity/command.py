"""`ignite-ipu parity train.py --updates 20 -- ARGS`: a script trained on the host and on the device, compared.

`ignite-ipu parity MODULE:FACTORY` compares steps of one model layer by layer. Exit codes: 0 when both are the same, 1
when they differ, 2 when they cannot be compared.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
from typing import Any

from ignite_ipu.cli.command import EXIT_DONE, EXIT_FINDINGS, CommandParser
from ignite_ipu.cli.targets import blamed_on, load_factory
from ignite_ipu.errors import OptionsError, ParityError, UserError
from ignite_ipu.program import arguments

# A file in front of the colon may have one, too, on other systems.
_FACTORY = re.compile(r".+:[A-Za-z_][\w.]*$")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `ignite-ipu parity`."""
    parser.add_argument(
        "target",
        metavar="SCRIPT|MODULE:FACTORY",
        help="a script or notebook that trains, whose arguments follow --; or a function without arguments that "
        "returns (model, optimizer, loss_fn, batches), whose MODULE may be a .py file",
    )
    parser.set_defaults(arguments=[])
    if isinstance(parser, CommandParser):
        parser.passed_on = "arguments"
    script = parser.add_argument_group("a script")
    script.add_argument(
        "--updates", type=_positive, default=20, metavar="N", help="end both runs after N updates (default: 20)"
    )
    script.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module's name, as of `python -m`")
    script.add_argument("--seed", type=int, default=0, metavar="N", help="seed of torch, numpy, random and hashes")
    script.add_argument("--keep-dropout", action="store_true", help="leave dropout on: its random numbers differ")
    script.add_argument("--everything", action="store_true", help="compare every element of large tensors")
    script.add_argument("--html", metavar="FILE", help="write a page with the loss curves and all differences")
    factory = parser.add_argument_group("a factory")
    factory.add_argument("--steps", type=_positive, default=3, metavar="N", help="weight updates (default: 3)")
    factory.add_argument(
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
        help="allowed difference as a part of the largest value (default: 1e-3 for a script; for a factory 1e-4 in "
        "single, 1e-2 in half precision)",
    )
    parser.add_argument("--json", action="store_true", help="print every difference as JSON")
    arguments.add_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Compare and print; return the exit code."""
    if args.module or not _FACTORY.match(args.target):
        return _compare_script(args)
    if args.arguments:
        raise UserError(f"{args.target} is a factory, which takes no arguments: {' '.join(args.arguments)}")
    return _compare_factory(args)


def _compare_script(args: argparse.Namespace) -> int:
    # Not at the top: these import torch, and `--help` and completion need only the arguments.
    from ignite_ipu.parity.report import as_html, as_json, as_text
    from ignite_ipu.parity.runs import Script, compare_script

    if not args.module and not os.path.isfile(args.target):
        raise UserError(f"there is no script {args.target!r}; a factory is named as MODULE:FACTORY")
    script = Script(args.target, tuple(args.arguments), args.module)
    try:
        parity = compare_script(
            script,
            args.updates,
            config=arguments.given_settings(args).to_dict(),
            seed=args.seed,
            tolerance=1e-3 if args.tolerance is None else args.tolerance,
            everything=args.everything,
            keep_dropout=args.keep_dropout,
        )
    except ParityError as error:
        raise UserError(str(error)) from error
    if args.html is not None:
        with open(args.html, "w", encoding="utf-8") as opened:
            opened.write(as_html(parity, f"{args.target}: host and device"))
    print(as_json(parity) if args.json else as_text(parity))
    return EXIT_DONE if parity.agrees else EXIT_FINDINGS


def _compare_factory(args: argparse.Namespace) -> int:
    from ignite_ipu.migration.trial.notes import raised_at
    from ignite_ipu.parity.layers import compare_training

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
    """Return the reason why the device cannot run a target's model, with the findings of `check --run` in its code."""
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
