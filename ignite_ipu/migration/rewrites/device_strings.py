"""Choices and names of GPUs become host_device().

Example:
      import torch
    + from ignite_ipu import host_device

    - device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    + device = host_device()
      model = torch.nn.Linear(2, 2).to(device)
"""

from __future__ import annotations

import ast
from typing import Iterable, Optional, Set

from ignite_ipu.migration.analysis.devices import chosen_gpu, demands_of_gpu, gpu_name, is_guarded
from ignite_ipu.migration.analysis.kinds import default_of, parameters_of
from ignite_ipu.migration.analysis.names import owner_of
from ignite_ipu.migration.program import Program
from ignite_ipu.migration.rewriting.editor import Editor, RewriteRefused

_DEVICE_KEYWORDS = {"device", "map_location"}
# Methods whose first argument may be a device.
_DEVICE_METHODS = ("to", "to_empty", "device")
# Functions of torch whose first argument is one.
_DEVICE_FUNCTIONS = ("torch.set_default_device", "torch.Generator")


def apply(editor: Editor) -> None:
    """Replace the choice as a whole where it is one, else the question and the literals.

    Raises:
        RewriteRefused: The program demands a GPU, which no other text of it could mean.
    """
    program = editor.program
    for demand in demands_of_gpu(program):
        raise RewriteRefused(demand.lineno, "it ends on a machine without a GPU")
    done: Set[ast.AST] = set()
    for node in ast.walk(program.tree):
        if node in done or not isinstance(node, ast.expr):
            continue
        replaced = _replacement(editor, node)
        if replaced is not None:
            editor.expression(node, replaced)
            done.update(ast.walk(node))


def _replacement(editor: Editor, node: ast.expr) -> Optional[str]:
    program = editor.program
    called = program.names.called(node)
    if called == "ignite.distributed.device" and isinstance(node, ast.Call) and not node.args:
        editor.forget("ignite.distributed.device")
        return f"{editor.need('host_device', node)}()"
    if called == "torch.device" and isinstance(node, ast.Call) and node.args and not node.keywords:
        gpu = chosen_gpu(program, node.args[0]) or (None if is_guarded(program, node) else gpu_name(program, node))
        return _host_device(editor, node, gpu) if gpu is not None else None
    gpu = chosen_gpu(program, node)
    if gpu is not None:
        text = _host_device(editor, node, gpu)
        between_devices = isinstance(node, ast.IfExp) and program.names.called(node.body) == "torch.device"
        return text if between_devices or _wants_device(program, node) else f"str({text})"
    if called == "torch.cuda.is_available":
        text = f'{editor.need("host_device", node)}().type == "cuda"'
        return f"({text})" if isinstance(program.parents[node], (ast.Compare, ast.BinOp, ast.Attribute)) else text
    if isinstance(node, (ast.Constant, ast.JoinedStr, ast.BinOp, ast.Call)) and not is_guarded(program, node):
        gpu = gpu_name(program, node)
        parent = program.parents.get(node)
        if gpu is None or isinstance(parent, ast.Compare) or program.names.called(parent or node) == _OURS:
            return None
        if _wants_device(program, node):
            return _host_device(editor, node, gpu)
        argparse_default = isinstance(parent, ast.keyword) and parent.arg == "default"
        if argparse_default or isinstance(parent, (ast.Assign, ast.AnnAssign, ast.arguments)):
            text = _host_device(editor, node, gpu)
            return text if _wants_device(program, node) else f"str({text})"
    return None


_OURS = "ignite_ipu.host_device"


def _host_device(editor: Editor, node: ast.AST, gpu: str) -> str:
    name = editor.need("host_device", node)
    return f"{name}()" if gpu.strip("'\"") in ("cuda", "cuda:0", "0", "None") else f"{name}({gpu})"


def _wants_device(program: Program, node: ast.expr) -> bool:
    """Return whether a torch.device does as well as a string where an expression stands."""
    parent = program.parents.get(node)
    if isinstance(parent, ast.keyword):
        return parent.arg in _DEVICE_KEYWORDS
    if isinstance(parent, ast.Call) and node in parent.args:
        return owner_of(parent, *_DEVICE_METHODS) is not None or program.names.called(parent) in _DEVICE_FUNCTIONS
    if isinstance(parent, ast.IfExp) and node is not parent.test:
        return _wants_device(program, parent)
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Name):
        return _uses_want_device(program, program.nodes(ast.Name), parent.targets[0].id)
    if isinstance(parent, ast.arguments):
        function = program.parents[parent]
        assert isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        names = [each.arg for each in parameters_of(function) if default_of(function, each.arg) is node]
        return _uses_want_device(program, ast.walk(function), names[0])
    return False


def _uses_want_device(program: Program, nodes: Iterable[ast.AST], name: str) -> bool:
    uses = [part for part in nodes if isinstance(part, ast.Name) and part.id == name and isinstance(part.ctx, ast.Load)]
    return all(not isinstance(program.parents.get(use), ast.Assign) and _wants_device(program, use) for use in uses)
