"""Trust in pickled models: unpickling a file runs the code that its author put there.

A file that this user wrote is recognised by a signature with the user's own key, kept in the user's state directory. So
saving and loading work as in PopTorch. Files from elsewhere are unpickled only on request.
"""

from __future__ import annotations

import contextlib
import contextvars
import hashlib
import hmac
import os
import secrets
from typing import Iterator

from ignite_ipu.emulator.errors import python_error
from ignite_ipu.emulator.logs import logger

TRUST_VARIABLE = "IGNITE_IPU_TRUST_PICKLED_MODELS"
STATE_VARIABLE = "IGNITE_IPU_STATE_DIR"
_KEY_BYTES = 32

_TRUSTING: contextvars.ContextVar[bool] = contextvars.ContextVar("_TRUSTING", default=False)


@contextlib.contextmanager
def trust_pickled_models() -> Iterator[None]:
    """Unpickle the models of all files that `load` reads in the `with` block, of any author."""
    before = _TRUSTING.set(True)
    try:
        yield
    finally:
        _TRUSTING.reset(before)


def sign(data: bytes) -> str:
    """Return this user's signature of `data`, "" when there is nowhere to keep a key."""
    path = _key_path()
    try:
        if not os.path.exists(path):
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            temporary = f"{path}.{os.getpid()}-{secrets.token_hex(4)}"
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)  # unlike a rename, leaves the key alone that another process has just made
            os.unlink(temporary)
        return _signature(data)
    except OSError as error:
        logger.warning(
            "No signing key can be kept in %s (%s): the model in this file can be loaded only where it is trusted by "
            "hand. Set %s to a directory of yours.",
            os.path.dirname(path),
            error,
            STATE_VARIABLE,
        )
        return ""


def check_trusted(data: bytes, signature: str, what: str) -> None:
    """Refuse to go on to unpickle `data`, which messages call `what`, unless this user wrote it or trusts it."""
    if _TRUSTING.get() or os.environ.get(TRUST_VARIABLE, "0") not in ("", "0"):
        return
    with contextlib.suppress(OSError, TypeError):  # no key, and no text
        if hmac.compare_digest(_signature(data), signature):
            return
    raise python_error(
        f"{what} holds a pickled model that was not saved by this user: unpickling can run any code, so it is not "
        "done. If you trust its author, load it within `with ignite_ipu.emulator.trust_pickled_models():`, or set "
        f"{TRUST_VARIABLE}=1. Wrapping your own model and calling its loadExecutable() needs no trust."
    )


def _key_path() -> str:
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(os.environ.get(STATE_VARIABLE) or os.path.join(base, "ignite-ipu"), "signing-key")


def _signature(data: bytes) -> str:
    """Sign with this user's key: `OSError` if there is none, or others could have put it there or read it."""
    path = _key_path()
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        key = file.read(_KEY_BYTES)
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{path} can be read or written by others")
    if len(key) != _KEY_BYTES:
        raise OSError(f"{path} is no signing key; delete it to have another made")
    return hmac.new(key, data, hashlib.sha256).hexdigest()
