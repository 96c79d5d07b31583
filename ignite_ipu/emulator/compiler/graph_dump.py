"""Showing the captured graph: in the log at level TRACE, and in the file that POPTORCH_EXPORT_PROTO_FILE names."""

from __future__ import annotations

import logging
import os
from typing import Iterator

from ignite_ipu.emulator.compiler.graph import Graph
from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.logs import logger

EXPORT_VARIABLE = "POPTORCH_EXPORT_PROTO_FILE"
BINARY_VARIABLE = "POPTORCH_EXPORT_PROTO_AS_BINARY"
LENGTH_VARIABLE = "POPTORCH_MAX_GRAPH_LEN"


def dump(graph: Graph) -> None:
    """Write the graph wherever the environment and the log level ask for it.

    PopTorch exports ONNX; this writes text, one line an operator: its site, result, name, inputs and source.

    Raises:
        Error: A binary export is asked for, the file cannot be written, or the length is no integer.
    """
    if logger.isEnabledFor(logging.DEBUG):
        lines = list(_lines(graph))
        most = _longest()
        left = f"\n... and {len(lines) - most} more (see {LENGTH_VARIABLE})" if len(lines) > most else ""
        logger.debug("The graph handed to the back end:\n%s%s", "\n".join(lines[:most]), left)
    path = os.environ.get(EXPORT_VARIABLE)
    if not path:
        return
    if os.environ.get(BINARY_VARIABLE, "0") not in ("", "0"):
        raise backend_error(f"{BINARY_VARIABLE} is refused: the emulator has no binary form of a graph. Unset it.")
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in _lines(graph))
    except OSError as error:
        raise backend_error(f"The graph cannot be written to {EXPORT_VARIABLE}={path!r}: {error}.") from error


def _lines(graph: Graph) -> Iterator[str]:
    for node in graph.nodes.nodes:
        if "operator" not in node.meta:
            continue
        site = node.meta["site"]
        inputs = ", ".join(source.name for source in node.all_input_nodes)
        made = f"{node.name}: {node.meta.get('dtype')}{list(node.meta.get('shape', ()))}"
        file, line = node.meta["source"] or ("?", 0)
        where = f"[ipu {site.ipu} stage {site.stage} phase {site.phase}]"
        yield f"{where} {made} = {node.meta['operator']}({inputs})  # {file}:{line}"


def _longest() -> int:
    text = os.environ.get(LENGTH_VARIABLE, "10")
    try:
        return int(text)
    except ValueError:
        raise backend_error(f"{LENGTH_VARIABLE} must be an integer, got {text!r}.") from None
