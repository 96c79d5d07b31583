"""Meanings of names in a program: `nn.Linear` is `torch.nn.Linear`, however it was imported."""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib.util
import re
from functools import lru_cache
from pathlib import Path
from typing import Dict, FrozenSet, Iterable, Iterator, List, Optional, Sequence, Set, Tuple

# Where a class is defined -> where it is documented.
_CANONICAL: Tuple[Tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"^torch\.nn\.modules\.(?:[a-z_]+\.)?([A-Z]\w*)$", r"torch.nn.\1"),
        (r"^torch\.nn\.parallel\.(?:distributed\.|data_parallel\.)?(\w*Parallel)$", r"torch.nn.parallel.\1"),
        (r"^torch\.nn\.DataParallel$", r"torch.nn.parallel.DataParallel"),
        (r"^torch\.optim\.[a-z]+\.([A-Z]\w*)$", r"torch.optim.\1"),
        (r"^torch\.utils\.data\.[a-z]+\.([A-Z]\w*)$", r"torch.utils.data.\1"),
        (r"^torch\.cuda\.amp\.(?:[a-z_]+\.)?(GradScaler|autocast)$", r"torch.amp.\1"),
        (r"^torch\.amp\.[a-z_]+\.(GradScaler|autocast)$", r"torch.amp.\1"),
        (r"^torch\.autocast$", r"torch.amp.autocast"),
        (r"^torch\.autograd\.(?:function\.)?Function$", r"torch.autograd.Function"),
        (r"^torch\.nn\.utils\.clip_grad\.(\w+)$", r"torch.nn.utils.\1"),
        (r"^ignite\.engine\.[a-z]+\.([A-Z]\w*)$", r"ignite.engine.\1"),
        (r"^ignite\.distributed\.(?:auto|launcher|utils)\.(\w+)$", r"ignite.distributed.\1"),
        (r"^poptorch\.(?:options|enums|ops)\.(\w+)$", r"poptorch.\1"),
    )
)
_MOVES_AND_MODES = ("to", "cuda", "cpu", "float", "half", "double", "eval", "train", "requires_grad_")
# Their modules are read to resolve star imports.
_LIBRARIES = ("torch", "ignite")
_WITH_WEIGHTS = re.compile(
    r"torch\.nn\.(Lazy)?(Linear|Bilinear|Conv|Embedding|BatchNorm|LayerNorm|GroupNorm|InstanceNorm|RNN|LSTM|GRU|PReLU|"
    r"Transformer|MultiheadAttention|Sequential|Module|Parameter)"
)
# A name in these sub-modules is documented with the sub-module in it.
_KEPT = ("torch.optim.lr_scheduler.", "torch.optim.swa_utils.")


@lru_cache(maxsize=4096)
def canonical(name: str) -> str:
    """Return the documented dotted name of something imported from where it is defined."""
    if name.startswith(_KEPT):
        return name
    for pattern, replacement in _CANONICAL:
        name = pattern.sub(replacement, name)
    return name


