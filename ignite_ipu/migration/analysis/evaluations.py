"""Where a file evaluates a model: calls of it in evaluation mode, without gradients."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, List, Optional

from ignite_ipu.migration.analysis.names import dotted, owner_of

if TYPE_CHECKING:
    from ignite_ipu.migration.program import Program

_WITHOUT_GRADIENTS = ("torch.no_grad", "torch.inference_mode")


def find_evaluations(program: Program) -> List[ast.Call]:
    """Return the calls `model(...)` under torch.no_grad() of models that are put in evaluation mode beside it."""
    traced = {id(node) for model in program.models for node in ast.walk(model.node)}
    found = []
    for call in program.nodes(ast.Call):
        name = dotted(call.func)
        if name is None or name not in program.training.models or id(call) in traced:
            continue
        if without_gradients(program, call) and _in_evaluation_mode(program, call, name):
            found.append(call)
    return found


def without_gradients(program: Program, node: ast.AST) -> bool:
    """Whether a node stands under torch.no_grad() or torch.inference_mode(), as a context or a decorator."""
    for above in program.ancestors(node):
        contexts = above.items if isinstance(above, (ast.With, ast.AsyncWith)) else []
        if any(program.names.called(item.context_expr) in _WITHOUT_GRADIENTS for item in contexts):
            return True
        if isinstance(above, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for decorator in above.decorator_list:
                name = program.names.called(decorator) or program.names.resolve(decorator)
                if name in _WITHOUT_GRADIENTS:
                    return True
            return False
    return False


def _in_evaluation_mode(program: Program, node: ast.AST, model: str) -> bool:
    scope: Optional[ast.AST] = program.function_of(node)
    for part in ast.walk(scope if scope is not None else program.tree):
        if owner_of(part, "eval") == model and (scope is not None or program.function_of(part) is None):
            return True
    return False
