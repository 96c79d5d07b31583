"""Reports of a compared script: text, JSON, and one HTML page with curves."""

from __future__ import annotations

import dataclasses
import html
import json
import math
from typing import Callable, Dict, Iterator, List, Sequence, Tuple

from ignite_ipu.parity.differences import Difference, ScriptParity

_SHOWN = 200
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 220, 64, 28
_LEAST = 1e-6


def as_text(parity: ScriptParity) -> str:
    """Return the report for a terminal."""
    counted = ", ".join(f"{count} of {kind}" for kind, count in parity.counts().items())
    lines = [f"{parity.updates} updates compared: {counted}.", *parity.remarks]
    first = parity.first
    if first is None:
        closest = max(parity.differences, key=lambda each: each.ratio)
        lines.append("They are the same." if closest.ratio else "They are exactly the same.")
        if closest.ratio:
            lines.append(f"Nearest to its tolerance: {closest}.")
        return "\n".join(lines)
    lines.append(f"They differ. First: {first}.")
    others: Dict[str, Difference] = {}
    for each in parity.differences:
        if not each.agrees and each.kind != first.kind:
            others.setdefault(each.kind, each)
    lines += [f"  then {each}" for each in others.values()]
    lines.append("Largest difference of each update, in units of the tolerance:")
    lines.append("  " + "  ".join(f"{update + 1}: {_ratio(ratio)}" for update, ratio in parity.growth()))
    return "\n".join(lines)


def as_json(parity: ScriptParity) -> str:
    """Return every difference as JSON; infinite sizes are null."""
    document = {
        "agrees": parity.agrees,
        "updates": parity.updates,
        "remarks": parity.remarks,
        "losses": {"host": parity.losses[0], "device": parity.losses[1]},
        "growth": [{"update": update + 1, "ratio": _finite(ratio)} for update, ratio in parity.growth()],
        "first": None if parity.first is None else _plain(parity.first),
        "differences": [_plain(each) for each in parity.differences],
    }
    return json.dumps(document, indent=2)


def _plain(difference: Difference) -> Dict[str, object]:
    found = dataclasses.asdict(difference)
    found.update(update=difference.update + 1, agrees=difference.agrees, size=_finite(difference.size))
    return found


def _finite(value: float) -> object:
    return value if math.isfinite(value) else None


def _ratio(ratio: float) -> str:
    return "inf" if math.isinf(ratio) else f"{ratio:.2g}"


def as_html(parity: ScriptParity, title: str) -> str:
    """Return a page without outside resources: the verdict, the loss curves, the growth, and the differences."""
    verdict = "The same" if parity.agrees else "Different"
    name = html.escape(title)
    body = [
        f"<h1>{name}</h1>",
        f'<p class="{"same" if parity.agrees else "different"}">{verdict}</p>',
        f"<pre>{html.escape(as_text(parity))}</pre>",
        "<h2>Loss</h2>",
        *_loss_curves(parity),
        "<h2>Largest difference of each update</h2>",
        f"<p>1, the dashed line, is the largest difference that agrees. The scale is logarithmic and begins at "
        f"{_LEAST:.0e}, where updates without a difference are drawn, too.</p>",
        *_growth_curve(parity),
        *_table(parity),
    ]
    return _PAGE.format(title=name, body="\n".join(body))


def _loss_curves(parity: ScriptParity) -> Iterator[str]:
    host, device = ([value for value in losses if math.isfinite(value)] for losses in parity.losses)
    if not host:
        yield "<p>No loss went backward.</p>"
        return
    yield _chart([("host", host), ("device", device)], "backward pass", "loss")


def _growth_curve(parity: ScriptParity) -> Iterator[str]:
    growth = [max(min(ratio, 1e9), _LEAST) for _, ratio in parity.growth()]
    curve = [math.log10(each) for each in growth]
    yield _chart([("difference", curve)], "update", "units of the tolerance", limit=0.0, label=_power)


def _plain_number(value: float) -> str:
    return f"{value:.3g}"


def _power(exponent: float) -> str:
    return f"{10**exponent:.0e}" if abs(exponent) >= 3 else f"{10**exponent:.1g}"


