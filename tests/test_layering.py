# Who may import whom. Reads the sources' imports, wherever in a file they stand; runs none of them.
from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Package → what of ours its files may import: prefixes of module names.
MAY_IMPORT = {
    "models": ("ingle.models",),
    "runtime": ("ingle.models", "ingle.runtime"),
    "quant": ("ingle.models", "ingle.runtime", "ingle.quant"),
    "cli": ("ingle.",),
}

# quant sees runtime's face, its values and llama.py, but no insides.
RUNTIME_INSIDES = {"blocks", "prefix", "kv_manager", "scheduler", "sequence", "step", "executor", "sampler"}

# Library → the only files that may import it.
ONLY_IN = {
    "llama_cpp": {"runtime/llama.py"},
    "prompt_toolkit": {"cli/repl.py"},
    "huggingface_hub": {"models/hub.py"},
    "rich": {"cli/progress.py", "cli/bench/tables.py"},
    "matplotlib": {"cli/bench/plots.py", "cli/quantize_plot.py"},
    "click": set(),
}


def sources() -> list[Path]:
    return sorted(path for package in MAY_IMPORT for path in (ROOT / package).rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Names of all modules a file imports, `from a import b` as both `a` and `a.b`."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            assert node.module is not None
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module":
            names |= {argument.value for argument in node.args if isinstance(argument, ast.Constant)}
    return names


def faults(path: Path) -> list[str]:
    """What is wrong with the imports of a file."""
    file = path.relative_to(ROOT).as_posix()
    package = file.split("/")[0]
    found = []
    for name in imported(path):
        if name.startswith("ingle.") and not f"{name}.".startswith(MAY_IMPORT[package]):
            found.append(f"{file} imports {name}")
        if package == "quant" and name.startswith("ingle.runtime.") and name.split(".")[2] in RUNTIME_INSIDES:
            found.append(f"{file} imports {name}, which is inside the runtime")
        library = name.split(".")[0]
        if library in ONLY_IN and file not in ONLY_IN[library]:
            found.append(f"{file} imports {library}")
    return found


@pytest.mark.parametrize("path", sources(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_run_downwards(path: Path) -> None:
    assert faults(path) == []


def test_the_check_sees_what_it_should(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "models").mkdir()
    bad = tmp_path / "models" / "bad.py"
    bad.write_text("def f():\n    from ingle.runtime import errors\n    import llama_cpp.llama_cpp\n    import click\n")
    assert sorted(faults(bad)) == [
        "models/bad.py imports click",
        "models/bad.py imports ingle.runtime",
        "models/bad.py imports ingle.runtime.errors",
        "models/bad.py imports llama_cpp",
    ]


def test_every_package_is_installed() -> None:
    import tomllib

    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    there = {
        "ingle." + path.parent.relative_to(ROOT).as_posix().replace("/", ".")
        for path in sources()
        if path.name == "__init__.py"
    }
    assert set(listed["packages"]) == there
    assert set(listed["package-dir"]) == there


def test_no_folder_of_ours_lacks_its_init() -> None:
    folders = {path.parent for path in sources()}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []
