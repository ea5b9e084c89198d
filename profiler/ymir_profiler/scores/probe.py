"""What scores need of a task: features, gradients and Fisher information at a common initialisation.

Every part is computed once for a task and remembers what it cost, so that the cost of a score is that
of its parts whoever asked first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ymir_opt.runtime.adapters import Adapter
from ymir_opt.runtime.randomness import derive_seed
from ymir_opt.runtime.session import Rows
from ymir_profiler.measure.bench import Bench
from ymir_profiler.measure.machine import spending
from ymir_profiler.measure.runs import source_adapter

__all__ = ["Probe"]

FloatArray = NDArray[np.float64]
ROWS = 256
FISHER_ROWS = 64
GRADIENT_ROWS = 64
FACTOR_SCALE = 0.02


class Probe:
    """Parts of scores, remembered with their cost in CPU seconds."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.seed = bench.recipe.training.seeds[0]
        self._parts: dict[tuple[Any, ...], tuple[Any, float]] = {}

    def part(self, key: tuple[Any, ...], compute: Callable[[], Any]) -> tuple[Any, float]:
        """Return a part and what it cost when it was computed."""
        if key not in self._parts:
            with spending(self.bench.device) as spent:
                value = compute()
            self._parts[key] = (value, spent.cpu_s)
        return self._parts[key]

    def _chosen(self, task: str, count: int) -> list[int]:
        rows = len(self.bench.task(task).train)
        rng = np.random.default_rng(derive_seed("probe", task))
        return sorted(int(i) for i in rng.permutation(rows)[:count])

    def labels(self, task: str) -> NDArray[np.int64]:
        """Return the labels of the probe rows."""
        chosen = self._chosen(task, ROWS)
        return np.array([self.bench.task(task).train[i][1] for i in chosen], dtype=np.int64)

    def adapter(self, source: str) -> str:
        """Load the source's adapter of the first seed; its training is not part of a score's cost."""
        name = f"source {source} {self.seed}"
        if name not in self.bench.runtime.adapters:
            source_adapter(self.bench, source, self.seed)
        return name

    def features(self, task: str, adapter: str | None) -> tuple[FloatArray, float]:
        """Return pooled states of the probe rows, (rows, hidden), and their cost."""

        def compute() -> FloatArray:
            data = self.bench.encoded(task, "train").take(self._chosen(task, ROWS))
            out = np.zeros((len(data.labels), self.bench.runtime.hidden))
            for indices in data.by_length():
                states = self.bench.runtime.features(data.take(indices).inputs, adapter)
                out[indices] = states.cpu().numpy()
            return out

        return self.part(("features", task, adapter), compute)

    def source_probabilities(self, source: str, target: str) -> tuple[FloatArray, float]:
        """Return what the source's classifier says of the target's probe rows, and the cost."""
        name = self.adapter(source)
        features, cost = self.features(target, name)
        head = self.bench.runtime.adapters[name].heads[source]
        scores = features @ head.weight.detach().cpu().numpy().T + head.bias.detach().cpu().numpy()
        scores -= scores.max(axis=1, keepdims=True)
        likelihood = np.exp(scores)
        return likelihood / likelihood.sum(axis=1, keepdims=True), cost

    def _common(self, task: str) -> Adapter:
        """Return an adapter at the initialisation that all tasks share, with a head fitted to the task.

        The second factors are small random numbers: at zero, as training starts, the first factors
        would have no gradient.
        """
        bench = self.bench
        adapter = bench.runtime.add("probe", bench.spec(derive_seed("common") % 2**31))
        adapter.add_head(task, len(bench.task(task).classes))
        generator = torch.Generator().manual_seed(derive_seed("common factors"))
        with torch.no_grad():
            for weight in adapter.b.values():
                noise = torch.randn(weight.shape, generator=generator) * FACTOR_SCALE
                weight.copy_(noise.to(weight.device))
        self._fit_head(adapter, task)
        return adapter

    def _fit_head(self, adapter: Adapter, task: str) -> None:
        from sklearn.linear_model import LogisticRegression

        states, _ = self.features(task, None)
        scale = float(states.std()) or 1.0
        fitted = LogisticRegression(C=1.0, max_iter=200).fit(states / scale, self.labels(task))
        weight, bias = fitted.coef_ / scale, fitted.intercept_
        if len(weight) == 1:  # two classes are stored as one
            weight, bias = np.vstack([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
        head = adapter.heads[task]
        with torch.no_grad():
            head.weight[fitted.classes_ if len(fitted.classes_) > 2 else slice(None)] = torch.as_tensor(
                weight, dtype=torch.float32, device=head.weight.device
            )
            head.bias[fitted.classes_ if len(fitted.classes_) > 2 else slice(None)] = torch.as_tensor(
                bias, dtype=torch.float32, device=head.bias.device
            )

    def _gradient(self, task: str, indices: list[int], labels: torch.Tensor | None) -> dict[str, FloatArray]:
        data = self.bench.encoded(task, "train").take(indices)
        wanted = data.labels if labels is None else labels
        found = self.bench.runtime.gradients([Rows("probe", task, data.inputs, wanted)])["probe"]
        return {
            key: value.double().cpu().numpy()
            for key, value in found.items()
            if key.endswith((".lora_a", ".lora_b"))
        }

    def gradient(self, task: str) -> tuple[FloatArray, float]:
        """Return the mean gradient of the loss over the factors, as one vector, and its cost."""

        def compute() -> FloatArray:
            self._common(task)
            chosen = self._chosen(task, GRADIENT_ROWS)
            parts = self._gradient(task, chosen, None)
            self.bench.runtime.remove("probe")
            return np.concatenate([value.ravel() for value in parts.values()])

        return self.part(("gradient", task), compute)

    def fisher(self, task: str) -> tuple[FloatArray, float]:
        """Return the Task2Vec embedding, and its cost.

        The diagonal of the Fisher information of the factors, labels drawn from the model's own
        predictions, averaged within each factor's rank direction (Achille et al., "Task2Vec", ICCV 2019,
        average within filters).
        """

        def compute() -> FloatArray:
            adapter = self._common(task)
            rng = np.random.default_rng(derive_seed("fisher", task))
            total: dict[str, FloatArray] = {}
            chosen = self._chosen(task, FISHER_ROWS)
            for index in chosen:
                row = self.bench.encoded(task, "train").take([index])
                logits = self.bench.runtime.logits(row.inputs, "probe", task)
                chance = torch.softmax(logits, dim=1)[0].cpu().numpy().astype(float)
                drawn = int(rng.choice(len(chance), p=chance / chance.sum()))
                label = torch.tensor([drawn], device=row.labels.device)
                for key, value in self._gradient(task, [index], label).items():
                    axis = 0 if key.endswith(".lora_a") else 1
                    squared = (value**2).mean(axis=axis)
                    total[key] = total.get(key, np.zeros_like(squared)) + squared / len(chosen)
            self.bench.runtime.remove(adapter.name)
            return np.concatenate([total[key] for key in sorted(total)])

        return self.part(("fisher", task), compute)
