# What the hub's refusals and the network's failures are called here, and what a user can do about each.
# This file may not import huggingface_hub or an HTTP library: it goes by the names of classes, statuses and headers.
"""``explain``: an exception of huggingface_hub or of its HTTP client → the ModelError to raise in its place."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ingle.models.errors import DownloadFailed, HubUnavailable, ModelError, ModelNotFound, NoNetwork, NotAuthorised

LONGEST_WAIT_S: Final = 60.0
RETRY_STATUSES: Final = frozenset({408, 429, 500, 502, 503, 504})

_NETWORK_HINT: Final = "Check the connection; models that were downloaded work without one."
_CERTIFICATE: Final = re.compile(r"certificate", re.IGNORECASE)
_USERINFO: Final = re.compile(r"(?<=//)[^/]*@")
_RATE_LIMIT: Final = re.compile(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d+)")


@dataclass(frozen=True, slots=True)
class Asked:
    """What was being asked for when the error came. `endpoint` is the hub's address, `name` a file of the repo."""

    endpoint: str
    repo_id: str
    revision: str | None = None
    name: str | None = None

    @property
    def shown_endpoint(self) -> str:
        """The hub's address without a name and password in it: what messages may say."""
        return _USERINFO.sub("", self.endpoint)

    @property
    def page(self) -> str:
        return f"{self.shown_endpoint}/{self.repo_id}"


def explain(error: BaseException, asked: Asked) -> ModelError:
    """The ModelError that says what `error` means; one that is a ModelError already is returned as it is."""
    if isinstance(error, ModelError):
        return error
    names = [ancestor.__name__ for ancestor in type(error).__mro__]
    for name, make in _BY_CLASS:
        if name in names:
            return make(error, asked)
    return DownloadFailed(f"cannot download {asked.repo_id}: {type(error).__name__}: {error}", "Try again.")


def is_cut(error: BaseException) -> bool:
    """Whether a connection that had been made broke or fell silent, so that going on may work at once."""
    names = {ancestor.__name__ for ancestor in type(error).__mro__}
    return bool(names & {"ReadError", "ReadTimeout", "RemoteProtocolError", "WriteError", "WriteTimeout", "CloseError"})


def wait_s(headers: Callable[[str], str | None]) -> float | None:
    """Seconds the server asks to wait (``Retry-After`` as a number or a date, ``RateLimit``); None: it does not say.

    `headers` looks a header up by name, whatever its case.
    """
    limited = _RATE_LIMIT.search(headers("RateLimit") or "")
    if limited is not None:
        return float(limited[1])
    said = (headers("Retry-After") or "").strip()
    if said.isdigit():
        return float(said)
    if not said:
        return None
    import time
    from email.utils import parsedate_to_datetime

    try:
        return max(parsedate_to_datetime(said).timestamp() - time.time(), 0.0)
    except ValueError:
        return None


def _offline(_error: BaseException, asked: Asked) -> ModelError:
    return NoNetwork(
        f"{asked.repo_id} needs the network, which HF_HUB_OFFLINE switches off",
        "Unset HF_HUB_OFFLINE, or name a model that is on this machine.",
    )


def _gated(_error: BaseException, asked: Asked) -> ModelError:
    return NotAuthorised(
        f"{asked.repo_id} is gated: its owner wants the licence accepted first",
        f"Accept it at {asked.page}, then run `hf auth login` with a token of the same account.",
    )


def _disabled(_error: BaseException, asked: Asked) -> ModelError:
    return ModelNotFound(f"{asked.repo_id} has been disabled on the hub", "Use another repository of that model.")


def _no_revision(_error: BaseException, asked: Asked) -> ModelError:
    return ModelNotFound(
        f"{asked.repo_id} has no revision {asked.revision or 'main'!r}", f"{asked.page}/tree shows its branches."
    )


def _no_file(_error: BaseException, asked: Asked) -> ModelError:
    return ModelNotFound(
        f"{asked.repo_id} holds no file {asked.name!r}" if asked.name else f"nothing of that name in {asked.repo_id}",
        f"{asked.page}/tree shows what there is.",
    )


def _no_repo(_error: BaseException, asked: Asked) -> ModelError:
    return ModelNotFound(
        f"no repository {asked.repo_id} on the hub, or it is private",
        "Check the spelling; for a private one run `hf auth login` with an account that may read it.",
    )


