"""accelerate's Accelerator becomes IPUAccelerator.

Example:
    - from accelerate import Accelerator
    + from ignite_ipu import IPUAccelerator

    - accelerator = Accelerator(gradient_accumulation_steps=4)
    + accelerator = IPUAccelerator(gradient_accumulation_steps=4)
      model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
"""

from __future__ import annotations

import ast

from ignite_ipu.migration.program import Program
from ignite_ipu.migration.rewriting.editor import Editor, RewriteRefused

_ACCELERATORS = ("accelerate.Accelerator", "accelerate.accelerator.Accelerator")


def apply(editor: Editor) -> None:
    """Replace the class where it is called or handed on, and refuse files that derive one from it."""
    program = editor.program
    for node in [*program.nodes(ast.Name), *program.nodes(ast.Attribute)]:
        if program.names.resolve(node) not in _ACCELERATORS or _only_names_it(program, node):
            continue
        if isinstance(program.parents[node], ast.ClassDef):
            raise RewriteRefused(
                node.lineno,
                "a class derived from accelerate's Accelerator trains on the host. Use an Accelerator as it is, or "
                "derive from ignite_ipu.IPUAccelerator, which has no native runs then",
            )
        editor.forget("accelerate.Accelerator")
        editor.expression(node, editor.need("IPUAccelerator", node))


def _only_names_it(program: Program, node: ast.AST) -> bool:
    """Return whether the class stands in an annotation or a question, to which an IPUAccelerator is one, too."""
    below = node
    for above in program.ancestors(node):
        if isinstance(above, ast.Call):
            return program.names.called(above) in ("isinstance", "issubclass")
        if isinstance(above, ast.arg) or below in (getattr(above, "annotation", None), getattr(above, "returns", None)):
            return True
        if isinstance(above, ast.stmt):
            return False
        below = above
    return False
