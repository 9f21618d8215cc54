# A Hugging Face cache made by hand, as its documentation describes it.
from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from ingle.models.store import Shelf, StoredModel
from tests.models.gguf_bytes import File, Tensor, tiny_model

MODEL = tiny_model().to_bytes()
OTHER = tiny_model(general__name=("str", "Other")).to_bytes()


@dataclass
class HubRepo:
    """``models--user--repo`` below `cache`. `add` puts a file into a revision."""

    cache: Path
    name: str

    @property
    def folder(self) -> Path:
        return self.cache / f"models--{self.name.replace('/', '--')}"

    def blob(self, content: bytes) -> Path:
        return self.folder / "blobs" / hashlib.sha256(content).hexdigest()

    def add(self, name: str, content: bytes, commit: str = "a" * 40, ref: str | None = "main") -> Path:
        """The path in the snapshot; a link to the blob, as the library makes it."""
        blob, link = self.blob(content), self.folder / "snapshots" / commit / name
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
        link.parent.mkdir(parents=True, exist_ok=True)
        up = "../" * (len(Path(name).parts) + 1)
        link.symlink_to(f"{up}blobs/{blob.name}")
        if ref is not None:
            (self.folder / "refs").mkdir(exist_ok=True)
            (self.folder / "refs" / ref).write_text(commit)
        return link


def put(path: Path, content: bytes = MODEL) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def names(found: Shelf) -> list[str]:
    return [model.name for model in found.models]


def only(found: Shelf, text: str) -> StoredModel:
    (model,) = found.find(text)
    return model


def split(count: int) -> tuple[bytes, bytes]:
    """The first two shards of a model of `count`."""
    first = tiny_model(split__count=("u16", count), split__no=("u16", 0), split__tensors__count=("i32", 5))
    second = File(kv={"split.no": ("u16", 1)}, tensors=[Tensor("blk.0.attn_k.weight", [32, 16], 1)])
    return first.to_bytes(), second.to_bytes()
