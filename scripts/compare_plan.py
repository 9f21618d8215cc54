"""How well `ingle plan` predicts memory: its figure against the resident memory of a process that runs the model.

usage: scripts/compare-plan [--cells 2048,8192,32768] [--types f16,q8_0] MODEL...

Every case is a process of its own. It opens an engine whose KV pool has its full size from the start, computes a whole
prompt step at the beginning of the context, fills all cells with copies of that step, and lets llama.cpp prepare a
second step behind them, which writes the attention mask over all cells; that step is cut short there, because computing
it would change no memory and takes minutes. Growth is the resident memory then (VmRSS: mapped pages of the weights that
were touched, and all that is anonymous) less that of the bare interpreter. Exit status 1 when a case is off by more
than 5 %.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

LIMIT = 0.05


def resident_bytes() -> int:
    """VmRSS, read without importing anything of ours."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("compare-plan reads /proc/self/status, which only Linux has")


def measure(path: Path, num_cells: int, kv_type: str) -> None:
    """In a process of its own: print what was predicted and what was taken, as JSON."""
    bare = resident_bytes()
    from ingle.models.gguf_info import read_model_info
    from ingle.models.needs import needs
    from ingle.runtime.config import EngineConfig
    from ingle.runtime.engine import Engine
    from ingle.runtime.planning import setting_of

    config = EngineConfig(
        n_ctx=num_cells, initial_kv_tokens=num_cells, type_k=kv_type, type_v=kv_type, max_num_seqs=1, flash_attn=True
    )
    info = read_model_info(path)
    with Engine.open(path, config, model_info=info) as engine:
        executor = engine._executor
        context, scratch, step = executor._context, executor._scratch, config.n_batch
        context.tokens[:] = 1
        context.wanted[-1] = 1

        def decode(start: int) -> int:
            context.positions[:] = range(start, start + step)
            return context.decode(step, interruptible=True)

        assert decode(0) == 0
        context.logits(1)
        payload = context.save(0)
        for _ in range(num_cells // step - 2):  # the last step's cells stay free
            context.restore(scratch, payload)
            context.copy_cells(scratch, 0, 0, step)
            context.drop_cells(scratch, 0)
        del payload
        executor.interrupt()
        assert decode(step) == 2, "the step was to be cut short"
        taken = resident_bytes() - bare
        predicted = needs(info, setting_of(info, config), num_cells)
        print(json.dumps({"predicted": predicted.host_bytes - bare, "taken": taken, "parts": dict(predicted.items())}))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL", help="GGUF files")
    parser.add_argument("--cells", default="2048,8192,32768", help="sizes of the KV pool, in tokens")
    parser.add_argument("--types", default="f16,q8_0", help="types of the KV cache")
    parser.add_argument("--verbose", action="store_true", help="say the parts of each prediction")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    cells = [int(text) for text in options.cells.split(",")]
    types = options.types.split(",")
    if options.one:
        measure(options.models[0], cells[0], types[0])
        return 0
    ok = True
    print(f"{'':44} {'cells':>6} {'type':6} {'predicted':>10} {'taken':>10}  {'off by':>7}")
    for path in options.models:
        for num_cells in cells:
            for kv_type in types:
                command = [sys.executable, __file__, "--one", "--cells", str(num_cells), "--types", kv_type, str(path)]
                found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                off = found["predicted"] / found["taken"] - 1
                ok &= (fits := abs(off) <= LIMIT)
                figures = f"{found['predicted'] / 1e6:7.1f} MB {found['taken'] / 1e6:7.1f} MB  {off:+7.2%}"
                print(f"{path.name:44} {num_cells:6} {kv_type:6} {figures}  {'ok' if fits else 'MISSED'}", flush=True)
                if options.verbose:
                    print("  " + ", ".join(f"{name} {value / 1e6:.1f}" for name, value in found["parts"].items()))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
