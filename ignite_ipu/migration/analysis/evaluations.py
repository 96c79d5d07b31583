"""Evaluations of a model in a file: calls of it in evaluation mode, without gradients."""

from __future__ import annotations

import ast
from typing import Collection, List, Optional

from ignite_ipu.migration.analysis.names import dotted, owner_of, walk
from ignite_ipu.migration.analysis.parsed_file import ParsedFile

_WITHOUT_GRADIENTS = ("torch.no_grad", "torch.inference_mode")


def find_evaluations(file: ParsedFile, models: Collection[str]) -> List[ast.Call]:
    """Return the calls `model(...)` under torch.no_grad() of models that are put in evaluation mode beside it."""
    found = []
    for call in file.nodes(ast.Call):
        name = dotted(call.func)
        if name is None or name not in models or call in file.traced:
            continue
        if without_gradients(file, call) and _in_evaluation_mode(file, call, name):
            found.append(call)
    return found


def without_gradients(file: ParsedFile, node: ast.AST) -> bool:
    """Tell whether a node stands under torch.no_grad() or torch.inference_mode(), as a context or a decorator."""
    for above in file.ancestors(node):
        contexts = above.items if isinstance(above, (ast.With, ast.AsyncWith)) else []
        if any(file.names.called(item.context_expr) in _WITHOUT_GRADIENTS for item in contexts):
            return True
        if isinstance(above, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for decorator in above.decorator_list:
                name = file.names.called(decorator) or file.names.resolve(decorator)
                if name in _WITHOUT_GRADIENTS:
                    return True
            return False
    return False


def _in_evaluation_mode(file: ParsedFile, node: ast.AST, model: str) -> bool:
    scope: Optional[ast.AST] = file.function_of(node)
    for part in walk(scope if scope is not None else file.tree):
        if owner_of(part, "eval") == model and (scope is not None or file.function_of(part) is None):
            return True
    return False
