# A ConversionPlan and the weights beside it → one GGUF file, tensor by tensor, whole or not there.
# This file may not know caches, hubs or terminals.
"""``convert``: the only writer of converted models. Memory: the largest tensor, once more where it is rearranged, and
blocks of 16 MiB."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, Literal

from ingle.models.convert.plan import ConversionPlan, check
from ingle.models.convert.refusal import naming
from ingle.models.convert.source import model_name
from ingle.models.convert.tensor_files import StoredTensor, most_common_dtype, read_tensors, weight_files
from ingle.models.convert.vocabulary import Vocabulary
from ingle.models.convert.weights import BeyondHalf, OutType, PlannedTensor, plan_weights
from ingle.models.errors import BadModelFile, store_error
from ingle.models.progress import Progress, Silent

if TYPE_CHECKING:
    import gguf

_ALIGNMENT: Final = 32  # bytes, GGUF's default
_FILE_TYPES: Final[Mapping[OutType, int]] = {"f32": 0, "f16": 1, "bf16": 32}  # llama_ftype
# What llama_vocab::impl::load looks for in a model's name, and the tokens that it then must have.
_PHI3: Final = re.compile(r"(?i)phi-?3")
_PHI3_TOKENS: Final = ("</s>", "<unk>", "<s>", "<|endoftext|>")
# A type that holds the source exactly; float32 is rounded to the finer of the two halves, since it doubles the
# bytes read for every token.
_AUTO: Final[Mapping[str, OutType]] = {"BF16": "bf16", "F16": "f16", "F32": "f16"}


def convert(
    directory: Path,
    out: Path,
    outtype: Literal["auto", "f32", "f16", "bf16"] = "auto",
    *,
    name: str | None = None,
    progress: Progress | None = None,
) -> Path:
    """Write the model in `directory` to `out`, replacing a file there; into a folder by GGUF's naming convention.
    Returns the file.

    ``auto``: bf16 and f16 stay what they are, f32 becomes f16 (bf16 where a value is too large). Norms and biases are
    always f32. `name` is the model's name in the file. Raises UnsupportedModel, BadModelFile, ModelNotFound,
    StoreError.
    """
    with naming(directory):
        plan = check(directory)
        tensors = read_tensors(weight_files(directory))
        if not tensors:
            raise BadModelFile("its weight files hold no tensors", "Fetch them again.")
        name, report = _harmless(name or model_name(directory), plan.vocabulary), progress or Silent()
        notes = plan.notes
        if plan.vocabulary.strips_spaces and not _PHI3.search(name):
            notes = (*notes, "spaces beside special tokens are kept where its own tokenizer strips them")
        for note in notes:
            report.note(f"{name}: {note}")
        chosen: OutType = _AUTO[most_common_dtype(tensors)] if outtype == "auto" else outtype
        try:
            return _write(plan, tensors, out, chosen, name, report)
        except BeyondHalf as error:
            if outtype == "auto":
                return _write(plan, tensors, out, "bf16", name, report)
            raise BadModelFile(f"the tensor {error} is too large for f16", "Convert it to bf16 or f32.") from None


def _harmless(name: str, vocabulary: Vocabulary) -> str:
    """`name`, unless llama.cpp would fail on it: for "phi-3" in a model's name it strips spaces behind special tokens,
    as Phi-3's tokenizer does, and takes the tokens of that model for granted."""
    texts = {token.text for token in vocabulary.tokens if token is not None}
    return name if texts.issuperset(_PHI3_TOKENS) else _PHI3.sub("Phi 3", name)


def _file_name(plan: ConversionPlan, name: str, outtype: OutType) -> str:
    """By GGUF's naming convention: ``Name-SizeLabel-Encoding.gguf``, without saying the size twice."""
    stem = re.sub(r"[^\w.+-]+", "-", name).strip("-.") or "model"
    said = re.search(r"(?i)(?:^|[-_.])\d+(?:\.\d+)?[KMBT](?:$|[-_.])", stem)
    size = "" if said else f"-{_size_label(plan.num_params)}"
    return f"{stem}{size}-{outtype.upper()}.gguf"


