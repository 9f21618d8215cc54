"""Pages: the file format, the tiers, and what a broken disk does (nothing, to the user)."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingle.runtime import page_files, page_store
from ingle.runtime.blocks import ChainHash, chain_hash, root_hash
from ingle.runtime.disk_tier import DiskTier
from ingle.runtime.explain import Miss, find_parting
from ingle.runtime.host_tier import HostTier
from ingle.runtime.page import BadPage, Page, read_page, read_tokens, write_page
from ingle.runtime.page_store import PageStore, Tier

FINGERPRINT = b"f" * 16
ROOT = root_hash(b"model")
ABOUT = {"model": "Tiny", "file": "/tiny.gguf"}


def make_page(number: int = 0, num_bytes: int = 1000, parent: ChainHash = ROOT) -> Page:
    tokens = (number, 1, 2, 3)
    name = chain_hash(parent, np.asarray(tokens, "<i4").tobytes())
    payload = np.random.default_rng(number).integers(0, 256, num_bytes).astype(np.uint8)
    return Page(parent, name, tokens, payload)


def same(a: Page | None, b: Page) -> bool:
    return a is not None and (a.parent, a.hash, a.tokens, a.payload.tobytes()) == (
        b.parent,
        b.hash,
        b.tokens,
        b.payload.tobytes(),
    )


def open_store(directory: Path, *, host_bytes: int = 10**6, disk_bytes: int = 10**9) -> PageStore:
    return PageStore(HostTier(host_bytes), DiskTier(directory, FINGERPRINT, disk_bytes, ABOUT))


def pages_in(directory: Path) -> list[Path]:
    return sorted(directory.glob("*/*/*.kv"))


# -- the file ----------------------------------------------------------------------------------------------------------


def test_a_page_comes_back_as_it_was_and_is_its_owners_alone(tmp_path: Path) -> None:
    page, path = make_page(), tmp_path / "page"
    assert write_page(page, path, FINGERPRINT) == path.stat().st_size
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert same(read_page(path, FINGERPRINT, page.parent, page.hash), page)
    assert read_tokens(path) == page.tokens


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_any_flipped_bit_and_any_cut_is_noticed(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("page") / "page"
    page = make_page(num_bytes=60)
    raw = bytearray(path.read_bytes()) if write_page(page, path, FINGERPRINT) else bytearray()
    if data.draw(st.booleans()):
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    else:
        raw = raw[: data.draw(st.integers(0, len(raw) - 1))]
    path.write_bytes(raw)
    with pytest.raises(BadPage):
        read_page(path, FINGERPRINT, page.parent, page.hash)


def test_a_page_of_another_model_chain_or_version_is_refused(tmp_path: Path) -> None:
    page, path = make_page(), tmp_path / "page"
    write_page(page, path, FINGERPRINT)
    for fingerprint, parent, name in (
        (b"g" * 16, page.parent, page.hash),
        (FINGERPRINT, ChainHash(b"x" * 16), page.hash),
        (FINGERPRINT, page.parent, ChainHash(b"x" * 16)),
    ):
        with pytest.raises(BadPage, match="another page"):
            read_page(path, fingerprint, parent, name)
    raw = bytearray(path.read_bytes())
    raw[8] = 99  # the format version
    path.write_bytes(raw)
    with pytest.raises(BadPage, match="version"):
        read_page(path, FINGERPRINT)


# -- the tiers ---------------------------------------------------------------------------------------------------------


def test_found_in_ram_then_in_files_by_another_process(tmp_path: Path) -> None:
    page = make_page()
    store = open_store(tmp_path)
    assert store.find(page.parent, page.hash) is None
    store.put(page)
    assert store.find(page.parent, page.hash) is Tier.HOST
    store.close()
    other = open_store(tmp_path)
    assert other.find(page.parent, page.hash) is Tier.DISK
    assert same(other.get(page.parent, page.hash), page)
    assert other.find(page.parent, page.hash) is Tier.HOST
    assert other.children(ROOT) == {page.hash: page.tokens}


def test_ram_keeps_to_its_cap_and_forgets_the_least_recently_used(tmp_path: Path) -> None:
    host = HostTier(2500)
    first, second, third = (make_page(i) for i in range(3))
    host.put(first)
    host.put(second)
    assert host.get(first.hash) is first
    host.put(third)
    assert (first.hash in host, second.hash in host, third.hash in host) == (True, False, True)
    assert host.num_bytes == 2000
    host.put(make_page(9, num_bytes=5000))  # larger than the whole cap: not kept, and nothing lost for it
    assert host.num_bytes == 2000


def test_disk_keeps_to_its_cap_and_deletes_the_least_recently_used(tmp_path: Path) -> None:
    disk = DiskTier(tmp_path, FINGERPRINT, 12_000, ABOUT)
    pages = [make_page(i) for i in range(10)]
    for number, page in enumerate(pages):
        disk.put(page)
        os.utime(disk.path(page.parent, page.hash), (number + 1, number + 1))
    assert len(pages_in(tmp_path)) == 10
    assert same(disk.get(pages[0].parent, pages[0].hash), pages[0])  # used now: the youngest
    disk.put(make_page(10))
    sizes = [path.stat().st_size for path in pages_in(tmp_path)]
    assert sum(sizes) <= 0.9 * 12_000
    assert disk.contains(pages[0].parent, pages[0].hash)
    assert not disk.contains(pages[1].parent, pages[1].hash)
    assert not disk.contains(pages[2].parent, pages[2].hash)


def test_two_stores_on_one_directory_evict_each_others_files_without_harm(tmp_path: Path) -> None:
    stores = [open_store(tmp_path, host_bytes=0, disk_bytes=20_000) for _ in range(2)]
    pages = [make_page(i) for i in range(60)]
    for number, page in enumerate(pages):
        stores[number % 2].put(page)
    for store in stores:
        assert store.flush()
        assert store.stats().disk_error is None
    for page in pages:
        found = stores[0].get(page.parent, page.hash)
        assert found is None or same(found, page)
    size = pages_in(tmp_path)[0].stat().st_size
    assert sum(path.stat().st_size for path in pages_in(tmp_path)) <= 20_000 + 2 * (20_000 // 20 + size)


class Rests:
    """Lets the writer rest for hours, and counts how often it does."""

    def __init__(self, store: PageStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = threading.Semaphore(0)
        self._wait = store._hurry.wait
        monkeypatch.setattr(page_store, "PAUSE", 1e7)
        monkeypatch.setattr(store._hurry, "wait", self._rest)

    def _rest(self, seconds: float) -> bool:
        self.begun.release()
        return self._wait(seconds)


def test_the_writer_rests_between_pages_until_somebody_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path)
    rests = Rests(store, monkeypatch)
    for number in range(5):
        store.put(make_page(number))
    assert rests.begun.acquire(timeout=10)
    assert len(pages_in(tmp_path)) == 1
    assert store.flush()
    assert len(pages_in(tmp_path)) == 5
    for number in (5, 6, 7):
        store.put(make_page(number))
    store.close()
    assert len(pages_in(tmp_path)) == 8


def test_the_writer_does_not_rest_where_the_queue_would_fill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = [make_page(number) for number in range(40)]
    monkeypatch.setattr(page_store, "QUEUE_BYTES", sum(page.num_bytes for page in pages))
    store = open_store(tmp_path)
    rests = Rests(store, monkeypatch)
    for page in pages:
        store.put(page)
    while store._queued_bytes > page_store.QUEUE_BYTES // 2:
        assert rests.begun.acquire(timeout=10)
    assert store.stats().num_dropped == 0
    assert len(pages_in(tmp_path)) >= 20
    store.close()


def test_a_bad_file_is_deleted_and_the_page_not_there(tmp_path: Path) -> None:
    page = make_page()
    store = open_store(tmp_path)
    store.put(page)
    store.close()
    (path,) = pages_in(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    other = open_store(tmp_path)
    assert other.get(page.parent, page.hash) is None
    assert other.stats().num_bad == 1
    assert pages_in(tmp_path) == []


@pytest.mark.parametrize("harm", ["file in the way", "vanished", "closed"])
def test_a_disk_that_refuses_is_no_error(tmp_path: Path, harm: str) -> None:
    directory = tmp_path / "kv"
    store = open_store(directory)
    first, second = make_page(0), make_page(1)
    if harm == "file in the way":
        directory.write_text("not a directory")
    store.put(first)
    assert store.flush()
    if harm == "vanished":
        for path in pages_in(directory):
            path.unlink()
        (directory / FINGERPRINT.hex()).rename(tmp_path / "elsewhere")
    if harm == "closed":
        subfolder = next(directory.glob("*/*"))
        for path in subfolder.iterdir():
            path.unlink()
        subfolder.rmdir()
        subfolder.write_text("in the way")  # what a read-only directory does, for root too
    store.put(second)
    assert store.flush()
    assert same(store.get(second.parent, second.hash), second)  # from RAM
    assert (store.stats().disk_error is None) == (harm == "vanished")
    store.close()


def test_a_full_disk_is_no_error(tmp_path: Path) -> None:
    code = (
        "import resource, sys; sys.path.insert(0, sys.argv[2]); from pathlib import Path\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from tests.runtime.test_page_store import make_page, open_store\n"
        "store = open_store(Path(sys.argv[1]))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # a write beyond fails half-way, as on a full disk\n"
        "for number in range(3): store.put(make_page(number, 50_000))\n"
        "assert store.flush(); store.close()\n"
        "print(store.stats().disk_error, store.stats().num_dropped)\n"
    )
    root = Path(__file__).parent.parent.parent
    done = subprocess.run([sys.executable, "-c", code, tmp_path, root], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["File", "too", "large", "3"]
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["model.json"]


def test_what_dead_writers_left_is_swept(tmp_path: Path) -> None:
    folder = tmp_path / FINGERPRINT.hex() / "ab"
    folder.mkdir(parents=True)
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    orphan, ours = folder / f".tmp-{int(dead.stdout)}-x", folder / f".tmp-{os.getpid()}-x"
    orphan.touch()
    ours.touch()
    DiskTier(tmp_path, FINGERPRINT, 10**9, ABOUT).put(make_page())
    assert (orphan.exists(), ours.exists()) == (False, True)


def test_kill_9_while_writing_leaves_whole_pages_or_none(tmp_path: Path) -> None:
    """A hundred times, at moments spread over a page's writing."""
    root = Path(__file__).parent.parent.parent
    killer = (
        "import os, sys, time\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "from pathlib import Path\n"
        "from tests.runtime.test_page_store import make_page, open_store\n"
        "for round in range(100):\n"
        "    reading, writing = os.pipe()\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        store = open_store(Path(sys.argv[1]))\n"
        "        number = 1000 * round\n"
        "        while True:\n"
        "            store.put(make_page(number, 200_000)); number += 1\n"
        "            store.flush(); os.write(writing, b'.')\n"
        "    os.read(reading, 1)  # one page is there, the next one is on its way\n"
        "    until = time.perf_counter() + 0.00005 * round\n"
        "    while time.perf_counter() < until: pass\n"
        "    os.kill(child, 9); os.waitpid(child, 0)\n"
        "    os.close(reading); os.close(writing)\n"
    )
    subprocess.run([sys.executable, "-c", killer, tmp_path, root], check=True, timeout=120)
    pages = pages_in(tmp_path)
    assert len(pages) >= 100
    for path in pages:
        page = read_page(path, FINGERPRINT)
        assert same(page, make_page(page.tokens[0], 200_000))
    store = open_store(tmp_path)
    store.put(make_page(10**6))
    store.close()
    assert [path for path in tmp_path.rglob(".tmp-*") if path.is_file()] == []


