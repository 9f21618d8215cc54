# The face of the package. Importing it imports nothing: names are looked up when they are first used.
# The package may import nothing of ours; it knows files, headers, wheels and templates, never tokens or terminals.
"""What a model is, where it comes from, and how it wants to be spoken to.

::

    resolve.resolve(text)  what the user typed → ModelRef, downloading when it has to
    read_model_info(path)  header of a GGUF → ModelInfo, everything checked before native code sees the file
    ChatTemplate           messages → prompt

Errors, all with a one-line `message` and an optional one-line `hint`::

    ModelError
    ├── ModelNotFound        no such alias, file, package, repo or revision
    │   └── NoSuchQuant      the repo is there, but not in that quantization
    ├── NotAuthorised        gated, token refused
    ├── BadModelFile         not a GGUF, truncated, corrupt
    │   └── UnsupportedModel a sound file that cannot be used: old format, embedding model, adapter
    ├── DownloadFailed       index unreachable, checksum mismatch
    │   ├── NoNetwork        no connection, proxy, certificate, broken off
    │   └── HubUnavailable   the hub is down, is limiting requests, or is no hub
    ├── StoreError           disk full, folder not writable
    └── ChatTemplateError    the model's template does not parse or refuses the conversation
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ingle.models.chat_template import ChatTemplate, Message
    from ingle.models.errors import (
        BadModelFile,
        ChatTemplateError,
        DownloadFailed,
        HubUnavailable,
        ModelError,
        ModelNotFound,
        NoNetwork,
        NoSuchQuant,
        NotAuthorised,
        StoreError,
        UnsupportedModel,
    )
    from ingle.models.gguf_info import ModelInfo, TensorInfo, read_model_info
    from ingle.models.progress import Progress
    from ingle.models.resolve import ModelRef

__all__ = [
    "BadModelFile",
    "ChatTemplate",
    "ChatTemplateError",
    "DownloadFailed",
    "HubUnavailable",
    "Message",
    "ModelError",
    "ModelInfo",
    "ModelNotFound",
    "ModelRef",
    "NoNetwork",
    "NoSuchQuant",
    "NotAuthorised",
    "Progress",
    "StoreError",
    "TensorInfo",
    "UnsupportedModel",
    "read_model_info",
]

_HOMES = {
    "chat_template": ("ChatTemplate", "Message"),
    "errors": (
        "BadModelFile",
        "ChatTemplateError",
        "DownloadFailed",
        "HubUnavailable",
        "ModelError",
        "ModelNotFound",
        "NoNetwork",
        "NoSuchQuant",
        "NotAuthorised",
        "StoreError",
        "UnsupportedModel",
    ),
    "gguf_info": ("ModelInfo", "TensorInfo", "read_model_info"),
    "progress": ("Progress",),
    "resolve": ("ModelRef",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
