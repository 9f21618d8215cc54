"""What speculative decoding wins and costs: the same requests with and without drafts, in interleaved pairs.

usage: scripts/compare-spec --target FILE --draft FILE [--pairs N] [--cases NAME,…] [--tokens N] [--tool-draft FILE]

  edit      code is repeated with a small change, temperature 0, --draft ngram
  code      code is written, temperature 0, --draft FILE (and n-grams, as always)
  story     open-ended prose at temperature 1, --draft auto as it is without a draft model
  sibling   the same, --draft auto as it is with one on disk
  together  eight requests at once, --draft ngram

Both engines of a pair live side by side in one process and answer in turns of a few tokens, so that whatever else the
machine does hits both; which goes first alternates. The figure is the median over pairs of plain seconds / drafting
seconds a token (the first token's wait left out). Exit status 1 when a floor is missed. llama.cpp's own tools run
beside them where they are on PATH; they load whole drafts only: --tool-draft names one where --draft is cut short.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from ingle.models.chat_template import ChatTemplate, Message
from ingle.models.gguf_info import read_model_info
from ingle.runtime.config import DraftConfig, EngineConfig, default_num_threads
from ingle.runtime.engine import Engine
from ingle.runtime.metrics import DraftStats
from ingle.runtime.request import Request, SamplingParams

CODE = '''class Basket:
    """A basket of items with prices in cents."""

    def __init__(self, owner):
        self.owner = owner
        self.items = []
        self.total_cents = 0

    def add(self, name, price_cents, count=1):
        if price_cents < 0:
            raise ValueError("a price cannot be negative")
        if count < 1:
            raise ValueError("a count cannot be below one")
        for _ in range(count):
            self.items.append((name, price_cents))
            self.total_cents += price_cents
        return self

    def remove(self, name):
        for index, (item_name, price_cents) in enumerate(self.items):
            if item_name == name:
                del self.items[index]
                self.total_cents -= price_cents
                return True
        return False

    def report(self):
        lines = [f"Basket of {self.owner}"]
        for name, price_cents in sorted(self.items):
            lines.append(f"{name:20} {price_cents / 100:8.2f}")
        lines.append(f"{'total':20} {self.total_cents / 100:8.2f}")
        return "\\n".join(lines)
'''
EDIT = f"Rename `add` to `append_item` in this code and change nothing else. Answer with the whole code only.\n\n{CODE}"
WRITE = "Write a CSV parser in Python as a class, with quoting and escapes, then three unit tests for it."
STORY = "Tell a long story about a lighthouse keeper who finds a letter in a bottle."
TOPICS = ("a bridge", "the moon", "a clock", "bread", "a river", "an orchard", "a train", "the sea")
TOGETHER = tuple(f"Write a short essay about {topic}." for topic in TOPICS)


TURN_TOKENS = 8  # of each request: a turn of half a second and more, long against one switch of engines


@dataclass(frozen=True, slots=True)
class Case:
    """Requests that run together, and the least ratio that is good enough."""

    prompts: tuple[str, ...]
    temperature: float
    with_model: bool
    floor: float
    tool: str | None  # llama.cpp's program that does the same


CASES = {
    "edit": Case((EDIT,), 0.0, False, 2.0, "llama-lookup"),
    "code": Case((WRITE,), 0.0, True, 1.3, "llama-speculative-simple"),
    "story": Case((STORY,), 1.0, False, 0.98, None),
    "sibling": Case((STORY,), 1.0, True, 0.98, None),
    "together": Case(TOGETHER, 0.8, False, 0.98, None),
}


class Side:
    """One engine of a pair, and what it did since `ask`."""

    def __init__(self, target: Path, draft: DraftConfig | None, num_seqs: int) -> None:
        config = EngineConfig(n_ctx=4096, max_num_seqs=num_seqs, max_cached_chains=1, draft=draft)
        self.engine = Engine.open(target, config)
        self.template = ChatTemplate.from_info(read_model_info(target))

    def ask(self, case: Case, num_tokens: int, seed: int) -> None:
        """Queue the requests and work until the last of them has its first token."""
        engine = self.engine
        engine.clear_cache()
        sampling = SamplingParams(temperature=case.temperature, seed=seed, ignore_eos=len(case.prompts) > 1)
        for prompt in case.prompts:
            text = self.template.render([Message("user", prompt)])
            tokens = engine.tokenize(text, add_special=not self.template.adds_bos, parse_special=True)
            engine.add(Request(tokens, sampling, max_output_tokens=num_tokens))
        waiting = len(case.prompts)
        while engine.has_work and waiting > 0:
            for output in engine.step():
                waiting -= output.metrics.num_output_tokens == len(output.new_tokens) > 0
        self.num_said, self.said_s = 0, 0.0

    def say(self, num_tokens: int) -> None:
        """Step until this side has said as many, or all it has to."""
        started = time.perf_counter()
        while self.engine.has_work and self.num_said < num_tokens:
            self.num_said += sum(len(output.new_tokens) for output in self.engine.step())
        self.said_s += time.perf_counter() - started

    def drafts(self) -> DraftStats | None:
        return self.engine.stats().drafts


def race(first: Side, second: Side, turn: int) -> None:
    """Answer in turns of about `turn` tokens, whoever is behind next: the machine's moods, which last longer than a
    turn, hit the same part of the answer on both sides."""
    while first.engine.has_work or second.engine.has_work:
        behind, ahead = (first, second) if first.num_said <= second.num_said else (second, first)
        if not behind.engine.has_work:
            behind, ahead = ahead, behind
        behind.say(max(behind.num_said, ahead.num_said) + turn)


def compare(name: str, case: Case, target: Path, draft: Path | None, pairs: int, num_tokens: int) -> bool:
    """Run one case; whether it is above its floor."""
    config = DraftConfig(model=draft if case.with_model else None)
    plain, drafts = Side(target, None, len(case.prompts)), Side(target, config, len(case.prompts))
    turn = TURN_TOKENS * len(case.prompts)
    token_s: list[tuple[float, float]] = []  # plain, with drafts
    try:
        for pair in range(pairs):
            for side in (plain, drafts):
                side.ask(case, num_tokens, seed=pair)
            race(*((plain, drafts) if pair % 2 == 0 else (drafts, plain)), turn)
            token_s.append((plain.said_s / plain.num_said, drafts.said_s / drafts.num_said))
        stats = drafts.drafts()
    finally:
        for side in (plain, drafts):
            side.engine.close()
    ratios = [one / other for one, other in token_s]
    ratio = statistics.median(ratios)
    before, after = (1 / statistics.median(times) for times in zip(*token_s, strict=True))
    spread = ", ".join(f"{one:.2f}" for one in ratios)
    verdict = "OK" if ratio >= case.floor else "MISSED"
    print(
        f"{name:10} {before:6.1f} → {after:6.1f} tokens/s  {ratio:5.2f} x ({spread})  ≥ {case.floor} x  {verdict}",
        flush=True,
    )
    if stats is not None:
        mean = "-" if stats.mean_accepted_tokens is None else f"{stats.mean_accepted_tokens:.1f}"
        print(
            f"           {stats.num_draft_tokens} drafted, {stats.num_accepted_tokens} right, {mean} a draft, "
            f"{stats.draft_s:.1f} s drafting, {stats.verify_s:.1f} s verifying",
            flush=True,
        )
    return ratio >= case.floor


def run_tool(case: Case, target: Path, draft: Path | None, num_tokens: int) -> None:
    """llama.cpp's own program for the case, if it is here: the speed it tells of itself."""
    tool = shutil.which(case.tool) if case.tool is not None else None
    if tool is None:
        print(f"           {case.tool or 'llama.cpp'}: {'not on PATH' if case.tool else 'has no tool for this'}")
        return
    prompt = ChatTemplate.from_info(read_model_info(target)).render([Message("user", case.prompts[0])])
    command = [tool, "-m", str(target), "-p", prompt, "-n", str(num_tokens), "--temp", "0", "-c", "4096"]
    command += ["-t", str(default_num_threads())]
    if case.with_model and draft is not None:
        command += ["-md", str(draft), "--spec-type", "draft-simple"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    speeds = re.findall(r"speed:\s*([\d.]+) t/s", done.stdout + done.stderr)
    print(f"           {case.tool}: {f'{speeds[-1]} tokens/s' if speeds else f'exit status {done.returncode}'}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", type=Path, required=True, help="a GGUF")
    parser.add_argument("--draft", type=Path, help="a smaller GGUF with the same vocabulary, for `code` and `sibling`")
    parser.add_argument("--tool-draft", type=Path, help="a draft for llama.cpp's tools (default: --draft)")
    parser.add_argument("--pairs", type=int, default=3, help="pairs behind each median")
    parser.add_argument("--cases", default=",".join(CASES), help=f"some of {','.join(CASES)}")
    parser.add_argument("--tokens", type=int, default=300, help="longest answer")
    options = parser.parse_args()
    wanted = options.cases.split(",")
    if unknown := [name for name in wanted if name not in CASES]:
        parser.error(f"no case called {unknown[0]}: there are {', '.join(CASES)}")
    if options.draft is None and (models := [name for name in wanted if CASES[name].with_model]):
        parser.error(f"the case {models[0]} wants --draft FILE")
    print(f"{options.target.name}, {options.pairs} pairs, up to {options.tokens} tokens\n")
    ok = True
    for name in wanted:
        case = CASES[name]
        ok &= compare(name, case, options.target, options.draft, options.pairs, options.tokens)
        run_tool(case, options.target, options.tool_draft or options.draft, options.tokens)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
