# GGUF models of random weights: real architectures for llama.cpp, small enough to be written anew by every test.
"""``write_llama(path)`` and its siblings write a seeded model of well under a megabyte in some milliseconds.

What they say means nothing, but it is a function of every token before: logits are spread and attention is sharp, so
that a wrong or missing KV cell shows. The vocabulary is SentencePiece-like: three specials, 256 bytes, some words.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

BOS, EOS, FIRST_BYTE, FIRST_WORD = 1, 2, 3, 259
_WORDS = (
    "▁ ▁the ▁cat ▁sat ▁on ▁a ▁mat ▁and ▁dog ing ed s er es ion en an in th he é ü ☃ 日 本 語 😀 🙂 "
    "▁naïve ▁fox ▁red ▁blue ▁sun ▁moon ▁sea ▁sky ▁tree ▁leaf ▁wind ▁rain ▁snow ▁fire ▁stone "
    "▁river ▁bird ▁fish ▁wolf ▁bear ▁hill ▁lake ▁road ▁town ▁king ▁queen ▁song ▁word ▁book ▁ink "
    "▁pen ▁cup ▁tea "
)
WORDS = tuple(_WORDS.split())
NUM_VOCAB = FIRST_WORD + len(WORDS)

N_EMBD, N_HEAD, N_HEAD_KV, HEAD_LENGTH, N_FF = 64, 4, 2, 32, 96


def write_llama(
    path: Path, *, seed: int = 0, n_ctx_train: int = 2048, byte_tokens: bool = True, shard_tensors: int = 0
) -> Path:
    """Two layers of attention, two KV heads for four heads. Without `byte_tokens`: words and a few letters only.

    With `shard_tensors` it comes in files ``STEM-0000N-of-0000M.gguf`` of so many of its 21 tensors.
    """
    writer, rng = _start(path, "llama", seed, n_ctx_train, 2, byte_tokens=byte_tokens, shard_tensors=shard_tensors)
    _add_attention_keys(writer, N_HEAD_KV)
    writer.add_rope_dimension_count(HEAD_LENGTH)
    for layer in range(2):
        _add_norm(writer, f"blk.{layer}.attn_norm", N_EMBD)
        _add_attention(writer, rng, layer, HEAD_LENGTH)
        _add_norm(writer, f"blk.{layer}.ffn_norm", N_EMBD)
        _add_feed_forward(writer, rng, layer)
    _add_norm(writer, "output_norm", N_EMBD)
    return _finish(writer)


def write_gemma3(path: Path, *, seed: int = 0, n_ctx_train: int = 2048, window: int = 16) -> Path:
    """Four layers; the first and the third see the last `window` tokens only."""
    writer, rng = _start(path, "gemma3", seed, n_ctx_train, num_layers=4)
    _add_attention_keys(writer, N_HEAD_KV)
    writer.add_sliding_window(window)
    writer.add_sliding_window_pattern(2)
    for layer in range(4):
        name = f"blk.{layer}."
        for norm in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            _add_norm(writer, name + norm, N_EMBD)
        for norm in ("attn_q_norm", "attn_k_norm"):
            _add_norm(writer, name + norm, HEAD_LENGTH, 1.5)
        _add_attention(writer, rng, layer, HEAD_LENGTH)
        _add_feed_forward(writer, rng, layer)
    _add_norm(writer, "output_norm", N_EMBD)
    return _finish(writer)


def write_mamba(path: Path, *, seed: int = 0, n_ctx_train: int = 2048) -> Path:
    """Two recurrent layers, no attention at all."""
    inner, state, conv, rank = 2 * N_EMBD, 16, 4, 4
    writer, rng = _start(path, "mamba", seed, n_ctx_train, num_layers=2)
    writer.add_head_count(0)
    writer.add_feed_forward_length(0)
    writer.add_ssm_conv_kernel(conv)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(rank)
    for layer in range(2):
        name = f"blk.{layer}."
        _add_norm(writer, name + "attn_norm", N_EMBD)
        writer.add_tensor(name + "ssm_in.weight", rng(2 * inner, N_EMBD))
        writer.add_tensor(name + "ssm_conv1d.weight", rng(inner, conv))
        writer.add_tensor(name + "ssm_conv1d.bias", 0.1 * rng(1, inner)[0])
        writer.add_tensor(name + "ssm_x.weight", rng(rank + 2 * state, inner))
        writer.add_tensor(name + "ssm_dt.weight", rng(inner, rank))
        writer.add_tensor(name + "ssm_dt.bias", np.full(inner, -2.0, np.float32))  # softplus(−2) ≈ 0.13: long memory
        decay = np.tile(np.linspace(0.05, 1.0, state, dtype=np.float32), (inner, 1))
        writer.add_tensor(name + "ssm_a", -decay)
        writer.add_tensor(name + "ssm_d", np.ones(inner, np.float32))
        writer.add_tensor(name + "ssm_out.weight", rng(N_EMBD, inner))
    _add_norm(writer, "output_norm", N_EMBD)
    return _finish(writer)


def write_lfm2(path: Path, *, seed: int = 0, n_ctx_train: int = 2048) -> Path:
    """A hybrid: short convolutions with a recurrent state, then attention, then convolutions again."""
    heads_kv, conv = [0, N_HEAD_KV, 0], 3
    writer, rng = _start(path, "lfm2", seed, n_ctx_train, num_layers=3)
    _add_attention_keys(writer, heads_kv, N_EMBD // N_HEAD)
    writer.add_shortconv_l_cache(conv)
    for layer, num_kv in enumerate(heads_kv):
        name = f"blk.{layer}."
        _add_norm(writer, name + "attn_norm", N_EMBD)
        if num_kv:
            for norm in ("attn_q_norm", "attn_k_norm"):
                _add_norm(writer, name + norm, N_EMBD // N_HEAD, 1.5)
            _add_attention(writer, rng, layer, N_EMBD // N_HEAD)
        else:
            writer.add_tensor(name + "shortconv.conv.weight", rng(N_EMBD, conv))
            writer.add_tensor(name + "shortconv.in_proj.weight", rng(3 * N_EMBD, N_EMBD))
            writer.add_tensor(name + "shortconv.out_proj.weight", rng(N_EMBD, N_EMBD))
        _add_norm(writer, name + "ffn_norm", N_EMBD)
        _add_feed_forward(writer, rng, layer)
    _add_norm(writer, "token_embd_norm", N_EMBD)
    return _finish(writer)


def write_bert(path: Path) -> Path:
    """An embedding model as its header tells it, without layers: for those who must refuse it."""
    writer, _ = _start(path, "bert", 0, 512, num_layers=1)
    _add_attention_keys(writer, N_HEAD)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.CLS)
    return _finish(writer)


# -- parts of a file ---------------------------------------------------------------------------------------------------

Random = Callable[[int, int], Array]


def _start(
    path: Path,
    arch: str,
    seed: int,
    n_ctx_train: int,
    num_layers: int,
    byte_tokens: bool = True,
    shard_tensors: int = 0,
) -> tuple[gguf.GGUFWriter, Random]:
    """A writer with vocabulary and embeddings, and a source of matrices [out, in] that keep a vector's size."""
    generator = np.random.default_rng([seed, *arch.encode()])

    def rng(num_out: int, num_in: int) -> Array:
        return np.asarray(generator.standard_normal((num_out, num_in)) / np.sqrt(num_in), dtype=np.float32)

    writer = gguf.GGUFWriter(path, arch, split_max_tensors=shard_tensors)
    writer.add_name(f"tiny {arch} {seed}")
    writer.add_context_length(n_ctx_train)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(num_layers)
    writer.add_layer_norm_rms_eps(1e-6)
    kinds = gguf.TokenType
    kind, pieces = kinds.BYTE, [f"<0x{byte:02X}>" for byte in range(256)]
    if not byte_tokens:
        letters = [letter for letter in "abcdefghijklmnopqrstuvwxyz▁" if letter not in WORDS]
        kind, pieces = kinds.NORMAL, letters + [f"filler{i}" for i in range(256 - len(letters))]
    tokens = ["<unk>", "<s>", "</s>", *pieces, *WORDS]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * FIRST_WORD + [-float(i) for i in range(len(WORDS))])
    words = [kinds.NORMAL] * len(WORDS)
    writer.add_token_types([kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL, *([kind] * 256), *words])
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_tensor("token_embd.weight", generator.standard_normal((NUM_VOCAB, N_EMBD)).astype(np.float32))
    writer.add_tensor("output.weight", 3 * rng(NUM_VOCAB, N_EMBD))
    return writer, rng


