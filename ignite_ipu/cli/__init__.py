"""The `ignite-ipu` command: parser, terminal, and the subcommands that need no model.

Rooms with a subcommand of their own have a module `command`, which `command` here finds by its name; they import
`terminal` and `targets` alone. Start reading with `command`.
"""

from __future__ import annotations

from ignite_ipu.cli.command import main

__all__ = ["main"]
