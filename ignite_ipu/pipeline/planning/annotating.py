"""A plan written into a copy of the model's source, as the annotations and options of a PopTorch user."""

from __future__ import annotations

import ast
import inspect
import json
from pathlib import Path
from types import CodeType
from typing import Any, Callable, Iterable, Iterator, List, Optional, Tuple

from torch import nn

from ignite_ipu.errors import PlanError
from ignite_ipu.pipeline.planning.plan import Plan
from ignite_ipu.program.user_code import is_users_file

_ANNOTATIONS = ("BeginBlock", "Block", "BlockFunction")
_IMPORT = ["import ignite_ipu.backend", "", "poptorch = ignite_ipu.backend.poptorch()  # the SDK's, or the emulator"]


def annotated_source(plan: Plan, model: nn.Module, factory: Optional[Callable[[], Any]] = None) -> Tuple[Path, str]:
    """Return the path of the source that makes a model, and its text with a plan in it.

    `poptorch.BeginBlock` marks the stages. The marks stand at the end of the `__init__` of the model's class, or, if
    that is not in a file of the user's, where the factory returns. A new function `ipu_options` returns the plan's
    options.

    Args:
        plan: A plan that fits.
        factory: The function that returned a tuple that begins with it.

    Raises:
        PlanError: The plan has one stage or needs more than annotations of layers, or there is no source to write into.
        OSError: The source cannot be read.
    """
    placement = plan.placement()
    again = [layer.name for layer in plan.profile.layers if layer.call]
    if len(placement.starts) == 1:
        raise PlanError("The plan has one stage: there is nothing to annotate.")
    if any(name.partition("#")[0] in placement.blocks for name in again):
        raise PlanError(
            f"{', '.join(again)} run more than once, and an annotated layer begins its stage in every call. Use "
            "pipeline=plan, which tells calls apart, or plan with another granularity."
        )
    initialiser = inspect.unwrap(vars(type(model)).get("__init__", nn.Module.__init__))
    for function, of_class in ((initialiser, True), (factory, False)):
        code = getattr(inspect.unwrap(function), "__code__", None) if function else None
        if function and code and is_users_file(code.co_filename) and Path(code.co_filename).is_file():
            path = Path(code.co_filename)
            return path, _written(path, code, of_class, model, plan)
    raise PlanError(f"{type(model).__qualname__} is made in no source file of yours: give the function that makes it.")


def _written(path: Path, code: CodeType, of_class: bool, model: nn.Module, plan: Plan) -> str:
    try:
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PlanError(f"{path} is not written in UTF-8: {error}") from error
    tree, lines = ast.parse(text), text.rstrip().split("\n")
    if any(_is_annotation(node) for node in ast.walk(tree)):
        raise PlanError(f"{path} has annotations already. Take a copy of the file without.")
    function = _function(tree, code)
    variable = code.co_varnames[0] if of_class else "built[0]"
    annotations = [
        f"poptorch.BeginBlock({_expression(model, variable, start.layer)}, {json.dumps(start.block)}, "
        f"ipu_id={start.ipu})"
        for start in plan.placement().starts
    ]
    end = _end_of_imports(tree) or next((n for n, line in enumerate(lines) if not line.startswith("#")), 0)
    imported = [name.name for node in tree.body if isinstance(node, ast.Import) for name in node.names]
    edits = [] if "poptorch" in imported else [(end, end, ["", *_IMPORT] if end else [*_IMPORT, ""])]
    for node in _returns(function.body):
        if not of_class and (node.value is None or getattr(node.value, "value", node) is None):
            continue  # no model
        begin, end = node.lineno - 1, node.end_lineno or node.lineno
        indentation, _, value = lines[begin].partition("return")
        if indentation.strip():
            raise PlanError(f"{path}:{begin + 1}: return stands behind something else; give it a line of its own.")
        new = [indentation + line for line in annotations]
        if of_class:
            edits.append((begin, begin, new))
        else:
            assigned = [f"{indentation}built ={value}", *lines[begin + 1 : end]]
            edits.append((begin, end, [*assigned, *new, f"{indentation}return built"]))
    last = function.body[-1]
    if of_class and not isinstance(last, ast.Return):
        if last.lineno == function.lineno:
            raise PlanError(f"{path}:{last.lineno}: __init__ is one line; give its body lines of its own.")
        end = last.end_lineno or last.lineno
        indentation = lines[function.body[0].lineno - 1][: function.body[0].col_offset]
        edits.append((end, end, [indentation + line for line in annotations]))
    for begin, end, new in sorted(edits, reverse=True):
        lines[begin:end] = new
    return "\n".join([*lines, "", "", *_options(plan), ""])


def _is_annotation(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "poptorch":
        return node.attr in _ANNOTATIONS
    return isinstance(node, ast.FunctionDef) and node.name == "ipu_options"


def _expression(model: nn.Module, expression: str, layer: str) -> str:
    """Return the Python that gets a layer from a variable that holds the model."""
    module: Any = model
    for part in layer.split("."):
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and part.isdigit():
            expression += f"[{part}]"
        elif part.isidentifier():
            expression += f".{part}"
        else:
            expression = f"getattr({expression}, {part!r})"
        module = getattr(module, part)
    return expression


def _options(plan: Plan) -> List[str]:
    """Return the source of a function that does as `configure`."""
    placement, factors, memory = plan.placement(), plan.factors(), plan.strategy
    stages = [f"        poptorch.Stage({json.dumps(start.block)}).ipu({start.ipu})," for start in placement.starts]
    calls = [
        f"deviceIterations({factors['device_iterations']})",
        f"replicationFactor({factors['replication_factor']})",
    ]
    if plan.training:
        calls.append(f"Training.gradientAccumulation({factors['gradient_accumulation_steps']})")
        settings = ".useOnChipStorage(False)" if memory.offload_optimizer else ""
        settings += ".useReplicatedTensorSharding(True)" if memory.shard_optimizer and plan.replicas > 1 else ""
        if settings:
            calls.append(f"TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings(){settings})")
        if memory.recompute:
            calls.append('_Popart.set("autoRecomputation", 3)  # within stages')
    return [
        "def ipu_options():",
        '    """Options of the plan: IPUs of stages, sizes of an update and a call, tensors kept off chip."""',
        f"    strategy = poptorch.{'PipelinedExecution' if memory.pipelined else 'ShardedExecution'}(",
        *stages,
        "    )",
        "    options = poptorch.Options()",
        "    options.setExecutionStrategy(strategy)",
        *(f"    options.{call}" for call in calls),
        "    return options",
    ]


def _function(tree: ast.Module, code: CodeType) -> ast.FunctionDef:
    for node in ast.walk(tree):
        first = [each.lineno for each in (node, *getattr(node, "decorator_list", ())) if hasattr(each, "lineno")]
        if isinstance(node, ast.FunctionDef) and min(first) == code.co_firstlineno:
            return node
    raise PlanError(f"{code.co_name} is no function with a body of its own lines, or its source has changed since.")


def _returns(nodes: Iterable[ast.AST]) -> Iterator[ast.Return]:
    for node in nodes:
        if isinstance(node, ast.Return):
            yield node
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield from _returns(ast.iter_child_nodes(node))


def _end_of_imports(tree: ast.Module) -> int:
    """Return the last line of the docstring and the imports with which a file begins."""
    end = 0
    for node in tree.body:
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not text and not isinstance(node, (ast.Import, ast.ImportFrom)):
            break
        end = node.end_lineno or end
    return end
