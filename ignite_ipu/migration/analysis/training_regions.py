"""Code that runs between the construction of an engine or an optimizer and the end of the training with it."""

from __future__ import annotations

import ast
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence

from ignite_ipu.migration.analysis.kinds import Code, Function
from ignite_ipu.migration.analysis.names import argument, children, last_of, owner_of, walk
from ignite_ipu.migration.analysis.training import Training
from ignite_ipu.program.reached import reached

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


class Reached(NamedTuple):
    """A node that runs after the construction; `begun` if the training may have begun by then."""

    node: ast.AST
    begun: bool


class TrainingRegions:
    """The nodes of a file that run after one of some objects was made, and before the last run with it ends.

    These are handlers, code between the construction and a run, or between two runs, and the functions that they call.

    Args:
        training: The training of the file.
        made: The constructions of the objects.
        runs: The calls that train or evaluate with them.
        repeated: Whether functions that run, and make none, are called again and again.
    """

    def __init__(
        self, training: Training, made: Sequence[ast.Call], runs: Iterable[ast.Call], repeated: bool = False
    ) -> None:
        self._file, self._functions = training.file, training.host_functions
        self._made, self._makers, self._repeated = made, self._functions.above(made), repeated
        self._runs: Dict[Optional[Function], List[ast.Call]] = {}
        for call in runs:
            self._runs.setdefault(self._file.function_of(call), []).append(call)

    def nodes(self) -> Iterator[Reached]:
        """Yield the nodes, each once."""
        begun = {id(node): Reached(node, True) for node in self._after(self._handlers(), self._between(True))}
        pending = (node for node in self._after((), self._between(False)) if id(node) not in begun)
        yield from begun.values()
        yield from (Reached(node, False) for node in pending)

    def _handlers(self) -> Iterator[Code]:
        """Yield the functions that events of engines call."""
        for function in self._functions.all:
            if any(owner_of(each, "on") is not None for each in function.decorator_list):
                yield function
        for call, _ in self._file.method_calls("add_event_handler"):
            handler = argument(call, "handler", 1)
            while isinstance(handler, ast.Call) and handler.args:  # functools.partial
                handler = handler.args[0]
            if isinstance(handler, ast.Lambda):
                yield handler
            named = self._functions.by_name.get(last_of(handler))
            if named is not None and named not in self._file.traced:
                yield named

    def _after(self, functions: Iterable[Code], nodes: Sequence[ast.AST]) -> List[ast.AST]:
        """Return nodes, those of functions, and those of the functions that they call."""

        def called(function: Code) -> Iterator[Code]:
            for node in walk(function):
                callee = self._functions.callee(node) if isinstance(node, ast.Call) else None
                if callee is not None and callee not in self._makers:
                    yield callee

        calls = [self._functions.callee(node) for node in nodes if isinstance(node, ast.Call)]
        start: List[Code] = [*functions, *(each for each in calls if each is not None and each not in self._makers)]
        return [*nodes, *(node for function in reached(start, called) for node in walk(function))]

    def _between(self, begun: bool) -> List[ast.AST]:
        """Return the nodes of functions, and of the module, that run between two runs, or before the first."""
        found: List[ast.AST] = []
        for function, runs in self._runs.items():
            nodes = list(_own_nodes(self._file.tree if function is None else function))
            made = [node for node in nodes if self._makes(node)]
            if made or function not in self._makers:
                always = self._repeated and function is not None and not made
                found += [node for node in nodes if (always or self._runs_at(node, made, runs)) is begun]
        return found

    def _makes(self, node: ast.AST) -> bool:
        """Return whether a node is a construction, or a call of a function that has one."""
        return isinstance(node, ast.Call) and (
            node in self._made or self._functions.callee(node) in self._makers - {None}
        )

    def _runs_at(self, node: ast.AST, made: Sequence[ast.AST], runs: Sequence[ast.Call]) -> Optional[bool]:
        """Return whether a node runs after a run that is followed by another, or before the first; None for others."""
        place = getattr(node, "lineno", 0)
        before = [end for end in (getattr(each, "end_lineno", 0) for each in made) if end < place]
        if not place or (made and not before):
            return None
        loops = [loop for loop in self._file.loops_around(node) if not any(_is_within(each, loop) for each in made)]
        again = any(_is_within(run, loop) for loop in loops for run in runs)
        if not again and all(run.lineno <= place for run in runs):
            return None
        return again or any(max(before, default=0) <= run.lineno < place for run in runs)


def _is_within(node: ast.AST, loop: ast.stmt) -> bool:
    return loop.lineno <= getattr(node, "lineno", 0) <= (loop.end_lineno or 0)


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below a function or a module, without those of functions and classes in it."""
    waiting: List[ast.AST] = list(children(scope))
    for node in waiting:  # which grows
        if not isinstance(node, _SCOPES):
            yield node
            waiting += children(node)
