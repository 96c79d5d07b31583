"""The pictures in the guide to pipelines are the ones that its code draws."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import pytest

from tests.test_docs import python_blocks

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "pipeline.md").read_text(encoding="utf-8")


def words(picture):
    """All text of a picture, in order."""
    return [text for element in ElementTree.parse(picture).iter() for text in [element.text] if text and text.strip()]


@pytest.mark.parametrize("name", ["plan.svg", "schedule.svg"])
def test_pictures_are_not_stale(name, tmp_path, monkeypatch):
    """Run the page's planning code alone, which needs no engine; `python docs/draw.py` draws the pictures anew."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        namespace = {}
        for block in python_blocks(PAGE):
            if name == "plan.svg" or "schedule = simulate(" in block.code:
                exec(compile(block.code, name, "exec"), namespace)
            if name in block.code:
                break
    drawn, kept = words(tmp_path / name), words(DOCS / "pictures" / name)
    labels = [text for text in kept if text[0] in "FB" and text[1:].isdigit()]
    # Boxes that are too narrow have none; those of the schedule are wide enough.
    assert len(labels) == 2 * 4 * 16 if name == "schedule.svg" else 60 < len(labels) < 2 * 4 * 16
    assert labels == [text for text in drawn if text[0] in "FB" and text[1:].isdigit()]
    assert {text for text in drawn if not text.startswith("Matplotlib v")} - set(kept) == set()


def test_every_picture_is_shown_and_drawn_by_the_page():
    names = sorted(picture.name for picture in (DOCS / "pictures").glob("*.svg"))
    names.remove("rooms.svg")  # of the page on architecture
    assert names == ["chosen.svg", "plan.svg", "scaling.svg", "schedule.svg"]
    for name in names:
        assert f"](pictures/{name})" in PAGE and f'savefig("{name}")' in PAGE
