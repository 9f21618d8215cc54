# A conversation that is kept: every change goes into its transcript as it happens.
# This file may not know engines or terminals.
"""``Session``."""

from __future__ import annotations

from collections.abc import Sequence

from ingle.cli import records, shelf, transcript
from ingle.cli.conversation import Conversation, Exchange, Turn
from ingle.cli.errors import UsageProblem
from ingle.cli.output import Output
from ingle.cli.records import ModelId
from ingle.cli.transcript import Transcript


class Session:
    """Owns its transcript, if it has one, until `close`.

    `pending`: the user's last message, where it has no answer. `former_model`: the model it was with until now, where
    that is another one. `is_resumed`: whether there was something in the transcript.
    """

    def __init__(
        self, conversation: Conversation, model: ModelId, output: Output, kept_in: Transcript | None = None
    ) -> None:
        self.conversation = conversation
        self.pending: str | None = None
        self.former_model: ModelId | None = None
        self._model = model
        self._output = output
        self._transcript = kept_in
        self._has_warned = False
        self.is_resumed = kept_in is not None and bool(kept_in.records)
        self._lacks_header = not self.is_resumed
        if kept_in is not None and kept_in.records:
            self._resume(kept_in)

    def _resume(self, kept_in: Transcript) -> None:
        before = records.replay(kept_in.records)
        kept_in.records = []  # they can be large
        self.conversation.restore(before.usable(self._model), before.system)
        self.pending = before.pending
        if not before.model.is_same(self._model):
            self.former_model = before.model
            self._append(records.new_model(self._model))

    @property
    def name(self) -> str | None:
        """None: it is not kept."""
        return self._transcript.path.stem if self._transcript is not None else None

    @property
    def is_on_disk(self) -> bool:
        return self._transcript is not None and self._transcript.path.exists()

    def close(self) -> None:
        if self._transcript is not None:
            self._transcript.close()
            self._transcript = None

    def ask(self, turn: Turn) -> None:
        """`turn` is about to be asked."""
        self.pending = turn.question
        self._append(records.asked(turn, self._last_tokens))

    def answer(
        self, turn: Turn, generated: Sequence[int], answer: str, finish_reason: str, *, exact: bool = True
    ) -> None:
        """`turn` was answered, at least in part."""
        self.conversation.commit(turn, generated, answer, exact=exact)
        self.pending = None
        self._append(records.answered(answer, generated, finish_reason, exact=exact))

    def undo(self, num: int = 1) -> list[str]:
        """Take back the user's last `num` messages; returns them, the oldest first. Raises UsageProblem: there is none.

        A message without an answer counts.
        """
        taken = [] if self.pending is None else [self.pending]
        taken = [exchange.question for exchange in self.conversation.undo(num - len(taken))] + taken
        self.pending = None
        if not taken:
            raise UsageProblem("there is nothing to take back")
        self._append(records.undone(len(taken)))
        return taken

    def set_system(self, text: str | None) -> None:
        if text != self.conversation.system:
            self.conversation.system = text
            if not self._lacks_header:  # otherwise it will stand in the header
                self._append(records.new_system(text))

    def save_as(self, name: str) -> None:
        """Be called `name`. A conversation that nobody has named is renamed; of any other, a copy goes on.

        Raises UsageProblem, InputProblem when the name is taken, Busy, OSError.
        """
        path = shelf.path_of(name)
        if self._transcript is None:
            raise UsageProblem("this conversation is not kept", "ingle chat --session NAME keeps one")
        if shelf.is_generated(self._transcript.path.stem) or not self.is_on_disk:
            self._transcript.move(path)
            return
        copy = self._transcript.copy(path)
        self._transcript.close()
        self._transcript = copy

    @property
    def last_message(self) -> str:
        """The user's last message. Raises UsageProblem when there is none."""
        if self.pending is not None:
            return self.pending
        exchanges: Sequence[Exchange] = self.conversation.exchanges
        if not exchanges:
            raise UsageProblem("nothing has been asked yet")
        return exchanges[-1].question

    @property
    def _last_tokens(self) -> Sequence[int]:
        exchanges = self.conversation.exchanges
        return exchanges[-1].tokens if exchanges else ()

    def _append(self, record: records.Record) -> None:
        """On disk when this returns, or the user knows that it is not. The chat goes on: an answer is worth more."""
        if self._transcript is None:
            return
        opening = []
        if self._lacks_header:
            self._lacks_header = False
            opening = [transcript.header(**records.opening(self._model, self.conversation.system))]
        try:
            self._transcript.append(*opening, record)
            self._has_warned = False
        except OSError as error:
            if not self._has_warned:
                self._output.warn(f"the conversation is not being saved: {error.strerror}; it is tried again each turn")
            self._has_warned = True
