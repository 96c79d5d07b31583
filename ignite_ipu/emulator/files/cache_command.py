"""The `ignite-ipu cache` command, which lists, verifies and prunes a directory of cached executables."""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from typing import Optional, Sequence

from ignite_ipu.emulator.files import cache

_DIRECTORY_VARIABLE = "POPTORCH_CACHE_DIR"
_DAY = 24 * 3600


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    parser.add_argument("action", choices=("list", "verify", "prune"), help="what to do with the cache")
    parser.add_argument(
        "directory",
        nargs="?",
        default=os.environ.get(_DIRECTORY_VARIABLE),
        help=f"the cache; by default the one that {_DIRECTORY_VARIABLE} names",
    )
    chosen = parser.add_argument_group("what prune deletes, besides damaged entries")
    chosen.add_argument("--older-than", type=float, metavar="DAYS", help="entries not used for so long")
    chosen.add_argument("--max-size", type=float, metavar="MB", help="the least recently used, until the rest fits")
    chosen.add_argument("--all", action="store_true", help="every entry")
    chosen.add_argument("--dry-run", action="store_true", help="say what would be deleted, delete nothing")


def main(args: argparse.Namespace) -> int:
    """Do what was asked for; return 1 when verify finds damage, 2 when there is no such cache."""
    if args.directory is None:
        return _complain(f"no cache directory was given, and {_DIRECTORY_VARIABLE} is not set")
    if not os.path.isdir(args.directory):
        return _complain(f"there is no directory {args.directory}")
    if args.action == "prune":
        return _prune(args)
    found = cache.entries(args.directory, verify=args.action == "verify")
    for entry in found:
        print(_line(entry))
    damaged = sum(entry.problem is not None for entry in found)
    print(f"{len(found)} entries, {sum(entry.size for entry in found) / 1e6:.1f} MB, {damaged} damaged")
    return 1 if damaged and args.action == "verify" else 0


def run(argv: Optional[Sequence[str]] = None) -> int:
    """Run as a program of its own."""
    parser = argparse.ArgumentParser(
        prog="python -m ignite_ipu.emulator.files.cache_command",
        description="List, verify or prune an executable cache.",
    )
    add_arguments(parser)
    return main(parser.parse_args(argv))


def _prune(args: argparse.Namespace) -> int:
    gone = cache.prune(
        args.directory,
        older_than=None if args.older_than is None else args.older_than * _DAY,
        largest=0 if args.all else None if args.max_size is None else int(args.max_size * 1e6),
        dry_run=args.dry_run,
    )
    for entry in gone:
        print(_line(entry))
    size = sum(entry.size for entry in gone)
    print(f"{len(gone)} entries, {size / 1e6:.1f} MB {'to delete' if args.dry_run else 'deleted'}")
    return 0


def _line(entry: cache.Entry) -> str:
    name = os.path.basename(entry.path)[:16]
    used = datetime.datetime.fromtimestamp(entry.used).strftime("%Y-%m-%d %H:%M:%S")
    if entry.problem is not None:
        return f"{name:<16}  {entry.size / 1e6:8.2f} MB  {used}  damaged: {entry.problem}"
    kind = "training" if entry.header.get("training") else "inference"
    return (
        f"{name:<16}  {entry.size / 1e6:8.2f} MB  {used}  {kind:<9}  {entry.header.get('operators')} operators  "
        f"{entry.header.get('name')}"
    )


def _complain(what: str) -> int:
    print(f"error: {what}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(run())
