"""Loops followed by the events of their gradients: which updates only the host can make.

The text of a loop is run on an abstract state: the gradients of the trained parameters are cleared, pending, or used by
an update. Tests of counters and constants are decided by their values. All ways through other tests are tried; an event
counts only if it happens on all of them.
"""

from __future__ import annotations

import ast
import enum
import itertools
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Union

from ignite_ipu.migration.analysis.kinds import Function, parameters_of
from ignite_ipu.migration.analysis.names import dotted, names_bound, owner_of, targets_of, walk
from ignite_ipu.migration.analysis.number_values import count_iteration, length_of, value_of
from ignite_ipu.migration.analysis.parsed_file import ParsedFile
from ignite_ipu.migration.analysis.training import Training

_ITERATIONS, _EPOCHS, _MOST_ITERATIONS = 8, 2, 32
_MOST_TESTS, _DEEPEST, _MOST_STATEMENTS = 4, 8, 4000
_NOT_WRITES = ("zero_grad", "share_memory_", "apply_")
_WRITES = ("write", "freeze")
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class _Gradients(enum.Enum):
    """State of the gradients of the trained parameters."""

    CLEARED = "there are none"
    PENDING = "of losses that no update has used"
    USED = "of the last update"
    ADDED = "of the last update and of pending losses"
    UNKNOWN = "after a loop of unknown length"


class HostUpdate(NamedTuple):
    """An event that a fused update cannot express, and the reason."""

    node: ast.AST
    reason: str


UNUSED = "gradients that no update has used are cleared"
AGAIN = "an update uses the gradients of the one before again, because nothing has cleared them"
WRITTEN = "a weight is written or frozen between backward() and the step"
OLDER = "a loss of weights that were written after the call of the model goes backward"


def host_updates(training: Training) -> List[HostUpdate]:
    """Return the events of a file's loops after which updates are made on the host, whatever its open tests give.

    A file with several optimizers has none: which of them the gradients are for depends on values.
    """
    found = _Text(training)
    if len(found.steppers) != 1:
        return []
    return [event for root in found.roots() for event in _certain(found, root)]


def _certain(text: _Text, root: Sequence[ast.stmt]) -> List[HostUpdate]:
    """Return the first event of a root if every way through its open tests has one."""
    tests: List[str] = []
    first: Optional[HostUpdate] = None
    for choices in itertools.product((True, False), repeat=_MOST_TESTS):
        run = _Run(text, tests, choices)
        try:
            run.block(root, dict(text.constants))
        except _End:
            pass
        except _Unclear:
            return []
        if run.found is None or len(tests) > _MOST_TESTS:
            return []
        first = first or run.found
        if not tests:
            break
    return [] if first is None else [first]


class _End(Exception):
    """An event was found."""


class _Unclear(Exception):
    """The text is too long, or calls too deep, to be followed."""


