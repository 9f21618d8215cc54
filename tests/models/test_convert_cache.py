# The file that a conversion writes: its keys, its memory, and the cache it lies in.
from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingle.models.convert import convert, converted
from ingle.models.convert.cache import converted_dir
from ingle.models.errors import BadModelFile
from ingle.models.gguf_info import read_model_info
from tests.models.hf_directory import CONFIG, weights, write_directory


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


class Notes:
    """A Progress that remembers."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.done: list[int] = []
        self.total: int | None = None
        self.finished = False

    def start(self, total_bytes: int | None, label: str, done_bytes: int = 0) -> None:
        self.total = total_bytes

    def update(self, done_bytes: int) -> None:
        self.done.append(done_bytes)

    def finish(self) -> None:
        self.finished = True

    def note(self, message: str) -> None:
        self.notes.append(message)


def test_the_header_says_what_the_directory_says(tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "Little-1M", settings={"chat_template": "{{ messages }}"})
    notes = Notes()
    path = convert(directory, tmp_path, progress=notes)
    info = read_model_info(path)
    assert path.name == "Little-1M-F16.gguf"
    assert (info.name, info.architecture, info.file_type, info.size_label) == ("Little-1M", "llama", "F16", "32K")
    assert (info.num_layers, info.n_embd, info.n_head, info.n_head_kv) == (2, 32, 4, 2)
    assert (info.n_ctx_train, info.key_length, info.vocab_size) == (128, 8, 264)
    assert (info.bos_token, info.eos_token, info.add_bos) == ("<s>", "</s>", False)
    assert info.chat_template == "{{ messages }}"
    assert info.num_params == sum(value.size for value in weights().values())
    assert path.stat().st_mode & 0o777 == 0o600
    assert notes.finished
    assert notes.done == sorted(notes.done)
    assert notes.total == notes.done[-1] == info.weights_bytes


def test_chat_templates_by_name_and_in_a_file_of_their_own(tmp_path: Path) -> None:
    listed: list[dict[str, Any]] = [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]
    directory = write_directory(tmp_path / "model", settings={"chat_template": listed})
    info = read_model_info(convert(directory, tmp_path / "a.gguf"))
    assert info.chat_template == "A"
    assert info.metadata["tokenizer.chat_template.tool_use"] == "B"
    (directory / "chat_template.jinja").write_text("C")
    assert read_model_info(convert(directory, tmp_path / "b.gguf")).chat_template == "C"


def test_ends_of_turn_beyond_those_that_llama_cpp_knows(tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "model", config={"eos_token_id": [1, 2, 0]})
    metadata = read_model_info(convert(directory, tmp_path / "a.gguf")).metadata
    assert metadata["tokenizer.ggml.eos_token_id"] == 1
    assert metadata["tokenizer.ggml.eot_token_id"] == 0  # 2 is <|im_end|>, which is known by its text
    assert "tokenizer.ggml.eom_token_id" not in metadata


def test_converted_once_and_anew_when_the_source_changes(tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "model")
    first = converted(directory)
    assert first.is_relative_to(converted_dir())
    written = first.stat().st_mtime_ns
    assert converted(directory) == first
    assert first.stat().st_mtime_ns == written
    write_directory(directory, tensors=weights(seed=1))
    os.utime(directory / "model.safetensors", ns=(0, written + 10**9))
    second = converted(directory)
    assert second != first
    assert not first.parent.exists()
    assert [path.name for path in converted_dir().iterdir() if path.is_dir()] == [second.parent.name]


def test_a_snapshot_of_the_hub_cache_is_named_after_its_repository(tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / "models--acme--Tiny-Chat" / "snapshots" / ("0" * 40)
    assert converted(write_directory(snapshot)).name == "Tiny-Chat-32K-F16.gguf"


def test_phi3_in_a_name_does_not_make_the_file_unloadable(tmp_path: Path) -> None:
    info = read_model_info(convert(write_directory(tmp_path / "my-phi3-tune"), tmp_path / "a.gguf"))
    assert info.name == "my-Phi 3-tune"


_CONVERT = """
import os, sys
from pathlib import Path
from ingle.models.convert import converted
from ingle.models.convert import weights

if sys.argv[2] == "die":
    whole = weights.PlannedTensor.blocks
    def blocks(self):
        if self.name == "blk.1.ffn_up.weight":
            print("there", flush=True)
            sys.stdin.read()
        yield from whole(self)
    weights.PlannedTensor.blocks = blocks
print(converted(Path(sys.argv[1])), flush=True)
"""


def _start(directory: Path, what: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _CONVERT, str(directory), what], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_killed_within_a_conversion_nothing_half_is_left(tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "model")
    with _start(directory, "die") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        other = _start(directory, "convert")  # waits for the lock
        process.send_signal(signal.SIGKILL)
    with other:
        assert other.stdout is not None
        path = Path(other.stdout.readline().strip())
    assert path == converted(directory)
    read_model_info(path)
    assert {file.name for file in path.parent.iterdir()} == {path.name, "source"}


# The peak of this program alone: ru_maxrss of a child begins with what its parent had when it forked.
_MEASURE = """
import re, sys
from pathlib import Path
from ingle.models.convert import convert
convert(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


def test_memory_is_bounded_by_the_largest_tensor(tmp_path: Path) -> None:
    # All tensors together are far beyond the bound, so that keeping them would show.
    config = {"vocab_size": 2048, "hidden_size": 2048, "intermediate_size": 2048, "num_hidden_layers": 5}
    shapes = {name: value.shape for name, value in weights({**CONFIG, **config, "num_hidden_layers": 0}).items()}
    layer = weights({**CONFIG, "num_hidden_layers": 1})
    assert shapes["lm_head.weight"] == (2048, 2048)
    sizes = {32: 2048, 16: 1024, 48: 2048}
    for number in range(5):
        for name, value in layer.items():
            if ".layers.0." in name:
                shapes[name.replace(".0.", f".{number}.")] = tuple(sizes[size] for size in value.shape)
    tensors = {name: np.full(shape, 0.5, np.float32) for name, shape in shapes.items()}
    directory = write_directory(tmp_path / "model", config=config, tensors=tensors)
    largest = max(value.nbytes for value in tensors.values())
    assert sum(value.nbytes for value in tensors.values()) > 3 * largest + 200e6 + 200e6
    command = [sys.executable, "-c", _MEASURE, str(directory), str(tmp_path / "model.gguf"), "f16"]
    measured = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(measured.stdout) * 1024 <= 3 * largest + 200e6


def test_a_conversion_that_fails_leaves_no_folder(tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "model")
    weights_file = directory / "model.safetensors"
    weights_file.write_bytes(weights_file.read_bytes()[:-1])
    with pytest.raises(BadModelFile, match="ends within the tensor"):
        converted(directory)
    assert [path for path in converted_dir().iterdir() if path.is_dir()] == []
