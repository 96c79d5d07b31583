"""A parsed file: its tree, names, parents and models, which whatever looks at code starts from."""

from __future__ import annotations

import ast
import itertools
from functools import cached_property
from typing import Dict, Iterator, List, Optional, Set, Tuple, Type, TypeVar, Union

from ignite_ipu.errors import SourceError
from ignite_ipu.migration.analysis.kinds import Function
from ignite_ipu.migration.analysis.models import Model, find_models
from ignite_ipu.migration.analysis.names import Names, dotted
from ignite_ipu.migration.source.file import Source

Node = TypeVar("Node", bound=ast.AST)

_DEEPEST = 200
"""Levels of syntax below which nobody writes; rules follow them by recursion."""


class ParsedFile:
    """A parsed file.

    Attributes:
        tree: The module.
        every: All its nodes, outer ones first.
        parents: The node around each node.
        names: The imports, and what they make of names.

    Raises:
        SourceError: The text is not Python of the running interpreter's version.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        try:
            self.tree = ast.parse(source.text, source.path)
        except SyntaxError as error:
            raise SourceError(f"is not valid Python: {error.msg}", error.lineno or 1) from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise SourceError(f"cannot be parsed: {error}") from None
        self.parents = _parents(self.tree)
        self.every: List[ast.AST] = [self.tree, *self.parents]
        self.names = Names(self.every)

    @cached_property
    def by_type(self) -> Dict[Type[ast.AST], List[ast.AST]]:
        """All nodes, in the order of the text, by their class."""
        table: Dict[Type[ast.AST], List[ast.AST]] = {}
        for node in self.every:
            table.setdefault(type(node), []).append(node)
        for nodes in table.values():
            if nodes and hasattr(nodes[0], "lineno"):
                nodes.sort(key=lambda node: (getattr(node, "lineno", 0), getattr(node, "col_offset", 0)))
        return table

    def nodes(self, kind: Type[Node]) -> Iterator[Node]:
        """Yield the nodes of exactly one class, in the order of the text."""
        for node in self.by_type.get(kind, []):
            assert isinstance(node, kind)
            yield node

    def calls(self, *names: str) -> Iterator[Tuple[ast.Call, str]]:
        """Yield the calls of these functions or classes; a name ending in `.*` stands for all below it."""
        exact = {name for name in names if not name.endswith(".*")}
        prefixes = tuple(name[:-1] for name in names if name.endswith(".*"))
        for call, name in self.named_calls:
            if name in exact or (prefixes and name.startswith(prefixes)):
                yield call, name

    @cached_property
    def named_calls(self) -> List[Tuple[ast.Call, str]]:
        """The calls whose function or class is known, with its documented name, in the order of the text."""
        return [(call, name) for call in self.nodes(ast.Call) for name in [self.names.called(call)] if name is not None]

    def decorators(self, *names: str) -> Iterator[Tuple[ast.expr, str]]:
        """Yield the decorators that are these functions, not calls of them."""
        functions = [node.decorator_list for node in self.nodes(ast.FunctionDef)]
        classes = [node.decorator_list for node in self.nodes(ast.ClassDef)]
        for decorator in itertools.chain(*functions, *classes):
            name = self.names.resolve(decorator)
            if name in names:
                yield decorator, name

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes around `node`, innermost first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def function_of(self, node: ast.AST) -> Optional[Function]:
        """Return the innermost function around a node."""
        for above in self.ancestors(node):
            if isinstance(above, (ast.FunctionDef, ast.AsyncFunctionDef)):
                return above
        return None

    def follows(self, node: ast.expr, first: ast.expr) -> bool:
        """Tell whether a node stands in a later line than another, in the same function."""
        return node.lineno > first.lineno and self.function_of(node) is self.function_of(first)

    def loops_around(self, node: ast.AST) -> Iterator[Union[ast.For, ast.AsyncFor, ast.While]]:
        """Yield the loops around a node within its function, innermost first."""
        for above in self.ancestors(node):
            if isinstance(above, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
                return
            if isinstance(above, (ast.For, ast.AsyncFor, ast.While)):
                yield above

    @cached_property
    def functions(self) -> Dict[str, Function]:
        """The module-level functions by name."""
        return {node.name: node for node in self.tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}

    @cached_property
    def models(self) -> List[Model]:
        """The classes whose `forward` an IPU would compile."""
        return find_models(self.every, self.names)

    @cached_property
    def assigned(self) -> List[Tuple[str, ast.expr]]:
        """The source of each target that something is assigned to, with its value; tuples element by element."""
        found: List[Tuple[str, ast.expr]] = []
        for node in self.every:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    found += _pairs(target, node.value)
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                found += _pairs(node.target, node.value)
        return found

    @cached_property
    def traced(self) -> Set[ast.AST]:
        """The nodes of models, whose `forward` an IPU would compile."""
        return {node for model in self.models for node in ast.walk(model.node)}


def _parents(tree: ast.AST) -> Dict[ast.AST, ast.AST]:
    """Return every node's parent.

    Raises:
        SourceError: The nodes nest deeper than what walks them can follow.
    """
    found: Dict[ast.AST, ast.AST] = {}
    level, depth = [tree], 0
    while level:
        children = []
        for node in level:
            for child in ast.iter_child_nodes(node):
                found[child] = node
                children.append(child)
        level, depth = children, depth + 1
        if level and depth > _DEEPEST:
            line = next((node.lineno for node in level if isinstance(node, (ast.expr, ast.stmt))), 1)
            raise SourceError(f"cannot be parsed: it nests more than {_DEEPEST} levels deep", line)
    return found


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[Tuple[str, ast.expr]]:
    if isinstance(target, (ast.Tuple, ast.List)):
        if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts):
            for one, part in zip(target.elts, value.elts):
                yield from _pairs(one, part)
        return
    name = dotted(target)
    if name is not None:
        yield name, value
