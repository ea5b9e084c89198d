"""A job's data: read, split, turned into the model's inputs, and taken in an order that has no state."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ymir_opt.domain.errors import InputError, NotFoundError
from ymir_opt.domain.request import DataSource
from ymir_opt.runtime.backbone import Backbone
from ymir_opt.runtime.files import READERS, Example, read_file
from ymir_opt.runtime.randomness import derive_seed
from ymir_opt.runtime.session import Inputs

__all__ = [
    "CHARACTERS_PER_TOKEN",
    "EVALUATION_BATCH",
    "Encoded",
    "JobData",
    "Stream",
    "load_data",
    "split_rows",
]

# tokens are rarely longer; what is beyond cannot reach the model
CHARACTERS_PER_TOKEN = 12
EVALUATION_BATCH = 64
EVALUATION_SHARE = 5


@dataclass(frozen=True)
class Encoded:
    """Rows as the backbone's inputs, with their labels.

    Attributes
    ----------
    inputs : mapping of str to torch.Tensor
        Rows first, padded to the longest row.
    labels : torch.Tensor, shape (rows,)
    """

    inputs: Inputs
    labels: torch.Tensor

    def take(self, indices: Sequence[int]) -> Encoded:
        """Return some rows, padded to the longest of them only."""
        index = torch.as_tensor(list(indices), device=self.labels.device)
        inputs = {key: value[index] for key, value in self.inputs.items()}
        mask = inputs.get("attention_mask")
        if mask is not None:
            longest = int(mask.sum(dim=1).max())
            inputs = {key: value[:, :longest] for key, value in inputs.items()}
        return Encoded(inputs, self.labels[index])

    def by_length(self, size: int = EVALUATION_BATCH) -> list[list[int]]:
        """Return batches of rows of like length, for evaluation."""
        mask = self.inputs.get("attention_mask")
        count = len(self.labels)
        lengths = np.zeros(count) if mask is None else mask.sum(dim=1).cpu().numpy()
        order = [int(i) for i in np.argsort(lengths, kind="stable")]
        return [order[i : i + size] for i in range(0, count, size)]


@dataclass(frozen=True)
class JobData:
    """What a job trains and is evaluated on.

    Attributes
    ----------
    train, test : Encoded
    classes : tuple of str
        Label names in the order of their numbers.
    sha256 : str
        Of every row of both parts: a job never goes on with other data than it began with.
    """

    train: Encoded
    test: Encoded
    classes: tuple[str, ...]
    sha256: str


class Stream:
    """The order in which training rows are taken: shuffled anew each epoch, a function of the seed alone.

    Since any position can be asked for, the place in the stream is one number: the samples taken so far.
    """

    def __init__(self, seed: int, rows: int) -> None:
        self.seed = seed
        self.rows = rows
        self._epochs: dict[int, list[int]] = {}

    def _epoch(self, number: int) -> list[int]:
        if number not in self._epochs:
            rng = np.random.default_rng(derive_seed(self.seed, "order", number))
            self._epochs = {n: order for n, order in self._epochs.items() if n >= number - 1}
            self._epochs[number] = [int(i) for i in rng.permutation(self.rows)]
        return self._epochs[number]

    def take(self, position: int, count: int) -> list[int]:
        """Return the rows at ``position``, ``position + 1``, ...; they may cross into the next epoch."""
        return [self._epoch(at // self.rows)[at % self.rows] for at in range(position, position + count)]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def split_rows(rows: Sequence[Example]) -> tuple[list[Example], list[Example]]:
    """Return training and evaluation rows: of each class the fifth with the smallest hashes evaluates.

    The split depends on the rows' content alone, not on their order; a text that occurs twice is kept
    once, so that no evaluation row is trained on.
    """
    unique: dict[str, str] = {}
    for text, label in rows:
        unique.setdefault(text, label)
    by_label: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for text, label in unique.items():
        by_label[label].append((_hash(text), text))
    train: list[tuple[str, Example]] = []
    test: list[tuple[str, Example]] = []
    for label, keyed in by_label.items():
        keyed.sort()
        cut = len(keyed) // EVALUATION_SHARE
        test += [(key, (text, label)) for key, text in keyed[:cut]]
        train += [(key, (text, label)) for key, text in keyed[cut:]]
    return [row for _, row in sorted(train)], [row for _, row in sorted(test)]


def _split_file(folder: Path, split: str) -> Path:
    found = [path for ending in READERS if (path := folder / f"{split}{ending}").is_file()]
    if not found:
        names = ", ".join(f"{split}{ending}" for ending in READERS)
        raise NotFoundError(str(folder), f"has no file of the split {split!r}", f"put one of {names} there")
    return found[0]


def _read(source: DataSource) -> tuple[list[Example], list[Example]]:
    path = Path(source.path)
    columns = (source.text_column, source.label_column)
    if path.is_dir():
        train = read_file(_split_file(path, source.train_split), *columns)
        return train, read_file(_split_file(path, source.eval_split), *columns)
    if not path.exists():
        raise NotFoundError(f"data.path {path}", "no such file or folder", "name existing data")
    return split_rows(read_file(path, *columns))


def load_data(source: DataSource, max_length: int, backbone: Backbone) -> JobData:
    """Read a job's rows and turn them into inputs on the backbone's device.

    Raises
    ------
    NotFoundError
        If a file or column is missing.
    InputError
        If the data is damaged, has fewer than two classes, or evaluation rows of a class that training
        rows lack.
    """
    train, test = _read(source)
    place = f"data.path {source.path}"
    classes = tuple(sorted({label for _, label in train}))
    if len(classes) < 2:
        problem = f"has {len(classes)} class in {len(train)} training rows"
        raise InputError(place, problem, "give rows of two classes or more")
    if not test:
        raise InputError(place, "has no row to evaluate on", "give five rows a class, or a split of its own")
    unknown = sorted({label for _, label in test} - set(classes))
    if unknown:
        problem = f"{unknown[0]!r} is only in the evaluation rows"
        raise InputError(place, problem, f"train on it, or correct the column {source.label_column}")
    digest = hashlib.sha256()
    for part in (train, test):
        for text, label in part:
            digest.update(f"{_hash(text)} {label}\n".encode("utf-8", "replace"))
        digest.update(b"\n")
    return JobData(
        _encode(train, classes, max_length, backbone),
        _encode(test, classes, max_length, backbone),
        classes,
        digest.hexdigest(),
    )


def _encode(rows: Sequence[Example], classes: Sequence[str], max_length: int, backbone: Backbone) -> Encoded:
    device = next(backbone.model.parameters()).device
    number = {label: i for i, label in enumerate(classes)}
    inputs = backbone.encode([text[: CHARACTERS_PER_TOKEN * max_length] for text, _ in rows], max_length)
    labels = torch.tensor([number[label] for _, label in rows], device=device)
    return Encoded({key: value.to(device) for key, value in inputs.items()}, labels)
