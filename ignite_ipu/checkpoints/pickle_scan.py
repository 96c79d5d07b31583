"""A look at a pickle without unpickling it: only what `torch.save` writes for tensors and plain data may go on.

`torch.load(weights_only=True)` runs no foreign code either, but a small crafted pickle can still make it allocate as
much memory as it likes, crash it with tuples nested too deeply to be hashed, or hand on lists that refer to one another
so that whoever walks them never ends. So the opcodes are executed here on sizes and depths alone.
"""

from __future__ import annotations

import struct
from typing import Any, Dict, List, NamedTuple, NoReturn, Optional

from ignite_ipu.errors import CheckpointError

__all__ = ["READABLE", "scan_pickle"]

_DEEPEST = 64
_LARGEST = 20_000_000

_TYPES = (
    *(f"torch.{kind}Storage" for kind in ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char")),
    *("torch.ByteStorage", "torch.BoolStorage", "torch.ComplexFloatStorage", "torch.ComplexDoubleStorage"),
    *("torch.storage.UntypedStorage", "torch.storage.TypedStorage"),
    *(f"torch.{name}" for name in ("float16", "bfloat16", "float32", "float64", "complex64", "complex128", "bool")),
    *(f"torch.{name}" for name in ("uint8", "int8", "int16", "int32", "int64")),
)
# Each gives something no larger than its arguments.
_FUNCTIONS = (
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_parameter",
    "torch.Size",
    "torch.device",
    "collections.OrderedDict",
    "collections.Counter",
    "builtins.set",
    "__builtin__.set",
)
READABLE = frozenset((*_TYPES, *_FUNCTIONS))
_METHOD = (
    ". So are methods written, which some schedulers keep in their state: CheckpointSaver leaves these out. If you "
    "trust the file, load it with Checkpoint.load_objects(objects, torch.load(path, weights_only=False))"
)
_HINTS = {"builtins.getattr": _METHOD, "__builtin__.getattr": _METHOD}
_DICTIONARIES = ("collections.OrderedDict", "collections.Counter")


class _Node:
    """What a value on the unpickler's stack is, without the value.

    Attributes:
        kind: `text`, `number`, `list`, `dict`, `tuple`, `global`, or `other`.
        depth: Containers below it, at most.
        size: Values in it, shared ones as often as they occur.
        name: Of a global.
        shared: Whether it was taken from the memo.
    """

    __slots__ = ("depth", "kind", "name", "shared", "size")

    def __init__(self, kind: str, depth: int = 0, size: int = 1, name: str = "") -> None:
        self.kind, self.depth, self.size, self.name, self.shared = kind, depth, size, name, False

    def take(self, items: List[_Node]) -> None:
        """Note that `items` are put into this one.

        Raises:
            CheckpointError: Others have this one already, it nests too deeply, or holds too much.
        """
        if self.shared:
            # Their sizes are known already; and a container gets into itself only in this way.
            _refuse("a container in it is filled after others refer to it")
        for item in items:
            self.depth = max(self.depth, item.depth + 1)
            self.size += item.size
        if self.depth > _DEEPEST:
            _refuse(f"its values nest more than {_DEEPEST} levels deep")
        if self.size > _LARGEST:
            _refuse(f"it stands for more than {_LARGEST} values")


class _Argument(NamedTuple):
    size: int
    kind: str


# Opcode -> what follows it: a number of bytes, and what that is.
_ARGUMENTS: Dict[bytes, _Argument] = {
    b"K": _Argument(1, "number"),
    b"M": _Argument(2, "number"),
    b"J": _Argument(4, "number"),
    b"G": _Argument(8, "other"),
    b"q": _Argument(1, "put"),
    b"r": _Argument(4, "put"),
    b"h": _Argument(1, "get"),
    b"j": _Argument(4, "get"),
    b"X": _Argument(4, "text"),
    b"\x8a": _Argument(1, "long"),
    b"\x80": _Argument(1, "protocol"),
}
_SIMPLE: Dict[bytes, str] = {b"N": "other", b"\x88": "other", b"\x89": "other"}
_EMPTY: Dict[bytes, str] = {b"}": "dict", b"]": "list", b")": "tuple"}
_TUPLES: Dict[bytes, int] = {b"\x85": 1, b"\x86": 2, b"\x87": 3}


class _Machine:
    """The unpickler's stack and memo."""

    def __init__(self) -> None:
        self.stack: List[_Node] = []
        self.marks: List[List[_Node]] = []
        self.memo: Dict[int, _Node] = {}

    def pop(self) -> _Node:
        if not self.stack:
            _refuse("it takes values that it has not put anywhere")
        return self.stack.pop()

    def pop_marked(self) -> List[_Node]:
        if not self.marks:
            _refuse("it takes values that it has not put anywhere")
        items, self.stack = self.stack, self.marks.pop()
        return items

    def top(self, *kinds: str) -> _Node:
        if not self.stack or self.stack[-1].kind not in kinds:
            _refuse(f"it puts values into something that is no {' or '.join(kinds)}")
        return self.stack[-1]

    def tuple_of(self, items: List[_Node]) -> None:
        node = _Node("tuple")
        node.take(items)
        self.stack.append(node)

    def put(self, number: int) -> None:
        if not self.stack:
            _refuse("it takes values that it has not put anywhere")
        self.memo[number] = self.stack[-1]

    def get(self, number: int) -> None:
        node = self.memo.get(number)
        if node is None:
            _refuse("it refers to values that it does not have")
        node.shared = True
        self.stack.append(node)

    def set_items(self, items: List[_Node]) -> None:
        target = self.top("dict")
        if len(items) % 2 or any(key.kind not in ("text", "number") for key in items[::2]):
            _refuse("a dictionary in it has keys that are neither strings nor numbers")
        target.take(items)

    def call(self) -> None:
        arguments, function = self.pop(), self.pop()
        if function.kind != "global" or function.name not in _FUNCTIONS or arguments.kind != "tuple":
            _refuse(f"it calls {function.name or 'something that is no function'}")
        node = _Node("dict" if function.name in _DICTIONARIES else "other")
        node.take([arguments])
        self.stack.append(node)

    def build(self) -> None:
        state = self.pop()
        if state.kind not in ("dict", "tuple"):
            _refuse("it sets attributes that are no dictionary")
        # The metadata of a module's state dictionary.
        self.top("dict").take([state])

    def tensor_storage(self) -> None:
        node = _Node("other")
        node.take([self.pop()])
        self.stack.append(node)


def scan_pickle(data: bytes) -> None:
    """Refuse a pickle that holds anything but tensors, numbers, strings and containers of them, of a bounded size.

    Raises:
        CheckpointError: The message says what else it holds.
    """
    machine = _Machine()
    position, end = 0, len(data)
    while position < end:
        code = data[position : position + 1]
        position += 1
        argument = _ARGUMENTS.get(code)
        if argument is not None:
            value = _bytes(data, position, argument.size)
            position += argument.size
            if argument.kind in ("text", "long"):
                length = int.from_bytes(value, "little")
                _bytes(data, position, length)
                position += length
            _with_argument(machine, argument, value)
        elif code == b"c":
            lines = data[position : position + 512].split(b"\n", 2)
            if len(lines) < 3:
                _refuse("the name of something in it does not end")
            position += len(lines[0]) + len(lines[1]) + 2
            name = b".".join(lines[:2]).decode("ascii", "backslashreplace")
            if name not in READABLE:
                _refuse(f"it holds a {name}, which would take code to rebuild{_HINTS.get(name, '')}")
            machine.stack.append(_Node("global", name=name))
        elif code == b".":
            if len(machine.stack) != 1 or machine.marks or position != end:
                _refuse("it ends in the middle")
            return
        else:
            _without_argument(machine, code)
    _refuse("it does not end")


def _with_argument(machine: _Machine, argument: _Argument, value: bytes) -> None:
    if argument.kind == "put":
        machine.put(int.from_bytes(value, "little"))
    elif argument.kind == "get":
        machine.get(int.from_bytes(value, "little"))
    elif argument.kind == "protocol":
        if value[0] != 2:
            _refuse(f"it is of pickle protocol {value[0]}; torch.save writes 2")
    else:
        machine.stack.append(_Node("other" if argument.kind == "long" else argument.kind))


def _without_argument(machine: _Machine, code: bytes) -> None:
    action: Optional[Any] = _ACTIONS.get(code)
    if code in _SIMPLE:
        machine.stack.append(_Node(_SIMPLE[code]))
    elif code in _EMPTY:
        machine.stack.append(_Node(_EMPTY[code]))
    elif code in _TUPLES:
        items = [machine.pop() for _ in range(_TUPLES[code])]
        machine.tuple_of(items)
    elif action is not None:
        action(machine)
    else:
        _refuse(f"it has the opcode {code!r}, which torch.save does not write")


def _mark(machine: _Machine) -> None:
    machine.marks.append(machine.stack)
    machine.stack = []


def _append(machine: _Machine) -> None:
    item = machine.pop()
    machine.top("list").take([item])


def _appends(machine: _Machine) -> None:
    items = machine.pop_marked()
    machine.top("list").take(items)


def _set_item(machine: _Machine) -> None:
    value, key = machine.pop(), machine.pop()
    machine.set_items([key, value])


_ACTIONS: Dict[bytes, Any] = {
    b"(": _mark,
    b"a": _append,
    b"e": _appends,
    b"s": _set_item,
    b"u": lambda machine: machine.set_items(machine.pop_marked()),
    b"t": lambda machine: machine.tuple_of(machine.pop_marked()),
    b"R": _Machine.call,
    b"b": _Machine.build,
    b"Q": _Machine.tensor_storage,
}


def _bytes(data: bytes, position: int, size: int) -> bytes:
    if position + size > len(data):
        _refuse("it is cut short")
    return data[position : position + size] if size <= struct.calcsize("Q") else b""


def _refuse(why: str) -> NoReturn:
    raise CheckpointError(f"{why}.")
