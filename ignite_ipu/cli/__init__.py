"""The `ignite-ipu` command: parser, terminal, and the subcommands that need no model."""

from __future__ import annotations

from ignite_ipu.cli.command import main

__all__ = ["main"]
