"""The `ignite-ipu` command: parser, terminal, and the subcommands that need no model.

The table in `command` has the module of each subcommand, most of which are in other rooms. These import `terminal`,
`targets` and the exit codes of `command`, and the table imports none of them before its use. Start reading with
`command`.
"""

from __future__ import annotations

from ignite_ipu.cli.command import main

__all__ = ["main"]
