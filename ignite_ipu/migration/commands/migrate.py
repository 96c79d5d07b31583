"""`ignite-ipu migrate`: rewrite GPU code for IPUs, and leave other code alone.

Exit codes: 0 when everything is migrated or there was nothing to do, 1 when something was left alone or needs a
person's eye, 2 when the command itself is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import stat
import sys
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Sequence

import ignite_ipu
from ignite_ipu.cli.terminal import TextLine, following, write_lines
from ignite_ipu.errors import SourceError, UserError, WriteError, listed

if TYPE_CHECKING:
    from ignite_ipu.migration.code_base import Group
    from ignite_ipu.migration.migrator import Migration
    from ignite_ipu.migration.source.discovery import Discovery

_OUTCOMES = ("migrated", "unchanged", "left alone")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `ignite-ipu migrate`."""
    parser.add_argument("paths", nargs="*", metavar="PATH", help="files, notebooks and directories to rewrite")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("-o", "--output", metavar="OUT", help="destination: a file for one file, else a directory")
    how.add_argument("--diff", action="store_true", help="print the changes and write nothing (the default)")
    how.add_argument("--in-place", action="store_true", help="replace the files")
    parser.add_argument(
        "--report",
        choices=("text", "json", "html"),
        default="text",
        help="print files, differences and reasons as JSON or as one HTML page instead of the difference",
    )
    parser.add_argument("--list-rewrites", action="store_true", help="list the rewrites and stop")


def main(args: argparse.Namespace) -> int:
    """Migrate the paths; return the exit code."""
    # Not at the top: these load libcst and the analysis, and `--help` and completion need only the arguments.
    from ignite_ipu.migration.code_base import decide_together
    from ignite_ipu.migration.rewrites import all_rewrites
    from ignite_ipu.migration.source.discovery import discover

    if args.list_rewrites:
        for rewrite in all_rewrites().values():
            print(f"{rewrite.name:<22}{rewrite.summary}")
        return 0
    if not args.paths:
        raise UserError("migrate needs a PATH: a Python file, a notebook or a directory")
    found = discover(args.paths)
    if args.output is not None:
        _check_output(args.paths, args.output)
    files = following(found.files, "Migrating", lambda file: str(file[0]))
    migrations, groups = decide_together([_migrated(path) for path, _ in files])
    failures = [f"skipped: {path} {reason}" for path, reason in found.skipped]
    skipped = len(failures)
    failures += _write(args, found, migrations)
    if args.report != "text":
        report = _json_report if args.report == "json" else _html_page
        print(report(migrations, groups, failures))
    elif args.output is None and not args.in_place:
        write_lines((line for migration in migrations for line in _diff_lines(migration)), sys.stdout)
    remarks = (told for migration in migrations for told in _remarks(migration))
    for told in [*failures, *remarks, *map(_together, groups)]:
        print(told, file=sys.stderr)
    print(f"{len(found.files)} file{'' if len(found.files) == 1 else 's'}: {_summary(migrations)}", file=sys.stderr)
    return 1 if len(failures) > skipped or any(migration.blocked for migration in migrations) else 0


def _migrated(path: str) -> Migration:
    from ignite_ipu.migration.migrator import left_alone, migrate_source
    from ignite_ipu.migration.source.file import Source, decode_source, read_bytes

    source = Source(path, "")
    try:
        data = read_bytes(path)
        source = Source(path, "", data=data)
        source = decode_source(path, data)
        return migrate_source(source)
    except SourceError as error:
        return left_alone(source, error.line, f"the file {error}")
    except OSError as error:
        return left_alone(source, 1, f"the file cannot be read: {error.strerror or error}")


