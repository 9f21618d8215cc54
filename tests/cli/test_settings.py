# Settings from the environment and the config file.
from __future__ import annotations

import os
from pathlib import Path

import pytest

from ingle.cli.errors import UsageProblem
from ingle.cli.options import ModelFlags, SamplingFlags
from ingle.cli.settings import TABLE, config_path, load, pages_path, used_path
from ingle.models.places import cache_dir, state_dir


def write(tmp_path: Path, toml: str) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(toml)
    return path


def test_environment_over_file(tmp_path: Path) -> None:
    file = write(tmp_path, "threads = 3\nmodel = 'a'\noffline = true\ntemp = 1\nflash_attn = 'off'\n")
    settings = load({"INGLE_THREADS": "5", "INGLE_TEMP": ""}, file)
    assert settings.pick("threads", None) == 5
    assert settings.pick("threads", 7) == 7
    assert settings.pick("model", None) == "a"
    assert settings.pick("temp", None) == 1.0, "an empty variable is no setting"
    assert settings.pick("offline", None) is True
    assert settings.pick("flash_attn", None) is False


def test_no_file_no_environment(tmp_path: Path) -> None:
    assert load({}, tmp_path / "none.toml").values == {}


GOOD = {
    "model": ("a/b", "a/b"),
    "system": ("Be brief.", "Be brief."),
    "ctx_size": ("4096", 4096),
    "threads": ("2", 2),
    "gpu_layers": ("all", "all"),
    "flash_attn": ("on", True),
    "cache_type_k": ("q8_0", "q8_0"),
    "cache_type_v": ("f16", "f16"),
    "batch_size": ("64", 64),
    "draft": ("ngram", "ngram"),
    "draft_tokens": ("4", 4),
    "max_tokens": ("0", 0),
    "temp": ("0.5", 0.5),
    "top_k": ("0", 0),
    "top_p": ("0.5", 0.5),
    "min_p": ("0.1", 0.1),
    "repeat_penalty": ("1.1", 1.1),
    "seed": ("9", 9),
    "think": ("no", False),
    "kv_store": ("off", False),
    "offline": ("1", True),
    "model_dirs": (os.pathsep.join(["~/gguf", "/srv/models"]), (Path.home() / "gguf", Path("/srv/models"))),
    "quiet": ("false", False),
}


def test_every_setting_can_be_set(tmp_path: Path) -> None:
    environ = {f"INGLE_{name.upper()}": text for name, (text, _) in GOOD.items()}
    assert load(environ, tmp_path / "none").values == {name: value for name, (_, value) in GOOD.items()}
    assert GOOD.keys() == TABLE.keys()


def test_auto_undoes_what_stands_further_back(tmp_path: Path) -> None:
    file = write(tmp_path, "ctx_size = 512\nflash_attn = true\n")
    assert ModelFlags().engine_config(load({}, file)).n_ctx == 512
    assert ModelFlags(ctx_size="auto").engine_config(load({}, file)).n_ctx is None
    assert ModelFlags().engine_config(load({"INGLE_CTX_SIZE": "auto"}, file)).n_ctx is None
    assert ModelFlags(flash_attn="auto").engine_config(load({}, file)).flash_attn is None
    assert ModelFlags(flash_attn=False).engine_config(load({}, file)).flash_attn is False


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("tmep = 1", ["tmep"]),
        ("threads = 0", ["threads", "1 or more"]),
        ("threads = 1.5", ["threads"]),
        ("ctx_size = -1", ["ctx_size"]),
        ("gpu_layers = 'most'", ["gpu_layers", "most"]),
        ("offline = 'perhaps'", ["offline", "perhaps"]),
        ("temp = [1]", ["temp"]),
        ("temp =", ["TOML"]),
        ("model_dirs = ['here']", ["model_dirs", "here"]),
        ("model_dirs = [1]", ["model_dirs"]),
    ],
)
def test_what_makes_no_sense_is_named(tmp_path: Path, toml: str, words: list[str]) -> None:
    file = write(tmp_path, toml)
    with pytest.raises(UsageProblem) as caught:
        load({}, file)
    for word in [*words, str(file)]:
        assert word in str(caught.value)


def test_place_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingle.cli.settings.platform", "linux")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert config_path({"XDG_CONFIG_HOME": "/x"}) == Path("/x/ingle/config.toml")
    assert config_path({}) == tmp_path / ".config/ingle/config.toml"
    assert config_path({"XDG_CONFIG_HOME": "relative"}) == tmp_path / ".config/ingle/config.toml"


def test_pages_are_kept_unless_somebody_says_no(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    none = tmp_path / "none"
    assert ModelFlags().engine_config(load({}, none)).page_dir == tmp_path / "ingle" / "kv"
    assert ModelFlags(no_kv_store=True).engine_config(load({}, none)).page_dir is None
    assert ModelFlags().engine_config(load({"INGLE_KV_STORE": "off"}, none)).page_dir is None
    assert ModelFlags().engine_config(load({}, write(tmp_path, "kv-store = false"))).page_dir is None
    file = write(tmp_path, "kv_store = false")
    assert ModelFlags().engine_config(load({"INGLE_KV_STORE": "on"}, file)).page_dir is not None
    assert ModelFlags(no_kv_store=True).engine_config(load({"INGLE_KV_STORE": "on"}, none)).page_dir is None


def test_place_of_the_pages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Worked out here for speed, and the same as models.places says."""
    for value in (str(tmp_path), "", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert pages_path(os.environ) == cache_dir() / "kv"
        monkeypatch.setenv("XDG_STATE_HOME", value)
        assert used_path(os.environ) == state_dir() / "used"


def test_folders_of_models(tmp_path: Path) -> None:
    file = write(tmp_path, f"model_dirs = ['~/gguf', '{tmp_path}']")
    assert load({}, file).values["model_dirs"] == (Path.home() / "gguf", tmp_path)
    assert load({}, write(tmp_path, "model_dirs = '/one'")).values["model_dirs"] == (Path("/one"),)


def test_every_flag_reaches_the_engine(tmp_path: Path) -> None:
    flags = ModelFlags(
        ctx_size=256, threads=3, gpu_layers=2, flash_attn=True, cache_type_k="q8_0", cache_type_v="q4_0", batch_size=64
    )
    config = flags.engine_config(load({}, tmp_path / "none"))
    assert (config.n_ctx, config.num_threads, config.gpu_layers, config.flash_attn) == (256, 3, 2, True)
    assert (config.type_k, config.type_v, config.n_batch) == ("q8_0", "q4_0", 64)


def test_every_flag_reaches_the_sampler(tmp_path: Path) -> None:
    flags = SamplingFlags(
        max_tokens=5, temp=0.1, top_k=2, top_p=0.3, min_p=0.4, repeat_penalty=1.5, seed=6, stop=("a", "b")
    )
    settings = load({}, tmp_path / "none")
    params = flags.params(settings)
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.1, 2, 0.3, 0.4)
    assert (params.repeat_penalty, params.seed, params.stop) == (1.5, 6, ("a", "b"))
    assert flags.max_output_tokens(settings) == 5
