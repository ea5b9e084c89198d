"""A task: a data set, what to predict, the split, and the batches of a run."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ymir_opt.domain.errors import InputError
from ymir_opt.runtime.files import Example, read_file
from ymir_opt.runtime.randomness import derive_seed
from ymir_profiler.data.corpora import read_corpus
from ymir_profiler.recipe import TaskRecipe

__all__ = ["TaskData", "batches", "load_task"]

MAX_CHARACTERS = 4000


@dataclass(frozen=True)
class TaskData:
    """Rows of a task, split once and for all.

    Attributes
    ----------
    name, family : str
    classes : tuple of str
        Label names in the order of their numbers.
    train, test : tuple of (str or numpy array, int)
        Text, or image of shape (1, 8, 8), and label number.
    sha256 : str
        Of every row in both parts: what a measurement was made on.
    metric : str
    """

    name: str
    family: str
    classes: tuple[str, ...]
    train: tuple[tuple[Any, int], ...]
    test: tuple[tuple[Any, int], ...]
    sha256: str
    metric: str = "accuracy"

    @property
    def images(self) -> bool:
        """Whether rows are images."""
        return not isinstance(self.test[0][0], str)

    @property
    def majority(self) -> float:
        """Test accuracy of always naming the most frequent class."""
        counts = Counter(label for _, label in self.test)
        return max(counts.values()) / len(self.test)


def _order(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def _text_rows(recipe: TaskRecipe, cache: Path | None) -> list[Example]:
    if recipe.corpus is not None:
        rows = _corpus_rows(recipe.corpus, cache)
    else:
        rows = tuple(read_file(Path(str(recipe.file)), recipe.text_column, recipe.label_column))
    names = dict(recipe.label_groups or {})
    if names:
        rows = tuple((text, names[label]) for text, label in rows if label in names)
    elif recipe.labels:
        rows = tuple(row for row in rows if row[1] in recipe.labels)
    seen: dict[str, str] = {}
    for text, label in rows:
        seen.setdefault(text[:MAX_CHARACTERS], label)
    return list(seen.items())


@lru_cache(maxsize=4)
def _corpus_rows(name: str, cache: Path | None) -> tuple[Example, ...]:
    return tuple(read_corpus(name, cache))


def _digits() -> list[tuple[Any, str]]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = (digits.images / 16.0).astype(np.float32)[:, None, :, :]
    return [(image, str(label)) for image, label in zip(images, digits.target, strict=True)]


def load_task(recipe: TaskRecipe, train_rows: int, test_rows: int, cache: Path | None = None) -> TaskData:
    """Return a task's rows: classes alike in number, test rows first, then training rows.

    Rows are ordered by the hash of their content, so that the split depends on nothing else; ``half``
    keeps those whose hash is even (a) or odd (b), and the halves of one corpus share no row.

    Parameters
    ----------
    recipe : TaskRecipe
    train_rows, test_rows : int
        At most.
    cache : Path, optional
        Where packages with data are kept.

    Raises
    ------
    InputError
        If the task has one class or too few rows.
    NotFoundError
        If its data cannot be had.
    """
    if recipe.corpus == "digits":
        rows: list[tuple[Any, str]] = _digits()
        if recipe.labels:
            rows = [row for row in rows if row[1] in recipe.labels]
        keyed = [(hashlib.sha256(image.tobytes()).hexdigest(), image, label) for image, label in rows]
    else:
        keyed = [(_order(text), text, label) for text, label in _text_rows(recipe, cache)]
    if recipe.half is not None:
        wanted = 0 if recipe.half == "a" else 1
        keyed = [row for row in keyed if int(row[0][-1], 16) % 2 == wanted]
    by_label: dict[str, list[tuple[str, Any]]] = defaultdict(list)
    for key, content, label in sorted(keyed, key=lambda row: row[0]):
        by_label[label].append((key, content))
    classes = tuple(sorted(by_label))
    if len(classes) < 2:
        names = ", ".join(classes) or "none"
        raise InputError(
            f"task {recipe.name}", f"has {len(classes)} class ({names})", "name two or more labels it has"
        )
    train, test = _split(by_label, classes, train_rows, test_rows)
    if len(test) < 2 * len(classes) or len(train) < 2 * len(classes):
        raise InputError(
            f"task {recipe.name}",
            f"has {len(train)} training and {len(test)} test rows for {len(classes)} classes",
            "give it more rows, or fewer labels",
        )
    digest = hashlib.sha256()
    for part in (train, test):
        for key, _, number in part:
            digest.update(f"{key} {classes[number]}\n".encode())
        digest.update(b"\n")
    return TaskData(
        recipe.name,
        recipe.family or recipe.name,
        classes,
        tuple((content, label) for _, content, label in train),
        tuple((content, label) for _, content, label in test),
        digest.hexdigest(),
    )


Keyed = tuple[str, Any, int]


def _split(
    by_label: dict[str, list[tuple[str, Any]]], classes: Sequence[str], train_rows: int, test_rows: int
) -> tuple[list[Keyed], list[Keyed]]:
    """Take rows class by class: a third of a class at most is for the test."""
    per_test = max(1, test_rows // len(classes))
    per_train = max(1, train_rows // len(classes))
    train: list[Keyed] = []
    test: list[Keyed] = []
    for number, label in enumerate(classes):
        rows = by_label[label]
        cut = min(per_test, len(rows) // 3)
        test += [(key, content, number) for key, content in rows[:cut]]
        train += [(key, content, number) for key, content in rows[cut : cut + per_train]]
    return sorted(train, key=lambda r: r[0]), sorted(test, key=lambda r: r[0])


def batches(task: TaskData, batch_size: int, seed: int) -> Iterator[list[int]]:
    """Yield indices of training rows without end, shuffled anew each epoch; the same for the same seed."""
    rng = np.random.default_rng(derive_seed(seed, "order", task.name))
    order: list[int] = []
    while True:
        while len(order) < batch_size:
            order += [int(i) for i in rng.permutation(len(task.train))]
        taken, order = order[:batch_size], order[batch_size:]
        yield taken
