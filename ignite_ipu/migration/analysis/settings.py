"""Settings of a program, as far as its file writes them out: variables, configurations and options.

A setting is a variable that is bound once, an element of a dictionary, an attribute of a configuration, or an option of
the command line. An option has its default, as in a program that is started without arguments.
"""

from __future__ import annotations

import ast
import weakref
from functools import cached_property
from typing import Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple, Union

from ignite_ipu.migration.analysis.bindings import DEFINITIONS, Bindings
from ignite_ipu.migration.analysis.kinds import Function, default_of, device_test, parameters_of
from ignite_ipu.migration.analysis.models import Model
from ignite_ipu.migration.analysis.names import (
    argument,
    assignments,
    constant,
    dotted,
    has_hidden_arguments,
    index_of,
    last_of,
    names_bound,
    owner_of,
    walk,
)
from ignite_ipu.migration.analysis.number_values import ORDERS
from ignite_ipu.migration.analysis.options import Options
from ignite_ipu.migration.analysis.parsed_file import ParsedFile

Expressions = Iterator[Optional[ast.expr]]
Literals = Callable[[ast.expr], Iterable[object]]

_FOUND: weakref.WeakKeyDictionary[ast.Module, Settings] = weakref.WeakKeyDictionary()
_DEEPEST = 12
_SEQUENCES = (ast.Tuple, ast.List, ast.Set)
_NAMESPACES = ("types.SimpleNamespace", "argparse.Namespace")
_CONVERSIONS: Dict[str, Callable[[str], str]] = {"lower": str.lower, "upper": str.upper, "strip": str.strip}
_QUESTIONS = ("startswith", "endswith")


def settings_of(file: ParsedFile) -> Settings:
    """Return the settings of a file, which are found once."""
    found = _FOUND.get(file.tree)
    if found is None:
        found = _FOUND[file.tree] = Settings(file)
    return found