def _chart(
    curves: Sequence[Tuple[str, Sequence[float]]],
    across: str,
    up: str,
    limit: float = math.nan,
    label: Callable[[float], str] = _plain_number,
) -> str:
    values = [value for _, curve in curves for value in curve] + ([] if math.isnan(limit) else [limit])
    low, high = min(values), max(values)
    high = high if high > low else low + 1.0
    longest = max(len(curve) for _, curve in curves)

    def place(number: int, value: float) -> str:
        x = _LEFT + (_WIDTH - _LEFT - 8) * (number / max(longest - 1, 1))
        y = 8 + (_HEIGHT - _BOTTOM - 8) * (high - value) / (high - low)
        return f"{x:.1f},{y:.1f}"

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + 24}" role="img">']
    for value in (low, (low + high) / 2, high):
        y = place(0, value).split(",")[1]
        parts.append(f'<text x="{_LEFT - 6}" y="{float(y) + 4:.1f}" text-anchor="end">{label(value)}</text>')
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - 8}" y1="{y}" y2="{y}"/>')
    for number in sorted({0, (longest - 1) // 2, longest - 1}):
        x = place(number, low).split(",")[0]
        parts.append(f'<text x="{x}" y="{_HEIGHT - 8}" text-anchor="middle">{number + 1}</text>')
    if not math.isnan(limit):
        y = place(0, limit).split(",")[1]
        parts.append(f'<line class="limit" x1="{_LEFT}" x2="{_WIDTH - 8}" y1="{y}" y2="{y}"/>')
    for style, (name, curve) in enumerate(curves):
        points = " ".join(place(number, value) for number, value in enumerate(curve))
        parts.append(f'<polyline class="curve{style}" points="{points}"/>')
        parts.append(f'<text class="name{style}" x="{_LEFT + 110 * style}" y="{_HEIGHT + 18}">{name}</text>')
    parts.append(f'<text x="{_WIDTH - 8}" y="{_HEIGHT + 18}" text-anchor="end">{up}, by {across}</text></svg>')
    return "\n".join(parts)


def _table(parity: ScriptParity) -> Iterator[str]:
    wrong: List[Difference] = [each for each in parity.differences if not each.agrees]
    if not wrong:
        return
    shown = f"; the first {_SHOWN} are shown" if len(wrong) > _SHOWN else ""
    yield f"<h2>Differences</h2><p>{len(wrong)} of {len(parity.differences)} values{shown}.</p>"
    yield "<table><tr><th>Update</th><th>Kind</th><th>Name</th><th>Difference</th><th>Allowed</th><th>Line</th></tr>"
    for each in wrong[:_SHOWN]:
        size = html.escape(each.remark) if each.remark else f"{each.size:.3g}"
        allowed = "" if each.remark else f"{each.allowed:.3g}"
        cells = [str(each.update + 1), each.kind, html.escape(each.name), size, allowed, html.escape(each.line or "")]
        yield "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
    yield "</table>"


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 960px; margin: 2em auto; padding: 0 1em; color: #222; }}
pre {{ background: #f5f5f5; padding: 1em; overflow-x: auto; white-space: pre-wrap; }}
svg {{ width: 100%; max-width: 760px; font-size: 12px; overflow: visible; }}
table {{ border-collapse: collapse; display: block; overflow-x: auto; }}
td, th {{ border: 1px solid #ddd; padding: 4px 8px; text-align: left; }}
@media (max-width: 600px) {{ svg {{ font-size: 19px; }} }}
.same, .different {{ font-size: 1.4em; font-weight: bold; color: #1a7f37; }}
.different {{ color: #b42318; }}
.grid {{ stroke: #e5e5e5; }}
.limit {{ stroke: #b42318; stroke-dasharray: 4 4; }}
polyline {{ fill: none; stroke-width: 2; }}
.curve0 {{ stroke: #1f5fa8; }} .name0 {{ fill: #1f5fa8; }}
.curve1 {{ stroke: #d9730d; stroke-dasharray: 6 4; }} .name1 {{ fill: #d9730d; }}
</style>
</head>
<body>
{body}
</body>
</html>
"""