def _size_label(num_params: int) -> str:
    """``1.2B``, ``135M``, ``12K``."""
    for unit, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if num_params >= unit:
            value = num_params / unit
            return f"{value:.1f}{suffix}" if value < 10 else f"{value:.0f}{suffix}"
    return f"{num_params / 1e3:.0f}K"


def _write(
    plan: ConversionPlan,
    tensors: Mapping[str, StoredTensor],
    out: Path,
    outtype: OutType,
    name: str,
    progress: Progress,
) -> Path:
    from ingle.models.wheel import require_free_space, sync_folder

    if out.is_dir():
        out = out / _file_name(plan, name, outtype)
    planned = plan_weights(plan.hyperparameters, tensors, outtype)
    total = sum(tensor.num_bytes for tensor in planned)
    part: Path | None = None
    try:
        require_free_space(out.parent, total, f"convert {name}")
        descriptor, text = tempfile.mkstemp(prefix=f".{out.stem}-", suffix=".part", dir=out.parent)  # 0600
        part = Path(text)
        os.close(descriptor)
        write_header(plan, planned, part, outtype, name)
        progress.start(total, f"converting {name} to {outtype}")
        try:
            with part.open("ab") as file:
                done = 0
                for tensor in planned:
                    _pad(file)
                    for block in tensor.blocks():
                        file.write(block.data)
                        done += block.nbytes
                        progress.update(done)
                _pad(file)
                file.flush()
                os.fsync(file.fileno())
        finally:
            progress.finish()
        part.replace(out)
        part = None
        sync_folder(out.parent)
    except OSError as error:
        raise store_error(error, f"write {out}") from None
    finally:
        if part is not None:
            part.unlink(missing_ok=True)
    return out


def padded(num_bytes: int) -> int:
    """`num_bytes` and what is added to begin the next part of the file at a multiple of its alignment."""
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


def _pad(file: IO[bytes]) -> None:
    file.write(bytes(padded(file.tell()) - file.tell()))


def write_header(plan: ConversionPlan, planned: list[PlannedTensor], path: Path, outtype: OutType, name: str) -> None:
    """All that stands before the tensors' bytes. Raises OSError."""
    import gguf
    import numpy as np

    types = {
        "f32": (np.float32, gguf.GGMLQuantizationType.F32),
        "f16": (np.float16, gguf.GGMLQuantizationType.F16),
        "bf16": (np.uint16, gguf.GGMLQuantizationType.BF16),
    }
    writer = gguf.GGUFWriter(path, plan.architecture)
    writer.add_type("model")
    writer.add_name(name)
    writer.add_size_label(_size_label(plan.num_params))
    writer.add_file_type(_FILE_TYPES[outtype])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for key, value in plan.hyperparameters.keys.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    _add_vocabulary(writer, plan.vocabulary)
    for tensor in planned:
        dtype, kind = types[tensor.type]
        writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(dtype), tensor.num_bytes, raw_dtype=kind)
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()


def _add_vocabulary(writer: gguf.GGUFWriter, vocabulary: Vocabulary) -> None:
    tokens = [token for token in vocabulary.tokens if token is not None]
    writer.add_tokenizer_model(vocabulary.model)
    writer.add_tokenizer_pre(vocabulary.pre)
    writer.add_token_list([token.text for token in tokens])
    writer.add_token_types([int(token.type) for token in tokens])
    if vocabulary.has_scores:
        writer.add_token_scores([token.score for token in tokens])
    if vocabulary.merges is not None:
        writer.add_token_merges(list(vocabulary.merges))
    for name, number in vocabulary.special_ids.items():
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", number)
    flags = {
        "add_bos_token": vocabulary.add_bos,
        "add_eos_token": vocabulary.add_eos,
        "add_space_prefix": vocabulary.add_space_prefix,
        "remove_extra_whitespaces": vocabulary.remove_extra_whitespaces,
    }
    for name, flag in flags.items():
        if flag is not None:
            writer.add_bool(f"tokenizer.ggml.{name}", flag)
    if vocabulary.charsmap is not None:
        writer.add_precompiled_charsmap(vocabulary.charsmap)
    for name, text in vocabulary.chat_templates.items():
        writer.add_string("tokenizer.chat_template" + ("" if name == "default" else f".{name}"), text)
