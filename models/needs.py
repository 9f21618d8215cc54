# What running a model takes, part by part, in bytes. Pure arithmetic over a header and a setting.
# This file may not know how much memory there is, nor what to do when it is not enough (plan does).
"""``needs(info, setting, num_cells)``: memory with so many KV cells allocated.

Weights and KV are exact. Compute buffers follow the graph that ``llama_context::sched_reserve`` measures, whose size is
that of its largest stage: the formulas below give what llama.cpp reports for dense models within a few per cent
(scripts/compare-plan), and an estimate for mixtures of experts and recurrent layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Final

from ingle.models.ggml_types import BY_NAME
from ingle.models.kv_layout import KvLayout, kv_layout
from ingle.models.repacking import repacked_bytes

if TYPE_CHECKING:
    from ingle.models.gguf_header import TensorInfo
    from ingle.models.gguf_info import ModelInfo

F32_BYTES: Final = 4
CELL_STEP: Final = 256
"""llama.cpp makes contexts of a multiple of so many cells."""

# Measured on Linux, x86-64, CPython 3.11, glibc (scripts/compare-plan).
PROGRAM_BYTES: Final = 42_500_000  # a process with our modules and llama.cpp's library; the bare interpreter has 11.7
TOKEN_BYTES: Final = 206  # of the vocabulary: llama.cpp's tables (130) and what reading the header leaves (76)
MERGE_BYTES: Final = 170  # llama.cpp's table of BPE merges
CELL_BYTES: Final = 144  # llama.cpp's records of a cell in use: position, sequences, and the sets they stand in
WORK_BYTES: Final = 2  # of each value of a step's widest rows, converted for the kernel that multiplies them


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How a model is opened, as far as memory is concerned."""

    type_k: str = "f16"
    type_v: str = "f16"
    flash_attn: bool = True
    n_batch: int = 512  # tokens a step
    num_slots: int = 13  # sequences a context is made for
    num_outputs: int = 13  # rows of logits a step may want
    gpu_layers: int = 0  # of the layers and the output, counted from the end (llama.cpp's -ngl)
    cpu_features: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Bytes. Those named `gpu_…` are in the GPU's memory, the others in RAM."""

    program_bytes: int = 0
    vocabulary_bytes: int = 0
    weights_bytes: int = 0  # mapped from the file
    repacked_bytes: int = 0
    kv_bytes: int = 0  # recurrent states included
    compute_bytes: int = 0
    output_bytes: int = 0  # logits
    gpu_weights_bytes: int = 0
    gpu_kv_bytes: int = 0
    gpu_compute_bytes: int = 0

    @property
    def host_bytes(self) -> int:
        return sum(value for name, value in self.items() if not name.startswith("gpu_"))

    @property
    def gpu_bytes(self) -> int:
        return sum(value for name, value in self.items() if name.startswith("gpu_"))

    @property
    def loaded_bytes(self) -> int:
        """Of the RAM, what is taken before there is a context."""
        return self.program_bytes + self.vocabulary_bytes + self.weights_bytes + self.repacked_bytes

    def items(self) -> list[tuple[str, int]]:
        return [(part.name, getattr(self, part.name)) for part in fields(self)]

    def __add__(self, other: Needs) -> Needs:
        return Needs(**{name: value + getattr(other, name) for name, value in self.items()})


def needs(info: ModelInfo, setting: Setting, num_cells: int, *, program_bytes: int = PROGRAM_BYTES) -> Needs:
    """What the model takes with a context of `num_cells` cells. Raises ValueError where a cache type does not fit."""
    layout = kv_layout(info)
    first_on_gpu = max(info.num_layers + 1 - setting.gpu_layers, 0)  # llama_model::load_tensors
    on_host, on_gpu = _split(info.tensors, info.num_layers, first_on_gpu)
    kv = [_layer_kv_bytes(layout, index, setting, num_cells) for index in range(info.num_layers)]
    compute = compute_bytes(info, setting, num_cells)
    masks = _mask_bytes(layout, setting, num_cells)
    is_tied = first_on_gpu > info.num_layers and all(tensor.name != "output.weight" for tensor in info.tensors)
    num_merges = info.arrays["tokenizer.ggml.merges"].count if "tokenizer.ggml.merges" in info.arrays else 0
    return Needs(
        program_bytes=program_bytes,
        vocabulary_bytes=info.vocab_size * TOKEN_BYTES + num_merges * MERGE_BYTES,
        weights_bytes=sum(tensor.num_bytes for tensor in on_host),
        repacked_bytes=repacked_bytes(on_host, setting.cpu_features, is_tied=is_tied),
        kv_bytes=sum(kv[:first_on_gpu]) + num_cells * CELL_BYTES * layout.num_kinds,
        compute_bytes=masks if first_on_gpu == 0 else compute + _work_bytes(info, setting, num_cells),
        output_bytes=setting.num_outputs * info.vocab_size * F32_BYTES,
        gpu_weights_bytes=sum(tensor.num_bytes for tensor in on_gpu),
        gpu_kv_bytes=sum(kv[first_on_gpu:]),
        gpu_compute_bytes=compute if setting.gpu_layers else 0,
    )


