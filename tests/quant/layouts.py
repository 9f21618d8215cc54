# GGUF files that are all header: real layouts of any size, their weights a hole in the file. And llama.cpp's opinion.
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

from ingle.runtime import llama

_LINE = re.compile(
    r"\[ *\d+/ *\d+\] +(?P<name>\S+) +- \[[^]]*\], type = +(?P<old>\S+), +size = [^\n(]*(?:\((?P<new>\w+)\))?"
)


@dataclass(frozen=True)
class Layout:
    """A model's shape. `num_experts`: of stacked expert matrices; 0: a dense model."""

    architecture: str = "llama"
    num_layers: int = 8
    width: int = 512
    num_heads: int = 8
    num_heads_kv: int = 8
    ffn: int = 1024
    num_experts: int = 0
    is_tied: bool = False
    fused_qkv: bool = False
    vocabulary: int = 320
    extra: tuple[tuple[str, tuple[int, ...]], ...] = ()  # name → shape, columns last

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Shapes with the columns last, as NumPy has them."""
        width, kv = self.width, self.width // self.num_heads * self.num_heads_kv
        found: dict[str, tuple[int, ...]] = {
            "token_embd.weight": (self.vocabulary, width),
            "output_norm.weight": (width,),
        }
        if not self.is_tied:
            found["output.weight"] = (self.vocabulary, width)
        for layer in range(self.num_layers):
            name = f"blk.{layer}."
            found |= {name + "attn_norm.weight": (width,), name + "ffn_norm.weight": (width,)}
            if self.fused_qkv:
                found[name + "attn_qkv.weight"] = (width + 2 * kv, width)
            else:
                found |= {name + "attn_q.weight": (width, width), name + "attn_k.weight": (kv, width)}
                found |= {name + "attn_v.weight": (kv, width), name + "attn_q.bias": (width,)}
            found[name + "attn_output.weight"] = (width, width)
            if self.num_experts:
                found[name + "ffn_gate_inp.weight"] = (self.num_experts, width)
                found |= {name + f"ffn_{w}_exps.weight": (self.num_experts, self.ffn, width) for w in ("gate", "up")}
                found[name + "ffn_down_exps.weight"] = (self.num_experts, width, self.ffn)
            else:
                found |= {name + f"ffn_{w}.weight": (self.ffn, width) for w in ("gate", "up")}
                found[name + "ffn_down.weight"] = (width, self.ffn)
        return found | dict(self.extra)

    def start(self, path: Path) -> gguf.GGUFWriter:
        """A writer with the metadata."""
        writer = gguf.GGUFWriter(path, self.architecture)
        writer.add_context_length(2048)
        writer.add_embedding_length(self.width)
        writer.add_block_count(self.num_layers)
        writer.add_feed_forward_length(self.ffn)
        writer.add_head_count(self.num_heads)
        writer.add_head_count_kv(self.num_heads_kv)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_layer_norm_eps(1e-6)
        writer.add_rope_dimension_count(self.width // self.num_heads)
        if self.num_experts:
            writer.add_expert_count(self.num_experts)
            writer.add_expert_used_count(2)
            writer.add_expert_feed_forward_length(self.ffn)
        writer.add_tokenizer_model("llama")
        writer.add_token_list(
            ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
            + [f"word{i}" for i in range(self.vocabulary - 259)]
        )
        writer.add_token_scores([0.0] * self.vocabulary)
        kinds = gguf.TokenType
        writer.add_token_types(
            [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL]
            + [kinds.BYTE] * 256
            + [kinds.NORMAL] * (self.vocabulary - 259)
        )
        return writer

    def write(self, path: Path, *, seed: int = 0, dtype: type[np.floating] = np.float32) -> Path:
        """With random weights, large enough to be told from one another."""
        generator = np.random.default_rng(seed)
        writer = self.start(path)
        for name, shape in self.tensors().items():
            values = generator.standard_normal(shape).astype(np.float32)
            writer.add_tensor(name, values.astype(dtype) if len(shape) > 1 else values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def importances(self, seed: int = 1) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
        """For every matrix of the blocks, float32 [experts, cols]."""
        generator = np.random.default_rng(seed)
        return {
            name: np.exp(generator.standard_normal((shape[0] if len(shape) > 2 else 1, shape[-1]))).astype(np.float32)
            for name, shape in self.tensors().items()
            if len(shape) > 1 and name.startswith("blk.")
        }

    def write_hollow(self, path: Path) -> Path:
        """The header, and a hole of the right size."""
        writer = self.start(path)
        total = 0
        for name, shape in self.tensors().items():
            num_bytes = 4 * int(np.prod(shape))
            writer.add_tensor_info(name, shape, np.dtype(np.float32), num_bytes)  # type: ignore[arg-type]
            total += gguf.GGUFWriter.ggml_pad(num_bytes, 32)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        writer.close()
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.truncate(gguf.GGUFWriter.ggml_pad(size, 32) + total)
        return path


def llama_types(
    path: Path,
    file_type: int,
    imatrix: Mapping[str, Sequence[float]] | None = None,
    tensor_types: Sequence[tuple[str, int]] = (),
) -> dict[str, str]:
    """Name → type that llama_model_quantize would give every tensor, from the log of a dry run."""
    said: list[str] = []
    llama.log_to(said.append)
    try:
        llama.quantize_model(path, path, file_type, imatrix=imatrix, tensor_types=tensor_types, dry_run=True)
    finally:
        llama.log_to(None)
    found = {m["name"]: (m["new"] or m["old"]).upper() for m in _LINE.finditer("".join(said))}
    assert found, "llama.cpp's log reads as it did"
    return found
