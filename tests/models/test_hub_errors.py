# What an error of the network is called, without a network.
from __future__ import annotations

import time
from email.utils import formatdate

import httpx2
import pytest

from ingle.models.errors import DownloadFailed, HubUnavailable, ModelError, ModelNotFound, NoNetwork
from ingle.models.hub_errors import Asked, explain, is_cut, wait_s

ASKED = Asked("https://hub.invalid", "acme/tiny", name="tiny.gguf")


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (
            httpx2.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate in certificate chain"),
            NoNetwork,
            "the certificate of https://hub.invalid is not trusted",
        ),
        (httpx2.ConnectError("[SSL: WRONG_VERSION_NUMBER]"), NoNetwork, "cannot reach https://hub.invalid"),
        (httpx2.ConnectError("Name or service not known"), NoNetwork, "cannot reach https://hub.invalid"),
        (httpx2.ConnectTimeout("timed out"), NoNetwork, "https://hub.invalid does not answer in time"),
        (httpx2.ReadTimeout("timed out"), NoNetwork, "https://hub.invalid does not answer in time"),
        (httpx2.ProxyError("403 Forbidden"), NoNetwork, "the proxy does not let us through: 403 Forbidden"),
        (httpx2.ReadError(""), NoNetwork, "the connection broke: ReadError"),
        (httpx2.RemoteProtocolError("peer closed"), NoNetwork, "the connection broke: peer closed"),
        (httpx2.TooManyRedirects("20 of them"), HubUnavailable, "https://hub.invalid does not answer as a hub does"),
        (RuntimeError("whatever"), DownloadFailed, "cannot download acme/tiny: RuntimeError: whatever"),
    ],
)
def test_errors_of_the_connection(error: Exception, kind: type[ModelError], message: str) -> None:
    meant = explain(error, ASKED)
    assert type(meant) is kind
    assert meant.message.startswith(message)
    assert meant.hint


def test_what_is_explained_already_stays() -> None:
    error = ModelNotFound("gone")
    assert explain(error, ASKED) is error


def test_which_errors_are_a_connection_that_broke() -> None:
    cut = [httpx2.ReadError(""), httpx2.ReadTimeout(""), httpx2.RemoteProtocolError("")]
    assert [is_cut(error) for error in cut] == [True] * 3
    assert not is_cut(httpx2.ConnectError(""))
    assert not is_cut(ValueError())


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "12"}, 12.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": formatdate(0)}, 0.0),
        ({"RateLimit": '"resolvers";r=0;t=55', "Retry-After": "3"}, 55.0),
        ({"RateLimit": '"resolvers";r=7;t=55'}, None),
    ],
)
def test_how_long_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    assert wait_s(headers.get) == seconds


def test_waiting_for_a_date() -> None:
    wait = wait_s({"Retry-After": formatdate(time.time() + 1000)}.get)
    assert wait is not None
    assert 900 < wait <= 1001
