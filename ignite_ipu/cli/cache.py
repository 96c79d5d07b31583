"""The `ignite-ipu cache` command, which lists, verifies and prunes a directory of cached executables."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import sys
import time
from typing import TYPE_CHECKING, List

if TYPE_CHECKING:
    from ignite_ipu.emulator.files import cache

_DIRECTORY_VARIABLE = "POPTORCH_CACHE_DIR"
_DAY = 24 * 3600


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("action", choices=("list", "verify", "prune"), help="the action on the cache")
    parser.add_argument(
        "directory",
        nargs="?",
        default=os.environ.get(_DIRECTORY_VARIABLE),
        help=f"the cache; by default the one that {_DIRECTORY_VARIABLE} names",
    )
    chosen = parser.add_argument_group("entries that prune deletes, besides damaged ones")
    chosen.add_argument("--older-than", type=float, metavar="DAYS", help="entries not used for so long")
    chosen.add_argument("--max-size", type=float, metavar="MB", help="the least recently used, until the rest fits")
    chosen.add_argument("--all", action="store_true", help="every entry")
    chosen.add_argument("--dry-run", action="store_true", help="list the entries that would be deleted, delete nothing")


def main(args: argparse.Namespace) -> int:
    """Run the command; return 1 when verify finds damage, 2 when there is no such cache."""
    # Not at the top: it imports torch, and `--help` and completion need only the arguments.
    from ignite_ipu.emulator.files import cache

    if args.directory is None or not os.path.isdir(args.directory):
        missing = f"no cache directory was given, and {_DIRECTORY_VARIABLE} is not set"
        print("error:", f"there is no directory {args.directory}" if args.directory else missing, file=sys.stderr)
        return 2
    found = cache.entries(args.directory)
    damaged = sum(entry.problem is not None for entry in found)
    end = f", {damaged} damaged"
    if args.action == "prune":
        found = _doomed(found, args)
        end = " to delete" if args.dry_run else " deleted"
        for entry in [] if args.dry_run else found:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(entry.path)
    for entry in found:
        print(_line(entry))
    print(f"{len(found)} entries, {sum(entry.size for entry in found) / 1e6:.1f} MB{end}")
    return 1 if damaged and args.action == "verify" else 0


def _doomed(found: List[cache.Entry], args: argparse.Namespace) -> List[cache.Entry]:
    oldest = 0.0 if args.older_than is None else time.time() - args.older_than * _DAY
    doomed = [entry for entry in found if args.all or entry.problem is not None or entry.used < oldest]
    kept = [entry for entry in found if entry not in doomed]
    while args.max_size is not None and sum(entry.size for entry in kept) > int(args.max_size * 1e6):
        doomed.append(kept.pop(0))
    return doomed


def _line(entry: cache.Entry) -> str:
    used = datetime.datetime.fromtimestamp(entry.used).strftime("%Y-%m-%d %H:%M:%S")
    about = f"damaged: {entry.problem}"
    if entry.problem is None:
        kind = "training" if entry.about.get("training") else "inference"
        about = f"{kind:<9}  {entry.about.get('operators')} operators  {entry.about.get('name')}"
    return f"{os.path.basename(entry.path)[:16]:<16}  {entry.size / 1e6:8.2f} MB  {used}  {about}"
