"""Reading and writing settings: files, inline JSON, `NAME=VALUE`, and the order in which these places count.

The highest place that names a setting decides it:

1. arguments in the code, which may not contradict its own `config=`
2. `--set NAME=VALUE` and its short forms; a later one replaces an earlier one
3. `--ipu-config`, a file or inline JSON
4. `IGNITE_IPU_CONFIG`, a file or inline JSON
5. `POPTORCH_DEFAULT_OPTIONS`, for PopTorch's own options; a batching factor that contradicts it is refused
6. the default

`null` is a value: it resets a setting to its default. `options`, a mapping of setters, is merged setter by setter.
"""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path
from typing import Any, Dict, Iterable, Mapping, NamedTuple, Union

from ignite_ipu.checkpoints.atomic_files import whole_file
from ignite_ipu.errors import OptionsError

VARIABLE = "IGNITE_IPU_CONFIG"
"""Holds settings of commands and of `ignite_ipu.auto`: inline JSON, or the path of a file."""

FILE = "ipu_config.json"
"""Name of the settings' file in a folder."""

_LARGEST_FILE = 1 << 16
_YAML = (".yaml", ".yml")
_OPTIONS = "options"


class Source(NamedTuple):
    """Settings as they were read, with the place that messages name.

    Attributes:
        from_words: True for settings of a command line, where a word may stand for a list of one.
    """

    place: str
    settings: Mapping[str, Any]
    from_words: bool = False


def merged(sources: Iterable[Source]) -> Dict[str, Any]:
    """Return the settings of all sources; a later source replaces the values of an earlier one."""
    found: Dict[str, Any] = {}
    for source in sources:
        for name, value in source.settings.items():
            before = found.get(name)
            if name == _OPTIONS and isinstance(before, Mapping) and isinstance(value, Mapping):
                value = {**before, **value}
            found[name] = value
    return found


def read(text: str) -> Source:
    """Return the settings of inline JSON, which begins with a brace, or of the file that `text` names.

    Raises:
        OptionsError: The text or the file holds no settings; the message begins with the place.
        OSError: The file cannot be read.
    """
    if not text.lstrip().startswith("{"):
        return read_file(text)
    return Source("the inline settings", _mapping("the inline settings", text, ".json"))


def read_file(path: Union[str, os.PathLike[str]]) -> Source:
    """Return the settings of a YAML or JSON file, or of `ipu_config.json` in a folder.

    Raises:
        OptionsError: The file holds no settings; the message begins with the path.
        OSError: The file cannot be read.
    """
    file = _file(path)
    with open(file, "rb") as opened:
        data = opened.read(_LARGEST_FILE + 1)
    if len(data) > _LARGEST_FILE:
        raise OptionsError(f"{file}: it has more than {_LARGEST_FILE} bytes")
    try:
        return Source(str(file), _mapping(str(file), data.decode("utf-8"), file.suffix))
    except UnicodeDecodeError as error:
        raise OptionsError(f"{file}: {error}") from error


def read_assignment(text: str) -> Source:
    """Return the setting of a `NAME=VALUE`.

    The value is JSON, a Python literal, a list of words divided by commas, or a word. `options.SETTER=VALUE` names one
    of PopTorch's setters.

    Raises:
        OptionsError: There is no name or no equals sign.
    """
    name, equals, value = (part.strip() for part in text.partition("="))
    if not (name and equals):
        raise OptionsError(f"--set {text}: write NAME=VALUE, such as gradient_accumulation_steps=4.")
    option = name[len(_OPTIONS) + 1 :] if name.startswith(f"{_OPTIONS}.") else ""
    parsed = _value(value)
    return Source(f"--set {text}", {_OPTIONS: {option: parsed}} if option else {name: parsed}, from_words=True)


def write_file(path: Union[str, os.PathLike[str]], settings: Mapping[str, Any]) -> None:
    """Write plain settings to a file, as YAML by its ending, else as JSON; a folder gets `ipu_config.json`.

    Raises:
        OptionsError: PyYAML is needed and not installed.
        OSError: The file cannot be written.
    """
    file = _file(path)
    if file.suffix in _YAML:
        text = _yaml().safe_dump(dict(settings), sort_keys=False)
    else:
        text = json.dumps(dict(settings), indent=2) + "\n"
    with whole_file(file) as opened:
        opened.write(text.encode())


def check_writable(path: Union[str, os.PathLike[str]]) -> None:
    """Raise an `OptionsError` if the file's format needs PyYAML, which is not installed."""
    if _file(path).suffix in _YAML:
        _yaml()


def _file(path: Union[str, os.PathLike[str]]) -> Path:
    file = Path(path).expanduser()
    return file / FILE if file.is_dir() else file


def _value(text: str) -> Any:
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
    if "," in text and not text.startswith(("[", "(", "{")):
        return [_value(part.strip()) for part in text.split(",") if part.strip()]
    return text


def _mapping(place: str, text: str, suffix: str) -> Mapping[str, Any]:
    try:
        content = _parsed_yaml(text) if suffix in _YAML else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionsError(f"{place}: {error}") from error
    if not isinstance(content, Mapping):
        raise OptionsError(f"{place}: it holds a {type(content).__name__}, not names with values")
    return content


def _parsed_yaml(text: str) -> Any:
    yaml = _yaml()

    class Loader(yaml.SafeLoader):  # type: ignore[misc, name-defined]
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):  # a few of them make a file of any size
                raise OptionsError(f"it refers by *{self.peek_event().anchor} to another place; write the value out")
            return super().compose_node(parent, index)

    try:
        content = yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise OptionsError(str(error)) from error
    except (LookupError, AttributeError, TypeError) as error:  # PyYAML's own, of `!!int ""`
        raise OptionsError(f"a value has a tag that does not fit it: {error}") from error
    return {} if content is None else content


def _yaml() -> Any:
    try:
        import yaml
    except ImportError as error:
        raise OptionsError(
            f"YAML is read and written by PyYAML, which cannot be imported ({error}). Install it with "
            "pip install pyyaml, or use a JSON file."
        ) from error
    return yaml
