"""`python -m ignite_ipu` is the `ignite-ipu` command."""

from __future__ import annotations

import sys

from ignite_ipu.cli.command import main

if __name__ == "__main__":
    sys.exit(main())
