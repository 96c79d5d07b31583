"""Pictures hold their data."""

from __future__ import annotations

import pytest

from ignite_ipu.pipeline import StageTime, draw_memory, draw_plan, draw_scaling, draw_schedule, plan, scale, simulate
from tests.pipeline.planning.test_planner import chain


def test_schedule_has_a_box_per_slot():
    """Boxes lie where the slots do, and the first ones carry the micro-batch's number."""
    schedule = simulate([StageTime(1, 1)] * 4, 8, slots=True)
    axes = draw_schedule(schedule).axes[0]
    boxes = sorted((round(p.get_y() + 0.4), p.get_x(), p.get_x() + p.get_width()) for p in axes.patches)
    assert boxes == sorted((s.ipu, s.start, s.end) for s in schedule.slots)
    assert {"F1", "B8"} <= {text.get_text() for text in axes.texts}
    assert [label.get_text() for label in axes.get_yticklabels()] == [f"IPU {n}" for n in range(4)]


def test_memory_bars_add_up():
    found = plan(chain(8), 4)
    axes = draw_memory(found).axes[0]
    tops = [0.0] * 4
    for bar in axes.patches:
        place = round(bar.get_x() + bar.get_width() / 2)
        tops[place] += bar.get_height()
    assert tops == pytest.approx([memory.total / 1e6 for memory in found.memory_per_ipu])


def test_a_plan_is_drawn_to_a_file(tmp_path):
    found = plan(chain(8), 4)
    figure = draw_plan(found)
    assert "16 of" in figure.axes[0].get_title() or found.accumulation <= 16
    figure.savefig(tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    assert found.draw(micro_batches=7).axes[0].get_title().endswith(f"7 of {found.accumulation} micro-batches shown")


def test_labels_of_a_plan_do_not_overlap_and_times_have_a_unit():
    """Measured on the drawn figure."""
    figure = draw_plan(plan(chain(8), 4))
    figure.canvas.draw()
    schedule = figure.axes[0]
    rows = {}
    for text in schedule.texts:
        rows.setdefault(text.get_position()[1], []).append(text.get_window_extent())
    assert rows
    for boxes in rows.values():
        boxes.sort(key=lambda box: box.x0)
        assert all(left.x1 <= right.x0 for left, right in zip(boxes, boxes[1:]))
    assert schedule.get_xticklabels()[1].get_text().endswith("s")


def test_scaling_is_drawn():
    scaling = scale(chain(8), 2, ipus=16)
    line = draw_scaling(scaling).axes[0].lines[0]
    assert list(line.get_xdata()) == [2, 4, 8, 16]
    assert list(line.get_ydata()) == [p.throughput for p in scaling.plans]
    assert scaling.draw().axes
