# Serving: rows worked out by hand from made-up answers, and the engine of this process as a target.
from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ingle.cli.bench import slo
from ingle.cli.bench.engine_target import EngineTarget
from ingle.cli.bench.load import Stop
from ingle.cli.bench.result import Result
from ingle.cli.bench.resume import ResumeBench
from ingle.cli.bench.serving import Level, ServingBench
from ingle.cli.bench.slo import Slo
from ingle.cli.bench.target import Answer, Occupancy
from ingle.cli.bench.work import Length, Message, Work, draw
from ingle.models.chat_template import ChatTemplate
from ingle.models.gguf_info import read_model_info
from ingle.models.resolve import ModelRef
from ingle.runtime.config import EngineConfig
from ingle.runtime.engine import Engine
from tests import tiny_models
from tests.cli.fakes import CHATML


class Scripted:
    """Answers by the clock of a script: first token after 100 ms, then 3 more, 10 ms apart. Every fourth fails."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.num_asked = self.num_forgotten = 0

    def ask(self, answer: Answer) -> None:
        with self._lock:
            self.num_asked += 1
        answer.sent_s = answer.intended_s
        if answer.work.messages[0].content == "bad":
            answer.finished_s = answer.intended_s + 0.05
            answer.fail("refused the connection")
            return
        first = answer.intended_s + 0.1
        answer.deliveries_s = [first + 0.01 * number for number in range(4)]
        answer.finished_s = answer.deliveries_s[-1]
        answer.num_prompt_tokens, answer.num_output_tokens, answer.num_cached_tokens = 20, 4, 5
        answer.queue_s = 0.002

    def stop(self) -> None:
        pass

    def occupancy(self) -> list[Occupancy]:
        now = time.perf_counter()
        return [Occupancy(now, 3, 1, 10, 1, 0), Occupancy(now, 8, 0, 10, 1, 0)]

    def forget(self) -> None:
        self.num_forgotten += 1

    def close(self) -> None:
        pass


def bench(target: Any, levels: list[Level], num_requests: int, **changes: Any) -> Result:
    def make_works(count: int, _series: str) -> list[Work]:
        return [Work((Message("user", "bad" if index % 4 == 3 else "good"),), 4) for index in range(count)]

    values: dict[str, Any] = {"seed": 0, "slo": None, "about": {"model": "m"}, "live": lambda _text: None}
    result = Result(settings={})
    works = changes.pop("make_works", make_works)
    stop = changes.pop("stop", None) or Stop(target)
    ServingBench(target, levels, works, num_requests=num_requests, stop=stop, **{**values, **changes}).run(result)
    return result


def test_a_row_by_hand() -> None:
    target = Scripted()
    (row,) = bench(target, [Level(concurrency=1)], 12, slo=Slo(ttft_s=0.2)).rows
    assert (row["completed"], row["failed"], row["num_rounds"]) == (9, 3, 3)
    assert row["failures"] == {"refused the connection": 3}
    for name, value in (("ttft", 100), ("tpot", 10), ("itl", 10), ("e2el", 130), ("queue", 2)):
        for statistic in ("mean", "median", "p50", "p95", "p99"):
            assert row[f"{statistic}_{name}_ms"] == pytest.approx(value, abs=0.01)
        assert row[f"std_{name}_ms"] == pytest.approx(0, abs=0.01)
    assert (row["total_input_tokens"], row["total_output_tokens"]) == (180, 36)
    assert row["output_throughput"] == pytest.approx(36 / row["duration_s"])
    assert row["total_token_throughput"] == pytest.approx(216 / row["duration_s"])
    assert row["request_throughput"] == row["request_goodput"] == pytest.approx(9 / row["duration_s"])
    assert row["prefix_cache_hit_rate"] == pytest.approx(0.25)
    assert (row["peak_kv_cache_usage"], row["mean_kv_cache_usage"]) == pytest.approx((0.8, 0.55))
    assert len(row["samples"]["itl"]) == 27
    assert target.num_forgotten == 3


def test_goodput_counts_what_keeps_every_limit() -> None:
    (row,) = bench(Scripted(), [Level(concurrency=2)], 8, slo=Slo(ttft_s=0.2, tpot_s=0.009)).rows
    assert row["request_goodput"] == 0
    (row,) = bench(Scripted(), [Level(concurrency=2)], 8).rows
    assert row["request_goodput"] is None


def test_limits_as_typed() -> None:
    assert slo.parse("ttft=500ms,tpot=0.05s") == Slo(ttft_s=0.5, tpot_s=0.05)
    assert slo.parse("e2el=10s") == Slo(e2el_s=10)
    for text in ("", "ttft", "ttft=5", "ttft=1s,ttft=2s", "wait=1s", "ttft=-1s"):
        with pytest.raises(ValueError, match="limits such as"):
            slo.parse(text)


def test_levels_take_turns() -> None:
    order: list[str] = []

    def make_works(count: int, series: str) -> list[Work]:
        order.append(series)
        return [Work((Message("user", "good"),), 1)] * count

    result = bench(Scripted(), [Level(concurrency=1), Level(concurrency=2)], 8, make_works=make_works)
    assert order[1:] == ["1 at a time 0", "2 at a time 0", "2 at a time 1", "1 at a time 1", "1 at a time 2"]
    assert [row["num_requests"] for row in result.rows] == [8, 8]


def test_a_target_that_never_answers_leaves_a_row_of_failures() -> None:
    def make_works(count: int, _series: str) -> list[Work]:
        return [Work((Message("user", "bad"),), 1)] * count

    (row,) = bench(Scripted(), [Level(rate=1000.0)], 6, make_works=make_works).rows
    assert (row["completed"], row["failed"], row["median_ttft_ms"], row["output_throughput"]) == (0, 6, None, 0.0)


# -- the engine of this process ----------------------------------------------------------------------------------------


@pytest.fixture
def engine(tmp_path: Path) -> Any:
    path = tiny_models.write_llama(tmp_path / "tiny.gguf", n_ctx_train=1024)
    config = EngineConfig(max_num_seqs=4, num_threads=1, kv_tokens=4096, n_ctx=1024, check_integrity=True)
    with Engine.open(path, config) as opened:
        yield opened


@pytest.fixture
def target(engine: Engine) -> Any:
    made = EngineTarget(engine, ChatTemplate(CHATML), timeout_s=60.0)
    yield made
    made.close()


def test_the_engine_serves_many_and_shares_nothing(engine: Engine, target: EngineTarget) -> None:
    def make_works(count: int, series: str) -> list[Work]:
        return draw(count, prompt=Length(12, 12), answer=Length(5, 5), series=series)

    (row,) = bench(target, [Level(concurrency=4)], 8, make_works=make_works).rows
    assert (row["completed"], row["failed"]) == (8, 0)
    assert row["total_output_tokens"] == 40
    assert row["num_cached_tokens"] == 0, "prompts are unique: no cache can help"
    assert row["median_queue_ms"] is not None
    assert 0 < row["peak_kv_cache_usage"] <= 1
    assert len(row["samples"]["itl"]) == 32


def test_a_shared_prefix_is_found_again(target: EngineTarget) -> None:
    works = draw(2, prompt=Length(8, 8), answer=Length(2, 2), shared_prefix=16)
    answers = [Answer(work, time.perf_counter()) for work in works]
    for answer in answers:
        target.ask(answer)
    assert answers[0].num_cached_tokens == 0
    assert answers[1].num_cached_tokens is not None
    assert answers[1].num_cached_tokens > 32


def test_what_the_engine_refuses_is_a_failure(target: EngineTarget) -> None:
    (long,) = draw(1, prompt=Length(2000, 2000), answer=Length(2, 2))
    odd = Work((Message("user", "x"),), 4, False, "", {"temp": -1.0})
    nothing = Work((Message("user", "x"),), 0)
    reasons = []
    for work in (long, odd, nothing):
        answer = Answer(work, time.perf_counter())
        target.ask(answer)
        reasons.append(answer.error)
    assert reasons == [
        "the prompt is longer than the context",
        "temperature is -1.0, which is not 0 or more",
        "answered without a token",
    ]


def test_stopping_gives_up_what_runs(engine: Engine, target: EngineTarget) -> None:
    work = Work((Message("user", "x"),), 900)
    stop = Stop(target)
    step = engine.step

    def step_and_stop() -> Any:
        stop.interrupt()
        return step()

    engine.step = step_and_stop  # type: ignore[method-assign]
    answer = Answer(work, time.perf_counter())
    target.ask(answer)
    assert answer.error == "stopped"
    assert not engine.has_work


def test_an_engine_that_breaks_fails_its_requests_and_says_so(engine: Engine) -> None:
    def broken() -> Any:
        raise RuntimeError("boom")

    engine.step = broken  # type: ignore[method-assign]
    target = EngineTarget(engine, ChatTemplate(CHATML), timeout_s=60.0)
    answer = Answer(Work((Message("user", "x"),), 4), time.perf_counter())
    target.ask(answer)
    assert answer.error == "the engine has failed"
    with pytest.raises(RuntimeError, match="boom"):
        target.close()


def test_resume_compares_cold_with_restored(tmp_path: Path) -> None:
    path = tiny_models.write_llama(tmp_path / "tiny.gguf")
    result = Result(settings={})
    config = EngineConfig(max_num_seqs=1, num_threads=1)
    ref = ModelRef(path, "tiny", "file")
    info = read_model_info(path)
    ResumeBench(ref, info, config, (100,), num_repetitions=2, seed=0, live=lambda _text: None).run(result)
    (row,) = result.rows
    assert row["test"] == "resume100"
    assert row["num_restored_tokens"] == 100, "three blocks of 32, and what there is of the fourth"
    cold, restored = row["samples"]["cold_ttft"], row["samples"]["restored_ttft"]
    assert (len(cold), len(restored)) == (2, 2)
    ratios = sorted(a / b for a, b in zip(cold, restored, strict=True))
    assert row["median_speedup"] == pytest.approx(sum(ratios) / 2)
