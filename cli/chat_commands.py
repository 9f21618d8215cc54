# The commands of the chat, as a table. Each does one thing to the Chat it is given and says so on stderr.
"""``/help`` and its siblings."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from ingle.cli import settings as parsing
from ingle.cli import shelf, stats
from ingle.cli.errors import UsageProblem
from ingle.cli.transcript import Transcript

if TYPE_CHECKING:
    from ingle.cli.chat import Chat


class Leave(Exception):
    """The user wants to go. Raised by /exit, caught by the chat's loop."""


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    arguments: str
    help: str
    action: Callable[[Chat, str], None]


SHOWN_SESSIONS = 20

_CACHE_COUNTS = ("pages", "prefix_cache", "num_blocks_cached")
"""How the names of the engine's counts about KV that is kept begin."""


def _help(chat: Chat, _text: str) -> None:
    report = chat.talk.output.report
    for command in COMMANDS.values():
        report(f"  {f'{command.name} {command.arguments}':<20}{command.help}")
    report('Enter sends, Esc Enter begins a new line, """ opens and closes many lines, // sends a leading /.')
    report("Ctrl-C stops an answer, Ctrl-D leaves.")


def _new(chat: Chat, _text: str) -> None:
    from ingle.cli.chat import unnamed

    chat.switch(unnamed(chat.talk.output) if chat.session.name is not None or chat.is_interactive else None)
    stays = " The system prompt stays." if chat.session.conversation.system else ""
    chat.talk.output.note(f"A new conversation.{stays}")


def _sessions(chat: Chat, _text: str) -> None:
    report = chat.talk.output.report
    found = shelf.summaries(SHOWN_SESSIONS)
    if not found:
        report("(no conversations yet)")
    width = max((len(each.name) for each in found), default=0)
    for each in found:
        mark = "*" if each.name == chat.session.name else " "
        said = each.problem or f"{stats.number(each.num_exchanges, 'exchange')} · {_cut(each.last_line)}"
        report(f"{mark} {each.name:<{width}}  {stats.age(each.age_s):<14}  {said}")
    if (others := len(shelf.names()) - len(found)) > 0:
        report(f"  and {others} older in {shelf.folder()}")


def _resume(chat: Chat, name: str) -> None:
    name = name or shelf.last_used(but=chat.session.name)
    path = shelf.existing(name)
    if name == chat.session.name:
        raise UsageProblem(f"{name!r} is this conversation", "/sessions lists the others")
    chat.switch(Transcript.open(path))
    chat.talk.say_where_we_were()


def _save(chat: Chat, name: str) -> None:
    if not name:
        raise UsageProblem("/save wants a name", "/save NAME")
    chat.session.save_as(name)
    chat.talk.output.report(f"this conversation is {name!r} from here on")


def _undo(chat: Chat, text: str) -> None:
    try:
        num = parsing.positive(text or "1")
    except ValueError as error:
        raise UsageProblem(
            f"/undo {text!r} is not {error}", "/undo takes back the last question and its answer"
        ) from None
    for question in chat.session.undo(num):
        chat.talk.output.report(f"taken back: {_cut(question)}")


def _retry(chat: Chat, _text: str) -> None:
    question = chat.session.last_message
    chat.session.undo()
    chat.ask(question, seed=secrets.randbits(32))


def _edit(chat: Chat, text: str) -> None:
    before = chat.session.last_message
    after = text or chat.reader.edit(before)
    if after is None or not after.strip():
        chat.talk.output.note("(unchanged)")
        return
    chat.session.undo()
    chat.ask(after)


def _system(chat: Chat, text: str) -> None:
    if text:
        chat.session.set_system(None if text == "-" else text)
    chat.talk.output.report(f"system: {chat.session.conversation.system or '(none)'}")