def dotted(node: Optional[ast.AST]) -> Optional[str]:
    """Return the source of a chain of names (`self.model`), or None for anything else."""
    parts: List[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    parts.append(node.id)
    return ".".join(reversed(parts))


_LEAVES = (ast.Name, ast.Constant, ast.alias, ast.Global, ast.Nonlocal)


def children(node: ast.AST) -> Sequence[ast.AST]:
    """Return the nodes directly below a node, but for the contexts of names, which all names share."""
    if isinstance(node, _LEAVES):
        return ()
    found: List[ast.AST] = []
    for field in node._fields:
        value = getattr(node, field, None)
        if value.__class__ is list:
            found += [each for each in value if isinstance(each, ast.AST)]
        elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
            found.append(value)
    return found


def walk(node: ast.AST) -> List[ast.AST]:
    """Return a node and all below it, outer ones first; as `ast.walk`, but for the contexts of names."""
    found = [node]
    for each in found:
        found += children(each)
    return found


class Names:
    """The imports among a module's nodes, of the classes in `OF`, and the meanings of names by them."""

    OF = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Name, ast.arg)

    def __init__(self, nodes: Iterable[ast.AST]) -> None:
        self.imports: Dict[str, str] = {}
        self.bound: Set[str] = set()
        self._starred: List[str] = []
        for node in nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.split(".")[0]
                    self.imports[alias.asname or top] = alias.name if alias.asname else top
            elif isinstance(node, ast.ImportFrom):
                module = "." * node.level + (node.module or "")
                if node.level == 0 and any(alias.name == "*" for alias in node.names):
                    self._starred.append(module)
                    continue
                for alias in node.names:
                    separator = "" if module.endswith(".") else "."
                    self.imports[alias.asname or alias.name] = f"{module}{separator}{alias.name}"
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                self.bound.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self.bound.add(node.id)
            elif isinstance(node, ast.arg):
                self.bound.add(node.arg)

    def resolve(self, node: ast.AST) -> Optional[str]:
        """Return the documented dotted name a chain of names refers to; a built-in is its own name.

        None for names that the program itself defines, and for other expressions.
        """
        if isinstance(node, ast.Name):
            if node.id in self.imports:
                return canonical(self.imports[node.id])
            for module in reversed(self._starred) if node.id not in self.bound else ():
                if node.id in _star_names(module):
                    return canonical(f"{module}.{node.id}")
            return node.id if node.id not in self.bound and hasattr(builtins, node.id) else None
        if isinstance(node, ast.Attribute):
            base = self.resolve(node.value)
            return None if base is None else canonical(f"{base}.{node.attr}")
        return None

    def called(self, node: ast.AST) -> Optional[str]:
        """Return the dotted name of the function or class that a call calls; None when `node` is no such call."""
        return self.resolve(node.func) if isinstance(node, ast.Call) else None


@lru_cache(maxsize=None)
def _star_names(module: str) -> FrozenSet[str]:
    """Return the names that `from module import *` binds for a known library, by the text of the module."""
    top, *inner = module.split(".")
    if top not in _LIBRARIES:
        return frozenset()
    if module == "torch":  # most of its names come from its extension
        found = importlib.import_module(module)
        return frozenset(getattr(found, "__all__", vars(found)))
    spec = importlib.util.find_spec(top)  # which runs nothing: there is no package around it
    place = Path(spec.origin).parent.joinpath(*inner) if spec is not None and spec.origin else Path()
    path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    if not path.is_file():
        return frozenset()
    names: Set[str] = set()
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            package = [top, *inner][: len(inner) + path.match("__init__.py") + 1 - node.level] if node.level else []
            names |= _star_names(".".join([*package, *filter(None, [node.module])]))
        elif isinstance(node, ast.Assign) and dotted(node.targets[0]) == "__all__":
            with contextlib.suppress(ValueError):
                return frozenset(ast.literal_eval(node.value))
        else:
            inside = Names([node] if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else walk(node))
            names.update(name for name in (*inside.bound, *inside.imports) if not name.startswith("_"))
    return frozenset(names)


def is_layer(name: str) -> bool:
    """Return whether a dotted name is that of a class of `torch.nn`, or of a module below it."""
    return name.startswith("torch.nn.") and name.rpartition(".")[2][:1].isupper()


def has_weights(name: str) -> bool:
    """Return whether layers of a class of PyTorch, or modules in it, have weights."""
    return _WITH_WEIGHTS.match(name) is not None


def index_of(node: ast.Subscript) -> ast.expr:
    """Return the index of a subscription; the literal None if it is no expression."""
    # Python 3.8 wraps an index in ast.Index.
    index = node.slice
    value = getattr(index, "value", index) if type(index).__name__ == "Index" else index
    return value if isinstance(value, ast.expr) else ast.Constant(value=None)


