"""`DeviceRelease`: the IPUs are given back as soon as a run ends, for machines that are shared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ignite.engine import Events

if TYPE_CHECKING:
    from ignite_ipu.engines.engine import IPUEngine

__all__ = ["DeviceRelease"]


class DeviceRelease:
    """Gives all IPUs of an engine's session back when its run is completed or terminated.

    Without it programs stay loaded, so that another run goes on without compiling; exceptions release them either way.
    """

    def attach(self, engine: IPUEngine) -> None:
        """Release when this engine's runs end."""
        engine.add_event_handler(Events.COMPLETED, lambda: engine.ipu.release())
