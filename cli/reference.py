# docs/cli.md, made from the commands' own --help, so that it cannot say anything else.
"""``python -m ingle.cli.reference > docs/cli.md``"""

from __future__ import annotations

import sys

from typer.testing import CliRunner

from ingle.cli.app import app
from ingle.cli.bench.commands import MEASURE
from ingle.cli.chat_commands import COMMANDS
from ingle.cli.settings import TABLE

WIDTH = 100

_JSON = """\
## JSON

`ingle run --json` prints one object:

| key | |
|---|---|
| `version` | 1; changes when a key changes its meaning or goes |
| `model` | short name of the model |
| `text` | the answer |
| `finish_reason` | `stop` (the model ended it, or a stop text did), `length` (the limit, or the context, is reached), `abort` (Ctrl-C), `deadline` (its time was up) or `error` |
| `usage` | `prompt_tokens`, `completion_tokens`, `total_tokens`, `prompt_tokens_details.cached_tokens` |
| `cache` | where the cached tokens were: `resident_tokens`, `host_tokens` (RAM), `disk_tokens`; `restore_ms` to bring them back; `saved_ms`, about what computing them would have taken more (null where unknown) |
| `drafts` | `draft_tokens` (guessed ahead and computed) and `accepted_tokens` (the right ones among them) |
| `timings` | milliseconds: `load_ms`, `queue_ms`, `prefill_ms`, `ttft_ms` (to the first token), `tpot_ms` (each further token), `e2e_ms`; null where there was nothing to measure |
| `seed` | gives the same text again with `--seed` |

`ingle run --jsonl` reads objects, one a line: `prompt`, and where wanted `id`, `system`, `max_tokens`, `temp`, `top_k`,
`top_p`, `min_p`, `repeat_penalty`, `seed`, `stop` (a text or a list). Up to 8 are computed together. For each line, in
the same order, it prints the object above with `id` and without `load_ms`, or `version`, `id`, `error` and `hint`; after
an error the exit code is 1.

`ingle chat --json` prints the object above for every turn, without `load_ms`, with `dropped_exchanges` (how many earlier
exchanges had to leave the context for this one) and `session` (its name; null: it is not kept). So does
`ingle run --session NAME --json`. For a turn that fails `ingle chat --json` prints `version`, `error` and `hint`, and the
exit code is 1 at the end.

`ingle pull --json` prints `version`, `model`, `source` (repo, package or path), `commit`, `quant`, `licence`, `gated`,
`size_bytes`, `download_bytes` (what was missing, or with `--dry-run` is), `files` (each with `name`, `size_bytes` and
`sha256`), `dry_run` and `path` (null: it is not here). What is not known is null.

`ingle plan --json` prints `version`, `model`, `architecture`, `quant`, `is_on_disk`, `draft`, `n_ctx`, `n_ctx_train`,
`parallel`, `cache_type_k`, `cache_type_v`, `gpu_layers`, `num_layers`; bytes by part `start` and `full` (of the KV pool at
the start, and when it holds `n_ctx` tokens for each sequence), `peak_host_bytes` and `peak_gpu_bytes` (while it grows to
that), `free_host_bytes`, `free_gpu_bytes` (null: no GPU); `fits`, `largest_context` and `largest_context_q8_0` (tokens; null:
none, or not asked), `quants` of the repo (`quant`, `size_bytes`, `peak_host_bytes`, `fits`), `take` (the one to take), `notes`.

`ingle cache info --json` prints `version`, `directory`, `num_pages`, `num_bytes` and `folders`, each with `model`, `file`,
`architecture`, `type_k`, `type_v`, `path`, `num_pages`, `num_bytes` and `last_used` (seconds since 1970);
`ingle cache verify --json` `version`, `num_good`, `num_removed` and `num_bytes` (of the good ones);
`ingle cache clear --json` `version`, `num_pages` and `num_bytes`.

`ingle list --json` prints `version`, `num_bytes` and `models`, each with `name` (as after `-m`), `place` (`ingle`: ours;
`hub`: the Hugging Face cache; `yours`: below `model_dirs`), `path`, `files` (all shards), `size_bytes`, `repo` and `revision`
(of the hub's), `quant`, `num_params`, `n_ctx_train`, `architecture`, `licence`, `not_generative` (why it cannot answer),
`last_used` (seconds since 1970) and `problem` (why it cannot be used); null where unknown.

`ingle show MODEL --json` prints `version`, of the above `name` to `last_used` where they concern one file, and `num_files`,
`num_layers`, `n_embd`, `n_head`, `n_head_kv`, `bits_per_weight`, `tensors` (a list: `type`, `num_tensors`, `num_params`,
`num_bytes`, `bits_per_weight`), `kv_bytes_per_token` (by type; null where it does not fit), `sliding_window`,
`num_window_layers`, `reuse` (`blocks`, `blocks with window` or `whole conversation only`), `tokenizer` (`kind`, `pre`,
`vocab_size`, `full_vocab_size` (of a draft file that knows only some tokens: of its target, else null), `adds_bos`, `special`:
role → `id` and `text`), `chat_template` and `metadata`.

`ingle rm --json` prints `version`, `freed_bytes` and `models`, each with `name`, `removed`, `freed_bytes` and `kept` (a
sentence for everything that stays).

`ingle bench --json` prints, and `--save` keeps, `version`, `date`, `is_complete`, `stopped_by` (why it is not), `settings`,
`machine` (hardware, governor, system, versions, the commit of llama.cpp), `models` (each with `name`, `file`, `sha256`),
`conditions` (load, CPU pressure, throttling, frequency and battery before, during and after), `warnings`,
`read_bandwidth_bytes_per_s` (by number of threads) and `rows`, each with a `kind`:

- `engine`: llama-bench's keys (`avg_ts`, `samples_ns`, …), `test`, `model`, `median_ts`, `ci95_ts`, `outliers` (indices of
  samples), `num_warm_runs`, `is_steady`, `bytes_per_token` and `roofline_share` (of generating on the CPU: weights and KV
  read for a token, times the speed, of the bandwidth), `joules_per_token` (null where nothing counts them).
- `serving`: `concurrency` or `request_rate`, `completed`, `failed`, `failures` (reason → how many), `request_throughput`,
  `output_throughput`, `total_token_throughput`, `request_goodput` (with `--slo`),
  `{mean,median,std,p50,p95,p99}_{ttft,tpot,itl,e2el,queue}_ms`, `ci95_{ttft,tpot,e2el}_ms`, `prefix_cache_hit_rate`,
  `num_preemptions`, `peak_kv_cache_usage`, `kv_timeline`, `samples`. With `--rate` latencies count from the moment a
  request was meant to be sent. Null is what a server does not tell.
- `resume`: `median_cold_ttft_ms`, `median_restored_ttft_ms`, `num_restored_tokens`, `median_speedup`, `ci95_speedup`.
- `drafts`: `median_plain_ts`, `median_draft_ts` (tokens a second from the first one on), `median_speedup`, `ci95_speedup`,
  `num_draft_tokens`, `num_accepted_tokens`, `acceptance`, `draft_model` and `draft_tokens` (null: none, and as pays).

`ingle bench -o json` and `-o jsonl` print the rows alone, as llama-bench does. `ingle bench compare --json` prints `version`,
`base`, `new`, `tolerance`, `has_regression`, `changes` (`test`, `figure`, `base`, `new`, `ratio`, `interval`,
`is_regression`), `only_base`, `only_new` and `notes`; `ingle bench list --json` `version`, `directory` and `results`.

`ingle eval --json` prints `version`, `model`, `num_chunks`, `chunk_tokens`, `num_scored_tokens`, `perplexity`,
`perplexity_error` (one standard error) and `against`: null, or `model`, `perplexity`, `perplexity_error` of the reference
and `mean_kl`, `mean_kl_interval` (95 %), `kl_99`, `max_kl` (nats), `same_top` (a share).

`ingle quantize --json` prints `version`, `dry_run`, `model` (`path`, `num_bytes`, `type`, and `sha256`, null for a dry run),
`imatrix` (null without one; `path`, null where it was measured, `num_entries` used, `num_missing` matrices without one,
`num_unseen_experts`, and `kept`, the file written by `--keep-imatrix` or null), `calibration` (null without; `text`, `sha256` of
its tokens, `num_tokens`), `files` and `verdict`. Each of `files` has `path`, `type`, `num_bytes` (of the file; for a dry run of its
tensors), `bits_per_weight`, `num_tensors` (by type), `num_fallbacks` (tensors whose rows no block of the wanted type divides),
`methods` (of `imatrix`, `awq`, `gptq`, what it was made with), `held_out_kl` (of every candidate that was tried) and, judged
against the source, `perplexity`, `mean_kl`, `mean_kl_interval` (95 %), `kl_99`, `same_top`, null without a text,
`prompt_tokens_per_s`, `generated_tokens_per_s` and `memory_bytes` (predicted, for 4,096 tokens of context); for a dry run instead
`tensors`, each with `name`, `shape` (columns first), `from` and `to`. `verdict` (null where the model cannot be run) has `text`,
`num_chunks`, `source` (the same figures of it), `recommended` (a type) and `reason`.

`ingle quantize --for-draft --json` prints `version`, `path`, `type`, `num_bytes`, `source_same_top` (how often MODEL's likeliest
token is TARGET's) and `candidates`, each with `type`, `num_bytes`, `same_top`, `cost` (a token's measured time, TARGET's being 1)
and `expected_gain` (TARGET's speed with it, alone being 1); a `type` that ends in ` short` knows only some of the tokens.

`ingle doctor --json` prints `version`, what the lines of `ingle doctor` say, and `problems`, a list of texts.
"""  # noqa: E501