def test_a_clock_that_moves_changes_only_who_is_evicted_first(tmp_path: Path) -> None:
    disk = DiskTier(tmp_path, FINGERPRINT, 5_000, ABOUT)
    pages = [make_page(i) for i in range(8)]
    for page in pages:
        disk.put(page)
        future = time.time() + 10**8
        if disk.contains(page.parent, page.hash):
            os.utime(disk.path(page.parent, page.hash), (future, future) if page.tokens[0] % 2 else (0, 0))
    for page in pages:
        found = disk.get(page.parent, page.hash)
        assert found is None or same(found, page)


# -- all files ---------------------------------------------------------------------------------------------------------


def test_info_verify_and_clear(tmp_path: Path) -> None:
    assert page_files.folders(tmp_path / "nothing") == []
    for number, fingerprint in enumerate((b"a" * 16, b"b" * 16)):
        disk = DiskTier(tmp_path, fingerprint, 10**9, {"model": f"Model {number}"})
        for i in range(3):
            disk.put(make_page(i))
            os.utime(disk.path(ROOT, make_page(i).hash), (1000 + number, 1000 + number))
    newer, older = page_files.folders(tmp_path)
    assert (newer.about["model"], newer.num_pages, newer.last_used) == ("Model 1", 3, 1001.0)
    assert older.num_bytes == sum(path.stat().st_size for path in older.path.glob("*/*.kv"))

    first = pages_in(newer.path.parent)[0]
    first.write_bytes(b"INGLEKV\n rubbish")
    pages_in(tmp_path)[1].rename(pages_in(tmp_path)[1].with_name(f"{'0' * 32}-{'1' * 32}.kv"))
    calls: list[tuple[int, int]] = []
    verified = page_files.verify(tmp_path, lambda done, total: calls.append((done, total)))
    assert (verified.num_good, verified.num_removed) == (4, 2)
    assert calls == [(i, 6) for i in range(1, 7)]

    assert page_files.clear(tmp_path, model="model 1")[0] == newer.num_pages
    assert [folder.about["model"] for folder in page_files.folders(tmp_path)] == ["Model 0"]
    assert page_files.clear(tmp_path, unused_for_s=time.time())[0] == 0  # nothing is that old
    assert page_files.clear(tmp_path, unused_for_s=3600)[0] == 1
    assert page_files.clear(tmp_path) == (0, 0)
    assert page_files.folders(tmp_path) == []


# -- where texts part --------------------------------------------------------------------------------------------------


def test_the_longest_agreement_says_where_texts_part() -> None:
    tokens = (1, 2, 3, 4, 5, 6, 7)
    assert find_parting(tokens, 2, [(9, 9), (3, 4, 8)]) == Miss(4, "the text differs", (5, 6, 7), (8,))
    assert find_parting(tokens, 2, [(3, 4)]) == Miss(2, "nothing further is stored", (3, 4, 5, 6, 7))
    assert find_parting(tokens, 2, []).cause == "nothing further is stored"
