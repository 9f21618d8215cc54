# Two models, or two ways to run one, never share pages.
from __future__ import annotations

import os
from pathlib import Path

import pytest

from ingle.models.gguf_info import read_model_info
from ingle.runtime.config import EngineConfig
from ingle.runtime.fingerprint import fingerprint
from tests.models.gguf_bytes import File, Tensor, tiny_model

COUNT = 2


def split_model(folder: Path) -> list[Path]:
    first = tiny_model(split__count=("u16", COUNT), split__no=("u16", 0), split__tensors__count=("i32", 5))
    second = File(kv={"split.no": ("u16", 1)}, tensors=[Tensor("blk.0.attn_k.weight", [32, 16], 1)])
    names = [folder / f"m-{i + 1:05d}-of-{COUNT:05d}.gguf" for i in range(COUNT)]
    for name, file in zip(names, (first, second), strict=True):
        name.write_bytes(file.to_bytes())
    return names


@pytest.mark.parametrize("shard", range(COUNT))
def test_a_weight_in_any_shard_counts(tmp_path: Path, shard: int) -> None:
    paths = split_model(tmp_path)
    before = fingerprint(read_model_info(paths[0]), EngineConfig(), 0)
    assert fingerprint(read_model_info(paths[0]), EngineConfig(), 0) == before
    stat = paths[shard].stat()
    raw = bytearray(paths[shard].read_bytes())
    raw[-1] ^= 1
    paths[shard].write_bytes(raw)
    os.utime(paths[shard], ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert fingerprint(read_model_info(paths[0]), EngineConfig(), 0) != before


def test_settings_that_change_the_bytes_count(tmp_path: Path) -> None:
    info = read_model_info(split_model(tmp_path)[0])
    configs = [EngineConfig(), EngineConfig(type_k="q8_0"), EngineConfig(type_v="q8_0"), EngineConfig(flash_attn=False)]
    names = [fingerprint(info, config, layers) for config in configs for layers in (0, 2)]
    assert len(set(names)) == len(names)
