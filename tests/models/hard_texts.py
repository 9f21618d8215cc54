# Texts that tokenizers disagree about, made from parts so that there are many of them.
"""``TEXTS``: 200 texts of emoji, scripts, code, spaces, digits and broken Unicode."""

from __future__ import annotations

import itertools

_PARTS = (
    "Hello world",
    " leading and trailing ",
    "   three  two one   ",
    "\t\ttabs\tand\nlines\n\n\nmore\r\nwindows\r",
    "I'm you've HE'D she'll IT'S we'Re 'tis don''t",
    "1 12 123 1234 12345 3.14 1,000,000 0x1F",
    "日本語テキスト",
    "中文，标点。混合English文本",
    "한국어 문장입니다",
    "Привет, мир! Ёлка",
    "שלום עולם مرحبا بالعالم",
    "ελληνικά ΚΕΦΑΛΑΙΑ",
    "café naïve Ünïcödé straße",
    "e\u0301a\u0308 o\u0328",
    "😀🙂👩‍👩‍👧👍🏽🇩🇪",
    "☃️ ♥︎ → ≤ ∑ √ ½ ² ①",
    "def f(x):\n    return x**2  # comment\n",
    'for (int i=0; i<n; ++i) { a[i] += "\\n"; }',
    "<b>html</b> &amp; {json: [1, 2]}",
    "http://example.com/path?q=1&r=%20#frag",
    "a" * 40,
    "!!!???...---___***",
    "broken \ufffd\ufffd and \ud83d lone \udc00 surrogates",
    "\u200b\u00a0\u2003odd\u3000spaces\u2028end",
    "x\u0000y\u0007z\u001b[0m",
    "<s> </s> <|user|> <tool> as text",
    "MixedCASEWordsCamelCase snake_case kebab-case",
    "ﬁ ﬂ Å Ａｂｃ ㎏",
    "ไทย हिन्दी বাংলা தமிழ்",
    "𝕳𝖊𝖑𝖑𝖔 𐍈 𠜎",
)
_JOINED = tuple(
    a + glue + b for (a, b), glue in zip(itertools.permutations(_PARTS, 2), itertools.cycle(("", " ", "\n")))
)
# A lone surrogate is no Unicode text: whoever reads one replaces it, as Ingle's own reading does.
TEXTS: tuple[str, ...] = tuple(
    text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for text in (*_PARTS, *_JOINED[::5])
)[:200]
assert len(TEXTS) == len(set(TEXTS)) == 200
