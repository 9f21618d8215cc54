# Prompts worked out by hand from real templates; fallbacks; what a template may not do.
from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ingle.models.chat_template import ChatTemplate, Message, opens_thinking
from ingle.models.errors import ChatTemplateError
from ingle.models.gguf_info import read_model_info
from tests.models.gguf_bytes import tiny_model

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
GEMMA = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {{ raise_exception('System role not supported') }}
{%- endif -%}
{%- for message in messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ '<start_of_turn>model\n' }}
{%- endif -%}
"""
QWEN3 = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == "assistant" and message.reasoning_content is defined and loop.last %}
        {{- '<|im_start|>' + message.role + '\\n<think>\\n' + message.reasoning_content.strip('\\n') }}
        {{- '\\n</think>\\n\\n' + content.lstrip('\\n') + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""
SYSTEM, USER, ANSWER = Message("system", "Be brief."), Message("user", "Hi <b>&</b>"), Message("assistant", "Hello!")


def test_smollm2() -> None:
    template = ChatTemplate(SMOLLM2, bos_token="<|im_start|>", eos_token="<|im_end|>")
    assert template.render([SYSTEM, USER, ANSWER, Message("user", "Bye")]) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi <b>&</b><|im_end|>\n"
        "<|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
    )
    assert template.render([USER], add_generation_prompt=False) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi <b>&</b><|im_end|>\n"
    )
    assert template.supports_system
    assert not template.supports_thinking
    assert template.adds_bos  # its BOS is <|im_start|> itself
    assert template.stop == ()


def test_gemma_folds_the_system_message_into_the_first_user_message() -> None:
    template = ChatTemplate(GEMMA, bos_token="<bos>", eos_token="<eos>")
    assert not template.supports_system
    assert template.adds_bos
    assert template.render([SYSTEM, USER, ANSWER, Message("user", " Bye ")]) == (
        "<bos><start_of_turn>user\nBe brief.\n\nHi <b>&</b><end_of_turn>\n<start_of_turn>model\nHello!<end_of_turn>\n"
        "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n"
    )
    assert template.render([SYSTEM]) == "<bos><start_of_turn>user\nBe brief.<end_of_turn>\n<start_of_turn>model\n"


def test_what_a_template_refuses_is_said_in_its_own_words() -> None:
    template = ChatTemplate(GEMMA, bos_token="<bos>")
    with pytest.raises(ChatTemplateError, match="refuses these messages: Conversation roles must alternate"):
        template.render([USER, USER])


def test_a_system_message_that_is_ignored_is_folded_too() -> None:
    template = ChatTemplate("{% for m in messages if m.role == 'user' %}[{{ m.content }}]{% endfor %}")
    assert template.render([SYSTEM, USER]) == "[Be brief.\n\nHi <b>&</b>]"


def test_qwen3_thinking_switch() -> None:
    template = ChatTemplate(QWEN3, eos_token="<|im_end|>")
    asked = "<|im_start|>user\nHi <b>&</b><|im_end|>\n<|im_start|>assistant\n"
    assert template.supports_thinking
    assert template.render([USER]) == asked
    assert template.render([USER], enable_thinking=True) == asked
    assert template.render([USER], enable_thinking=False) == asked + "<think>\n\n</think>\n\n"
    assert not template.adds_bos


def test_qwen3_reasoning_and_tools() -> None:
    template = ChatTemplate(QWEN3)
    thoughtful = Message("assistant", "42", reasoning="Six times seven.")
    assert template.render([USER, thoughtful], add_generation_prompt=False) == (
        "<|im_start|>user\nHi <b>&</b><|im_end|>\n"
        "<|im_start|>assistant\n<think>\nSix times seven.\n</think>\n\n42<|im_end|>\n"
    )
    # tojson writes what transformers' does: no HTML escapes, no \\u for letters, the caller's order of keys
    text = template.render([USER], tools=[{"name": "größe", "a": "<&>"}], add_generation_prompt=False)
    assert text == (
        '<|im_start|>system\n\n{"name": "größe", "a": "<&>"}<|im_end|>\n<|im_start|>user\nHi <b>&</b><|im_end|>\n'
    )


def test_opens_thinking() -> None:
    assert opens_thinking("<|im_start|>assistant\n<think>\n")
    assert not opens_thinking("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_whitespace_control_generation_blocks_and_loop_controls() -> None:
    source = (
        "{% for m in messages %}\n"
        "    {% if m.role == 'system' %}\n"
        "        {% continue %}\n"
        "    {% endif %}\n"
        "    {% generation %}\n"
        "{{ m.content }}\n"
        "    {% endgeneration %}\n"
        "    {% break %}\n"
        "{% endfor %}\n"
    )
    # trim_blocks and lstrip_blocks leave nothing of the indentation
    assert ChatTemplate(source).render([USER, ANSWER]) == "Hi <b>&</b>\n"


def test_extra_variables_and_the_date() -> None:
    template = ChatTemplate("{{ strftime_now('%Y') }} {{ city }} {{ bos_token }}|{{ eos_token }}|{{ tools is none }}")
    assert re.fullmatch(r"20\d\d Kiel \|\|True", template.render([USER], city="Kiel"))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{% for m in messages %}", "does not parse: .*line 1"),
        ("{{ messages[0].content + 1 }}", "it fails: .*concatenate"),
        ("{{ nothing.at.all }}", "it fails: 'nothing' is undefined"),
        ("{{ ''.__class__.__mro__ }}", "tried something forbidden"),
        ("{{ messages.__class__.__base__.__subclasses__() }}", "tried something forbidden"),
        ("{{ raise_exception.__globals__['__builtins__'] }}", "tried something forbidden"),
        ("{{ lipsum.__globals__.os.popen('id').read() }}", "tried something forbidden"),
        ("{{ messages.append(1) }}", "tried something forbidden"),
        ("{{ messages[0].update({'role': 'system'}) }}", "tried something forbidden"),
        ("{% for i in range(1000000) %}{% endfor %}", "it fails: Range too big|tried something forbidden|too big"),
        ("{{ 'x' * 2000000000 }}", "tried something forbidden: it repeats"),
        ("{{ 2000000000 * [1] }}", "tried something forbidden: it repeats"),
        ("{{ 9 ** (9 ** 9) }}", "tried something forbidden: it raises"),
        ("{{ ((2 ** 64) ** 64) ** 64 }}", "tried something forbidden: it raises"),
        ("{% include '/etc/passwd' %}", "it fails"),
        ("{% import 'os' as os %}", "it fails"),
        ("{{ raise_exception('no\nthanks') }}", "refuses these messages: no thanks"),
    ],
)
def test_bad_and_hostile_templates(source: str, words: str) -> None:
    with pytest.raises(ChatTemplateError, match=words) as caught:
        ChatTemplate(source).render([USER])
    assert caught.value.hint is not None
    assert "--raw" in caught.value.hint


def test_format_strings_see_no_insides() -> None:
    template = ChatTemplate("[{{ '{0.__class__}{0.__class__.__init__}'.format(messages) }}]")
    assert template.render([USER]) == "[]"


def test_arithmetic_stays_possible() -> None:
    assert ChatTemplate("{{ 3 * 4 }} {{ '-' * 3 }} {{ 2 ** 10 }}").render([USER]) == "12 --- 1024"


def fallback(tmp_path: Path, markers: set[str]) -> ChatTemplate:
    (tmp_path / "m.gguf").write_bytes(tiny_model().to_bytes())
    info = replace(read_model_info(tmp_path / "m.gguf"), chat_markers=frozenset(markers))
    return ChatTemplate.from_info(info)


def test_fallback_chatml(tmp_path: Path) -> None:
    template = fallback(tmp_path, {"<|im_start|>", "<|im_end|>", "<|eot_id|>"})
    assert (template.origin, template.stop) == ("chatml", ("<|im_end|>",))
    assert template.render([SYSTEM, USER]) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi <b>&</b><|im_end|>\n<|im_start|>assistant\n"
    )
    assert not template.adds_bos


def test_fallback_gemma(tmp_path: Path) -> None:
    template = fallback(tmp_path, {"<start_of_turn>", "<end_of_turn>"})
    assert template.origin == "gemma"
    assert template.render([SYSTEM, USER, ANSWER, USER]) == (
        "<s><start_of_turn>user\nBe brief.\n\nHi <b>&</b><end_of_turn>\n<start_of_turn>model\nHello!<end_of_turn>\n"
        "<start_of_turn>user\nHi <b>&</b><end_of_turn>\n<start_of_turn>model\n"
    )
    assert template.adds_bos


def test_fallback_llama3(tmp_path: Path) -> None:
    template = fallback(tmp_path, {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"})
    assert template.origin == "llama3"
    assert template.render([SYSTEM, USER]) == (
        "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi <b>&</b><|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_fallback_plain_words(tmp_path: Path) -> None:
    template = fallback(tmp_path, {"<|im_start|>"})
    assert (template.origin, template.stop) == ("plain", ("\nUser:",))
    assert template.render([SYSTEM, USER, ANSWER, USER]) == (
        "Be brief.\n\nUser: Hi <b>&</b>\nAssistant: Hello!\nUser: Hi <b>&</b>\nAssistant:"
    )
    assert not template.adds_bos


def test_the_models_own_template_wins(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(
        tiny_model(tokenizer__chat_template=("str", "{{ bos_token }}{{ messages[0].content }}")).to_bytes()
    )
    template = ChatTemplate.from_info(read_model_info(path))
    assert (template.origin, template.stop) == ("model", ())
    assert template.render([USER]) == "<s>Hi <b>&</b>"


def test_jinja_is_imported_by_the_first_rendering() -> None:
    code = (
        "import sys; from ingle.models.chat_template import ChatTemplate, Message; t = ChatTemplate('x'); "
        "print('jinja2' in sys.modules, t.render([Message('user', 'y')]), 'jinja2' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "x", "True"]
