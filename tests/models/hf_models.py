# Tiny models of random weights as transformers saves them, with transformers' own logits and token ids beside them.
# Run as a program, in a process of its own: torch takes seconds to import and warns about things that are not ours.
"""``python hf_models.py FOLDER``: one directory a model (``config.json``, weights, tokenizer), with ``logits.npy`` of
the ids in ``ids.npy``; one directory a tokenizer, with ``token_ids.json`` of the texts in ``FOLDER/texts.json``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

NUM_POSITIONS = 64
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}


def longrope(pairs: int, original: int) -> dict[str, Any]:
    return {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1 + 0.05 * i for i in range(pairs)],
        "long_factor": [1 + 0.5 * i for i in range(pairs)],
        "original_max_position_embeddings": original,
    }


GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}
# Directory → (class of the config, its arguments beyond SIZES, the tokenizer that goes with it).
MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    "llama": ("Llama", {"head_dim": 32, "rope_parameters": LLAMA3_ROPE}, "llama3"),
    "llama-biased": ("Llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}, "gpt2"),
    "llama-linear": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}},
        "gpt2",
    ),
    "llama-yarn": ("Llama", {"rope_parameters": YARN}, "gpt2"),
    "llama-yarn-factor": ("Llama", {"rope_parameters": {**YARN, "attention_factor": 1.3}}, "gpt2"),
    "llama-longrope": ("Llama", {"rope_parameters": longrope(8, 32)}, "gpt2"),
    "mistral": ("Mistral", {"sliding_window": None}, "llama"),
    "mistral-window": ("Mistral", {"sliding_window": 64}, "llama"),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}, "qwen2"),
    "qwen2-yarn": ("Qwen2", {"rope_parameters": YARN}, "qwen2"),
    "qwen3": ("Qwen3", {"head_dim": 32}, "qwen2"),
    "gemma2": ("Gemma2", {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 16}, "gemma"),
    "gemma3": (
        "Gemma3Text",
        {
            "head_dim": 32,
            "query_pre_attn_scalar": 32,
            "sliding_window": 16,
            "num_hidden_layers": 7,
            "rope_parameters": GEMMA3_ROPE,
        },
        "gemma",
    ),
    "gemma3-layers": (
        "Gemma3Text",
        {
            "head_dim": 32,
            "query_pre_attn_scalar": 32,
            "sliding_window": 16,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        },
        "gemma",
    ),
    "phi3": ("Phi3", {"sliding_window": None, "pad_token_id": 0}, "phi4"),
    "phi3-long": (
        "Phi3",
        {"rope_parameters": longrope(8, 32), "original_max_position_embeddings": 32, "pad_token_id": 0},
        "llama",
    ),
    "phi3-short": (
        "Phi3",
        {
            "rope_parameters": longrope(8, 512),
            "original_max_position_embeddings": 512,
            "max_position_embeddings": 1024,
            "pad_token_id": 0,
        },
        "llama",
    ),
    "phi3-partial": (
        "Phi3",
        {
            "rope_parameters": {**longrope(6, 512), "partial_rotary_factor": 0.75},
            "original_max_position_embeddings": 512,
            "max_position_embeddings": 1024,
            "pad_token_id": 0,
        },
        "phi4",
    ),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 5, "pad_token_id": 0}, "llama3"),
    "granite": (
        "Granite",
        {
            "attention_bias": True,
            "attention_multiplier": 0.25,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.7,
            "logits_scaling": 2.0,
        },
        "smollm",
    ),
}


def main(folder: Path) -> None:
    import hf_tokenizers
    import numpy as np
    import torch
    import transformers

    texts = json.loads((folder / "texts.json").read_text())
    sizes = hf_tokenizers.write_all(folder / "tokenizers", texts)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for name, (kind, arguments, tokenizer) in MODELS.items():
        directory = folder / name
        config = getattr(transformers, f"{kind}Config")(
            **{**SIZES, "vocab_size": sizes[tokenizer] + 3, **arguments},
            bos_token_id=1,
            eos_token_id=2,
            attn_implementation="eager",
        )
        model = getattr(transformers, f"{kind.removesuffix('Text')}ForCausalLM")(config).eval()
        with torch.no_grad():
            for key, value in model.named_parameters():
                if value.ndim == 1:  # norms start as ones and biases as zeros, which would hide mistakes
                    value.add_(torch.randn_like(value) * (0.2 if "norm" in key else 0.5))
            ids = torch.randint(3, config.vocab_size, (1, NUM_POSITIONS))
            logits = model(ids, use_cache=False).logits[0]
        model.save_pretrained(directory)
        np.save(directory / "ids.npy", ids[0].numpy())
        np.save(directory / "logits.npy", logits.numpy())
        for path in (folder / "tokenizers" / tokenizer).iterdir():
            if path.name != "token_ids.json":
                (directory / path.name).write_bytes(path.read_bytes())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