def _set(chat: Chat, text: str) -> None:
    talk = chat.talk
    names = [field.name for field in fields(talk.sampling) if field.name != "stop"]
    name, value = (*text.split(None, 1), "", "")[:2]
    if not name:
        for each in names:
            chosen = talk.settings.pick(each, getattr(talk.sampling, each))
            talk.output.report(f"  {each:<16}{'(default)' if chosen is None else chosen}")
        return
    name = name.replace("-", "_")
    if name not in names:
        raise UsageProblem(f"there is no setting {name!r}", f"there are {', '.join(names)}")
    value = value.strip()
    try:
        parsed = None if value == "default" else parsing.TABLE[name](value)
    except ValueError as error:
        raise UsageProblem(f"{name} is {value!r}, which is not {error}, nor default") from None
    changes: dict[str, Any] = {name: parsed}
    changed = replace(talk.sampling, **changes)
    changed.params(talk.settings, written={name})  # raises for a value out of range, before anything has changed
    talk.sampling = changed
    talk.output.report(f"{name} = {'(default)' if parsed is None else parsed}")


def _cache(chat: Chat, _text: str) -> None:
    talk = chat.talk
    if talk.last is None:
        talk.output.report("nothing has been asked yet")
    else:
        for line in stats.reuse(talk.model.engine, talk.last.tokens, talk.last.metrics):
            talk.output.report(line)
    for line in stats.engine(talk.model.engine.stats()):
        if line.startswith(_CACHE_COUNTS):
            talk.output.report(f"  {line}")


def _stats(chat: Chat, _text: str) -> None:
    for line in stats.engine(chat.talk.model.engine.stats()):
        chat.talk.output.report(f"  {line}")


def _context(chat: Chat, _text: str) -> None:
    conversation, n_ctx = chat.session.conversation, chat.talk.model.engine.info.n_ctx
    used, exchanges = conversation.num_tokens, stats.number(len(conversation.in_context), "exchange")
    chat.talk.output.report(f"{used} of {n_ctx} tokens ({100 * used / n_ctx:.0f} %), {exchanges}")


def _exit(_chat: Chat, _text: str) -> None:
    raise Leave


COMMANDS = {
    command.name: command
    for command in (
        Command("/help", "", "these lines", _help),
        Command("/new", "", "begin a new conversation", _new),
        Command("/sessions", "", "the conversations that are kept", _sessions),
        Command("/resume", "[NAME]", "go on with another conversation (the last one)", _resume),
        Command("/save", "NAME", "give this conversation a name; if it has one, go on in a copy", _save),
        Command("/undo", "[N]", "take back the last question and its answer, or the last N", _undo),
        Command("/retry", "", "ask the last question again, with another seed", _retry),
        Command("/edit", "[TEXT]", "change the last question and ask it instead", _edit),
        Command("/system", "[TEXT]", "show or change the system prompt (- removes it)", _system),
        Command("/set", "[NAME VALUE]", "show or change how answers are made: temp, seed, max_tokens, …", _set),
        Command("/cache", "", "what of the last prompt was computed before, and why no more", _cache),
        Command("/stats", "", "the engine's counts", _stats),
        Command("/context", "", "how full the context is", _context),
        Command("/exit", "", "leave", _exit),
    )
}


def _cut(text: str, limit: int = 60) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def obey(chat: Chat, text: str) -> None:
    """Do what a line that begins with `/` says; two letters can stand for a command. Raises UsageProblem, Leave."""
    name, rest = (*text.split(None, 1), "")[:2]
    # One letter is too easily typed by mistake for a command that leaves a conversation.
    matching = [known for known in COMMANDS if known.startswith(name) and len(name) > 2]
    command = COMMANDS.get(matching[0] if len(matching) == 1 else name)
    if command is None:
        import difflib

        close = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = (
            f"did you mean {close[0]}?" if close else "/help lists the commands; // sends a message that begins with /"
        )
        raise UsageProblem(f"there is no command {name}", hint)
    command.action(chat, rest.strip())
