"""x.cuda() becomes x.to(host_device()), and orders to a GPU are given where there is one.

Example:
      import torch
    + from ignite_ipu import host_device

    - x = torch.zeros(2).cuda(non_blocking=True)
    + x = torch.zeros(2).to(host_device(), non_blocking=True)
    - torch.cuda.synchronize()
    + if host_device().type == "cuda":
    +     torch.cuda.synchronize()
"""

from __future__ import annotations

import ast

import libcst as cst

from ignite_ipu.capabilities import Treatment, gpu_functions
from ignite_ipu.capabilities.gpu import CUDA
from ignite_ipu.migration.analysis.devices import is_guarded
from ignite_ipu.migration.analysis.names import argument, constant
from ignite_ipu.migration.rewriting.editor import Editor

_LEFT_OUT = [entry.name for entry in gpu_functions(CUDA, Treatment.LEFT_OUT) if not entry.harmless]
_ORDERS = (f"{CUDA}.set_device", *_LEFT_OUT)


def apply(editor: Editor) -> None:
    program = editor.program
    for call in program.nodes(ast.Call):
        function = call.func
        if not isinstance(function, ast.Attribute) or function.attr != "cuda" or program.names.resolve(function):
            continue
        if is_guarded(program, call):
            continue
        others = [keyword.arg for keyword in call.keywords if keyword.arg not in ("device", "non_blocking")]
        device = argument(call, "device", 0)
        if others or (call.args and device is None):
            continue
        chosen = device is not None and constant(device) not in (0, None)
        name = editor.need("host_device", call)
        editor.replace(call, _moved, f"{name}({program.source_of(device)})" if device and chosen else f"{name}()")
    for call, _ in program.calls(*_ORDERS):
        statement = program.parents[call]
        if isinstance(statement, ast.Expr) and not is_guarded(program, call):
            editor.replace(statement, _guarded, f'{editor.need("host_device", call)}().type == "cuda"')


def _moved(node: cst.Call, where: str) -> cst.Call:
    first, rest = cst.Arg(cst.parse_expression(where)), list(node.args)
    given = [arg for arg in rest if arg.keyword is None or arg.keyword.value == "device"]
    if given:
        first = given[0].with_changes(value=first.value, keyword=None, equal=cst.MaybeSentinel.DEFAULT)
        rest.remove(given[0])
    return node.with_changes(func=node.func.with_changes(attr=cst.Name("to")), args=[first, *rest])


def _guarded(node: cst.SimpleStatementLine, test: str) -> cst.If:
    body = cst.IndentedBlock([node.with_changes(leading_lines=[])])
    return cst.If(cst.parse_expression(test), body, leading_lines=node.leading_lines)
