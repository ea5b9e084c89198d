"""The rules of the house: who may import whom, what loads when, and what no module does."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HOMES = {
    "ymir_opt": ROOT / "ymir_opt",
    "ymir_models": ROOT / "models" / "ymir_models",
    "ymir_profiler": ROOT / "profiler" / "ymir_profiler",
}

# Imports point down this list; rooms on one line do not know each other.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("domain",),
    ("estimates", "jobmodel"),
    ("formulation",),
    ("placement",),
    ("candidates", "solvers", "verify"),
    ("explain",),
    ("planner",),
    ("policies",),
    ("simulator",),
    ("api",),
    ("runtime",),
    ("executors",),
    ("importers", "snapshots"),
    ("report", "whatif"),
    ("service",),
    ("cli",),
)
FLOOR: Mapping[str, int] = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
# what the packages beside the core may know of it; their commands also know the command line and its pages
BESIDE = {"domain", "estimates", "jobmodel", "runtime"}

HEAVY = {
    "cvxpy", "highspy", "kubernetes", "matplotlib", "networkx", "numba", "ortools", "pandas", "peft",
    "plotly", "pulp", "ray", "selenium", "sklearn", "sqlalchemy", "torch", "transformers",
}  # fmt: skip
TRAINING = {"torch", "transformers", "peft"}
PICKLERS = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}


@dataclass(frozen=True)
class Import:
    """One import statement's target."""

    module: str
    target: str
    line: int
    in_function: bool
    for_types: bool


def name_of(path: Path, package: str) -> str:
    parts = path.relative_to(HOMES[package]).with_suffix("").parts
    return ".".join((package, *(parts[:-1] if parts[-1] == "__init__" else parts)))


@cache
def sources() -> Mapping[str, ast.Module]:
    """Return the syntax tree of every module."""
    return {
        name_of(path, package): ast.parse(path.read_text(), str(path))
        for package, home in HOMES.items()
        for path in sorted(home.rglob("*.py"))
    }


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def walk(module: str, node: ast.AST, in_function: bool = False, for_types: bool = False) -> Iterator[Import]:
    """Yield the imports below a node."""
    for child in ast.iter_child_nodes(node):
        inside = in_function or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        types = for_types or is_type_checking(child)
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(module, alias.name, child.lineno, inside, types)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{module}:{child.lineno}: imports are absolute"
            base = child.module or ""
            for alias in child.names:
                full = f"{base}.{alias.name}"
                yield Import(module, full if full in sources() else base, child.lineno, inside, types)
        else:
            yield from walk(module, child, inside, types)


@cache
def imports() -> tuple[Import, ...]:
    return tuple(found for module, tree in sources().items() for found in walk(module, tree))


def ours(target: str) -> bool:
    return target.split(".", maxsplit=1)[0] in HOMES


def room(module: str) -> str:
    """Return ``domain`` of ``ymir_opt.domain.plan``; the package itself has no room."""
    return ([*module.split("."), ""])[1]


def shown(found: list[Import]) -> str:
    return "\n".join(f"{i.module}:{i.line} imports {i.target}" for i in found)


def test_every_room_has_its_floor() -> None:
    rooms = {room(module) for module in sources() if module.startswith("ymir_opt.")} - {"__main__"}
    assert rooms <= set(FLOOR), f"without a floor: {sorted(rooms - set(FLOOR))}"


def test_imports_point_down() -> None:
    wrong = [
        i
        for i in imports()
        if i.module.startswith("ymir_opt.")
        and i.target.startswith("ymir_opt.")
        and not i.for_types
        and room(i.module) != room(i.target)
        and room(i.module) != "__main__"
        and FLOOR[room(i.module)] <= FLOOR[room(i.target)]
    ]
    assert not wrong, shown(wrong)


def test_the_core_does_not_know_the_packages_beside_it() -> None:
    wrong = [
        i
        for i in imports()
        if i.module.split(".")[0] == "ymir_opt" and i.target.split(".")[0] in ("ymir_models", "ymir_profiler")
    ]
    assert not wrong, shown(wrong)


def test_what_the_packages_beside_the_core_know_of_it() -> None:
    wrong = [
        i
        for i in imports()
        if i.module.split(".")[0] in ("ymir_models", "ymir_profiler")
        and i.target.startswith("ymir_opt.")
        and not i.for_types
        and room(i.target) not in BESIDE | ({"cli", "report"} if "commands" in i.module.split(".") else set())
    ]
    assert not wrong, shown(wrong)


def test_no_module_imports_itself_by_a_detour() -> None:
    graph: dict[str, set[str]] = {module: set() for module in sources()}
    for found in imports():
        if ours(found.target) and not found.for_types and found.target != found.module:
            graph[found.module].add(found.target)
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path[path.index(module) :], module))
        if module not in done:
            for target in sorted(graph.get(module, ())):
                visit(target, (*path, module))
            done.add(module)

    for module in sorted(graph):
        visit(module, ())


