"""Variables of a file that hold a model."""

from __future__ import annotations

import ast
import re
from typing import Collection, Dict, Iterator, List, Set, Tuple

from ignite_ipu.migration.analysis.names import argument, dotted, unmoved
from ignite_ipu.migration.analysis.parsed_file import ParsedFile

_NAMES_OF_LOSSES = re.compile(r"(.*[._])?(criterion|loss(_(fn|func|function|module))?)")


def find_model_names(file: ParsedFile, losses: Collection[str]) -> Set[str]:
    """Return the sources of variables that are made, used or annotated as models are, and of parameters given these."""
    own = {model.name for model in file.models if model.learns}
    found: Set[str] = set()
    for target, value in file.assigned:
        made = unmoved(value)
        name = file.names.called(made) or ""
        local = isinstance(made, ast.Call) and isinstance(made.func, ast.Name) and made.func.id in own
        if local or name == "torch.nn.Sequential" or name.startswith("torchvision.models."):
            found.add(target)
    used = {owner for owner, method in _used(file) if owner not in (*losses, "self")}
    learning = {owner for owner, method in _used(file) if method == "parameters"}
    # A loss module has modes, too; its name and its place tell it from a model where nothing else does.
    found |= {name for name in used if name in learning or not _is_loss(file, name)}
    return found | _parameters(file, found)


def _parameters(file: ParsedFile, models: Set[str]) -> Set[str]:
    """Return the parameters of functions that every call gives a model, or that alone are annotated as modules."""
    calls: Dict[str, List[ast.Call]] = {}
    for call in file.nodes(ast.Call):
        if isinstance(call.func, ast.Name):
            calls.setdefault(call.func.id, []).append(call)
    found: Set[str] = set()
    for function in file.nodes(ast.FunctionDef):
        positional = [*function.args.posonlyargs, *function.args.args]
        annotated: List[str] = []
        for parameter in [*positional, *function.args.kwonlyargs]:
            if file.names.resolve(_class_of(parameter)) == "torch.nn.Module":
                annotated.append(parameter.arg)
            position = positional.index(parameter) if parameter in positional else None
            own = calls.get(function.name, []) if file.functions.get(function.name) is function else []
            given = [argument(call, parameter.arg, position) for call in own]
            if given and all(value is not None and dotted(value) in models for value in given):
                found.add(parameter.arg)
        # Of several one may be the loss.
        modules = [name for name in annotated if re.search("loss|criteri", name) is None]
        found |= set(modules) if len(modules) == 1 else set()
    return found


def _used(file: ParsedFile) -> Iterator[Tuple[str, str]]:
    for call in file.nodes(ast.Call):
        function = call.func
        if isinstance(function, ast.Attribute) and function.attr in ("parameters", "train", "eval") and not call.args:
            owner = dotted(function.value)
            if owner is not None:
                yield owner, function.attr


def _is_loss(file: ParsedFile, name: str) -> bool:
    """Tell whether a variable is named as a loss and always called with an output and a target."""
    calls = [call for call in file.nodes(ast.Call) if dotted(call.func) == name]
    return (
        _NAMES_OF_LOSSES.fullmatch(name) is not None
        and bool(calls)
        and all(len(call.args) + len(call.keywords) >= 2 for call in calls)
    )


def _class_of(parameter: ast.arg) -> ast.AST:
    annotation = parameter.annotation
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        try:
            return ast.parse(annotation.value, mode="eval").body
        except SyntaxError:
            return annotation
    return annotation if annotation is not None else ast.Constant(None)
