# Where Ingle's files lie on this machine. Names of folders only; who writes what into them is decided elsewhere.
# This file may not know models. platformdirs is imported inside the functions (1 to 3 ms, and rarely needed twice).
"""The user's folders, by the conventions of the platform (XDG on Linux)."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ingle.models.errors import StoreError, store_error

_APP = "ingle"


def cache_dir() -> Path:
    """What can be fetched or computed again: ``$XDG_CACHE_HOME/ingle``. Not created here."""
    from platformdirs import user_cache_dir

    return Path(user_cache_dir(_APP, appauthor=False))


def config_dir() -> Path:
    """Settings: ``$XDG_CONFIG_HOME/ingle``. Not created here."""
    from platformdirs import user_config_dir

    return Path(user_config_dir(_APP, appauthor=False))


def data_dir() -> Path:
    """What the user would miss, conversations above all: ``$XDG_DATA_HOME/ingle``. Not created here."""
    from platformdirs import user_data_dir

    return Path(user_data_dir(_APP, appauthor=False))


def state_dir() -> Path:
    """History and logs: ``$XDG_STATE_HOME/ingle``. Not created here."""
    from platformdirs import user_state_dir

    return Path(user_state_dir(_APP, appauthor=False))


def models_dir() -> Path:
    """Model files that we downloaded ourselves."""
    return cache_dir() / "models"


def ensure_private_dir(path: Path) -> Path:
    """Create `path` and its missing parents, readable by their owner alone (0700); returns `path`.

    A folder of ours that others could read is closed to them; parents that existed are left as they were.
    Raises StoreError, the errno named, when the folder cannot be made, is not a folder, or cannot be written.
    """
    try:
        _make(path)
        mode = stat.S_IMODE(path.stat().st_mode)
        if os.name == "posix" and mode & 0o077:
            path.chmod(mode & 0o700)
    except OSError as error:
        raise store_error(error, f"create the folder {path}") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise StoreError(
            f"cannot write to the folder {path}",
            "Check who owns it, or point XDG_CACHE_HOME at one you may write to.",
        )
    return path


def _make(path: Path) -> None:
    # mkdir(parents=True) would give the parents the default mode.
    if path.is_dir():
        return
    if path.parent != path:
        _make(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
