# `ingle pull`, and `ingle run` of what the hub has: the command itself, against a hub of ours.
from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Event

import pytest

from tests.models.fake_hub import FakeHub, Fault, Repo, sha256
from tests.models.hf_directory import write_directory
from tests.tiny_models import write_llama

HOLD = 100_000  # bytes of a body that are sent before the server falls silent


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf").read_bytes()


@pytest.fixture
def hub(whole: bytes) -> Iterator[FakeHub]:
    with FakeHub() as running:
        running.repos["acme/tiny"] = Repo({"tiny-Q8_0.gguf": whole, "README.md": b"# Tiny\n"})
        yield running


class Ingle:
    """Runs the command with a cache of its own and nothing of the caller's settings."""

    def __init__(self, environ: Mapping[str, str], hub: FakeHub, folder: Path) -> None:
        self.cache = folder / "hf" / "hub"
        kept = {n: v for n, v in environ.items() if not n.startswith("HF_") and not n.lower().endswith("_proxy")}
        self._environ = {
            **kept,
            "HF_HOME": str(folder / "hf"),
            "HF_ENDPOINT": hub.endpoint,
            "HF_TOKEN": "hf_test",
            "XDG_CACHE_HOME": str(folder / "cache"),
        }

    def start(self, *arguments: str, **environ: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "ingle.cli.start", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**self._environ, **environ},
        )

    def __call__(self, *arguments: str, **environ: str) -> tuple[int, str, list[str]]:
        child = self.start(*arguments, **environ)
        out, err = child.communicate(timeout=60)
        return child.returncode, out, err.splitlines()

    def partial(self, data: bytes) -> Path:
        return self.cache / "models--acme--tiny" / "blobs" / f"{sha256(data)}.incomplete"


@pytest.fixture
def ingle(environ: dict[str, str], hub: FakeHub, tmp_path: Path) -> Ingle:
    return Ingle(environ, hub, tmp_path)


def wait_for_size(path: Path, size: int) -> None:
    """Until the file has `size` bytes: what was sent has been written."""
    tick = Event()
    for _ in range(6000):
        if path.exists() and path.stat().st_size >= size:
            return
        tick.wait(0.005)
    raise AssertionError(f"{path} never had {size} bytes")


def test_the_path_is_the_answer(ingle: Ingle, hub: FakeHub, whole: bytes) -> None:
    code, out, err = ingle("pull", "acme/tiny")
    path = Path(out.rstrip("\n"))
    assert code == 0
    assert path.is_relative_to(ingle.cache)
    assert path.read_bytes() == whole
    commit = hub.repos["acme/tiny"].commit
    assert err == [
        "acme/tiny has no Q4_K_M: taking Q8_0 (it has Q8_0)",
        f"acme/tiny at {commit[:7]} · Q8_0 · 518 kB · licence apache-2.0",
        "tiny-Q8_0.gguf (518 kB) …",
    ]
    assert ingle("pull", "acme/tiny:q8_0", "-q") == (0, out, [])
    assert len(hub.ranges()) == 1
    assert ingle("pull", "acme/tiny:q8_0", "-q", "--force") == (0, out, [])
    assert len(hub.ranges()) == 2
    num_requests = len(hub.log)
    assert ingle("pull", "acme/tiny", "--offline") == (0, out, [])
    assert len(hub.log) == num_requests


def test_killed_in_the_middle_it_goes_on_where_it_was(ingle: Ingle, hub: FakeHub, whole: bytes) -> None:
    hub.faults.append(Fault("cdn", hold_after=HOLD))
    child = ingle.start("pull", "acme/tiny:Q8_0")
    wait_for_size(ingle.partial(whole), HOLD)
    child.kill()
    child.communicate()
    assert child.returncode == -signal.SIGKILL
    assert ingle.partial(whole).read_bytes() == whole[:HOLD]
    code, out, err = ingle("pull", "acme/tiny:Q8_0")
    assert code == 0
    assert Path(out.rstrip("\n")).read_bytes() == whole
    assert hub.ranges() == [None, f"bytes={HOLD}-"]
    assert "tiny-Q8_0.gguf: 0.1 MB are here, going on from there" in err


def test_ctrl_c_keeps_what_came(ingle: Ingle, hub: FakeHub, whole: bytes) -> None:
    hub.faults.append(Fault("cdn", hold_after=HOLD))
    child = ingle.start("pull", "acme/tiny:Q8_0")
    wait_for_size(ingle.partial(whole), HOLD)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert ingle.partial(whole).read_bytes() == whole[:HOLD]


