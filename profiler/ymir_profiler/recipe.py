"""Recipes: what to measure, as TOML."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from ymir_opt.domain.base import Id, Labels, Model, Positive, first_error
from ymir_opt.domain.errors import InputError, NotFoundError

__all__ = [
    "AdapterRecipe",
    "ColocationRecipe",
    "ModelRecipe",
    "Recipe",
    "TaskRecipe",
    "ThroughputRecipe",
    "TrainingRecipe",
    "TransferRecipe",
    "read_recipe",
    "recipe_from",
]

MAX_BYTES = 1 << 20
Size = Annotated[int, Field(ge=1, le=10**7)]


class ModelRecipe(Model):
    """The foundation model: see ``ymir_opt.runtime.backbone.BackboneSpec``."""

    name_or_path: str = "minilm"
    layers: Annotated[int, Field(ge=1, le=1000)] | None = None
    width: Annotated[int, Field(ge=8, le=65536)] = 64
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"


class TaskRecipe(Model):
    """One task: a corpus by name or a local file, the labels it keeps, the half it takes."""

    name: Id
    corpus: str | None = None
    file: str | None = None
    text_column: str = "text"
    label_column: str = "label"
    labels: tuple[str, ...] = ()
    label_groups: Labels | None = None
    half: Literal["a", "b"] | None = None
    family: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> TaskRecipe:
        if (self.corpus is None) == (self.file is None):
            raise ValueError("give one of corpus and file")
        return self


class AdapterRecipe(Model):
    """LoRA hyper-parameters, the same for every run of the recipe."""

    r: Annotated[int, Field(ge=1, le=1024)] = 8
    lora_alpha: Positive = 16.0
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.05
    learning_rate: Positive = 1e-3
    head_learning_rate: Positive | None = None
    weight_decay: Annotated[float, Field(ge=0, le=10)] = 0.0
    warmup_steps: Annotated[int, Field(ge=0, le=10**6)] = 0


class TrainingRecipe(Model):
    """Runs: how long, on how many rows, when evaluated, with which seeds.

    ``eval_at`` are numbers of training samples; the last of them ends the run. A solo run goes on,
    without evaluations, to ``source_samples`` where that is more, since its adapter is what others start
    from. The target is a fraction
    of the task's mean final metric alone, above the share of the largest class.
    """

    batch_size: Size = 16
    max_length: Annotated[int, Field(ge=4, le=8192)] = 48
    train_rows: Size = 2000
    test_rows: Size = 400
    eval_at: Annotated[tuple[Size, ...], Field(min_length=1, max_length=200)] = (32, 64, 128, 256, 512)
    source_samples: Size | None = None
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1, max_length=50)] = (0, 1, 2)
    target_fraction: Annotated[float, Field(gt=0, le=1.5)] = 0.9

    @model_validator(mode="after")
    def _growing(self) -> TrainingRecipe:
        if any(b <= a for a, b in zip(self.eval_at, self.eval_at[1:], strict=False)):
            raise ValueError("eval_at must grow")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("seeds contains one twice")
        return self


class TransferRecipe(Model):
    """Pairs (source, target): listed, or every ordered pair of tasks up to ``max_pairs``."""

    pairs: tuple[tuple[Id, Id], ...] = ()
    joint: tuple[tuple[Id, Id], ...] = ()
    max_pairs: Size | None = None
    scores: tuple[str, ...] = ()


class ThroughputRecipe(Model):
    """A grid of step configurations."""

    peft_types: tuple[str, ...] = ("LORA",)
    batch_sizes: tuple[Size, ...] = (1, 8, 32)
    lengths: tuple[Size, ...] = (32,)
    threads: tuple[Annotated[int, Field(ge=1, le=1024)], ...] = (1,)
    relative_width: Annotated[float, Field(gt=0, lt=1)] = 0.1
    max_steps: Size = 40
    warmup_steps: Annotated[int, Field(ge=0, le=1000)] = 2


class ColocationRecipe(Model):
    """Groups of K alike members, for each mode, K and batch of a member."""

    modes: tuple[Literal["colocate", "gpu_share"], ...] = ("colocate",)
    members: tuple[Annotated[int, Field(ge=2, le=64)], ...] = (2, 4, 8)
    batch_sizes: tuple[Size, ...] = (1, 2, 4)
    length: Size = 32


class Recipe(Model):
    """A whole recipe."""

    name: Id
    device: str = "cpu"
    gpu_type: Id | None = None
    model: ModelRecipe = ModelRecipe()
    adapter: AdapterRecipe = AdapterRecipe()
    training: TrainingRecipe = TrainingRecipe()
    tasks: tuple[TaskRecipe, ...] = ()
    transfer: TransferRecipe = TransferRecipe()
    throughput: ThroughputRecipe = ThroughputRecipe()
    colocation: ColocationRecipe = ColocationRecipe()

    @model_validator(mode="after")
    def _names(self) -> Recipe:
        names = [task.name for task in self.tasks]
        if len(set(names)) < len(names):
            raise ValueError("two tasks have the same name")
        for pair in (*self.transfer.pairs, *self.transfer.joint):
            for name in pair:
                if name not in names:
                    raise ValueError(f"the pair {pair[0]} -> {pair[1]} names the unknown task {name}")
            if pair[0] == pair[1]:
                raise ValueError(f"the pair {pair[0]} -> {pair[1]} is one task")
        return self

    def task(self, name: str) -> TaskRecipe:
        """Return a task by name."""
        return next(task for task in self.tasks if task.name == name)

    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Return the pairs (source, target) to measure by warm starts."""
        if self.transfer.pairs:
            return self.transfer.pairs
        names = [task.name for task in self.tasks]
        return tuple((a, b) for a in names for b in names if a != b)


def _tuples(value: Any) -> Any:
    """Return TOML's arrays as tuples, which strict validation asks for."""
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    if isinstance(value, Mapping):
        return {key: _tuples(item) for key, item in value.items()}
    return value


def recipe_from(document: Mapping[str, Any]) -> Recipe:
    """Return the recipe of a parsed document; raises `InputError`."""
    try:
        return Recipe.model_validate(_tuples(document))
    except ValidationError as error:
        raise first_error(error, Recipe) from None


def read_recipe(path: Path) -> Recipe:
    """Read and validate a recipe; files of tasks are relative to it.

    Raises
    ------
    InputError
        Naming place, value and remedy of the first fault.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise NotFoundError(str(path), "no such file", "name a recipe in TOML") from None
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror})", "name a readable file") from None
    if len(data) > MAX_BYTES:
        raise InputError(str(path), f"is larger than {MAX_BYTES >> 20} MiB", "name a recipe in TOML")
    try:
        document = tomllib.loads(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InputError(str(path), f"is not TOML ({error})", "correct the file") from None
    recipe = recipe_from(document)
    tasks = tuple(
        task.model_copy(update={"file": str((path.parent / task.file).resolve())}) if task.file else task
        for task in recipe.tasks
    )
    return recipe.model_copy(update={"tasks": tasks})