def test_heavy_packages_are_imported_where_they_are_needed() -> None:
    wrong = [
        i
        for i in imports()
        if i.target.split(".")[0] in HEAVY
        and not i.in_function
        and not i.for_types
        # classes that extend torch's must be defined with it; nothing else imports those rooms
        and not (
            i.target.split(".")[0] in TRAINING
            and (i.module.startswith("ymir_profiler") or room(i.module) == "runtime")
        )
    ]
    assert not wrong, shown(wrong)


def test_the_planning_core_knows_no_torch() -> None:
    wrong = [
        i
        for i in imports()
        if i.module.startswith("ymir_opt.")
        and i.target.split(".")[0] in TRAINING
        and room(i.module) not in ("runtime", "executors")
    ]
    assert not wrong, shown(wrong)


def calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """Yield every call with the dotted name of what is called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def test_nothing_prints_but_the_command_line() -> None:
    wrong = [
        f"{module}:{call.lineno}: {name}"
        for module, tree in sources().items()
        if room(module) != "cli"
        for name, call in calls(tree)
        if name in ("print", "sys.stdout.write", "sys.stderr.write", "breakpoint", "input")
    ]
    assert not wrong, "\n".join(wrong)


def test_no_pickle() -> None:
    wrong = [i for i in imports() if i.target.split(".")[0] in PICKLERS]
    assert not wrong, shown(wrong)
    for module, tree in sources().items():
        for name, call in calls(tree):
            words = {k.arg: ast.unparse(k.value) for k in call.keywords}
            assert words.get("allow_pickle", "False") == "False", f"{module}:{call.lineno}"
            assert not name.endswith(("read_pickle", "to_pickle")), f"{module}:{call.lineno}"
            if name == "torch.load":
                assert words.get("weights_only") == "True", f"{module}:{call.lineno}"
            if name in ("eval", "exec", "yaml.load", "os.system") or words.get("shell") == "True":
                raise AssertionError(f"{module}:{call.lineno}: {name}")


def test_modules_stay_small() -> None:
    # 350 lines is the aim; twice that is no module any more
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for home in HOMES.values()
        for path in home.rglob("*.py")
    }
    assert {name: length for name, length in lengths.items() if length > 700} == {}


ASK = """
import json, sys
before = set(sys.modules)
{code}
names = {{name.split(".")[0] for name in set(sys.modules) - before}}
print(json.dumps(sorted(n for n in names if n not in sys.stdlib_module_names and not n.startswith("_"))))
"""


def loaded_by(code: str, cwd: Path) -> set[str]:
    """Return the top-level packages, none of the standard library's, that a fresh process loads."""
    child = subprocess.run(
        [sys.executable, "-c", ASK.format(code=code)],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert child.returncode == 0, child.stderr
    return set(json.loads(child.stdout.splitlines()[-1]))


def test_importing_the_package_loads_nothing_else(tmp_path: Path) -> None:
    assert loaded_by("import ymir_opt", tmp_path) == {"ymir_opt"}


SIDE_EFFECTS = """
import importlib, logging, os, random, signal, sys, threading, warnings
import numpy
def state():
    return {
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "threads": threading.active_count(),
        "signals": {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)},
        "log handlers": list(logging.getLogger().handlers),
        "random": random.getstate(),
        "numpy random": repr(numpy.random.get_state()),
        "standard output": (sys.stdout, sys.stderr),
        "numpy errors": numpy.geterr(),
    }
before = state()
for name in MODULES:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in OPTIONAL:
            continue
        raise
after = state()
changed = [name for name in before if before[name] != after[name]]
assert not changed, changed
"""


def test_importing_every_module_does_nothing_else(tmp_path: Path) -> None:
    names = [module for module in sources() if not module.endswith("__main__")]
    optional = HEAVY | {"fastapi", "uvicorn", "yaml", "safetensors"}
    code = f"MODULES = {names!r}\nOPTIONAL = {sorted(optional)!r}\n" + SIDE_EFFECTS
    child = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert (child.returncode, child.stdout, child.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


# What one `ymir-plan solve` may load besides the standard library.
MAY_LOAD = {
    "annotated_doc", "annotated_types", "click", "highspy", "markdown_it", "mdurl", "numpy", "pydantic",
    "pydantic_core", "pygments", "rich", "scipy", "shellingham", "typer", "typing_extensions",
    "typing_inspection", "ymir_opt",
}  # fmt: skip


@pytest.mark.parametrize("backend", ["auto", "highs"])
def test_what_solve_loads(backend: str, tmp_path: Path, examples: Path) -> None:
    small = examples / "small.json"
    code = (
        "from ymir_opt.cli.main import run\n"
        f"assert run(['solve', {str(small)!r}, '-o', 'plan.json', '--backend', {backend!r}]) == 0"
    )
    assert loaded_by(code, tmp_path) <= MAY_LOAD


@pytest.mark.parametrize("command", ["schema snapshot", "--version"])
def test_small_commands_load_little(command: str, tmp_path: Path) -> None:
    code = f"from ymir_opt.cli.main import run\nassert run({command.split()!r}) == 0"
    assert not loaded_by(code, tmp_path) & (HEAVY | {"numpy", "scipy"})
