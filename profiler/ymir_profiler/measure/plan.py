"""From a recipe to the list of measurements of one kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product

from ymir_opt.domain.base import nearest
from ymir_opt.domain.errors import InputError, NotFoundError
from ymir_profiler.measure.base import Measurement
from ymir_profiler.measure.runs import JointRun, SoloRun, WarmRun
from ymir_profiler.measure.scored import ScoreOf
from ymir_profiler.measure.speed import BackboneSize, Throughput
from ymir_profiler.measure.switch import Switch
from ymir_profiler.measure.together import Colocate, GpuShare
from ymir_profiler.recipe import Recipe

__all__ = ["KINDS", "measurements"]


def _throughput(recipe: Recipe) -> list[Measurement]:
    grid = recipe.throughput
    return [
        BackboneSize(),
        *(
            Throughput(peft_type, batch, length, threads)
            for threads, peft_type, length, batch in product(
                grid.threads, grid.peft_types, grid.lengths, grid.batch_sizes
            )
        ),
    ]


def _switch(_recipe: Recipe) -> list[Measurement]:
    return [Switch()]


def _colocation(recipe: Recipe) -> list[Measurement]:
    grid = recipe.colocation
    of: Mapping[str, Callable[[int, int, int], Measurement]] = {"colocate": Colocate, "gpu_share": GpuShare}
    return [
        BackboneSize(),
        *(
            of[mode](members, batch, grid.length)
            for mode, members, batch in product(grid.modes, grid.members, grid.batch_sizes)
        ),
    ]


def _require_tasks(recipe: Recipe, least: int) -> None:
    if len(recipe.tasks) < least:
        raise InputError("tasks", f"the recipe has {len(recipe.tasks)}", f"add {least} [[tasks]] or more")


def _convergence(recipe: Recipe) -> list[Measurement]:
    _require_tasks(recipe, 1)
    return [SoloRun(task.name, seed) for seed in recipe.training.seeds for task in recipe.tasks]


def _transfer(recipe: Recipe) -> list[Measurement]:
    """Return solo runs, scores, then warm and joint runs: what is cheap and guides comes first."""
    _require_tasks(recipe, 2)
    seeds = recipe.training.seeds
    pairs = recipe.pairs()
    used = {name for pair in (*pairs, *recipe.transfer.joint) for name in pair}
    return [
        *(SoloRun(task.name, seed) for seed in seeds for task in recipe.tasks if task.name in used),
        *(ScoreOf(score, *pair) for score in recipe.transfer.scores for pair in pairs),
        *(WarmRun(*pair, seed) for pair in pairs for seed in seeds),
        *(JointRun(pair, seed) for pair in recipe.transfer.joint for seed in seeds),
    ]


KINDS: Mapping[str, Callable[[Recipe], list[Measurement]]] = {
    "throughput": _throughput,
    "switch": _switch,
    "convergence": _convergence,
    "transfer": _transfer,
    "colocation": _colocation,
}


def measurements(kind: str, recipe: Recipe) -> list[Measurement]:
    """Return everything that a recipe asks for of one kind, in a sensible order.

    Raises
    ------
    NotFoundError
        If the kind is unknown.
    InputError
        If the recipe has too few tasks for it.
    """
    if kind not in KINDS:
        raise NotFoundError("profile", f"{kind!r} is unknown", nearest(kind, set(KINDS)))
    return KINDS[kind](recipe)