def test_two_at_once_fetch_it_once(ingle: Ingle, hub: FakeHub, whole: bytes) -> None:
    hub.faults.append(Fault("cdn", hold_after=len(whole) - 1))
    first = ingle.start("pull", "acme/tiny:Q8_0")
    wait_for_size(ingle.partial(whole), len(whole) - 1)
    second = ingle.start("pull", "acme/tiny:Q8_0")
    assert second.stderr is not None
    for line in second.stderr:
        if line == "another process is downloading this model: waiting for it\n":
            break
    hub.release.set()
    out = [child.communicate(timeout=60)[0] for child in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0)
    assert out[0] == out[1]
    assert Path(out[0].rstrip("\n")).read_bytes() == whole
    assert hub.ranges() == [None, f"bytes={len(whole) - 1}-"]  # the held connection was closed one byte early


def test_a_dry_run_fetches_nothing(ingle: Ingle, hub: FakeHub, whole: bytes) -> None:
    code, out, _ = ingle("pull", "acme/tiny:Q8_0", "--dry-run", "--json")
    told = json.loads(out)
    commit = hub.repos["acme/tiny"].commit
    assert code == 0
    assert told == {
        "version": 1,
        "model": "acme/tiny:Q8_0",
        "source": "acme/tiny",
        "commit": commit,
        "quant": "Q8_0",
        "licence": "apache-2.0",
        "gated": False,
        "size_bytes": len(whole),
        "download_bytes": len(whole),
        "files": [{"name": "tiny-Q8_0.gguf", "size_bytes": len(whole), "sha256": sha256(whole)}],
        "dry_run": True,
        "path": None,
    }
    assert hub.requests("resolve") == []
    lines = ingle("pull", "acme/tiny:Q8_0", "--dry-run")[1].splitlines()
    assert lines[:3] == [
        f"from       acme/tiny at {commit[:12]}",
        "licence    apache-2.0",
        "file       tiny-Q8_0.gguf, 518 kB",
    ]
    assert lines[3].startswith("download   518 kB; ")
    assert lines[4].startswith("memory     518 kB of weights; ")
    path = ingle("pull", "acme/tiny:Q8_0")[1].rstrip("\n")
    assert ingle("pull", "acme/tiny:Q8_0", "--dry-run")[1].splitlines()[3] == f"download   nothing: it is here, {path}"


def test_a_revision(ingle: Ingle, hub: FakeHub, whole: bytes) -> None:
    hub.repos["acme/tiny"].branches = ("main", "v2")
    code, out, _ = ingle("pull", "acme/tiny:Q8_0", "--revision", "v2", "--json")
    assert code == 0
    assert json.loads(out)["commit"] == hub.repos["acme/tiny"].commit
    assert (ingle.cache / "models--acme--tiny" / "refs" / "v2").read_text() == hub.repos["acme/tiny"].commit


def test_refusals_have_their_codes(ingle: Ingle, hub: FakeHub) -> None:
    hub.repos["acme/gated"] = Repo({"a-Q4_K_M.gguf": b"x"}, gated=True)
    hub.repos["acme/nonsense"] = Repo({"a-Q4_K_M.gguf": b"no GGUF at all"})
    refused = {
        ("acme/gated",): (77, "error: acme/gated is gated: its owner wants the licence accepted first"),
        ("acme/absent",): (66, "error: no repository acme/absent on the hub, or it is private"),
        ("acme/tiny:Q5_K_M",): (66, "error: acme/tiny has no Q5_K_M"),
        ("acme/nonsense",): (76, "error: "),
        ("acme/absent", "--offline"): (66, "error: acme/absent is not on this machine"),
        ("smollm2", "--revision", "x"): (2, "error: --revision is for models on the hub"),
        ("acme/tiny", "--force", "--offline"): (2, "error: --force downloads, and downloading is switched off"),
    }
    for arguments, (code, message) in refused.items():
        result = ingle("pull", "-q", *arguments)
        assert (result[0], result[1]) == (code, "")
        assert result[2][0].startswith(message)
        assert len(result[2]) == 2, "what happened, and what to do"
        assert result[2][1].startswith("hint: ")
    hub.faults.append(Fault("info", status=429, headers={"Retry-After": "3600"}))
    assert ingle("pull", "acme/tiny")[0] == 69
    assert ingle("pull", "acme/tiny", HF_ENDPOINT="http://127.0.0.1:1")[0] == 69
    assert ingle("pull", "acme/tiny", HF_HUB_OFFLINE="1")[0] == 66


