"""Runs of a script on both sides in this process, as `ignite-ipu parity` makes them in processes of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Mapping
from unittest import mock

from ignite_ipu import backend
from ignite_ipu.parity.child import DEVICE, HOST, SIDE_VARIABLE, recorded
from ignite_ipu.parity.comparison import ScriptParity, compare

_BACKENDS = {HOST: "native", DEVICE: "emulator"}


def record(script: Path, side: str, *arguments: str, **settings: Any) -> Dict[str, Any]:
    """Return the record of a script on one side."""
    request = {"updates": 6, "seed": 0, "everything": False, "keep_dropout": False, "config": {}, **settings}
    request.update(script=str(script), arguments=list(arguments), module=False, side=side)
    with mock.patch.dict("os.environ", {SIDE_VARIABLE: side, backend.VARIABLE: _BACKENDS[side]}):
        found = recorded(request)
    assert not found["ended"], found["ended"]
    return found


def compared(host: Mapping[str, Any], script: Path, *arguments: str, **settings: Any) -> ScriptParity:
    """Return how the record of a script on the host compares with that of the same script on the device."""
    return compare(host, record(script, DEVICE, *arguments, **settings), 1e-3)


def compare_both(text: str, folder: Path, *arguments: str, **settings: Any) -> ScriptParity:
    """Return how both runs of a script compare, which is written into a folder."""
    script = folder / "train.py"
    script.write_text(text)
    return compared(record(script, HOST, *arguments, **settings), script, *arguments, **settings)


def line_of(parity: ScriptParity, kind: str, text: str) -> str:
    """Return the line of a script that the first difference of a kind names; fails if there is none."""
    found = next((each for each in parity.differences if not each.agrees and each.kind == kind), None)
    assert found is not None, [str(each) for each in parity.differences if not each.agrees][:5]
    return text.splitlines()[int(str(found.line).rpartition(":")[2]) - 1]
