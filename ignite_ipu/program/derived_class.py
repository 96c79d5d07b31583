"""Classes that are derived from users' own, for the time that an object is in our care."""

from __future__ import annotations

import functools
import inspect
import weakref
from typing import Any, Callable


def derived_once(derive: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Have a function that derives a class from another derive just one from each.

    It is found among the subclasses of the other, which Python keeps by weak references. A cache would keep the class,
    whose functions keep their module, with the models and the IPUs that a script or a cell of a notebook left there.
    """
    derived: weakref.WeakSet[Any] = weakref.WeakSet()

    @functools.wraps(derive)
    def known(base: Any) -> Any:
        for each in type.__subclasses__(base):
            if each in derived:
                return each
        new = derive(base)
        derived.add(new)
        return new

    return known


def standing_for(base: Any) -> Any:
    """Return a metaclass: classes derived from `base` directly stand for `base`.

    They do so when objects are made or checked, and when attributes of the class are set (`type(self).count += 1`).
    """
    own: Any = type(base)

    def call(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return base(*args, **kwargs) if cls.__mro__[1] is base else own.__call__(cls, *args, **kwargs)

    def instancecheck(cls: Any, value: Any) -> bool:
        return isinstance(value, base) if cls.__mro__[1] is base else bool(own.__instancecheck__(cls, value))

    def set_attribute(cls: Any, name: str, value: Any) -> None:
        if cls.__mro__[1] is base and name not in vars(cls):
            setattr(base, name, value)
        else:
            own.__setattr__(cls, name, value)

    members = {
        "__call__": call,
        "__instancecheck__": instancecheck,
        "__setattr__": set_attribute,
        # Attributes of the metaclass are not found on objects of the class.
        "__signature__": property(lambda cls: inspect.signature(base)),
    }
    return type(own.__name__, (own,), members)
