"""PopTorch code: a model's mode is set before the model is wrapped.

Example:
      import poptorch

    + model.eval()
      inference_model = poptorch.inferenceModel(model)
    - model.eval()
"""

from __future__ import annotations

import ast
from typing import Optional

import libcst as cst

from ignite_ipu.migration.analysis.names import argument, dotted, owner_of
from ignite_ipu.migration.program import Program
from ignite_ipu.migration.rewriting.editor import Editor


def apply(editor: Editor) -> None:
    """Exchange a wrapping statement with the mode statement right after it."""
    program = editor.program
    for block in ast.walk(program.tree):
        suite = getattr(block, "body", None)
        if not isinstance(suite, list):
            continue
        for first, second in zip(suite, suite[1:]):
            model = _wrapped_model(program, first)
            mode = second.value if isinstance(second, ast.Expr) else None
            if model is None or owner_of(mode, "train", "eval") != model:
                continue
            editor.replace(first, _rewritten, program.source_of(second))
            editor.replace(second, _rewritten, program.source_of(first))


def _wrapped_model(program: Program, statement: ast.stmt) -> Optional[str]:
    wrappers = ("poptorch.trainingModel", "poptorch.inferenceModel")
    if not isinstance(statement, ast.Assign) or program.names.called(statement.value) not in wrappers:
        return None
    assert isinstance(statement.value, ast.Call)
    return dotted(argument(statement.value, "model", 0))


def _rewritten(node: cst.SimpleStatementLine, source: str) -> cst.SimpleStatementLine:
    return node.with_changes(body=cst.ensure_type(cst.parse_statement(source), cst.SimpleStatementLine).body)
