"""Options given as JSON, as `POPTORCH_DEFAULT_OPTIONS` holds them."""

from __future__ import annotations

import json
from typing import Any

from ignite_ipu.emulator.options.guarded import OptionsDict
from ignite_ipu.emulator.options.text.setters import find_member, find_setter


def apply_json(options: OptionsDict, text: str) -> None:
    """Call the setter that each key of a JSON object names, with the key's value.

    A list is spread over the arguments; `"OutputMode.All"` becomes that member.

    Raises:
        ValueError: `text` is no JSON object.
        AttributeError: A key names no option.
    """
    try:
        settings = json.loads(text)
    except RecursionError:
        raise ValueError("Options as JSON nest no deeper than a list in an object; this text does.") from None
    if not isinstance(settings, dict):
        raise ValueError(f'Options as JSON are one object, such as {{"deviceIterations": 4}}; got {text!r}.')
    calls = [
        (
            find_setter(options, path.split(".")),
            [_argument(each) for each in (value if isinstance(value, list) else [value])],
        )
        for path, value in settings.items()
    ]
    for setter, arguments in calls:
        setter(*arguments)


def _argument(value: Any) -> Any:
    if not isinstance(value, str) or value.count(".") != 1:
        return value
    member = find_member(*value.split("."))
    return value if member is None else member
