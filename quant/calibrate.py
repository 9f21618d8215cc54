# The text a model is calibrated on: the user's file, or what the model itself writes.
# This file may not know what is measured on it. Generation goes through the engine as any other does.
"""Calibration tokens.

``from_text``: a text, or JSON lines of conversations rendered with the model's own template. ``self_written``: the
model continues our seeds (seeds.py), all of them together, at temperature 0.8 with fixed seeds of the sampler:
text as it meets in use, of every kind, and no download. What it wrote is kept by the hash of the model under the cache
folder, one file for each round through the seeds, so that an interrupted run goes on with the next round.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ingle.models.chat_template import ChatTemplate, Message
from ingle.models.errors import store_error
from ingle.models.gguf_info import ModelInfo, read_model_info
from ingle.models.places import cache_dir, ensure_private_dir
from ingle.quant import seeds
from ingle.quant.activations import begin_with_bos, cut
from ingle.quant.errors import BadText
from ingle.runtime.config import EngineConfig

Tokens = npt.NDArray[np.int32]

DEFAULT_TOKENS: Final = 16_384
CONTINUATION_TOKENS: Final = 160
_NUM_TOGETHER: Final = 16
_TEMPERATURE: Final = 0.8
_FORMAT: Final = 1
_MAX_ROUNDS: Final = 64


@dataclass(frozen=True, slots=True)
class Calibration:
    """Tokens in the order they are computed, and where they are from. `num_left`: tokens of the text that are not used.
    `digest` tells one calibration from another."""

    tokens: Tokens
    origin: str
    num_left: int = 0

    @property
    def digest(self) -> str:
        return hashlib.sha256(np.ascontiguousarray(self.tokens, "<i4").tobytes()).hexdigest()


# -- the user's text ---------------------------------------------------------------------------------------------------


def from_text(text: str, path: Path, model: Path, *, max_tokens: int | None = DEFAULT_TOKENS) -> Calibration:
    """Tokens of `text`, which stands in the file at `path`, at most `max_tokens` of them (None: all). A name that ends
    in ``.jsonl`` holds one conversation a line: ``{"messages": [{"role": …, "content": …}, …]}`` or the bare list.

    Raises BadText for a text without any, or a line that is no conversation.
    """
    info = read_model_info(model)
    is_chats = path.suffix.lower() == ".jsonl"
    template = ChatTemplate.from_info(info)
    parts = [_render(line, number, path, template) for number, line in _lines(text)] if is_chats else [text]
    with_bos = not (is_chats and template.adds_bos)
    tokens = [t for part in _tokenize(model, parts, with_bos=with_bos, parse_special=is_chats) for t in part]
    if not tokens or not text.strip():
        raise BadText(f"{path} holds no text", "give a file with some pages of the text the model will meet")
    used = tokens[:max_tokens]
    return Calibration(np.array(used, np.int32), str(path), len(tokens) - len(used))


def _lines(text: str) -> list[tuple[int, str]]:
    return [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def _render(line: str, number: int, path: Path, template: ChatTemplate) -> str:
    where = f"{path}, line {number}"
    try:
        record: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadText(f"{where}: not JSON ({error})", "a .jsonl holds one conversation a line") from None
    turns = record.get("messages") if isinstance(record, dict) else record
    if not isinstance(turns, list) or not turns:
        raise BadText(f"{where}: no conversation", 'a line is {"messages": [{"role": "user", "content": "…"}, …]}')
    messages = []
    for turn in turns:
        role, content = (turn.get("role"), turn.get("content")) if isinstance(turn, dict) else (None, None)
        if not isinstance(role, str) or not isinstance(content, str):
            raise BadText(f"{where}: a message needs a role and a content, both text")
        messages.append(Message(role, content))
    return template.render(messages, add_generation_prompt=False)


def _tokenize(model: Path, parts: Sequence[str], *, with_bos: bool, parse_special: bool) -> list[list[int]]:
    from ingle.runtime.llama import LlamaModel

    handle = LlamaModel(model, 0)
    try:
        return [handle.tokenize(part, add_special=with_bos, parse_special=parse_special) for part in parts]
    finally:
        handle.close()


# -- text the model writes itself --------------------------------------------------------------------------------------


def self_written(
    model: Path,
    sha256: str,
    *,
    num_tokens: int = DEFAULT_TOKENS,
    config: EngineConfig | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Calibration:
    """`num_tokens` tokens of the model's own writing, from the cache where it has written before. `sha256`: of the
    model's files, all of them (`Source.sha256`), template and tokenizer included; what it wrote is kept under that.

    Raises BadText when the model ends every text at once, StoreError, EngineError, ModelError.
    """
    info = read_model_info(model)
    folder = ensure_private_dir(cache_dir() / "calibration" / sha256[:32])
    found: list[int] = []
    round_number = 0
    while len(found) < num_tokens:
        path = folder / f"round-{round_number}.json"
        written = _read_round(path, info.vocab_size)
        if written is None:
            written = _write_round(model, info, round_number, config, _Shifted(progress, len(found), num_tokens))
            _save_round(path, written)
        found += written
        round_number += 1
        if round_number == _MAX_ROUNDS:
            raise BadText(f"the model wrote {len(found)} tokens in {_MAX_ROUNDS} rounds", "give a text with --calib")
    progress(num_tokens, num_tokens)
    return Calibration(np.array(found[:num_tokens], np.int32), "written by the model itself")


@dataclass(frozen=True, slots=True)
class _Shifted:
    """Progress of one round as progress of them all."""

    progress: Callable[[int, int], None]
    num_before: int
    num_wanted: int

    def __call__(self, num_tokens: int) -> None:
        self.progress(min(self.num_before + num_tokens, self.num_wanted), self.num_wanted)


def _prompts(engine: Any, info: ModelInfo) -> list[list[int]]:
    """Seeds as they stand, and questions in the model's own words for a conversation where it has any."""
    characters = info.characters
    prompts = [
        engine.tokenize(text, add_special=True, parse_special=False)
        for text in seeds.TEXTS
        if characters is None or set(text) <= characters
    ]
    if info.chat_template is not None:
        template = ChatTemplate.from_info(info)
        prompts += [
            engine.tokenize(
                template.render([Message("user", question)]), add_special=not template.adds_bos, parse_special=True
            )
            for question in seeds.QUESTIONS
        ]
    return prompts