def _write(args: argparse.Namespace, found: Discovery, migrations: List[Migration]) -> Iterator[str]:
    """Write the files, and yield those that could not be written."""
    from ignite_ipu.migration.source.writing import copy_rest, replace_file, write_new_file

    folders = [path for path in args.paths if os.path.isdir(path)]
    names = set()
    for (path, relative), migration in zip(found.files, migrations):
        old = migration.source.data
        if old is None:
            continue
        names.add(relative)
        new = migration.source.encode(migration.text) if migration.changed else old
        written = path
        try:
            if args.in_place and new != old:
                replace_file(path, new, old)
            elif args.output is not None:
                for name in [relative, *(() if folders else found.links.get(path, ()))]:
                    written = _destination(args, name)
                    write_new_file(written, new, stat.S_IMODE(os.stat(path).st_mode))
        except WriteError as error:
            yield f"{written}: not written: the file {error}"
    for folder in folders if args.output is not None else []:
        yield from (f"{path} {reason}" for path, reason in copy_rest(folder, args.output, names))


def _check_output(paths: List[str], output: str) -> None:
    target = os.path.realpath(output)
    for path in paths:
        source = os.path.realpath(path)
        if target == source:
            raise UserError(f"{output} is the input itself; use --in-place to replace it")
        if os.path.isdir(source) and os.path.commonpath([source, target]) == source:
            raise UserError(f"{output} lies inside {path}, where the next run would find it again")
    single = len(paths) == 1 and not os.path.isdir(paths[0])
    if not single and os.path.exists(output) and not os.path.isdir(output):
        raise UserError(f"{output} is a file; a directory is needed to hold the result")


def _destination(args: argparse.Namespace, relative: str) -> str:
    single = len(args.paths) == 1 and not os.path.isdir(args.paths[0])
    if single and not os.path.isdir(args.output):
        return str(args.output)
    return os.path.join(args.output, relative)


def _remarks(migration: Migration) -> Iterator[str]:
    verdict = "left alone" if migration.blocked else "remark"
    for remark in migration.remarks:
        yield f"{migration.place(remark.line)}: {verdict}: {remark.message} [{remark.subject}]"


def _diff_lines(migration: Migration) -> Iterator[TextLine]:
    for text in migration.difference():
        style = {"+": "green", "-": "red", "@": "cyan"}.get(text[0], "")
        yield TextLine([(text[:-1] if text.endswith("\n") else text, style)])
        if not text.endswith("\n"):
            yield TextLine([("\\ No newline at end of file", "")])


def _summary(migrations: Sequence[Migration]) -> str:
    counts = [(sum(each.outcome == outcome for each in migrations), outcome) for outcome in _OUTCOMES]
    return ", ".join(f"{count} {outcome}" for count, outcome in counts if count) or "no Python files"


def _together(group: Group) -> str:
    """Return one sentence on the files that belong together, and their treatment."""
    names = listed(group.paths, most=len(group.paths))
    outcome = f"left alone together because of {group.because}" if group.because else "moved together"
    return f"{outcome}: {names}"


def _json_report(migrations: Sequence[Migration], groups: Sequence[Group], skipped: Sequence[str]) -> str:
    """Return one JSON object, whose `version` changes when its structure does."""
    document = {
        "version": 1,
        "tool": {"name": "ignite-ipu migrate", "version": ignite_ipu.__version__},
        "files": [_file(migration) for migration in migrations],
        "together": [{"paths": list(group.paths), "because": group.because or None} for group in groups],
        "skipped": list(skipped),
    }
    return json.dumps(document, indent=2)


def _html_page(migrations: Sequence[Migration], groups: Sequence[Group], skipped: Sequence[str]) -> str:
    from ignite_ipu.migration.commands.migrate_page import page

    return page(_summary(migrations), migrations, groups, skipped)


def _file(migration: Migration) -> Dict[str, Any]:
    return {
        "path": migration.source.path,
        "outcome": migration.outcome,
        "rewrites": migration.applied,
        "remarks": [
            {"place": migration.place(each.line), "subject": each.subject, "message": each.message}
            for each in migration.remarks
        ],
        "diff": "".join(migration.difference()),
    }
