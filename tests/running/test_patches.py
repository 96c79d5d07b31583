"""Names that are replaced for a while are restored, also after errors."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ignite_ipu.running.patches import Patches


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_everything_is_put_back_when_an_action_fails(error):
    """An interruption is no exception to that; the first failure is raised once the rest is done."""
    owner, patches, done = SimpleNamespace(first=1, second=2), Patches(), []

    def fail():
        raise error("here")

    def fail_later():
        raise RuntimeError("there")

    patches.set(owner, "first", 10)
    patches.on_undo(fail_later)
    patches.on_undo(fail)
    patches.set(owner, "second", 20)
    patches.on_undo(lambda: done.append((owner.first, owner.second)))
    with pytest.raises(error, match="here"):
        patches.undo()
    assert (owner.first, owner.second) == (1, 2)
    assert done == [(10, 20)]
    patches.undo()


def test_an_inherited_attribute_is_inherited_again():
    class Base:
        value = 1

    class Derived(Base):
        pass

    patches = Patches()
    patches.set(Derived, "value", 2)
    assert Derived.value == 2
    patches.undo()
    assert "value" not in vars(Derived) and Derived.value == 1
