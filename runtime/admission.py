"""The door: requests that can never be served are refused here, with the numbers, before they cost anything."""

from __future__ import annotations

import numpy as np

from ingle.runtime.config import EngineConfig
from ingle.runtime.engine_info import EngineInfo
from ingle.runtime.errors import InvalidRequest, PromptTooLong, QueueFull
from ingle.runtime.request import Request


def check_request(request: Request, info: EngineInfo, config: EngineConfig, num_waiting: int) -> None:
    """Raise `InvalidRequest`, `PromptTooLong` or `QueueFull` for a request that this engine cannot take."""
    ids = np.asarray(request.tokens)
    if ids.dtype.kind not in "iu" or ids.ndim != 1:
        raise InvalidRequest("the prompt is not a list of token ids")
    num_tokens, num_vocab = len(ids), info.n_vocab
    outside = ids[(ids < 0) | (ids >= num_vocab)]
    if len(outside):
        raise InvalidRequest(f"token id {outside[0]} is not in the vocabulary of {num_vocab}")
    if any(not 0 <= token < num_vocab for token in request.sampling.logit_bias):
        raise InvalidRequest(f"logit_bias names a token that is not in the vocabulary of {num_vocab}")
    if num_tokens >= info.n_ctx:
        raise PromptTooLong(num_tokens, info.n_ctx)
    if config.max_input_tokens is not None and num_tokens > config.max_input_tokens:
        raise PromptTooLong(num_tokens, config.max_input_tokens, "the input limit")
    if num_waiting >= config.max_queue:
        raise QueueFull(f"{config.max_queue} requests are waiting already", "try again later")


def max_tokens(request: Request, info: EngineInfo, config: EngineConfig) -> int:
    """The most tokens that prompt and answer of an accepted request may have together."""
    bounds = [bound for bound in (request.max_output_tokens, config.max_output_tokens) if bound is not None]
    return min([info.n_ctx, *(len(request.tokens) + bound for bound in bounds)])