def compute_bytes(info: ModelInfo, setting: Setting, num_cells: int) -> int:
    """llama.cpp's compute buffer: the largest stage of a step's graph, all of whose tensors are there at once."""
    layout = kv_layout(info)
    num_tokens = _num_tokens(setting, num_cells)
    query = _largest(info.n_head) * info.key_length
    keys_values = max((layer.k_values + layer.v_values for layer in layout.layers), default=0)
    attention = 2 * info.n_embd + 3 * query
    if not setting.flash_attn and keys_values:
        attention += keys_values + num_cells * _largest(info.n_head)  # every row's score of every cell
    feed_forward = 3 * info.n_embd + max(info.n_embd, query) + 3 * _feed_forward_values(info)
    layer = num_tokens * max(attention, feed_forward) * F32_BYTES + _mask_bytes(layout, setting, num_cells)
    logits = setting.num_outputs * (info.vocab_size + info.n_embd) + num_tokens * info.n_embd
    return max(layer + _rotation_bytes(info, setting), logits * F32_BYTES)


def _num_tokens(setting: Setting, num_cells: int) -> int:
    """Rows of the largest step, a multiple of the slots (``llama_context::graph_reserve``)."""
    return -(-min(setting.n_batch, num_cells) // setting.num_slots) * setting.num_slots


def _mask_bytes(layout: KvLayout, setting: Setting, num_cells: int) -> int:
    """Who sees whom: a value for every row and cell, once for windows and once for the other layers."""
    value_bytes = 2 if setting.flash_attn else F32_BYTES
    return num_cells * _num_tokens(setting, num_cells) * value_bytes * layout.num_kinds


def _feed_forward_values(info: ModelInfo) -> int:
    """Values a token has in the widest of a layer's hidden stages."""
    arch = info.architecture
    dense = max(info.layer_values.get(f"{arch}.feed_forward_length", ()), default=0) or _number(
        info, "feed_forward_length"
    )
    used = max(info.layer_values.get(f"{arch}.expert_used_count", ()), default=0) or _number(info, "expert_used_count")
    experts = used * ((_number(info, "expert_feed_forward_length") or dense) + info.n_embd)
    return max(dense, experts, 2 * _number(info, "ssm.inner_size"))


def _rotation_bytes(info: ModelInfo, setting: Setting) -> int:
    """Matrices that rotate heads before they are quantized (``llama_kv_cache``: attn_rot_k, attn_rot_v)."""
    total = 0
    for kind, length in ((setting.type_k, info.key_length), (setting.type_v, info.value_length)):
        if BY_NAME[kind.upper()].block_size > 1 and length % 64 == 0:
            total += (length & -length) ** 2 * F32_BYTES
    return total


def _work_bytes(info: ModelInfo, setting: Setting, num_cells: int) -> int:
    widest = max(info.n_embd, _largest(info.n_head) * info.key_length, _feed_forward_values(info))
    return _num_tokens(setting, num_cells) * widest * WORK_BYTES


def _layer_kv_bytes(layout: KvLayout, index: int, setting: Setting, num_cells: int) -> int:
    one = KvLayout((layout.layers[index],), layout.state_values)
    pads = max((layer.v_values for layer in layout.layers), default=0) if not setting.flash_attn else 0
    per_cell = one.bytes_per_token(setting.type_k, setting.type_v, widest_v=pads)
    return num_cells * per_cell + one.state_bytes(setting.num_slots)


def _split(
    tensors: Sequence[TensorInfo], num_layers: int, first_on_gpu: int
) -> tuple[list[TensorInfo], list[TensorInfo]]:
    """Tensors in RAM and on the GPU: the embedding stays in RAM, the output goes after the last layer."""
    host: list[TensorInfo] = []
    gpu: list[TensorInfo] = []
    for tensor in tensors:
        prefix, _, rest = tensor.name.partition(".")
        if prefix == "blk":
            number = rest.partition(".")[0]
            layer = int(number) if number.isdigit() else 0
        else:
            layer = num_layers if prefix.startswith("output") else -1
        (gpu if layer >= first_on_gpu else host).append(tensor)
    if first_on_gpu <= num_layers and all(tensor.name != "output.weight" for tensor in tensors):
        gpu += [tensor for tensor in tensors if tensor.name == "token_embd.weight"]  # used again as the output
    return host, gpu


def _largest(value: int | tuple[int, ...]) -> int:
    return max(value, default=0) if isinstance(value, tuple) else value


def _number(info: ModelInfo, name: str) -> int:
    value = info.metadata.get(f"{info.architecture}.{name}", 0)
    return int(value) if isinstance(value, int) else 0
