"""`ignite-ipu check`: report code that will not work, or will silently differ, on an IPU, without running it.

`--run` is the one exception: it imports the module it is given, calls the factory, and compiles its model on the
emulator, to report findings of a trace. Findings are written for people, for programs (JSON) and for code hosts
(SARIF 2.1.0).

Exit codes: 0 when nothing is found that fails the check, 1 when something is, 2 when the command itself is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Dict, Optional

from ignite_ipu.cli.terminal import write_lines
from ignite_ipu.errors import UserError

if TYPE_CHECKING:
    from ignite_ipu.migration.checker import CheckReport
    from ignite_ipu.migration.findings import Rule


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `ignite-ipu check`."""
    parser.add_argument("paths", nargs="*", metavar="PATH", help="files, notebooks and directories to read")
    parser.add_argument(
        "--run",
        metavar="MODULE:FACTORY",
        help="RUNS YOUR CODE: import the module (or FILE.py:FACTORY), call the factory, which returns (model, "
        "optimizer, loss_fn, batches) as for `ignite-ipu parity`, or (model, inputs) as for `ignite-ipu plan`, compile "
        "the model on the emulator, and report its findings, too: captured values, operators, shapes",
    )
    parser.add_argument(
        "--format", choices=("text", "json", "sarif"), default="text", help="format of the findings (default: text)"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write the findings there instead of to standard output")
    parser.add_argument(
        "--for",
        choices=("run", "migrate", "source"),
        default="source",
        dest="purpose",
        help="your next command: `run` leaves out the findings that `ignite-ipu run` handles, `migrate` those that "
        "`ignite-ipu migrate` rewrites, `source` none (default: source; each finding names its outcome in `run`)",
    )
    parser.add_argument("--select", metavar="RULES", help="apply these rules only, separated by commas")
    parser.add_argument("--ignore", metavar="RULES", help="leave these rules out, separated by commas")
    parser.add_argument(
        "--fail-on",
        choices=("error", "warning", "note", "never"),
        default="warning",
        help="the mildest finding that makes the exit code 1 (default: warning)",
    )
    parser.add_argument("--list-rules", action="store_true", help="list the rules and stop")


def main(args: argparse.Namespace) -> int:
    """Check the paths and print the findings; return the exit code."""
    # Not at the top: it loads the analysis, and `--help` and completion need only the arguments.
    from ignite_ipu.migration.checker import check_paths
    from ignite_ipu.migration.findings import Outcome, Severity

    rules = _chosen_rules(args.select, args.ignore)
    if args.list_rules:
        width = max(len(name) for name in rules)
        for rule in rules.values():
            print(f"{rule.name:<{width}}  {rule.severity.value:<7}  {rule.run.value:<11}  {rule.summary}")
        return 0
    if not args.paths and args.run is None:
        raise UserError("check needs a PATH (a Python file, a notebook or a directory), or --run MODULE:FACTORY")
    report = check_paths(args.paths, rules.values())
    if args.run is not None:
        _run(args.run, report, rules)
    if args.purpose == "run":
        report.keep(lambda finding: finding.run is not Outcome.HANDLED)
    elif args.purpose == "migrate":
        _keep_what_migrate_leaves(report)
    _write(report, rules, args.format, args.output)
    if args.fail_on == "never":
        return 0
    limit = Severity(args.fail_on).rank
    counted = [each for each in report.findings if not (args.purpose == "run" and each.run.trains)]
    return 1 if any(each.severity.rank <= limit for each in counted) else 0


def _run(target: str, report: CheckReport, rules: Dict[str, Rule]) -> None:
    # Imported here: this is the only part of the command that needs torch and the emulator's compiler.
    from ignite_ipu.migration.trial.findings import with_traced
    from ignite_ipu.migration.trial.trial import try_out

    trial = try_out(target)
    report.findings, suppressed = with_traced(report.findings, trial, rules)
    report.suppressed += suppressed
    report.run = trial


def _keep_what_migrate_leaves(report: CheckReport) -> None:
    # Imported here: it needs LibCST, and only this does.
    from ignite_ipu.migration.migrator import rewritten_rules
    from ignite_ipu.migration.source.file import read_source

    read = {finding.path for finding in report.findings if finding.rule != "unreadable-source"}
    rewritten = {path: rewritten_rules(read_source(path)) for path in read if os.path.isfile(path)}
    report.keep(lambda finding: finding.rule not in rewritten.get(finding.path, ()))


def _write(report: CheckReport, rules: Dict[str, Rule], form: str, output: Optional[str]) -> None:
    from ignite_ipu.migration.commands.check_reports import json_report, report_lines, sarif_report, text_report

    if form == "text" and output is None:
        write_lines(report_lines(report), sys.stdout)
        return
    text = sarif_report(report, rules) if form == "sarif" else {"text": text_report, "json": json_report}[form](report)
    if output is None:
        print(text)
        return
    try:
        with open(output, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    except OSError as error:
        raise UserError(f"cannot write {output}: {error.strerror}") from None


def _chosen_rules(select: Optional[str], ignore: Optional[str]) -> Dict[str, Rule]:
    from ignite_ipu.migration.rules import all_rules

    rules = dict(all_rules())
    for option, text in (("--select", select), ("--ignore", ignore)):
        names = {name.strip() for name in (text or "").split(",")} - {""}
        for name in sorted(names - all_rules().keys()):
            raise UserError(f"{option}: there is no rule {name!r}; `ignite-ipu check --list-rules` lists them")
        if text is not None:
            rules = {name: rule for name, rule in rules.items() if (name in names) is (option == "--select")}
    if not rules:
        raise UserError("no rule is left to apply")
    # A file that cannot be read must not pass for a clean one.
    rules["unreadable-source"] = all_rules()["unreadable-source"]
    return rules
