"""A parsed file: its tree, names, parents and models: the start of every analysis."""

from __future__ import annotations

import ast
import itertools
import re
from functools import cached_property
from operator import attrgetter
from typing import Dict, Iterable, Iterator, List, Optional, Set, Tuple, Type, TypeVar, Union, cast

from ignite_ipu.capabilities.traced import NO_FUNCTION
from ignite_ipu.errors import SourceError
from ignite_ipu.migration.analysis.kinds import Function
from ignite_ipu.migration.analysis.models import Model, find_models
from ignite_ipu.migration.analysis.names import Names, argument, assignments, children, dotted, method_calls, walk
from ignite_ipu.migration.source.file import Source

Node = TypeVar("Node", bound=ast.AST)

_PLACE = attrgetter("lineno", "col_offset")
WITHOUT_GRADIENTS = ("torch.no_grad", "torch.inference_mode")
_DEEPEST = 200
"""Levels of syntax below which nobody writes; rules follow them by recursion."""


class ParsedFile:
    """A parsed file, with every node's parent and the nodes of each class.

    Raises:
        SourceError: The text is not Python of the running interpreter's version, or nests too deep to be followed.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        try:
            self.tree = ast.parse(source.text, source.path)
        except SyntaxError as error:
            raise SourceError(f"is not valid Python: {error.msg}", error.lineno or 1) from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise SourceError(f"cannot be parsed: {error}") from None
        self.parents: Dict[ast.AST, ast.AST] = {}
        self._by_type: Dict[Type[ast.AST], List[ast.AST]] = {}
        self._in_order: Dict[Type[ast.AST], List[ast.AST]] = {}
        parents, by_type = self.parents, self._by_type
        level: List[ast.AST] = [self.tree]
        for _ in range(_DEEPEST + 1):
            below: List[ast.AST] = []
            for node in level:
                by_type.setdefault(node.__class__, []).append(node)
                inside = children(node)
                below += inside
                for child in inside:
                    parents[child] = node
            level = below
        if level:
            line = next((node.lineno for node in level if isinstance(node, (ast.expr, ast.stmt))), 1)
            raise SourceError(f"cannot be parsed: it nests more than {_DEEPEST} levels deep", line)
        self.names = Names(itertools.chain(*(by_type.get(kind, ()) for kind in Names.OF)))

    def source_of(self, node: ast.AST) -> str:
        """Return the source of a node; lines are split once, which `ast.get_source_segment` does for each node."""
        place = cast(ast.expr, node)
        lines = self._lines[place.lineno - 1 : place.end_lineno]
        lines[-1] = lines[-1][: place.end_col_offset]
        lines[0] = lines[0][place.col_offset :]
        return b"".join(lines).decode()

    def line(self, number: int) -> bytes:
        """Return a line without its end, encoded as ast counts columns; nothing behind the end of the text."""
        return b"".join(self._lines[number - 1 : number]).rstrip(b"\r\n")

    def column(self, line: int, offset: Optional[int]) -> int:
        """Return how many characters of a line are in front of ast's offset; all are without one."""
        return len(self.line(line)[:offset].decode("utf-8", "ignore"))

    @cached_property
    def _lines(self) -> List[bytes]:
        """The lines of the text as Python counts them, with their ends, encoded as columns count."""
        return [line.encode() for line in re.split("(?<=\n)|(?<=\r)(?!\n)", self.source.text)]

    def nodes(self, kind: Type[Node]) -> List[Node]:
        """Return the nodes of exactly one class, in the order of the text."""
        found = self._in_order.get(kind)
        if found is None:
            found = self._by_type.get(kind, [])
            if found and hasattr(found[0], "lineno"):
                found.sort(key=_PLACE)
            self._in_order[kind] = found
        return cast(List[Node], found)

    def calls(self, *names: str) -> Iterable[Tuple[ast.Call, str]]:
        """Return the calls of these functions or classes; a name ending in `.*` stands for all below it."""
        known = self._calls_by_name
        wanted = {name for name in names if name in known}
        for name in names:
            if name.endswith(".*"):
                wanted |= {each for each in known if each.startswith(name[:-1])}
        return _in_order([[(call, name) for call in known[name]] for name in wanted])

    @cached_property
    def _calls_by_name(self) -> Dict[str, List[ast.Call]]:
        return _grouped((self.names.resolve(call.func), call) for call in self.nodes(ast.Call))

    def method_calls(self, *methods: str) -> Iterable[Tuple[ast.Call, str]]:
        """Return the calls of methods of these names, each with the source of the object, as `method_calls` does."""
        return _in_order([list(method_calls(self._calls_by_last_name.get(method, ()), method)) for method in methods])

    @cached_property
    def _calls_by_last_name(self) -> Dict[str, List[ast.Call]]:
        calls = self.nodes(ast.Call)
        return _grouped((getattr(call.func, "attr", getattr(call.func, "id", None)), call) for call in calls)

    def given(self, function: Function, name: str) -> List[Optional[ast.expr]]:
        """Return the argument for a parameter in each call of a function, or of the class whose constructor it is.

        The object of a method is no argument.
        """
        above = self.parents[function]
        made = isinstance(above, ast.ClassDef) and function.name == "__init__"
        called = above.name if isinstance(above, ast.ClassDef) and made else function.name
        positional = [parameter.arg for parameter in (*function.args.posonlyargs, *function.args.args)]
        bound = positional[:1] == ["self"]
        if bound and name == "self":
            return []
        position = positional.index(name) - bound if name in positional else None
        calls = self._calls_by_last_name.get(called, ())
        return [argument(each, name, position) for each in calls if (bound and not made) or dotted(each.func) == called]

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

    def where(self, node: ast.AST) -> str:
        """Return the innermost function around a node, a method with its class: `Net.forward`; else "This line"."""
        function = self.function_of(node)
        if function is None:
            return NO_FUNCTION
        above = self.parents[function]
        return f"{above.name}.{function.name}" if isinstance(above, ast.ClassDef) else function.name

    def first_call(self, made: ast.Call) -> ast.Call:
        """Return the first call of an object by the name that its construction is assigned to, or the construction.

        It may be one of several parts that are constructed together.
        """
        for target, value in self.assigned:
            whole = value is made or (self.names.called(value) or "").startswith("torch.nn.")
            if whole and len(self.values[target]) == 1 and made in walk(value):
                last = target.rpartition(".")[2]
                calls = (each for each in self._calls_by_last_name.get(last, ()) if dotted(each.func) == target)
                return min(calls, key=_PLACE, default=made)
        return made

    def follows(self, node: ast.expr, first: ast.expr) -> bool:
        """Return whether a node stands in a later line than another, in the same function."""
        return node.lineno > first.lineno and self.function_of(node) is self.function_of(first)

    def without_gradients(self, node: ast.AST) -> bool:
        """Return whether a node stands under torch.no_grad() or torch.inference_mode(), as a context or a decorator."""
        for above in self.ancestors(node):
            contexts: List[ast.expr] = getattr(above, "decorator_list", [])
            if isinstance(above, (ast.With, ast.AsyncWith)):
                contexts = [item.context_expr for item in above.items]
            if any((self.names.called(each) or self.names.resolve(each)) in WITHOUT_GRADIENTS for each in contexts):
                return True
            if isinstance(above, (ast.FunctionDef, ast.AsyncFunctionDef)):
                return False
        return False

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
        return find_models(self.nodes(ast.ClassDef), self.names)

    @cached_property
    def assigned(self) -> List[Tuple[str, ast.expr]]:
        """The source of each target that something is assigned to, with its value; tuples element by element."""
        nodes = (*self.nodes(ast.Assign), *self.nodes(ast.AnnAssign))
        return [pair for node in nodes for pair in assignments(node)]

    @cached_property
    def values(self) -> Dict[str, List[ast.expr]]:
        return _grouped(self.assigned)

    def single_value(self, name: Optional[str]) -> Optional[ast.expr]:
        """Return the value that the file assigns to a name, None if it assigns none or several."""
        values = self.values.get(name or "", [])
        return values[0] if len(values) == 1 else None

    @cached_property
    def traced(self) -> Set[ast.AST]:
        """The nodes of models, whose `forward` an IPU would compile."""
        return {node for model in self.models for node in walk(model.node)}


def call_of(file: ParsedFile, node: ast.expr) -> Optional[ast.Call]:
    """Return the call of the function or object that a node names, None for another use of it."""
    above = file.parents[node]
    return above if isinstance(above, ast.Call) and above.func is node else None


def _grouped(named: Iterable[Tuple[Optional[str], Node]]) -> Dict[str, List[Node]]:
    found: Dict[str, List[Node]] = {}
    for name, node in named:
        if name is not None:
            found.setdefault(name, []).append(node)
    return found


def _in_order(groups: List[List[Tuple[ast.Call, str]]]) -> List[Tuple[ast.Call, str]]:
    """Return calls of several names in the order of the text, in which those of each name are."""
    if len(groups) == 1:
        return groups[0]
    return sorted(itertools.chain(*groups), key=lambda found: _PLACE(found[0]))
