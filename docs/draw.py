"""Run the guide to pipelines and keep the pictures that its code draws: `python docs/draw.py`."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent))


def draw(into: Path) -> None:
    """Write the pictures of `pipeline.md` into a directory, their text as text."""
    import matplotlib

    from tests.test_docs import run_blocks

    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            with matplotlib.rc_context(
                {"svg.fonttype": "none", "svg.hashsalt": "ignite-ipu"}
            ):
                run_blocks(DOCS / "pipeline.md")
        finally:
            os.chdir(before)
        for picture in sorted(Path(folder).glob("*.svg")):
            text = "\n".join(
                line.rstrip()
                for line in picture.read_text(encoding="utf-8").splitlines()
            )
            (into / picture.name).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    os.environ.setdefault("SOURCE_DATE_EPOCH", "0")
    draw(DOCS / "pictures")
