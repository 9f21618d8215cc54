# `ingle chat` in a process of its own, for tests that need a terminal: everything is real but the model.
from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from tests.cli.fakes import END, START, FakeEngine, open_fake


def echo(prompt: str) -> str:
    """What was asked, between brackets, so that a test can see exactly what arrived."""
    question = prompt.split(f"{START}user\n")[-1].partition(END)[0]
    return f"[{question!r}]"


class Driven(FakeEngine):
    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        if "slow to tokenize" in text:
            print("(tokenizing)", file=sys.stderr, flush=True)
            threading.Event().wait(10)
        return super().tokenize(text, add_special=add_special, parse_special=parse_special)

    def shrink(self) -> bool:
        print("(shrunk)", file=sys.stderr, flush=True)
        return True


if __name__ == "__main__":
    from ingle.cli import app, chat, repl

    repl.IDLE_S = float(os.environ.get("IDLE_S", repl.IDLE_S))
    chat.open_for = open_fake(Driven(echo))
    app.main(["chat", *sys.argv[1:]])