RUN = ("-n", "8", "--temp", "0", "-t", "1", "--raw", "--no-kv-store", "-q")


def test_a_model_of_the_hub_runs_and_then_without_it(ingle: Ingle, hub: FakeHub) -> None:
    first = ingle("run", "the cat", "-m", "acme/tiny:Q8_0", *RUN)
    assert (first[0], first[2]) == (0, [])
    assert ingle("run", "the cat", "-m", "acme/tiny", *RUN, HF_ENDPOINT="http://127.0.0.1:1")[1] == first[1]


def test_a_model_in_shards_runs_as_one(ingle: Ingle, hub: FakeHub, tmp_path: Path) -> None:
    write_llama(tmp_path / "tiny-Q8_0.gguf", shard_tensors=7)
    names = [f"tiny-Q8_0-{number:05d}-of-00003.gguf" for number in (1, 2, 3)]
    hub.repos["acme/shards"] = Repo({name: (tmp_path / name).read_bytes() for name in names})
    whole = ingle("run", "the cat", "-m", "acme/tiny:Q8_0", *RUN)[1]
    code, out, err = ingle("run", "the cat", "-m", "acme/shards:Q8_0", *RUN)
    assert (code, out, err) == (0, whole, [])
    assert ingle("run", "the cat", "-m", str(tmp_path / names[0]), *RUN)[1] == whole
    last = tmp_path / names[2]
    data = last.read_bytes()
    last.write_bytes(data[:-1000])
    code, _, err = ingle("run", "the cat", "-m", str(tmp_path / names[0]), *RUN)
    assert code == 76
    assert str(last) in err[0]
    last.unlink()
    code, _, err = ingle("run", "the cat", "-m", str(tmp_path / names[0]), *RUN)
    assert (code, err[0]) == (76, f"error: shard 3 of 3 is missing: {last}")


def test_safetensors_are_pulled_converted_and_run(hub: FakeHub, ingle: Ingle, tmp_path: Path) -> None:
    source = write_directory(tmp_path / "Little", settings={"chat_template": "{{ messages[0].content }}"})
    hub.repos["acme/little"] = Repo({path.name: path.read_bytes() for path in source.iterdir()})
    code, out, err = ingle("pull", "acme/little", "--dry-run", "--json")
    planned = json.loads(out)
    assert (code, planned["path"]) == (0, None), err
    assert planned["download_bytes"] == sum(len(data) for data in hub.repos["acme/little"].files.values())
    code, out, err = ingle("pull", "acme/little")
    assert code == 0, err
    path = Path(out.strip())
    assert path.name == "little-32K-F16.gguf"
    num_requests = len(hub.log)
    code, out, err = ingle("run", "-m", "acme/little", "-n", "3", "--temp", "0", "hello")
    assert code == 0, err
    assert len(hub.log) == num_requests
    code, of_folder, err = ingle("run", "-m", str(source), "-n", "3", "--temp", "0", "hello")
    assert (code, of_folder) == (0, out), err
    assert sorted(file.name for file in source.iterdir()) == sorted(hub.repos["acme/little"].files)


def test_a_dry_run_of_a_folder_writes_nothing(ingle: Ingle, tmp_path: Path) -> None:
    source = write_directory(tmp_path / "Little")
    code, out, err = ingle("pull", str(source), "--dry-run", "--json")
    said = json.loads(out)
    assert (code, said["path"], said["files"][0]["name"]) == (0, None, "model.safetensors"), err
    assert not (tmp_path / "cache" / "ingle" / "converted").exists()


@pytest.mark.parametrize("command", [["pull"], ["plan"], ["show"], ["run", "hi", "-m"]])
def test_a_path_that_is_no_model(ingle: Ingle, tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "letter.txt").write_text("Dear GGUF")
    for name, message in (("empty", "is a folder, not a GGUF file"), ("letter.txt", "not a GGUF")):
        code, out, err = ingle(*command, str(tmp_path / name))
        assert (code, out, len(err)) == (76, "", 2)
        assert message in err[0]
        assert err[1].startswith("hint: ")


def test_a_plan_for_a_folder_that_lacks_its_config_says_what_a_pull_says(ingle: Ingle, tmp_path: Path) -> None:
    (write_directory(tmp_path / "Little") / "config.json").unlink()
    pulled, planned = (ingle(command, str(tmp_path / "Little")) for command in ("pull", "plan"))
    assert pulled == planned
    assert pulled[0] == 66
    assert pulled[2][0].startswith("error: there is no config.json in ")