def _finish(writer: gguf.GGUFWriter) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path = writer.path
    assert isinstance(path, Path)
    return path


def _add_attention_keys(writer: gguf.GGUFWriter, num_heads_kv: int | list[int], head_length: int = HEAD_LENGTH) -> None:
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(num_heads_kv)
    writer.add_key_length(head_length)
    writer.add_value_length(head_length)
    writer.add_feed_forward_length(N_FF)


def _add_norm(writer: gguf.GGUFWriter, name: str, size: int, scale: float = 1.0) -> None:
    writer.add_tensor(f"{name}.weight", np.full(size, scale, np.float32))


def _add_attention(writer: gguf.GGUFWriter, rng: Random, layer: int, head_length: int) -> None:
    name = f"blk.{layer}.attn_"
    writer.add_tensor(name + "q.weight", 1.5 * rng(N_HEAD * head_length, N_EMBD))
    writer.add_tensor(name + "k.weight", 1.5 * rng(N_HEAD_KV * head_length, N_EMBD))
    writer.add_tensor(name + "v.weight", rng(N_HEAD_KV * head_length, N_EMBD))
    writer.add_tensor(name + "output.weight", 2 * rng(N_EMBD, N_HEAD * head_length))


def _add_feed_forward(writer: gguf.GGUFWriter, rng: Random, layer: int) -> None:
    name = f"blk.{layer}.ffn_"
    writer.add_tensor(name + "gate.weight", rng(N_FF, N_EMBD))
    writer.add_tensor(name + "up.weight", rng(N_FF, N_EMBD))
    writer.add_tensor(name + "down.weight", rng(N_EMBD, N_FF))
