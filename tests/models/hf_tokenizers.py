# Tiny trained tokenizers of every kind that is converted, and the ids that their own libraries give for texts.
# Imported by hf_models.py in its own process.
"""``write_all(folder, texts)``: one directory a tokenizer, as a model's repository has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = (
    "the cat sat on the mat and the dog sat on the log while it's raining, they're singing and we'll see",
    "def add(a, b):\n    return a + b\n\n\nclass Point:\n\tx: int = 12\n\ty: int = 345678\n",
    "日本語のテキストと中文文本 한국어 문장 Привет мир שלום עולם مرحبا ελληνικά café naïve über",
    "1234 5678 90 3.14159 100,000 0x1F600 😀🙂👩‍👩‍👧 --- ... !!! ??? http://example.com/a?b=c&d=e",
    "Hello world! HELLO World hello WORLD I'm you've he'd she'll it's WE'RE",
)
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CL100K = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + TAIL
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + TAIL
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
WORD = r"[^\r\n\p{L}\p{N}]?"
O200K = (
    f"{WORD}{UPPER}*{LOWER}+{CONTRACTIONS}?|{WORD}{UPPER}+{LOWER}*{CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIALS = ["<pad>", "<s>", "</s>", "<|user|>"]
CHAT = "{% for m in messages %}<|user|>{{ m.content }}</s>{% endfor %}"


def write_all(folder: Path, texts: list[str]) -> dict[str, int]:
    """Write them all; returns the number of tokens of each."""

    def cut(regex: str, manner: str, invert: bool) -> Any:
        parts = [pre_tokenizers.Split(Regex(regex), manner, invert)]
        return pre_tokenizers.Sequence([*parts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    digits = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    sizes = {
        "llama3": _byte_bpe(folder / "llama3", texts, cut(CL100K, "isolated", False), ignore_merges=True, bos=True),
        "phi4": _byte_bpe(folder / "phi4", texts, cut(CL100K, "removed", True)),
        "o200k": _byte_bpe(folder / "o200k", texts, cut(O200K, "removed", True)),
        "qwen2": _byte_bpe(folder / "qwen2", texts, cut(QWEN2, "isolated", False), normalizer=normalizers.NFC()),
        "gpt2": _byte_bpe(folder / "gpt2", texts, pre_tokenizers.ByteLevel(add_prefix_space=False)),
        "smollm": _byte_bpe(folder / "smollm", texts, digits),
    }
    for name, prefix in (("llama", True), ("gemma", False)):
        sizes[name] = _bpe(folder / name, texts, prefix)
    sizes["bpe-model"] = _sentencepiece(folder / "bpe-model", texts, "bpe")
    sizes["unigram-model"] = _sentencepiece(folder / "unigram-model", texts, "unigram")
    sizes["unigram"] = _unigram(folder / "unigram", folder / "unigram-model", texts)
    return sizes


def _byte_bpe(
    folder: Path,
    texts: list[str],
    cutter: Any,
    *,
    ignore_merges: bool = False,
    normalizer: Any = None,
    bos: bool = False,
) -> int:
    from tokenizers import decoders

    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = cutter
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return _save(folder, texts, tokenizer)


def _save(folder: Path, texts: list[str], tokenizer: Tokenizer, **settings: Any) -> int:
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    said = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": {"__type": "AddedToken", "content": "</s>", "special": True},
        "pad_token": "<pad>",
        "chat_template": CHAT,
        **settings,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    from transformers import AutoTokenizer

    ours = AutoTokenizer.from_pretrained(folder)
    (folder / "token_ids.json").write_text(json.dumps([ours.encode(text) for text in texts]))
    return int(tokenizer.get_vocab_size())


def _train(folder: Path, kind: str, **options: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "corpus.txt"
    text.write_text("\n".join(line for lines in CORPUS * 3 for line in lines.split("\n")))
    sentencepiece.SentencePieceTrainer.train(
        input=str(text),
        model_prefix=str(folder / "tokenizer"),
        model_type=kind,
        minloglevel=2,
        pad_id=3,
        user_defined_symbols=["<tool>"],
        **options,
    )
    for path in (text, folder / "tokenizer.vocab"):
        path.unlink()
    return folder / "tokenizer.model"


def _sentencepiece(folder: Path, texts: list[str], kind: str) -> int:
    """tokenizer.model alone; ids from sentencepiece itself."""
    options: dict[str, Any] = {"vocab_size": 140}
    if kind == "bpe":
        options = {
            "vocab_size": 700,
            "byte_fallback": True,
            "normalization_rule_name": "identity",
            "remove_extra_whitespaces": False,
            "character_coverage": 0.99,
            "allow_whitespace_only_pieces": True,
        }
    model = _train(folder, kind, **options)
    ours = sentencepiece.SentencePieceProcessor(model_file=str(model))
    bos, eos = ([1], []) if kind == "bpe" else ([], [2])
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    (folder / "token_ids.json").write_text(json.dumps([[*bos, *ours.encode(text), *eos] for text in texts]))
    return int(ours.vocab_size())


def _bpe(folder: Path, texts: list[str], prefix: bool) -> int:
    """SentencePiece's BPE as a tokenizer.json: every merge that its pieces allow, in the order of scores."""
    work = folder.with_name(f"{folder.name}-work")
    model = _train(
        work,
        "bpe",
        vocab_size=700,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        character_coverage=0.99,
        add_dummy_prefix=prefix,
        allow_whitespace_only_pieces=True,
    )
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model))
    model.unlink()
    work.rmdir()
    vocab = {pieces.id_to_piece(i): i for i in range(pieces.vocab_size())}
    normal = [t for t, i in vocab.items() if not (pieces.is_control(i) or pieces.is_byte(i) or pieces.is_unknown(i))]
    normal.sort(key=lambda text: -pieces.get_score(vocab[text]))
    merges = [
        (text[:at], text[at:])
        for text in normal
        if text != "<tool>"
        for at in range(1, len(text))
        if text[:at] in vocab and text[at:] in vocab
    ]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    replace = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace]) if prefix else replace
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>", "<pad>"])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return _save(folder, texts, tokenizer, unk_token="<unk>")


def _unigram(folder: Path, source: Path, texts: list[str]) -> int:
    """The same unigram model as a tokenizer.json, as transformers writes T5's."""
    from ingle.models.convert.sentencepiece_model import read_sentencepiece

    said = read_sentencepiece(source / "tokenizer.model")
    tokenizer = Tokenizer(models.Unigram([(p.text, p.score) for p in said.pieces], unk_id=0))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Precompiled(said.charsmap),
            normalizers.Strip(left=False, right=True),
            normalizers.Replace(Regex(" {2,}"), "▁"),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>", "<pad>"])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    return _save(folder, texts, tokenizer, unk_token="<unk>")
