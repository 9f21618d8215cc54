# Tiny models of random weights of every architecture that can be scaled: odd norms, biases, shared heads, experts.
"""``write_model(path, "qwen3")``: two layers, seeded, some tens of kilobytes."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from tests import tiny_models as tiny

NUM_EXPERTS, NUM_USED = 4, 2
NUM_LAYERS = 2
ALL = (
    "llama",
    "mistral3",
    "mixtral",
    "qwen2",
    "qwen3",
    "qwen3moe",
    "gemma2",
    "gemma3",
    "phi3",
    "smollm3",
    "granite",
)
"""Names of models; mixtral's architecture is llama."""


def write_model(path: Path, name: str, *, seed: int = 0) -> Path:
    """Norms and biases are random, so that nothing is right by being 1 or 0."""
    arch = "llama" if name == "mixtral" else name
    writer, rng = tiny._start(path, arch, seed, 2048, NUM_LAYERS)
    generator = np.random.default_rng(seed)
    writer.kv_data[0]["general.name"].value = "tiny"  # llama.cpp looks for some names
    head_length = tiny.N_EMBD // tiny.N_HEAD if name in ("qwen2", "phi3") else tiny.HEAD_LENGTH
    tiny._add_attention_keys(writer, tiny.N_HEAD_KV, head_length)
    writer.add_rope_dimension_count(head_length)
    has_experts = name in ("mixtral", "qwen3moe")
    if has_experts:
        writer.add_expert_count(NUM_EXPERTS)
        writer.add_expert_used_count(NUM_USED)
        writer.add_expert_feed_forward_length(tiny.N_FF)
    if name in ("gemma2", "gemma3"):
        writer.add_sliding_window(16)
    if name == "phi3":
        writer.add_sliding_window(0)
    if name == "gemma2":  # its output layer is always its embeddings
        del writer.tensors[0]["output.weight"]
        writer.add_attn_logit_softcapping(50.0)
        writer.add_final_logit_softcapping(30.0)
    if name == "granite":
        writer.add_logit_scale(2.0)
        writer.add_residual_scale(0.8)
        writer.add_embedding_scale(1.5)
        writer.add_attention_scale(0.15)

    def add_vector(tensor: str, size: int, middle: float) -> None:
        writer.add_tensor(tensor, (middle + 0.3 * generator.standard_normal(size)).astype(np.float32))

    for layer in range(NUM_LAYERS):
        blk = f"blk.{layer}."
        num_q, num_kv = tiny.N_HEAD * head_length, tiny.N_HEAD_KV * head_length
        add_vector(f"{blk}attn_norm.weight", tiny.N_EMBD, 1)
        add_vector(f"{blk}ffn_norm.weight", tiny.N_EMBD, 1)
        if name in ("gemma2", "gemma3"):
            add_vector(f"{blk}post_attention_norm.weight", tiny.N_EMBD, 1)
            add_vector(f"{blk}post_ffw_norm.weight", tiny.N_EMBD, 1)
        if name in ("qwen3", "qwen3moe", "gemma3"):
            add_vector(f"{blk}attn_q_norm.weight", tiny.HEAD_LENGTH, 1.5)
            add_vector(f"{blk}attn_k_norm.weight", tiny.HEAD_LENGTH, 1.5)
        if name == "phi3":
            writer.add_tensor(f"{blk}attn_qkv.weight", rng(num_q + 2 * num_kv, tiny.N_EMBD))
            writer.add_tensor(f"{blk}attn_output.weight", rng(tiny.N_EMBD, num_q))
            writer.add_tensor(f"{blk}ffn_up.weight", rng(2 * tiny.N_FF, tiny.N_EMBD))
            writer.add_tensor(f"{blk}ffn_down.weight", rng(tiny.N_EMBD, tiny.N_FF))
            continue
        tiny._add_attention(writer, rng, layer, head_length)
        if name in ("qwen2", "granite"):
            for part, size in (("q", num_q), ("k", num_kv), ("v", num_kv)):
                add_vector(f"{blk}attn_{part}.bias", size, 0)
        if has_experts:
            writer.add_tensor(f"{blk}ffn_gate_inp.weight", rng(NUM_EXPERTS, tiny.N_EMBD))
            for part, rows, cols in (
                ("gate", tiny.N_FF, tiny.N_EMBD),
                ("up", tiny.N_FF, tiny.N_EMBD),
                ("down", tiny.N_EMBD, tiny.N_FF),
            ):
                experts = rng(NUM_EXPERTS * rows, cols).reshape(NUM_EXPERTS, rows, cols)
                writer.add_tensor(f"{blk}ffn_{part}_exps.weight", experts)
        else:
            tiny._add_feed_forward(writer, rng, layer)
    add_vector("output_norm.weight", tiny.N_EMBD, 1)
    return tiny._finish(writer)


def rewrite(source: Path, path: Path, change) -> Path:  # type: ignore[no-untyped-def]
    """A copy of a model in which each tensor is what `change(name, values)` makes of it, all float32."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        sub = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=sub)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        writer.add_tensor(tensor.name, np.ascontiguousarray(change(tensor.name, values), np.float32))
    return tiny._finish(writer)
