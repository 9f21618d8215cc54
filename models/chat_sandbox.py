# The Jinja environment that other people's chat templates run in. Imported only when a template is rendered.
# This file may not know models, messages or fallbacks. It is the only file importing jinja2.
"""Compile chat templates as Hugging Face transformers does (``utils/chat_template_utils.py``), in jinja2's sandbox.

The immutable sandbox refuses underscored attributes and changes to the caller's objects, and ``range`` stops at
100,000. On top of that, multiplication and powers are bounded, so that no template asks for gigabytes. Loops nested in
loops are not bounded: a hostile template can waste time until Ctrl-C, nothing more.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, NoReturn

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

_MAX_PRODUCT: Final = 1 << 20  # items of a repeated sequence
_MAX_POWER_BITS: Final = 1 << 14


class TemplateFailure(Exception):
    """What went wrong in a template, in words."""


class _Raised(jinja2.TemplateError):
    """The template called raise_exception."""


class _Generation(jinja2.ext.Extension):
    """``{% generation %}…{% endgeneration %}`` marks assistant text for training; here it is only its contents."""

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


_Generation.tags = {"generation"}


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for sequence, times in ((left, right), (right, left)):
                if isinstance(sequence, Sequence) and isinstance(times, int) and len(sequence) * times > _MAX_PRODUCT:
                    raise jinja2.exceptions.SecurityError("it repeats something too often")
        elif isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > _MAX_POWER_BITS:
            raise jinja2.exceptions.SecurityError("it raises something to too high a power")
        return super().call_binop(context, operator, left, right)


def compile_template(source: str) -> Callable[..., str]:
    """A function of the template's variables. It and this raise TemplateFailure, nothing else."""
    try:
        template = _environment().from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateFailure(f"it does not parse: {error.message} (line {error.lineno})") from None
    except Exception as error:  # RecursionError and the like from absurd sources
        raise TemplateFailure(f"it does not compile: {type(error).__name__}") from None

    def render(**variables: Any) -> str:
        try:
            return template.render(**variables)
        except _Raised as error:
            raise TemplateFailure(f"it refuses these messages: {error.message}") from None
        except jinja2.exceptions.SecurityError as error:
            raise TemplateFailure(f"it tried something forbidden: {error.message}") from None
        except Exception as error:  # whatever its expressions provoke: TypeError, UndefinedError, OverflowError, …
            raise TemplateFailure(f"it fails: {error or type(error).__name__}") from None

    return render


def _environment() -> _Environment:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own escapes <, > and & for HTML, which a prompt must not.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise _Raised(str(message))


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
