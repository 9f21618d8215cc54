# The errors of this package. A message is one line of what happened, a hint one line of what to do.
# This file may not know how errors are printed nor which exit code each one has: that is the caller's table.
"""Errors raised by ``ingle.quant``.

::

    QuantError
    ├── BadRecipe    an unknown type, a pattern that matches nothing, a budget that cannot be met
    ├── BadActivations  calibration met NaN or infinity
    ├── BadText      a text that nothing can be measured on: too short, or not text
    ├── DifferentVocabulary  two models that cannot be compared
    ├── BadWeights   a weight that is NaN, infinite or too large, rows that no type divides
    └── BadImatrix   an importance matrix that is damaged, or belongs to another model

A disk that refuses is a ``models.errors.StoreError``, a damaged source file a ``models.errors.BadModelFile``.
"""

from __future__ import annotations

from ingle.models.errors import one_line


class QuantError(Exception):
    """Something about a quantization that its user can act on. `message` and `hint` hold no line breaks."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        self.message = one_line(message)
        self.hint = None if hint is None else one_line(hint)
        super().__init__(self.message)


class BadRecipe(QuantError):
    """What was asked for makes no sense, or not for this model."""


class BadWeights(QuantError):
    """The source's numbers cannot be quantized."""


class BadImatrix(QuantError):
    """The importance matrix cannot be read or does not fit the model."""


class BadActivations(QuantError):
    """Calibration met numbers that are not finite."""


class BadText(QuantError):
    """A text that nothing can be measured on: too short, or not readable."""


class DifferentVocabulary(QuantError):
    """Two models whose tokens are not the same cannot be compared."""
