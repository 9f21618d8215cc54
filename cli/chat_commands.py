# The commands of the chat, as a table. Each does one thing to the Chat it is given and says so on stderr.
"""``/help`` and its siblings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from ingle.cli import settings as parsing
from ingle.cli import stats
from ingle.cli.errors import UsageProblem

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


def _help(chat: Chat, _text: str) -> None:
    for command in COMMANDS.values():
        chat.output.report(f"  {f'{command.name} {command.arguments}':<20}{command.help}")
    chat.output.report(
        'Enter sends, Esc Enter begins a new line, """ opens and closes many lines, // sends a leading /.'
    )
    chat.output.report("Ctrl-C stops an answer, Ctrl-D leaves.")


def _new(chat: Chat, _text: str) -> None:
    chat.conversation.clear()
    chat.output.note("A new conversation." + (" The system prompt stays." if chat.conversation.system else ""))


def _system(chat: Chat, text: str) -> None:
    if text:
        chat.conversation.system = None if text == "-" else text
    chat.output.report(f"system: {chat.conversation.system or '(none)'}")


def _set(chat: Chat, text: str) -> None:
    names = [field.name for field in fields(chat.sampling) if field.name != "stop"]
    name, _, value = text.partition(" ")
    if not name:
        for each in names:
            chosen = chat.settings.pick(each, getattr(chat.sampling, each))
            chat.output.report(f"  {each:<16}{'(default)' if chosen is None else chosen}")
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
    changed = replace(chat.sampling, **changes)
    changed.params(chat.settings)  # raises for a value out of range, before anything has changed
    chat.sampling = changed
    chat.output.report(f"{name} = {'(default)' if parsed is None else parsed}")


def _stats(chat: Chat, _text: str) -> None:
    for line in stats.table(chat.model.engine.stats()):
        chat.output.report(f"  {line}")


def _context(chat: Chat, _text: str) -> None:
    conversation, n_ctx = chat.conversation, chat.model.engine.info.n_ctx
    used, num = conversation.num_tokens, len(conversation.exchanges)
    share = 100 * used / n_ctx
    chat.output.report(f"{used} of {n_ctx} tokens ({share:.0f} %), {num} exchange{'' if num == 1 else 's'}")


def _exit(_chat: Chat, _text: str) -> None:
    raise Leave


COMMANDS = {
    command.name: command
    for command in (
        Command("/help", "", "these lines", _help),
        Command("/new", "", "forget the conversation", _new),
        Command("/system", "[TEXT]", "show or change the system prompt (- removes it)", _system),
        Command("/set", "[NAME VALUE]", "show or change how answers are made: temp, seed, max_tokens, …", _set),
        Command("/stats", "", "the engine's counts", _stats),
        Command("/context", "", "how full the context is", _context),
        Command("/exit", "", "leave", _exit),
    )
}


def obey(chat: Chat, text: str) -> None:
    """Do what a line that begins with `/` says; a command may be shortened. Raises UsageProblem, Leave."""
    name, _, rest = text.strip().partition(" ")
    matching = [known for known in COMMANDS if known.startswith(name)]
    command = COMMANDS.get(matching[0] if len(matching) == 1 else name)
    if command is None:
        import difflib

        close = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = (
            f"did you mean {close[0]}?" if close else "/help lists the commands; // sends a message that begins with /"
        )
        raise UsageProblem(f"there is no command {name}", hint)
    command.action(chat, rest.strip())
