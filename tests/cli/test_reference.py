# docs/cli.md says what the commands say.
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_docs_are_fresh() -> None:
    made = subprocess.run([sys.executable, "-m", "ingle.cli.reference"], capture_output=True, text=True, check=True)
    hint = "python -m ingle.cli.reference > docs/cli.md"
    assert (ROOT / "docs" / "cli.md").read_text() == made.stdout, f"stale: {hint}"