_CODES = """\
## Exit codes

| code | |
|---|---|
| 0 | done |
| 1 | failure; `doctor` found a problem; a line of `--jsonl` or a piped turn of `chat` failed; `bench compare` found a regression; no request of `bench` was answered |
| 2 | the command line, a setting or the prompt makes no sense (too long for the context, say); or a file exists |
| 66 | input, model or conversation not found, or not text |
| 69 | the model's server, or that of `bench --url`, cannot be reached, is in trouble, or sends something wrong |
| 74 | disk full, or a folder that cannot be written |
| 75 | not enough memory: try again, smaller; or the conversation is open in another process |
| 76 | bad model file: corrupt, or of a kind that cannot be used; or a conversation's file or importance matrix that is none |
| 77 | gated model, or a token that was refused |
| 130 · 143 · 129 | Ctrl-C · SIGTERM · SIGHUP; what was said until then is on stdout |
| 141 | nobody reads stdout any more |

An error is one line of what happened and at most one of what to do. `INGLE_DEBUG=1` adds the traceback.
"""  # noqa: E501


def reference() -> str:
    """The whole page."""
    parts = [
        "# The command line",
        "Made from `--help` by `python -m ingle.cli.reference > docs/cli.md`.",
        _help(),
    ]
    for command in app.registered_commands:
        assert command.name is not None
        parts += [f"## ingle {command.name}", _help(command.name)]
        if command.name == "chat":
            parts.append(_chat_commands())
    for group in app.registered_groups:
        assert group.typer_instance is not None
        name = group.typer_instance.info.name
        assert isinstance(name, str)
        for command in group.typer_instance.registered_commands:
            assert command.name is not None
            words = (name,) if command.name == MEASURE else (name, command.name)
            parts += [f"## ingle {' '.join(words)}", _help(*words)]
    settings = ", ".join(f"`{name}`" for name in TABLE)
    parts += [
        "## Settings",
        "A flag wins over the environment, which wins over `config.toml` (`ingle doctor` says where). In the\n"
        "environment a setting is in capitals after `INGLE_`, such as `INGLE_CTX_SIZE=8192`. There are:",
        f"{settings}.",
        "`model_dirs` has no flag: folders of yours whose GGUF files `ingle list` shows, with the folders in them,\n"
        'such as `model_dirs = ["~/gguf"]`; in `INGLE_MODEL_DIRS` with colons between them. `ingle rm` deletes\n'
        "nothing there.",
        _JSON.rstrip(),
        _CODES.rstrip(),
    ]
    return "\n\n".join(parts) + "\n"


def _help(*command: str) -> str:
    result = CliRunner().invoke(app, [*command, "--help"], prog_name="ingle", terminal_width=WIDTH)
    return f"```\n{result.output.rstrip()}\n```"


def _chat_commands() -> str:
    rows = [f"| `{f'{c.name} {c.arguments}'.strip()}` | {c.help} |" for c in COMMANDS.values()]
    return "\n".join(
        ["In the chat (a command may be shortened, to two letters at least):", "", "| | |", "|---|---|", *rows]
    )


if __name__ == "__main__":
    sys.stdout.write(reference())
