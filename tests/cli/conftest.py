# `ingle chat` with a fake model, for tests: with turns from a list, and on a terminal.
from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from ingle.cli import chat as chat_module
from ingle.cli.chat import ChatFlags, chat
from ingle.cli.errors import InputProblem
from ingle.cli.options import ModelFlags, SamplingFlags
from ingle.cli.output import Output
from ingle.cli.signals import Signals
from tests.cli.fakes import CHATML, FakeEngine, open_fake
from tests.cli.screen import Screen

Turns = list[str | InputProblem | Callable[[], str]]


class Script:
    """A reader that plays turns; a function among them is called when its turn comes."""

    is_interactive = False

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def turns(self) -> Iterator[str | InputProblem]:
        for turn in self._turns:
            yield turn if isinstance(turn, str | InputProblem) else turn()

    def edit(self, text: str) -> str | None:
        return f"{text}, edited"

    def while_answering(self) -> AbstractContextManager[None]:
        return nullcontext()


@pytest.fixture
def talk(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Callable[..., tuple[int, str, list[str]]]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))

    def run(engine: FakeEngine, turns: Turns, template: str = CHATML, **changes: Any) -> tuple[int, str, list[str]]:
        name = changes.pop("name", "fake")
        monkeypatch.setattr(chat_module, "open_for", open_fake(engine, template, name))
        monkeypatch.setattr(chat_module, "_reader", lambda *_: Script(turns))
        signals = changes.pop("signals", None) or Signals()
        sampling = changes.pop("sampling", SamplingFlags())
        values: dict[str, Any] = dict.fromkeys(("session", "system", "think", "quiet"))
        values |= dict.fromkeys(("resume", "hide_think", "json", "stats", "verbose"), False)
        flags = ChatFlags(**{**values, **changes}, model=ModelFlags(), sampling=sampling)
        out, err = io.StringIO(), io.StringIO()
        code = chat(flags, Output(out, err), signals)
        return code, out.getvalue(), err.getvalue().splitlines()

    return run


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("INGLE_", "XDG_"))}
    return kept | {
        "TERM": "xterm",
        "PROMPT_TOOLKIT_NO_CPR": "1",  # pexpect answers no questions about the cursor
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_DATA_HOME": str(tmp_path / "data"),
    }


@pytest.fixture
def open_chat(environ: dict[str, str]) -> Iterator[Callable[..., Screen]]:
    opened: list[Screen] = []

    def open_one(*arguments: str) -> Screen:
        opened.append(Screen(environ, *arguments))
        return opened[-1]

    yield open_one
    for screen in opened:
        screen.child.close(force=True)