def argument(call: ast.Call, name: str, position: Optional[int] = None) -> Optional[ast.expr]:
    """Return a call's argument by keyword or by position; None when absent."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    if position is None or position >= len(call.args):
        return None
    starred = any(isinstance(value, ast.Starred) for value in call.args[: position + 1])
    return None if starred else call.args[position]


def has_hidden_arguments(call: ast.Call) -> bool:
    """Return whether some arguments of a call are not written out: `*args`, `**options`."""
    starred = any(isinstance(value, ast.Starred) for value in call.args)
    return starred or any(keyword.arg is None for keyword in call.keywords)


def owner_of(node: Optional[ast.AST], *methods: str) -> Optional[str]:
    """Return the source of the object that one of these methods is called on, "" when it is no chain of names.

    None when `node` is no such call.
    """
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in methods:
        return None
    return dotted(node.func.value) or ""


def unmoved(value: ast.expr) -> ast.expr:
    """Return `Net()` of `Net().to(device).eval()`: the value without moves and modes."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _MOVES_AND_MODES:
        value = value.func.value
    return value


def constant(node: Optional[ast.AST]) -> object:
    """Return the value of a literal, negative numbers included; Ellipsis when it is not one."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        value = node.operand.value
        if isinstance(value, (int, float)):
            return -value
    return ...


def method_calls(nodes: Iterable[ast.AST], *methods: str) -> Iterator[Tuple[ast.Call, str]]:
    """Yield the calls of methods of these names, each with the source of the object, "" when it is no chain of names.

    A file has a method of this name, which knows all of its calls.
    """
    for node in nodes:
        owner = owner_of(node, *methods)
        if owner is not None:
            assert isinstance(node, ast.Call)
            yield node, owner


def assignments(node: ast.AST) -> Iterator[Tuple[str, ast.expr]]:
    """Yield the source of each target of an assignment with its value, tuples element by element."""
    if isinstance(node, ast.Assign):
        yield from (pair for target in node.targets for pair in _pairs(target, node.value))
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield from _pairs(node.target, node.value)


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[Tuple[str, ast.expr]]:
    name = dotted(target)
    if name is not None:
        yield name, value
    elif isinstance(target, _TUPLES) and isinstance(value, _TUPLES) and len(value.elts) == len(target.elts):
        yield from (pair for each in zip(target.elts, value.elts) for pair in _pairs(*each))


_TUPLES = (ast.Tuple, ast.List)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def _own_variables(nodes: Iterable[ast.AST]) -> Set[ast.AST]:
    """Return the nodes that name variables of comprehensions among some, local to these."""
    found: Set[ast.AST] = set()
    for part in nodes:
        if isinstance(part, _COMPREHENSIONS):
            targets = [name for generator in part.generators for name in walk(generator.target)]
            own = {name.id for name in targets if isinstance(name, ast.Name)}
            first = set(walk(part.generators[0].iter))
            found |= {name for name in walk(part) if isinstance(name, ast.Name) and name.id in own} - first
    return found


def last_of(node: Optional[ast.AST]) -> str:
    """Return the last name of a chain, `weight` of `self.layer.weight`; "" for anything else."""
    return (dotted(node) or "").rpartition(".")[2]


def targets_of(node: ast.AST) -> List[ast.expr]:
    """Return the targets of an assignment of any kind, none for other nodes."""
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, (ast.AugAssign, ast.AnnAssign)) else []


def chain_of(node: Optional[ast.AST]) -> Set[str]:
    """Return the names in a chain of attributes, elements and calls, as `net.body[0].weight` is."""
    found: Set[str] = set()
    while node is not None:
        found.add(getattr(node, "attr", getattr(node, "id", "")))
        node = getattr(node, "value", None) or getattr(node, "func", None)
    return found - {""}


def attributes_in(node: ast.AST) -> Set[str]:
    """Return the names of the attributes that a node speaks of."""
    return {part.attr for part in walk(node) if isinstance(part, ast.Attribute)}


def names_bound(node: ast.AST) -> Set[str]:
    """Return the names, and the attributes of names, that a node binds."""
    nodes = walk(node)
    stored = [part for part in nodes if isinstance(getattr(part, "ctx", None), ast.Store)]
    own = _own_variables(nodes) if stored else ()
    return {name for name in (dotted(part) for part in stored if part not in own) if name is not None}


def names_loaded(node: ast.AST) -> Set[str]:
    """Return the plain names that a node reads."""
    nodes = walk(node)
    own = _own_variables(nodes)
    loaded = (part for part in nodes if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load))
    return {part.id for part in loaded if part not in own}
