"""`DeviceRelease`: the IPUs are given back as soon as a run ends, for machines that are shared."""

from __future__ import annotations

from ignite.engine import Engine, Events

from ignite_ipu.errors import SessionError
from ignite_ipu.session.session import session_of

__all__ = ["DeviceRelease"]


class DeviceRelease:
    """Gives all IPUs of an engine's session back when its run is completed or terminated.

    Without it programs stay loaded, so that another run goes on without compiling; exceptions release them either way.
    """

    def attach(self, engine: Engine) -> None:
        """Release when this engine's runs end.

        Raises:
            SessionError: The engine is none of this library.
        """
        session = session_of(engine)
        if session is None:
            raise SessionError("DeviceRelease needs an engine that this library has returned.")
        engine.add_event_handler(Events.COMPLETED, session.release)
