# The chat on a (pseudo-)terminal, for tests: a fake model, real keys.
from __future__ import annotations

import sys
from pathlib import Path

import pexpect

DRIVER = Path(__file__).parent / "chat_driver.py"
CTRL_C, CTRL_D, ESC, TAB, UP = "\x03", "\x04", "\x1b", "\t", "\x1b[A"
PASTE, END_PASTE = "\x1b[200~", "\x1b[201~"


class Screen:
    """A chat on a terminal of 100 columns."""

    def __init__(self, environ: dict[str, str], *arguments: str) -> None:
        self.child = pexpect.spawn(
            sys.executable, [str(DRIVER), *arguments], env=environ, encoding="utf-8", dimensions=(40, 100), timeout=10
        )
        self.prompt()

    def prompt(self) -> None:
        """Wait until the line editor reads keys."""
        # It asks for pastes to be marked, then draws the prompt, moving the cursor instead of writing the blank.
        self.child.expect(r"\?2004h.*?>[ \x08]")

    def says(self, text: str) -> None:
        self.child.expect_exact(text)

    def send(self, text: str) -> None:
        self.child.send(text)

    def ends(self) -> int:
        """The exit code, after everything it still had to say."""
        self.rest = self.child.read()
        self.child.close()
        return int(self.child.exitstatus if self.child.exitstatus is not None else -self.child.signalstatus)
