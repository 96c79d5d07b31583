"""Choice of the device in a file, and its code that runs only where that is a GPU."""

from __future__ import annotations

import ast
from typing import Iterator, List, Optional

from ignite_ipu.migration.analysis.names import constant, dotted, walk
from ignite_ipu.migration.analysis.parsed_file import ParsedFile

_QUESTIONS = ("torch.cuda.is_available", "ignite_ipu.host_device", "ignite_ipu.is_native")


def asks_for_gpu(file: ParsedFile, test: ast.AST) -> bool:
    """Return whether an expression is true only where there is a GPU to use: it asks, or is a variable that did."""
    for part in walk(test):
        if file.names.called(part) in _QUESTIONS or _holds_answer(file, dotted(part)):
            return True
        compared = isinstance(part, ast.Constant) and part.value == "cuda"
        if compared and isinstance(file.parents.get(part), ast.Compare):
            return True
    return False


def _holds_answer(file: ParsedFile, name: Optional[str]) -> bool:
    """Return whether a variable was assigned the answer to the question whether there is a GPU."""
    for value in file.values.get(name or "", ()):
        asked = any(file.names.called(part) in _QUESTIONS for part in walk(value))
        if asked and (
            isinstance(value, (ast.BoolOp, ast.UnaryOp, ast.Compare))
            or file.names.called(value) == "torch.cuda.is_available"
        ):
            return True
    return False


def is_native_alone(file: ParsedFile, node: ast.AST) -> bool:
    """Return whether an expression is the first of `... if is_native() else ...`."""
    above = file.parents.get(node)
    return (
        isinstance(above, ast.IfExp) and above.body is node and file.names.called(above.test) == "ignite_ipu.is_native"
    )


def is_guarded(file: ParsedFile, node: ast.AST) -> bool:
    """Return whether a node is reached only where there is a GPU to use."""
    below: ast.AST = node
    for above in file.ancestors(node):
        if isinstance(above, ast.If) and any(below is statement for statement in above.body):
            if asks_for_gpu(file, above.test):
                return True
        elif isinstance(above, ast.IfExp) and below is above.body and asks_for_gpu(file, above.test):
            return True
        below = above
    return False


def demands_of_gpu(file: ParsedFile) -> Iterator[ast.stmt]:
    """Yield the statements that end a program, or a function, on a machine without a GPU."""
    if not list(file.calls("torch.cuda.is_available")):
        return
    yield from (each for each in file.nodes(ast.Assert) if asks_for_gpu(file, each.test))
    for each in file.nodes(ast.If):
        negated = isinstance(each.test, ast.UnaryOp) and isinstance(each.test.op, ast.Not)
        if asks_for_gpu(file, each.test) and _leaves(file, each.body if negated else each.orelse):
            yield each


def _leaves(file: ParsedFile, body: List[ast.stmt]) -> bool:
    last = body[-1] if body else None
    ends = isinstance(last, ast.Expr) and file.names.called(last.value) in ("exit", "quit", "sys.exit", "os._exit")
    return ends or isinstance(last, (ast.Raise, ast.Return))


def chosen_gpu(file: ParsedFile, node: ast.AST) -> Optional[str]:
    """Return the GPU that `"cuda" if torch.cuda.is_available() else "cpu"` asks for; None for other expressions."""
    if not isinstance(node, ast.IfExp) or file.names.called(node.test) != "torch.cuda.is_available":
        return None
    return gpu_name(file, node.body) if constant(_device(file, node.orelse)) == "cpu" else None


def gpu_name(file: ParsedFile, node: ast.AST) -> Optional[str]:
    """Return the source of a GPU's name or number: that of `"cuda:1"`, `f"cuda:{rank}"`, `torch.device("cuda", rank)`.

    None for anything else.
    """
    name = _device(file, node)
    if isinstance(name, ast.Call) and len(name.args) == 2 and constant(name.args[0]) == "cuda":
        name = name.args[1]
    elif name is None or str(_beginning(name)).split(":")[0] != "cuda":
        return None
    return file.source_of(name)


def _beginning(name: ast.expr) -> object:
    """Return the literal that a text begins with."""
    if isinstance(name, ast.JoinedStr) and name.values:
        return constant(name.values[0])
    if isinstance(name, ast.BinOp) and isinstance(name.op, (ast.Mod, ast.Add)):
        return constant(name.left)
    if isinstance(name, ast.Call) and isinstance(name.func, ast.Attribute) and name.func.attr == "format":
        return constant(name.func.value)
    return constant(name)


def _device(file: ParsedFile, node: ast.AST) -> Optional[ast.expr]:
    """Return the one argument of torch.device, its call with two, or the expression itself."""
    if file.names.called(node) == "torch.device" and isinstance(node, ast.Call) and len(node.args) == 1:
        return _device(file, node.args[0])
    return node if isinstance(node, ast.expr) else None
