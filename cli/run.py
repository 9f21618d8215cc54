# `ingle run`: one answer. The story of a prompt from the command line to stdout.
# Imported before the first token: nothing heavy at the top.
"""One prompt in, one answer out, streamed as it comes."""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingle.cli import settings as settings_file
from ingle.cli import source
from ingle.cli.errors import FAILURE, CliError, UsageProblem
from ingle.cli.loading import OpenModel, open_for
from ingle.cli.options import ModelFlags, SamplingFlags
from ingle.cli.output import Output
from ingle.cli.prompt import Prompt, PromptBuilder
from ingle.cli.signals import Signals
from ingle.cli.thinking import ThinkFilter

if TYPE_CHECKING:
    from ingle.cli.settings import Settings
    from ingle.runtime.request import Request, RequestOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFlags:
    """The command line of `ingle run`."""

    prompt: str | None
    files: tuple[Path, ...]
    session: str | None
    system: str | None
    raw: bool
    json: bool
    jsonl: bool
    think: bool | None
    hide_think: bool
    stats: bool
    verbose: bool
    quiet: bool | None
    model: ModelFlags
    sampling: SamplingFlags


def run(flags: RunFlags, output: Output, signals: Signals) -> int:
    """Returns the exit code; raises what `errors.describe` turns into one."""
    settings = settings_file.load()
    output.quiet = bool(settings.pick("quiet", flags.quiet))
    if flags.raw:
        _refuse_chat_flags(flags)
    if flags.jsonl:
        from ingle.cli.jsonl import run_lines

        return run_lines(flags, settings, output, signals)
    if flags.session is not None:
        return _continue(flags, flags.session, settings, output, signals)
    text = source.read_prompt(flags.prompt, flags.files, raw=flags.raw)
    config = flags.model.engine_config(settings, keeps_pages_in_ram=False)  # one answer: nobody would ask for them
    params = flags.sampling.params(settings)
    max_tokens = flags.sampling.max_output_tokens(settings)
    with open_for(flags, settings, config, output, signals) as model:
        prompt = make_prompt(
            model,
            text,
            system=settings.pick("system", flags.system),
            raw=flags.raw,
            think=settings.pick("think", flags.think),
        )
        from ingle.runtime.request import Request

        request = Request(prompt.tokens, with_stop(params, () if flags.raw else model.template.stop), max_tokens)
        return _answer(flags, model, prompt, request, output, signals)


def _refuse_chat_flags(flags: RunFlags) -> None:
    """Without a template there is nowhere to put what these say."""
    if flags.system is not None:
        raise UsageProblem(
            "--raw continues a text, which has no system prompt", "leave out -s, or put it into the text"
        )
    if flags.think is not None:
        raise UsageProblem(
            "--raw has no template that --think or --no-think could tell anything", "leave out one of them"
        )


def _continue(flags: RunFlags, name: str, settings: Settings, output: Output, signals: Signals) -> int:
    """One turn of the conversation `name`, which is made where there is none."""
    from ingle.cli import shelf
    from ingle.cli.transcript import Transcript

    if flags.raw:
        raise UsageProblem("--raw continues a text, and --session is a conversation", "leave out one of them")
    path = shelf.path_of(name)
    text = source.read_prompt(flags.prompt, flags.files)
    config = flags.model.engine_config(settings, keeps_pages_in_ram=False)  # one answer: nobody would ask for them
    flags.sampling.params(settings)  # a bad flag is said before the model is loaded
    with (
        closing(Transcript.open(path)) as kept_in,
        open_for(flags, settings, config, output, signals) as model,
    ):
        from ingle.cli.talk import Talk

        last = Talk(flags, settings, model, output, signals, kept_in).ask(text)
        if flags.stats:
            report_engine(output, model)
        signals.raise_if_stopped()
        return 0 if last.finish_reason in ("stop", "length") else FAILURE


def make_prompt(model: OpenModel, text: str, *, system: str | None, raw: bool, think: bool | None) -> Prompt:
    """The token ids for `text`: through the chat template, or with `raw` as it stands, control tokens recognised."""
    if raw:
        return Prompt(tuple(model.engine.tokenize(text, add_special=True, parse_special=True)), text)
    from ingle.models.chat_template import Message

    messages = [Message("system", system)] if system else []
    messages.append(Message("user", text))
    return PromptBuilder(model.engine, model.template).build(messages, enable_thinking=think)


def with_stop(params: Any, stop: tuple[str, ...]) -> Any:
    """`params` that also end where the template says an answer ends."""
    if not stop:
        return params
    from dataclasses import replace

    return replace(params, stop=params.stop + tuple(text for text in stop if text not in params.stop))


def _answer(
    flags: RunFlags, model: OpenModel, prompt: Prompt, request: Request, output: Output, signals: Signals
) -> int:
    engine = model.engine
    thoughts = ThinkFilter(inside=prompt.opens_thinking) if flags.hide_think else None
    pieces: list[str] = []
    last: RequestOutput | None = None

    def show(text: str) -> None:
        if flags.json:
            pieces.append(text)
        else:
            output.answer(text)

    with signals.answering(engine):
        request_id = engine.add(request)
        signals.interrupt_again()
        try:
            for last in engine.stream(request_id):
                show(thoughts.feed(last.text) if thoughts else last.text)
        except BaseException:
            with suppress(Exception):
                engine.abort(request_id)
            raise
    assert last is not None
    if thoughts:
        show(thoughts.finish())
    if flags.json:
        from ingle.cli import stats

        output.json(stats.as_json(model.ref.name, "".join(pieces), last, model.load_ms))
    else:
        output.end_answer()
    if flags.stats:
        from ingle.cli import stats

        for line in stats.turn(engine, prompt.tokens, last.metrics):
            output.report(line)
        report_engine(output, model)
    signals.raise_if_stopped()
    if last.error is not None:
        raise CliError(last.error)
    if last.finish_reason == "length" and request.max_output_tokens is None:
        output.note(f"note: the answer stopped because the context ({engine.info.n_ctx} tokens) is full")
    return 0 if last.finish_reason in ("stop", "length") else FAILURE


def report_engine(output: Output, model: OpenModel) -> None:
    """What `--stats` says besides the answer's own figures."""
    from ingle.cli import stats
    from ingle.cli.plan_report import predicted_and_taken
    from ingle.models.memory import resident_bytes
    from ingle.models.needs import needs

    figures = model.engine.stats()
    predicted = needs(model.info, model.engine.info.setting, figures.num_blocks_total * figures.block_size)
    if (draft := model.engine.info.draft_needs) is not None:
        predicted += draft
    output.report(f"loaded in {model.load_ms:.0f} ms")
    output.report(predicted_and_taken(predicted, resident_bytes()))
    for line in stats.engine(figures):
        output.report(line)
