# Results that are kept, listed, compared, told and drawn.
from __future__ import annotations

import builtins
import io
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from ingle.cli.bench import columns, plots, saved, shelf
from ingle.cli.bench.compare import compare
from ingle.cli.bench.result import Result, Row, from_json
from ingle.cli.errors import CliError, InputProblem, UsageProblem
from ingle.cli.output import Output
from tests.cli.bench.samples import engine_row, resume_row, serving_row


@pytest.fixture(autouse=True)
def data_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data"


def result(*rows: Row, **changes: Any) -> Result:
    values: dict[str, Any] = {"settings": {"seed": 0}, "machine": {"cpu": "cpu"}, "is_complete": True}
    return Result(**{**values, **changes}, rows=list(rows))


# -- kept --------------------------------------------------------------------------------------------------------------


def test_saved_and_read_again_it_is_the_same() -> None:
    kept = result(engine_row(), is_complete=False, stopped_by="KeyboardInterrupt", warnings=["w"])
    path = saved.path_of("base line")
    saved.save(kept, path)
    assert saved.load("base line") == saved.load(str(path)) == kept
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [file.name for file in path.parent.iterdir()] == ["base line.json"]


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "../up", "a.", "a\nb", "x" * 101])
def test_what_cannot_be_a_name(name: str) -> None:
    with pytest.raises(UsageProblem):
        saved.path_of(name)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a benchmark's result"),
        ('{"version": 1}', "is not a benchmark's result"),
        ('{"version": 9, "rows": []}', "is of version 9"),
        ('{"version": 1, "rows": [3]}', "rows are of no kind"),
    ],
)
def test_files_that_are_no_results(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(InputProblem, match=complaint):
        saved.load(str(path))


def test_what_is_not_there_is_said_with_what_is() -> None:
    with pytest.raises(InputProblem) as none:
        saved.load("new")
    assert none.value.hint == "there is none yet: --save NAME makes one"
    saved.save(result(engine_row()), saved.path_of("base"))
    with pytest.raises(InputProblem) as some:
        saved.load("new")
    assert some.value.hint == "there are base"


def test_the_list_tells_of_bad_files_too() -> None:
    saved.save(result(engine_row(), models=[{"name": "m"}]), saved.path_of("good"))
    saved.path_of("bad").write_text("{")
    out, err = io.StringIO(), io.StringIO()
    assert shelf.show_list(Output(out, err), as_json=True) == 0
    listed = {entry["name"]: entry for entry in json.loads(out.getvalue())["results"]}
    assert (listed["good"]["models"], listed["good"]["num_rows"], listed["good"]["is_complete"]) == (["m"], 1, True)
    assert "is not JSON" in listed["bad"]["problem"]


# -- compared ----------------------------------------------------------------------------------------------------------


def test_a_regression_is_worse_than_tolerated_and_no_chance() -> None:
    base = result(engine_row(speeds=[100, 101, 99, 100, 100]))
    slower = result(engine_row(speeds=[90, 91, 89, 90, 90]))
    found = compare(base, slower, 0.05)
    (change,) = found.changes
    assert (change.test, change.figure, change.base, change.new) == ("tg128", "t/s", 100, 90)
    assert change.ratio == pytest.approx(0.9)
    assert 0.88 < change.interval.low <= 0.9 <= change.interval.high < 0.92
    assert found.has_regression
    assert not compare(base, slower, 0.15).has_regression
    assert not compare(slower, base, 0.05).has_regression
    noisy = result(engine_row(speeds=[90, 60, 130, 150, 70]))
    assert not compare(base, noisy, 0.05).has_regression


def test_of_latencies_less_is_better() -> None:
    found = compare(result(serving_row(ttft=[100, 101, 99])), result(serving_row(ttft=[150, 151, 149])), 0.05)
    verdicts = {change.figure: change.is_regression for change in found.changes}
    assert verdicts == {"output tok/s": False, "ttft ms": True, "tpot ms": False, "e2el ms": False}


def test_more_failures_are_a_regression() -> None:
    found = compare(result(serving_row()), result(serving_row(failed=4)), 0.05)
    (failed,) = [change for change in found.changes if change.figure == "failed"]
    assert (failed.base, failed.new, failed.is_regression) == (0, 0.125, True)


def test_what_only_one_has_and_what_else_differs() -> None:
    base = result(engine_row(), engine_row(test="pp512"), models=[{"sha256": "a"}])
    new = result(engine_row(), engine_row(test="tg64"), models=[{"sha256": "b"}], is_complete=False)
    found = compare(base, new, 0.05)
    assert (found.only_base, found.only_new) == (("pp512",), ("tg64",))
    assert found.notes == ("the new one is incomplete (cut short)", "the model files differ")


def test_what_varies_within_a_result_tells_its_rows_apart() -> None:
    base = result(engine_row(n_threads=1), engine_row(n_threads=2))
    assert [change.test for change in compare(base, base, 0.05).changes] == ["tg128 t1", "tg128 t2"]
    one, other = result(engine_row(n_threads=1)), result(engine_row(n_threads=2))
    assert [change.test for change in compare(one, other, 0.05).changes] == ["tg128"]


def test_compare_says_it_with_its_exit_code() -> None:
    saved.save(result(engine_row(speeds=[100, 101, 99])), saved.path_of("base"))
    saved.save(result(engine_row(speeds=[50, 51, 49])), saved.path_of("new"))
    saved.save(result(resume_row()), saved.path_of("other"))
    out, err = io.StringIO(), io.StringIO()
    output = Output(out, err)
    assert shelf.show_comparison("base", "new", 0.05, output, as_json=False) == 1
    assert "0.500" in out.getvalue()
    assert "REGRESSION" in out.getvalue()
    assert shelf.show_comparison("new", "base", 0.05, output, as_json=False) == 0
    with pytest.raises(InputProblem, match="no test in common"):
        shelf.show_comparison("base", "other", 0.05, output, as_json=False)
    out.truncate(0)
    out.seek(0)
    shelf.show_comparison("base", "new", 0.05, output, as_json=True)
    said = json.loads(out.getvalue())
    assert (said["version"], said["has_regression"], said["changes"][0]["ratio"]) == (1, True, 0.5)


# -- told --------------------------------------------------------------------------------------------------------------


def test_csv_has_every_single_value_and_json_all() -> None:
    rows = [engine_row(), engine_row(test="pp512")]
    header, first, _ = columns.write_csv(rows).splitlines()
    assert "samples_ns" not in header.split(",")
    assert dict(zip(header.split(","), first.split(","), strict=True))["test"] == "tg128"
    assert json.loads(columns.write_json(rows)) == rows
    assert [json.loads(line) for line in columns.write_jsonl(rows).splitlines()] == rows


@pytest.mark.parametrize("row", [engine_row(), serving_row(), resume_row()], ids=lambda row: str(row["kind"]))
def test_tables_show_every_column(row: Row) -> None:
    from ingle.cli.bench import tables

    chosen = columns.columns([row])
    drawn = tables.draw([row], chosen, width=240)
    for column in chosen:
        assert column.name in drawn
        assert column.cell(row) in drawn
    assert columns.write_md([row]).count("\n") == 2
    narrow = tables.draw([row], chosen, width=60)
    assert max(len(line) for line in narrow.splitlines()) <= 60
    assert all(column.cell(row) in narrow for column in chosen), "columns move down; no cell is broken"


def test_what_all_rows_have_in_common_stands_above() -> None:
    rows = [engine_row(n_threads=1), engine_row(n_threads=2)]
    assert columns.common(rows) == "m · 91.55 MiB · 134.52 M parameters · CPU"
    assert [column.name for column in columns.columns(rows)] == ["threads", "test", "t/s", "95 %", "of roofline"]
    assert columns.common([serving_row()]) == ""


# -- drawn -------------------------------------------------------------------------------------------------------------

SERVING = result(serving_row(), serving_row(concurrency=4, ttft=[200, 300, 250]))
ENGINE = result(*(engine_row(test=f"tg128 @ d{depth}", n_depth=depth) for depth in (0, 512)), engine_row(test="pp512"))


def test_panels_are_for_what_there_is() -> None:
    assert [panel.title for panel in plots.panels(SERVING)] == [
        "Throughput against waiting",
        "Time to first token",
        "Time between tokens",
        "KV blocks in use",
    ]
    assert [panel.title for panel in plots.panels(ENGINE)] == ["Reading a prompt", "Generating"]
    assert [panel.title for panel in plots.panels(result(resume_row()))] == ["First token of a known text"]
    failed = serving_row(completed=0)
    assert plots.panels(result(failed)) == []


@pytest.mark.parametrize("what", [SERVING, ENGINE, result(resume_row()), result(serving_row(rate=2.5))])
@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_pictures_are_written_whole(tmp_path: Path, what: Result, suffix: str) -> None:
    path = tmp_path / f"picture{suffix}"
    plots.check(path)
    plots.plot(what, path)
    assert path.read_bytes().startswith(b"\x89PNG" if suffix == ".png" else b"<?xml")
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == [path.name]


def test_what_cannot_be_drawn_is_said_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageProblem, match=r"neither a \.png nor a \.svg"):
        plots.check(tmp_path / "a.pdf")
    with pytest.raises(UsageProblem, match="there is no folder"):
        plots.check(tmp_path / "none" / "a.png")
    real = builtins.__import__

    def without_matplotlib(name: str, *arguments: Any, **keywords: Any) -> Any:
        if name.split(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without_matplotlib)
    with pytest.raises(CliError) as missing:
        plots.check(tmp_path / "a.png")
    assert str(missing.value) == "--plot needs matplotlib, which is not installed"
    assert missing.value.hint == "pip install 'ingle[plot]'"


def test_a_result_from_somewhere_else_is_read_with_care() -> None:
    read = from_json({"version": 1, "rows": [], "models": [3, {"name": "m"}], "machine": "x"}, "it")
    assert (read.models, read.machine, read.is_complete) == ([{"name": "m"}], {}, False)
