# What `ingle run` has imported when its first token appears: every import before it is a wait for the user.
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

HEAVY = {
    "rich",
    "prompt_toolkit",
    "pydantic",
    "huggingface_hub",
    "requests",
    "filelock",
    "platformdirs",
    "asyncio",
    "importlib.metadata",
    "llama_cpp.llama",
    "multiprocessing",
    "http.client",
    "unittest",
    "tomllib",
}

DRIVER = """
import json, sys
from ingle.cli import app, output

def first_token(self, text):
    print(json.dumps(sorted(sys.modules)))
    raise SystemExit(0)

output.Output.answer = first_token
app.main(["run", "hi", "-n", "1", "-m", sys.argv[1]])
"""


def test_nothing_heavy_before_the_first_token(smollm2_path: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(smollm2_path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
    )
    modules = set(json.loads(done.stdout))
    assert {"jinja2", "numpy", "typer", "ingle.runtime.engine"} <= modules, "the driver looked at the right moment"
    assert sorted(HEAVY & modules) == []