class Settings:
    """Finds the expressions whose values the settings of a file have."""

    def __init__(self, file: ParsedFile) -> None:
        # The settings live as long as the tree; some callers have a proxy of the file itself.
        self.file: ParsedFile = file if type(file) in weakref.ProxyTypes else weakref.proxy(file)
        self.bindings = Bindings(self.file)
        self._options = Options(self.file)
        self.finding_changes = False

    # Tests

    def results(self, test: ast.expr, literals: Optional[Literals] = None) -> Set[Optional[bool]]:
        """Return the results that a test may have, None for unknown ones.

        Args:
            test: The test.
            literals: Returns the literals that an expression may have as its value; by default those of settings.
        """
        literals = literals or self.literals
        on_device = device_test(test, self.file.names)
        if on_device is not None:
            return {on_device}
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return {None if each is None else not each for each in self.results(test.operand, literals)}
        if isinstance(test, ast.BoolOp):
            found = [self.results(each, literals) for each in test.values]
            ending = isinstance(test.op, ast.Or)
            if {ending} in found:
                return {ending}
            return {not ending} if all(each == {not ending} for each in found) else {None}
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            right = test.comparators[0]
            if isinstance(test.ops[0], (ast.In, ast.NotIn)):
                within = isinstance(test.ops[0], ast.In)
                return {
                    None if each is None else each is within
                    for each in (
                        _contains(left, around) for left in literals(test.left) for around in _sets(right, literals)
                    )
                }
            pairs = [(left, each) for left in literals(test.left) for each in literals(right)]
            return {_compared(test.ops[0], *pair) for pair in pairs}
        return {None if value is ... else bool(value) for value in literals(test)}

    def decision(self, test: ast.expr) -> Optional[bool]:
        """Return the result of a test that settings decide, None for another."""
        found = self.results(test)
        return found.pop() if len(found) == 1 else None

    # Values

    def literals(self, node: ast.expr, model: Optional[Model] = None, owner: str = "") -> Iterator[object]:
        """Yield the literals that an expression may have as its value, and Ellipsis for others."""
        return _Search(self, model, owner).literals(node, 0)

    def behind(self, node: ast.expr, model: Optional[Model] = None, owner: str = "") -> Expressions:
        """Yield the expressions whose values a setting may have, None for unknown ones.

        An expression that is no setting stands for itself.

        Args:
            node: The setting, or another expression.
            model: The model in whose method it stands.
            owner: The name of the model there.
        """
        return _Search(self, model, owner).behind(node, 0)

    @cached_property
    def _changes(self) -> Dict[ast.AST, Set[object]]:
        """The dictionaries that code changes, each with the keys; Ellipsis for unknown ones."""
        found: Dict[ast.AST, Set[object]] = {}
        self.finding_changes = True
        try:
            for owner, key in self.bindings.element_writes:
                for changed in self.behind(owner):
                    if changed is not None:
                        found.setdefault(changed, set()).add(key)
        finally:
            self.finding_changes = False
        return found

    def stores(self, attribute: str) -> int:
        """Return how often code assigns an attribute of a name, of whichever object, or an element of that name."""
        changed = () if self.finding_changes else self._changes.items()
        dictionaries = (keys for node, keys in changed if self._has_attributes(node))
        return self.bindings.stores(attribute) + sum(attribute in keys or ... in keys for keys in dictionaries)

    def _has_attributes(self, node: ast.AST) -> bool:
        """Return whether an expression is the dictionary of an object's attributes."""
        return self.file.names.called(node) == "vars" or getattr(node, "attr", None) == "__dict__"

    def changes(self, dictionary: ast.expr, key: object) -> bool:
        """Return whether code may change an element of a dictionary that the file writes out."""
        if self.finding_changes:
            return False
        keys = self._changes.get(dictionary, set())
        return key in keys or ... in keys

    def option(self, parsing: ast.Call, name: str) -> Optional[ast.expr]:
        """Return the value of an option of the command line, None for an unknown one."""
        given = argument(parsing, "args", 0)
        if argument(parsing, "namespace", 1) is not None:
            return None
        arguments: List[str] = []
        for each in () if given is None else self.behind(given):
            if not isinstance(each, (ast.List, ast.Tuple)):
                continue  # None, or the command line
            words = [value for part in each.elts for value in self.literals(part)]
            if not all(isinstance(word, str) for word in words):
                return None
            arguments += map(str, words)
        return self._options.value(name, arguments, self.literals)