class _Text:
    """The events of a file by node, and the functions that have some, themselves or by what they call."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.file = training.file
        self.functions = training.host_functions
        self.backwards = set(training.backwards)
        steps = [owner for call, owner in self.file.method_calls("step") if training.is_optimizer(owner)]
        given = [dotted(value) for call, _ in self.file.method_calls("step") for value in call.args]
        steps += [name for name in given if name is not None and training.is_optimizer(name)]
        self.steppers = {_last(name) for name in steps}
        self.models = training.models
        self.elements = _elements(self.file)
        changed = {
            name for kind in (ast.AugAssign, *_LOOPS) for node in self.file.nodes(kind) for name in names_bound(node)
        }
        assigned = [node for node in self.file.tree.body if isinstance(node, ast.Assign)]
        single = {name: value_of(node.value, {}) for node in assigned for name in names_bound(node)}
        # Numbers that the module assigns, and nothing changes.
        self.constants = {
            name: value
            for name, value in single.items()
            if value is not None and name not in changed and len(self.file.values.get(name, ())) == 1
        }
        self.weights = {name for loop in self.file.nodes(ast.For) for name in self._weights_of(loop)}
        self.eventful: Set[ast.AST] = set()
        self._find_eventful()

    def _find_eventful(self) -> None:
        """Note the nodes with events in them, by what they call as well."""
        nodes = (*self.file.nodes(ast.Call), *self.file.nodes(ast.Assign), *self.file.nodes(ast.AugAssign))
        events = (node for node in nodes if node not in self.file.traced and self.event_of(node) is not None)
        waiting: List[ast.AST] = list(events)
        while waiting:
            node = waiting.pop()
            for above in (node, *self.file.ancestors(node)):
                if above in self.eventful:
                    break
                self.eventful.add(above)
                if isinstance(above, _FUNCTIONS):
                    waiting += self.functions.callers.get(above, ())
                    break

    def roots(self) -> List[Sequence[ast.stmt]]:
        """Return the code that begins loops: the module, and functions that nothing in the file calls.

        Engines call theirs for each batch. Other files may clear gradients between calls of the others.
        """
        of_engines = {function for _, function in self.training.engines.process_functions}
        uncalled = [node for node in self.functions.by_name.values() if node not in self.functions.callers]
        functions = [node for node in uncalled if node in self.eventful]
        bodies = (_repeated(node.body) if node in of_engines else node.body for node in functions)
        return [self.file.tree.body, *bodies]

    def event_of(self, node: ast.AST) -> Optional[str]:
        """Return the event of a call or an assignment, None for none.

        It is "forward", "backward", "step", "clear", "clear a part", "write" or "freeze"; "unknown" for a call of other
        files that is given the optimizer.
        """
        if isinstance(node, ast.Call):
            return self._event_of_call(node)
        target = next(iter(targets_of(node)), None)
        if isinstance(target, ast.Attribute) and target.attr == "grad":
            cleared = isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            above = self.file.parents[node]
            whole = isinstance(above, ast.For) and _over_parameters(above)
            return None if not cleared else "clear" if whole else "clear a part"
        if isinstance(target, ast.Attribute) and target.attr == "requires_grad":
            return "freeze" if self._is_weight(target.value) else None
        stored = isinstance(target, (ast.Attribute, ast.Subscript)) or isinstance(node, ast.AugAssign)
        return "write" if stored and isinstance(target, ast.expr) and self._is_weight(target) else None

    def _event_of_call(self, call: ast.Call) -> Optional[str]:
        if call in self.backwards:
            return "backward"
        function = call.func
        if self._is_model(dotted(function)) and self._is_trained(dotted(function)):
            return None if self.file.without_gradients(call) else "forward"
        if (self.file.names.called(call) or "").startswith("torch.nn.init."):
            return "write" if call.args and self._is_weight(call.args[0]) else None
        event = self._event_of_method(call, function) if isinstance(function, ast.Attribute) else None
        return event or ("unknown" if self._hands_on(call) else None)

    def _hands_on(self, call: ast.Call) -> bool:
        given = [dotted(value) for value in (*call.args, *(each.value for each in call.keywords))]
        optimizers = any(name is not None and self.training.is_optimizer(name) for name in given)
        library = (self.file.names.resolve(call.func) or "").startswith("torch.")
        return optimizers and not library and self.functions.callee(call) is None

    def _event_of_method(self, call: ast.Call, function: ast.Attribute) -> Optional[str]:
        owner, name = dotted(function.value), function.attr
        if name == "step":
            given = [dotted(value) for value in call.args]
            named = [each for each in (owner, *given) if each is not None and self.training.is_optimizer(each)]
            return "step" if named and (not call.args or given[0] in named) else None
        if name == "zero_grad":
            if owner is not None and (self._is_model(owner) or self.training.is_optimizer(owner)):
                return "clear"
            return "clear a part" if self._is_model(self._root(function.value)) else None
        in_place = name.endswith("_") and not name.startswith("_") and name not in _NOT_WRITES
        if name == "requires_grad_":
            module = self._root(function.value) or (owner if self._is_model(owner) else None)
            return "freeze" if self._is_weight(function.value) or self._is_trained(module) else None
        if name == "load_state_dict":
            return "write" if self._is_model(owner) and self._is_trained(owner) else None
        return "write" if in_place and self._is_weight(function.value) else None

    def _weights_of(self, loop: ast.For) -> Iterator[str]:
        """Yield the variables of a loop over the weights of a trained model, also beside others by `zip`."""
        pairs = [(loop.target, loop.iter)]
        if isinstance(loop.iter, ast.Call) and dotted(loop.iter.func) == "zip" and isinstance(loop.target, ast.Tuple):
            pairs = list(zip(loop.target.elts, loop.iter.args))
        for target, value in pairs:
            owners = [owner_of(node, "parameters", "named_parameters") for node in walk(value)]
            if any(owner is not None and self._is_trained(owner) for owner in owners):
                yield from names_bound(target)

    def _is_trained(self, model: Optional[str]) -> bool:
        return model is not None and any(map(self.training.is_trained, self.elements.get(model, [model])))

    def _is_model(self, name: Optional[str]) -> bool:
        return name is not None and (name in self.models or _last(name) in self.training.trained)

    def _is_weight(self, node: ast.expr) -> bool:
        """Return whether an expression is a weight of a trained model, or of a loop over weights, or its data."""
        attributes, name = set(), node
        while isinstance(name, (ast.Attribute, ast.Subscript)):
            attributes |= {name.attr} if isinstance(name, ast.Attribute) else set()
            name = name.value
        if "grad" in attributes:
            return False
        if isinstance(name, ast.Name) and name.id in self.weights:
            return True
        return bool(attributes & {"weight", "bias", "data"}) and self._is_trained(self._root(node))

    def _root(self, node: ast.expr) -> Optional[str]:
        """Return the model that an expression is a part of."""
        while isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
            if self._is_model(dotted(node)):
                return dotted(node)
        return None


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _elements(file: ParsedFile) -> Dict[str, List[str]]:
    """Return the names that the variables of loops and comprehensions stand for, where the text shows all of them."""
    nodes: List[Union[ast.For, ast.comprehension]] = [*file.nodes(ast.For), *file.nodes(ast.comprehension)]
    found: Dict[str, List[Optional[List[str]]]] = {}
    for node in nodes:
        pairs = [(node.target, node.iter)]
        zipped = isinstance(node.iter, ast.Call) and dotted(node.iter.func) == "zip"
        if zipped and isinstance(node.iter, ast.Call) and isinstance(node.target, (ast.Tuple, ast.List)):
            pairs = list(zip(node.target.elts, node.iter.args))
        for target, value in pairs:
            alone = isinstance(target, ast.Name)
            bound = (each.id for each in walk(target) if isinstance(each, ast.Name))
            for name in bound:
                found.setdefault(name, []).append(_names_in(file, value) if alone else None)
    return {
        name: [each for names in known if names for each in names]
        for name, known in found.items()
        if None not in known and name not in file.values
    }


def _names_in(file: ParsedFile, value: ast.expr) -> Optional[List[str]]:
    """Return the names of the elements of a list that the text writes out, None for other values."""
    written = file.single_value(dotted(value)) if dotted(value) is not None else value
    if not isinstance(written, (ast.List, ast.Tuple)):
        return None
    names = [dotted(each) for each in written.elts]
    return None if None in names else [name for name in names if name is not None]


def _over_parameters(loop: ast.For) -> bool:
    return any(owner_of(node, "parameters", "named_parameters") is not None for node in walk(loop.iter))


def _repeated(body: Sequence[ast.stmt]) -> List[ast.stmt]:
    return [ast.While(ast.Constant(True), list(body), [])]


class _Run:
    """One way through the text; `found` is the first event that only the host can follow."""

    def __init__(self, text: _Text, tests: List[str], choices: Sequence[bool]) -> None:
        self.text = text
        self.gradients = _Gradients.CLEARED
        # Whether the model was called since the last step, and weights were written since that call.
        self.called, self.older = False, False
        self.found: Optional[HostUpdate] = None
        self._tests, self._choices = tests, choices
        self._statements, self._depth, self._loops = 0, 0, 0

    def block(self, body: Sequence[ast.stmt], variables: Dict[str, Any]) -> str:
        """Run statements; returns "continue", "break" or "return" if they leave the block, and "" if not."""
        for statement in body:
            left = self._statement(statement, variables)
            if left:
                return left
        return ""

    def _statement(self, node: ast.stmt, variables: Dict[str, Any]) -> str:
        self._statements += 1
        if self._statements > _MOST_STATEMENTS:
            raise _Unclear
        if isinstance(node, (ast.Continue, ast.Break, ast.Return)):
            self._expression(node, variables)
            return type(node).__name__.lower()
        if isinstance(node, ast.If):
            return self._branch(node, variables)
        if isinstance(node, _LOOPS):
            self._loop(node, variables)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            return self.block(node.body, variables)
        elif isinstance(node, ast.Try):
            return self.block([*node.body, *node.orelse, *node.finalbody], variables)
        elif not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            self._expression(node, variables)
            self._assign(node, variables)
        return ""

    def _branch(self, node: ast.If, variables: Dict[str, Any]) -> str:
        if any(isinstance(each, ast.Name) and each.id == "__name__" for each in walk(node.test)):
            return self.block(node.body, variables)
        known = value_of(node.test, variables)
        if known is None and any(map(self._matters, (*node.body, *node.orelse))):
            known = self._choice(ast.dump(node.test))
        if known is None:
            for name in names_bound(node):
                variables.pop(name, None)
            return ""
        return self.block(node.body if known else node.orelse, variables)

    def _matters(self, node: ast.stmt) -> bool:
        leaves = (ast.Continue, ast.Break, ast.Return)
        return node in self.text.eventful or any(isinstance(each, leaves) for each in walk(node))

    def _choice(self, test: str) -> bool:
        if test not in self._tests:
            self._tests.append(test)
        number = self._tests.index(test)
        if number >= len(self._choices):
            raise _Unclear
        return self._choices[number]

    def _loop(self, node: Union[ast.For, ast.AsyncFor, ast.While], variables: Dict[str, Any]) -> None:
        if node.body[0] not in self.text.eventful and not any(each in self.text.eventful for each in node.body):
            return
        if isinstance(node, ast.For) and _over_parameters(node):
            self.block(node.body, variables)  # the same event for all of them
            return
        count = None if isinstance(node, ast.While) else length_of(node.iter, variables)
        nested = any(isinstance(each, _LOOPS) and each in self.text.eventful for each in walk(node)[1:])
        times = min(count, _MOST_ITERATIONS) if count is not None else _EPOCHS if nested else _ITERATIONS
        self._loops += 1
        for number in range(times):
            if not isinstance(node, ast.While):
                count_iteration(node, number, variables)
            if self.block(node.body, variables) in ("break", "return"):
                break
        self._loops -= 1
        if count is None or count > times:
            self.gradients, self.called, self.older = _Gradients.UNKNOWN, False, False

    def _expression(self, node: ast.AST, variables: Dict[str, Any]) -> None:
        if node not in self.text.eventful:
            return
        calls = [each for each in walk(node) if isinstance(each, ast.Call) and each in self.text.eventful]
        for call in sorted(calls, key=lambda each: (each.end_lineno or 0, each.end_col_offset or 0)):
            event, callee = self.text.event_of(call), self.text.functions.callee(call)
            if event is not None:
                self._happens(event, call)
            elif callee is not None:
                self._enter(callee, call, variables)
        event = self.text.event_of(node) if isinstance(node, (ast.Assign, ast.AugAssign)) else None
        if event is not None:
            self._happens(event, node)

    def _enter(self, function: Function, call: ast.Call, variables: Mapping[str, Any]) -> None:
        if self._depth >= _DEEPEST:
            raise _Unclear
        own = isinstance(self.text.file.parents[function], ast.ClassDef)
        names = [each.arg for each in parameters_of(function)][own:]
        given = {name: value_of(value, variables) for name, value in zip(names, call.args)}
        given.update((each.arg, value_of(each.value, variables)) for each in call.keywords if each.arg is not None)
        self._depth += 1
        known = {name: value for name, value in given.items() if value is not None}
        constants = {name: value for name, value in self.text.constants.items() if name not in names}
        self.block(function.body, {**constants, **known})
        self._depth -= 1

    def _assign(self, node: ast.stmt, variables: Dict[str, Any]) -> None:
        value = None
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            value = value_of(node.value, variables)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            value = value_of(ast.BinOp(ast.Name(node.target.id, ast.Load()), node.op, node.value), variables)
        for name in names_bound(node):
            variables.pop(name, None)
            if value is not None:
                variables[name] = value

    def _happens(self, event: str, node: ast.AST) -> None:
        """Follow an event."""
        now = self.gradients
        pending = now in (_Gradients.PENDING, _Gradients.ADDED)
        if event.startswith("clear") and pending:
            self._leave(node, UNUSED)
        elif event in _WRITES and pending:
            self._leave(node, WRITTEN)
        elif event == "backward" and self.older:
            self._leave(node, OLDER)
        elif event == "forward":
            self.called, self.older = True, False
        elif event == "write":
            self.older = self.called
        elif event == "step" and now in (_Gradients.USED, _Gradients.ADDED):
            self._leave(node, AGAIN)
        elif event == "clear":
            self.gradients = _Gradients.CLEARED
        elif event == "unknown":
            self.gradients, self.called, self.older = _Gradients.UNKNOWN, False, False
        elif now is _Gradients.UNKNOWN:
            return
        elif event == "backward":
            self.gradients = _Gradients.ADDED if now in (_Gradients.USED, _Gradients.ADDED) else _Gradients.PENDING
        elif event == "step" and now is _Gradients.PENDING:
            self.gradients, self.called = _Gradients.USED, False

    def _leave(self, node: ast.AST, reason: str) -> None:
        self.found = HostUpdate(node, reason)
        raise _End
