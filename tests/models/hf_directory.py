# A model directory as transformers saves one, written without transformers: for everything but numbers.
"""``write_directory(path)``: a tiny Llama of random weights with a byte-level tokenizer; parts can be replaced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

Weights = dict[str, npt.NDArray[Any]]
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "vocab_size": 264,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def weights(config: dict[str, Any] = CONFIG, seed: int = 0) -> Weights:
    """The tensors of a Llama of these sizes, float32."""
    rng = np.random.default_rng(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    key = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        for name, shape in (
            ("input_layernorm", (hidden,)),
            ("post_attention_layernorm", (hidden,)),
            ("self_attn.q_proj", (hidden, hidden)),
            ("self_attn.k_proj", (key, hidden)),
            ("self_attn.v_proj", (key, hidden)),
            ("self_attn.o_proj", (hidden, hidden)),
            ("mlp.gate_proj", (inner, hidden)),
            ("mlp.up_proj", (inner, hidden)),
            ("mlp.down_proj", (hidden, inner)),
        ):
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
    shapes["model.norm.weight"] = (hidden,)
    shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return {name: rng.standard_normal(shape, dtype=np.float32) * np.float32(0.1) for name, shape in shapes.items()}


def tokenizer() -> dict[str, Any]:
    """A tokenizer.json: GPT-2's 256 letters for bytes, two merges, three special tokens."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))]
    texts = ["<s>", "</s>", "<|im_end|>", *letters, "th", "the"]
    return {
        "added_tokens": [{"id": i, "content": texts[i], "special": True} for i in range(3)],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": {text: i for i, text in enumerate(texts)}, "merges": ["t h", "th e"]},
    }


def write_directory(
    path: Path,
    *,
    config: dict[str, Any] | None = None,
    tensors: Weights | None = None,
    tokenizer_json: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
) -> Path:
    """`config` and `settings` (tokenizer_config.json) are laid over what is usual; the others replace it."""
    path.mkdir(parents=True, exist_ok=True)
    whole = {**CONFIG, **(config or {})}
    (path / "config.json").write_text(json.dumps(whole))
    (path / "tokenizer.json").write_text(json.dumps(tokenizer() if tokenizer_json is None else tokenizer_json))
    said = {"bos_token": "<s>", "eos_token": "</s>", **(settings or {})}
    (path / "tokenizer_config.json").write_text(json.dumps(said))
    save_file(weights(whole) if tensors is None else tensors, path / "model.safetensors")
    return path