class _Search:
    """One search for the expressions behind a setting, in a method of a model or elsewhere."""

    def __init__(self, settings: Settings, model: Optional[Model], owner: str) -> None:
        self._settings, self._file = settings, settings.file
        self._model, self._owner = model, owner
        # Parameters whose values are being searched: a function may pass its own on to itself.
        self._searched: Set[Tuple[Function, str]] = set()

    def behind(self, node: ast.expr, depth: int) -> Expressions:
        if depth > _DEEPEST:
            yield None
        elif self._file.names.resolve(node) is not None:
            yield node
        elif isinstance(node, ast.Name):
            yield from self._name(node, depth + 1)
        elif isinstance(node, ast.Attribute):
            yield from self._attribute(node, node.value, node.attr, depth + 1)
        elif isinstance(node, ast.Subscript):
            yield from self._elements(node.value, index_of(node), depth + 1)
        elif isinstance(node, ast.IfExp):
            found = self._settings.results(node.test, lambda each: self.literals(each, depth + 1))
            for each, chosen in ((node.body, True), (node.orelse, False)):
                if chosen in found or None in found:
                    yield from self.behind(each, depth + 1)
        elif isinstance(node, ast.Call):
            yield from self._call(node, depth + 1)
        else:
            yield node

    def literals(self, node: ast.expr, depth: int) -> Iterator[object]:
        """Yield the literals that an expression may have as its value, and Ellipsis for others."""
        for each in list(self.behind(node, depth)):
            if isinstance(each, ast.Compare) or (isinstance(each, ast.UnaryOp) and isinstance(each.op, ast.Not)):
                found = self._settings.results(each, lambda part: self.literals(part, depth + 1))
                yield from (... if result is None else result for result in found)
            elif isinstance(each, ast.BoolOp):
                yield from self._first(isinstance(each.op, ast.Or), each.values, depth + 1)
            else:
                yield constant(each)

    def _first(self, ending: bool, values: Sequence[ast.expr], depth: int) -> Iterator[object]:
        """Yield the literals that `or`, which true values end, or `and` may return."""
        for literal in self.literals(values[0], depth):
            if literal is ...:
                yield ...
            elif len(values) == 1 or bool(literal) is ending:
                yield literal
            else:
                yield from self._first(ending, values[1:], depth)

    def _name(self, node: ast.Name, depth: int) -> Expressions:
        around = next((each for each in self._file.ancestors(node) if node.id in _parameters(each)), None)
        if isinstance(around, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from self._parameter(around, node.id, depth)
            return
        if around is not None:
            yield None
            return
        value = self._settings.bindings.variable(node)
        if value is not None:
            yield from self.behind(value, depth)
        else:
            yield node if node.id in self._settings.bindings.classes or node.id in self._file.functions else None

    def _parameter(self, function: Function, name: str, depth: int) -> Expressions:
        """Yield the expressions that a function is given for a parameter, or its default, by all calls of it."""
        above = self._file.parents[function]
        made = isinstance(above, ast.ClassDef) and function.name == "__init__"
        called = above.name if isinstance(above, ast.ClassDef) and made else function.name
        bound = any(name in names_bound(statement) for statement in function.body)
        known = not bound and not function.decorator_list and self._settings.bindings.is_only_called(called)
        # A change of a parameter may be one of each object that the function is given.
        given = self._file.given(function, name) if known or self._settings.finding_changes else []
        if not given or (function, name) in self._searched:
            yield None  # a file that imports the function may call it with any
            return
        found: List[Optional[ast.expr]] = []
        self._searched.add((function, name))
        for each in given:
            value = default_of(function, name) if each is None else each
            found += [None] if value is None else self.behind(value, depth)
        self._searched.discard((function, name))
        yield from found

    def _attribute(self, node: ast.expr, owner: ast.expr, name: str, depth: int) -> Expressions:
        """Yield the expressions behind an attribute of an object."""
        if name == "__dict__":
            yield node
            return
        stores = self._settings.stores(name)
        if isinstance(owner, ast.Name) and owner.id == (self._owner or "self"):
            value = self._own(node, name)
            if value is None or stores > 1:
                yield None
            else:
                yield from self.behind(value, depth)
            return
        for each in self.behind(owner, depth):
            if isinstance(each, ast.Call) and owner_of(each, "parse_args") is not None:
                yield None if stores else self._settings.option(each, name)
            elif isinstance(each, (ast.Name, ast.Attribute)) and self._file.names.resolve(each) is not None:
                yield ast.copy_location(ast.Attribute(value=each, attr=name, ctx=ast.Load()), node)
            elif isinstance(each, ast.Name) and each.id in self._settings.bindings.classes:
                yield from self._field(self._settings.bindings.classes[each.id], None, name, stores, depth)
            elif isinstance(each, ast.Call):
                yield from self._of_object(each, name, stores, depth)
            else:
                yield None

    def _own(self, node: ast.expr, name: str) -> Optional[ast.expr]:
        """Return the value of an attribute of the object in whose method a node stands."""
        above = next((each for each in self._file.ancestors(node) if isinstance(each, ast.ClassDef)), None)
        if self._model is not None and _is_part(above, self._model):
            return self._model.values.get(name)
        init = None if above is None else _init_of(above)
        return None if init is None else _assigned_in(init, f"self.{name}")

    def _of_object(self, made: ast.Call, name: str, stores: int, depth: int) -> Expressions:
        """Yield the expressions behind an attribute of an object that a call constructs."""
        own = self._settings.bindings.classes.get(dotted(made.func) or "")
        if own is not None and not _is_mapping(own):
            yield from self._field(own, made, name, stores, depth)
            return
        constructs = (self._file.names.resolve(made.func) or dotted(made.func) or "").rpartition(".")[2][:1].isupper()
        given = argument(made, name)
        inside = [each.value for each in made.keywords if each.arg is None]
        inside += made.args[:1] if self._file.names.called(made) not in _NAMESPACES else []
        if stores or not constructs:
            yield None
        elif given is not None:
            yield from self.behind(given, depth)
        elif len(inside) == 1:
            yield from self._elements(inside[0], ast.Constant(value=name), depth)
        else:
            yield None

    def _field(self, own: ast.ClassDef, made: Optional[ast.Call], name: str, stores: int, depth: int) -> Expressions:
        """Yield the expressions behind an attribute of a class of the file, or of an object of it."""
        init = _init_of(own)
        if init is not None and made is not None:
            value = _assigned_in(init, f"self.{name}") if stores == 1 else None
            if value is None and stores == 0:
                value = _assigned_in(own, name)
        else:
            position = _position_of(own, name)
            value = argument(made, name, position) if made is not None else None
            value = value or _assigned_in(own, name)
            hidden = made is not None and (has_hidden_arguments(made) or (position is None and bool(made.args)))
            value = None if stores or hidden else value
        if value is None:
            yield None
        else:
            yield from self.behind(_default_of_field(value), depth)

    def _elements(
        self, owner: ast.expr, index: ast.expr, depth: int, default: Optional[ast.expr] = None
    ) -> Expressions:
        """Yield the expressions behind an element of a dictionary or list."""
        for key in list(self.literals(index, depth)):
            for each in list(self.behind(owner, depth)):
                values: Dict[object, ast.expr] = {}
                if isinstance(each, ast.Dict):
                    values = _by_key(each)
                elif isinstance(each, (ast.List, ast.Tuple)):
                    starred = any(isinstance(part, ast.Starred) for part in each.elts)
                    values = {} if starred else dict(enumerate(each.elts))
                elif isinstance(each, ast.Call) and self._file.names.called(each) == "dict" and not each.args:
                    values = {keyword.arg or ...: keyword.value for keyword in each.keywords}
                elif isinstance(each, ast.Call) and self._file.names.called(each) == "vars" and len(each.args) == 1:
                    yield from self._attribute(each, each.args[0], str(key), depth)
                    continue
                whole = bool(values) and ... not in values and None not in values
                value = values.get(key, default if whole else None)
                if key is ... or value is None or each is None or self._settings.changes(each, key):
                    yield None
                else:
                    yield from self.behind(value, depth)

    def _call(self, node: ast.Call, depth: int) -> Expressions:
        """Yield the expressions whose values a call may return; a call of unknown meaning stands for itself."""
        name, method = self._file.names.called(node), node.func
        function = self._file.functions.get(dotted(method) or "")
        if name == "getattr" and len(node.args) in (2, 3):
            for label in list(self.literals(node.args[1], depth)):
                if isinstance(label, str):
                    yield from self._attribute(node, node.args[0], label, depth)
                else:
                    yield None
        elif isinstance(method, ast.Attribute) and method.attr == "get" and node.args and name is None:
            default = argument(node, "default", 1) or ast.Constant(value=None)
            yield from self._elements(method.value, node.args[0], depth, default)
        elif isinstance(method, ast.Attribute) and method.attr in _CONVERSIONS and not node.args:
            for value in self.literals(method.value, depth):
                yield ast.Constant(value=_CONVERSIONS[method.attr](value)) if isinstance(value, str) else None
        elif isinstance(method, ast.Attribute) and method.attr in _QUESTIONS and len(node.args) == 1:
            for text in list(self.literals(method.value, depth)):
                for part in list(self.literals(node.args[0], depth)):
                    known = isinstance(text, str) and isinstance(part, str)
                    yield ast.Constant(value=getattr(text, method.attr)(part)) if known else None
        elif name in ("str", "bool", "int") and len(node.args) == 1:
            for value in self.literals(node.args[0], depth):
                if isinstance(value, (bool, int, str)) and type(value).__name__ == name:
                    yield ast.Constant(value=value)
                else:
                    yield None
        elif function is not None:
            value = _result_of(function)
            yield from [None] if value is None else self.behind(value, depth)
        else:
            yield node


def _init_of(own: ast.ClassDef) -> Optional[ast.FunctionDef]:
    return next((each for each in own.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"), None)


def _assigned_in(block: Union[ast.ClassDef, Function], name: str) -> Optional[ast.expr]:
    """Return the value that the statements of a class or function assign to a name once, behind no test."""
    binding = [each for each in block.body if not isinstance(each, DEFINITIONS) and name in names_bound(each)]
    found = [value for node in binding for target, value in assignments(node) if target == name]
    return found[0] if len(found) == len(binding) == 1 else None


def _parameters(node: ast.AST) -> Set[str]:
    """Return the names of the parameters of a function or lambda, empty for other nodes."""
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        return set()
    more = (node.args.vararg, node.args.kwarg)
    return {each.arg for each in (*parameters_of(node), *more) if each is not None}


def _result_of(function: Function) -> Optional[ast.expr]:
    """Return the expression whose value each call of a function returns, None if there may be others."""
    inside = walk(function)
    returned = [each for each in inside if isinstance(each, ast.Return)]
    plain = isinstance(function, ast.FunctionDef) and not function.decorator_list
    generates = any(isinstance(each, (ast.Yield, ast.YieldFrom)) for each in inside)
    return returned[0].value if plain and not generates and returned == function.body[-1:] else None


def _by_key(node: ast.Dict) -> Dict[object, ast.expr]:
    """Return the values of a dictionary by their keys; an unknown key, Ellipsis, hides those in front of it."""
    found: Dict[object, ast.expr] = {}
    for key, value in zip(map(constant, node.keys), node.values):
        if key is ...:
            found.clear()
        found[key] = value
    return found


def _is_part(own: Optional[ast.ClassDef], model: Model) -> bool:
    """Return whether a class is that of a model, or one that it inherits from."""
    return own is model.node or any(_is_part(own, base) for base in model.bases)


def _position_of(own: ast.ClassDef, name: str) -> Optional[int]:
    """Return the position of a field of a dataclass or named tuple among the arguments of its constructor."""
    fields = [
        each.target.id for each in own.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    ]
    inherits = [dotted(each) for each in own.bases if last_of(each) != "NamedTuple"]
    return fields.index(name) if name in fields and not own.keywords and not inherits else None


def _default_of_field(value: ast.expr) -> ast.expr:
    """Return the default that `dataclasses.field` is given, or the value of another field."""
    default = argument(value, "default") if isinstance(value, ast.Call) else None
    return value if default is None else default


def _is_mapping(own: ast.ClassDef) -> bool:
    return any(dotted(base) == "dict" for base in own.bases)


def _sets(node: ast.expr, literals: Literals) -> Iterator[object]:
    """Yield the literals that an expression may have as its value; that of a sequence is a list, Ellipsis unknown."""
    if not isinstance(node, _SEQUENCES):
        yield from literals(node)
        return
    elements = [each for part in node.elts for each in literals(part)]
    yield ... if ... in elements else elements


def _contains(element: object, around: object) -> Optional[bool]:
    if isinstance(around, list) and element is not ...:
        return element in around
    return element in around if isinstance(element, str) and isinstance(around, str) else None


def _compared(operator: ast.cmpop, left: object, right: object) -> Optional[bool]:
    if left is ... or right is ...:
        return None
    if isinstance(operator, (ast.Is, ast.IsNot)):
        return (type(left) is type(right) and left == right) is isinstance(operator, ast.Is)
    if isinstance(operator, (ast.Eq, ast.NotEq)):
        return (left == right) is isinstance(operator, ast.Eq)
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        compared = ORDERS.get(type(operator))
        return None if compared is None else bool(compared(left, right))
    return None
