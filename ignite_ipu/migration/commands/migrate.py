"""`ignite-ipu migrate`: rewrite GPU code for IPUs, leaving alone what cannot be moved.

Exit codes: 0 when everything is migrated or there was nothing to do, 1 when something was left alone or needs a
person's eye, 2 when the command itself is wrong.
"""

from __future__ import annotations

import argparse
import difflib
import io
import os
import stat
import sys
from dataclasses import dataclass, field
from typing import Iterator, List, Sequence

from ignite_ipu.cli.terminal import Line, following, write_lines
from ignite_ipu.errors import SourceError, UserError, WriteError
from ignite_ipu.migration.migrator import Migration, migrate_source
from ignite_ipu.migration.rewrites import all_rewrites
from ignite_ipu.migration.source.discovery import discover
from ignite_ipu.migration.source.file import Source, decode_source, read_source
from ignite_ipu.migration.source.writing import replace_file, write_new_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `ignite-ipu migrate` takes."""
    parser.add_argument("paths", nargs="*", metavar="PATH", help="files, notebooks and directories to rewrite")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("-o", "--output", metavar="OUT", help="where to write: a file for one file, else a directory")
    how.add_argument("--diff", action="store_true", help="print what would change and write nothing (the default)")
    how.add_argument("--in-place", action="store_true", help="replace the files")
    parser.add_argument("--list-rewrites", action="store_true", help="list the rewrites and stop")


@dataclass
class _Tally:
    migrated: int = 0
    unchanged: int = 0
    left_alone: int = 0
    remarks: List[str] = field(default_factory=list)
    failed: bool = False

    def leave_alone(self, place: str, reason: str) -> None:
        self.left_alone += 1
        self.failed = True
        self.remarks.append(f"{place}: left alone: {reason}")


def main(args: argparse.Namespace) -> int:
    """Migrate the paths; return the exit code."""
    if args.list_rewrites:
        for rewrite in all_rewrites().values():
            print(f"{rewrite.name:<22}{rewrite.summary}")
        return 0
    if not args.paths:
        raise UserError("migrate needs a PATH: a Python file, a notebook or a directory")
    found = discover(args.paths)
    if args.output is not None:
        _check_output(args.paths, args.output)
    # A diff on the same terminal shows well enough how far things have come.
    writes = args.output is not None or args.in_place
    tally = _Tally(remarks=[f"skipped: {path} {reason}" for path, reason in found.skipped])
    for path, relative in following(found.files, "Migrating") if writes else found.files:
        names = [relative, *found.links.get(path, ())] if args.output is not None else []
        _migrate_file(path, [_destination(args, name) for name in names], args.in_place, tally)
    for remark in tally.remarks:
        print(remark, file=sys.stderr)
    parts = [(tally.migrated, "migrated"), (tally.unchanged, "unchanged"), (tally.left_alone, "left alone")]
    summary = ", ".join(f"{count} {word}" for count, word in parts if count) or "no Python files"
    print(f"{len(found.files)} file{'' if len(found.files) == 1 else 's'}: {summary}", file=sys.stderr)
    return 1 if tally.failed else 0


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


def _migrate_file(path: str, destinations: Sequence[str], in_place: bool, tally: _Tally) -> None:
    try:
        read_source(path)  # refuses what is too large to be read
        with open(path, "rb") as file:
            data = file.read()
        source = decode_source(path, data)
    except SourceError as error:
        tally.leave_alone(f"{path}:{error.line}", f"the file {error}")
        return
    except OSError as error:
        tally.leave_alone(path, error.strerror or str(error))
        return
    try:
        migration = migrate_source(source)
    except SourceError as error:
        tally.leave_alone(_place(source, error.line), f"the file {error}")
        return
    new = source.encode(migration.text) if migration.changed else data
    _count(migration, tally)
    written = path
    try:
        for destination in destinations:
            written = destination
            write_new_file(destination, new, stat.S_IMODE(os.stat(path).st_mode))
        if destinations or new == data:
            return
        if in_place:
            replace_file(path, new, data)
        else:
            _print_diff(path, source.text, migration.text)
    except WriteError as error:
        tally.failed = True
        tally.remarks.append(f"{written}: not written: the file {error}")


def _count(migration: Migration, tally: _Tally) -> None:
    if migration.blocked:
        tally.left_alone += 1
        tally.failed = True
    elif migration.changed:
        tally.migrated += 1
    else:
        tally.unchanged += 1
    verdict = "left alone" if migration.blocked else "remark"
    for remark in migration.remarks:
        place = _place(migration.source, remark.line)
        tally.remarks.append(f"{place}: {verdict}: {remark.message} [{remark.subject}]")


def _place(source: Source, line: int) -> str:
    """Return the file, the notebook's cell and the line in it of a line of the text."""
    cell, inside = source.locate(line)
    return f"{source.path}:{inside}" if cell is None else f"{source.path}:cell {cell}:{inside}"


def _print_diff(path: str, old: str, new: str) -> None:
    # Not str.splitlines, which takes a form feed for the end of a line.
    before, after = (list(io.StringIO(text, newline="\n")) for text in (old, new))
    lines = difflib.unified_diff(before, after, f"a/{path}", f"b/{path}")
    write_lines((line for text in lines for line in _diff_lines(text)), sys.stdout)


def _diff_lines(text: str) -> Iterator[Line]:
    style = {"+": "green", "-": "red", "@": "cyan"}.get(text[0], "")
    yield Line([(text[:-1] if text.endswith("\n") else text, style)])
    if not text.endswith("\n"):
        yield Line([("\\ No newline at end of file", "")])