def _write_round(
    model: Path,
    info: ModelInfo,
    round_number: int,
    config: EngineConfig | None,
    progress: Callable[[int], None],
) -> list[int]:
    """One continuation of every seed, joined; the seeds are part of the text."""
    from ingle.runtime.engine import Engine
    from ingle.runtime.request import Request, SamplingParams

    given = config or EngineConfig()
    longest = CONTINUATION_TOKENS + 128
    settings = EngineConfig(
        n_ctx=longest,
        kv_tokens=_NUM_TOGETHER * longest,
        initial_kv_tokens=_NUM_TOGETHER * (CONTINUATION_TOKENS + 32),
        max_num_seqs=_NUM_TOGETHER,
        max_cached_chains=0,
        num_threads=given.num_threads,
        gpu_layers=given.gpu_layers,
        flash_attn=given.flash_attn,
        enable_prefix_caching=False,
    )
    with Engine.open(model, settings, model_info=info) as engine:
        texts: dict[Any, list[int]] = {}
        for number, prompt in enumerate(_prompts(engine, info)):
            sampling = SamplingParams(temperature=_TEMPERATURE, seed=1000 * round_number + number)
            request = Request(prompt[: longest - CONTINUATION_TOKENS], sampling, CONTINUATION_TOKENS)
            texts[engine.add(request)] = list(request.tokens)
        while engine.has_work:
            for output in engine.step():
                texts[output.request_id] += output.new_tokens
            progress(sum(map(len, texts.values())))
    return [token for text in texts.values() for token in text]


def _read_round(path: Path, num_vocab: int) -> list[int] | None:
    """None where there is no such file, or one that is not whole or holds what are no tokens of this model."""
    try:
        record = json.loads(path.read_bytes())
        tokens = record["tokens"] if record["format"] == _FORMAT else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not isinstance(tokens, list) or not all(type(token) is int and 0 <= token < num_vocab for token in tokens):
        return None
    return tokens


def _save_round(path: Path, tokens: list[int]) -> None:
    """Whole or not at all, readable by its owner alone."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump({"format": _FORMAT, "tokens": tokens}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise store_error(error, f"write {path}") from None
    finally:
        temporary.unlink(missing_ok=True)  # after Ctrl-C too


# -- what is measured on, and what is judged on ------------------------------------------------------------------------

CHUNK_TOKENS: Final = 512
_LEAST_CHUNKS: Final = 8  # a shorter text is cut into shorter chunks
_SHORTEST_CHUNK: Final = 16
_EVERY: Final = 6  # one chunk of so many is held out


@dataclass(frozen=True, slots=True)
class Split:
    """A calibration in chunks of one length: those that statistics are made of, and those that decisions are for."""

    chunks: tuple[Tokens, ...]
    held_out: tuple[Tokens, ...]


def split(calibration: Calibration, info: ModelInfo) -> Split:
    """Every sixth chunk is held out. Raises BadText for a text of less than 128 tokens."""
    num_tokens = len(calibration.tokens)
    length = min(CHUNK_TOKENS, num_tokens // _LEAST_CHUNKS)
    if length < _SHORTEST_CHUNK:
        least = _LEAST_CHUNKS * _SHORTEST_CHUNK
        raise BadText(f"{calibration.origin}: {num_tokens} tokens are too few to calibrate on", f"give {least} or more")
    chunks = begin_with_bos(cut(calibration.tokens.tolist(), length), info)
    held_out = [number % _EVERY == _EVERY // 2 for number in range(len(chunks))]
    return Split(
        tuple(chunk for chunk, out in zip(chunks, held_out, strict=True) if not out),
        tuple(chunk for chunk, out in zip(chunks, held_out, strict=True) if out),
    )
