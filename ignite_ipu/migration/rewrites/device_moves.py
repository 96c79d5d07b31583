"""`x.cuda()` becomes `x.to(host_device())`."""

from __future__ import annotations

import ast

import libcst as cst

from ignite_ipu.migration.analysis.devices import is_guarded
from ignite_ipu.migration.analysis.names import constant
from ignite_ipu.migration.rewriting.editor import Edit, Editor, Rewrite


def apply(editor: Editor) -> None:
    """Replace the calls that name no particular GPU."""
    program = editor.program
    for call in program.nodes(ast.Call):
        function = call.func
        if not isinstance(function, ast.Attribute) or function.attr != "cuda" or program.names.resolve(function):
            continue
        if is_guarded(program, call):
            continue
        others = [keyword.arg for keyword in call.keywords if keyword.arg != "non_blocking"]
        default = not call.args or (len(call.args) == 1 and constant(call.args[0]) in (0, None))
        if others or not default:
            editor.remark(call, "moves to a GPU chosen by number, which has no counterpart")
            continue
        editor.replace(call, _moved(editor.need("host_device", call), positional=bool(call.args)))


def _moved(name: str, positional: bool) -> Edit:
    def edit(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.Call)
        assert isinstance(node.func, cst.Attribute)
        where = cst.parse_expression(f"{name}()")
        first = node.args[0].with_changes(value=where) if positional else cst.Arg(where)
        rest = node.args[1:] if positional else node.args
        return node.with_changes(func=node.func.with_changes(attr=cst.Name("to")), args=[first, *rest])

    return edit


REWRITE = Rewrite(
    name="device-moves",
    summary="x.cuda() becomes x.to(host_device()).",
    example="""\
  import torch
+ from ignite_ipu import host_device

- x = torch.zeros(2).cuda(non_blocking=True)
+ x = torch.zeros(2).to(host_device(), non_blocking=True)
""",
    apply=apply,
)