def _status(error: BaseException, asked: Asked) -> ModelError:
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    if status == 401:
        return NotAuthorised(
            f"the hub refuses the token it was given for {asked.repo_id}",
            "Run `hf auth login` again, or unset HF_TOKEN when it is an old one.",
        )
    if status in (403, 451):
        return NotAuthorised(
            f"the hub does not allow access to {asked.repo_id} (HTTP {status})",
            f"Look at {asked.page} with the account whose token you use; `hf auth login` changes it.",
        )
    if status == 404:
        return _no_file(error, asked)
    if status == 407:
        return _proxy(error, asked)
    if status == 429:
        wait = wait_s(response.headers.get) if response is not None else None
        when = f" for another {wait:.0f} s" if wait else ""
        return HubUnavailable(
            f"the hub is limiting requests from here{when} (HTTP 429)",
            "Wait a while; `hf auth login` raises the limit.",
        )
    if isinstance(status, int) and status >= 500:
        return HubUnavailable(f"the hub is having trouble (HTTP {status})", "Try again in a few minutes.")
    return DownloadFailed(f"the hub refused the request for {asked.repo_id} (HTTP {status})", f"Look at {asked.page}.")


def _proxy(error: BaseException, _asked: Asked) -> ModelError:
    return NoNetwork(f"the proxy does not let us through: {error}", "Check HTTPS_PROXY, HTTP_PROXY and NO_PROXY.")


def _connect(error: BaseException, asked: Asked) -> ModelError:
    if _CERTIFICATE.search(str(error)):
        return NoNetwork(
            f"the certificate of {asked.shown_endpoint} is not trusted: {error}",
            "Behind a proxy that opens connections, point SSL_CERT_FILE at its certificate; check the clock too.",
        )
    return NoNetwork(f"cannot reach {asked.shown_endpoint}: {error}", _NETWORK_HINT)


def _timeout(_error: BaseException, asked: Asked) -> ModelError:
    return NoNetwork(f"{asked.shown_endpoint} does not answer in time", _NETWORK_HINT)


def _cut(error: BaseException, _asked: Asked) -> ModelError:
    return NoNetwork(f"the connection broke: {str(error) or type(error).__name__}", "Try again: what is here is kept.")


def _bad_address(error: BaseException, asked: Asked) -> ModelError:
    return NoNetwork(
        f"{asked.shown_endpoint} is not an address of a hub: {error}", "Check HF_ENDPOINT and the proxy's variables."
    )


def _no_certificates(error: BaseException, _asked: Asked) -> ModelError:
    return NoNetwork(f"the certificates cannot be read: {error}", "Check what SSL_CERT_FILE and SSL_CERT_DIR point at.")


def _bad_setting(error: BaseException, asked: Asked) -> ModelError:
    return NoNetwork(f"no request to {asked.shown_endpoint} can be made: {error}", "Check the variables of the proxy.")


def _not_a_hub(_error: BaseException, asked: Asked) -> ModelError:
    return HubUnavailable(
        f"{asked.shown_endpoint} does not answer as a hub does",
        "Check HF_ENDPOINT, and whether a login page of the network stands in between.",
    )


# (name of a class in the error's ancestry, what it means), the particular before the general.
_BY_CLASS: Final[tuple[tuple[str, Callable[[BaseException, Asked], ModelError]], ...]] = (
    ("OfflineModeIsEnabled", _offline),
    ("GatedRepoError", _gated),
    ("DisabledRepoError", _disabled),
    ("RevisionNotFoundError", _no_revision),
    ("EntryNotFoundError", _no_file),
    ("RepositoryNotFoundError", _no_repo),
    ("HfHubHTTPError", _status),
    ("ProxyError", _proxy),
    ("UnsupportedProtocol", _bad_address),
    ("InvalidURL", _bad_address),
    ("ConnectError", _connect),
    ("SSLError", _connect),
    ("TimeoutException", _timeout),
    ("TransportError", _cut),
    ("HTTPError", _not_a_hub),
    ("JSONDecodeError", _not_a_hub),
    ("DecodingError", _not_a_hub),
    ("FileNotFoundError", _no_certificates),
    ("ValueError", _bad_setting),
    ("OSError", _connect),
)
