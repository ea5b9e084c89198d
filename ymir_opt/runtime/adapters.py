"""A LoRA adapter: its weights, its heads, its optimiser, its own randomness."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch

from ymir_opt.domain.base import nearest
from ymir_opt.domain.errors import InputError
from ymir_opt.runtime.randomness import derive_seed
from ymir_opt.runtime.schedules import SCHEDULES, rate_factor

__all__ = ["Adapter", "AdapterSpec", "Head"]

OPTIMISERS: Mapping[str, Any] = {"adamw_torch": torch.optim.AdamW, "sgd": torch.optim.SGD}


@dataclass(frozen=True)
class AdapterSpec:
    """Hyper-parameters of one adapter, under the names of PEFT and transformers where they have one.

    Attributes
    ----------
    r : int
        Rank.
    lora_alpha : float
        The product of the two factors is scaled by ``lora_alpha / r``.
    lora_dropout : float
        Dropout on the adapter's input.
    learning_rate, head_learning_rate : float
        Of the factors and of the heads (None: the same), at their highest.
    weight_decay : float
    max_grad_norm : float or None
        Gradients of this adapter (and only of it) are clipped to this norm.
    warmup_steps : int
        Steps over which the learning rate rises linearly.
    seed : int
        Of the initial weights and of dropout.
    lr_scheduler_type : str
        ``constant`` after the warm-up, or ``linear`` or ``cosine`` down to zero at ``training_steps``.
    training_steps : int or None
        Steps of a whole run; needed by schedules that end.
    optim : str
        ``adamw_torch`` or ``sgd``.
    """

    r: int = 8
    lora_alpha: float = 16.0
    lora_dropout: float = 0.05
    learning_rate: float = 2e-4
    head_learning_rate: float | None = None
    weight_decay: float = 0.0
    max_grad_norm: float | None = 1.0
    warmup_steps: int = 0
    seed: int = 0
    lr_scheduler_type: str = "constant"
    training_steps: int | None = None
    optim: str = "adamw_torch"

    def __post_init__(self) -> None:
        if self.r < 1:
            raise InputError("r", f"{self.r} is less than 1", "give a rank of 1 or more")
        if not 0 <= self.lora_dropout < 1:
            raise InputError("lora_dropout", f"{self.lora_dropout} is not in [0, 1)", "give a probability")
        if not (math.isfinite(self.learning_rate) and self.learning_rate >= 0):
            raise InputError("learning_rate", f"{self.learning_rate}", "give a finite rate of 0 or more")
        if self.lr_scheduler_type not in SCHEDULES:
            known = nearest(self.lr_scheduler_type, set(SCHEDULES))
            raise InputError("lr_scheduler_type", f"{self.lr_scheduler_type!r} is unknown", known)
        if self.optim not in OPTIMISERS:
            raise InputError("optim", f"{self.optim!r} is unknown", nearest(self.optim, set(OPTIMISERS)))

    @property
    def scale(self) -> float:
        """What the product of the factors is multiplied by."""
        return self.lora_alpha / self.r

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> AdapterSpec:
        """Return the specification that :meth:`as_dict` wrote; raises `InputError` on unknown fields."""
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise InputError("adapter", f"unknown field {unknown[0]!r}", f"known: {', '.join(sorted(known))}")
        return cls(**values)


@dataclass
class Head:
    """A linear classifier on the pooled hidden state: weight (classes, hidden), bias (classes,)."""

    weight: torch.nn.Parameter
    bias: torch.nn.Parameter

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(self.weight.shape[0])


def _generator(device: torch.device, *parts: str | int) -> torch.Generator:
    generator = torch.Generator(device=device)
    generator.manual_seed(derive_seed(*parts))
    return generator


class Adapter:
    """Low-rank factors for every adapted layer, heads by task, one optimiser.

    Parameters
    ----------
    name : str
    spec : AdapterSpec
    layers : mapping of str to (int, int)
        Input and output width of each adapted layer.
    hidden : int
        Width of the pooled state that heads read.
    device : torch.device

    Attributes
    ----------
    factors : torch.nn.Parameter
        All factors in one vector, layer by layer, ``a`` before ``b``: one weight for the optimiser.
    a, b : dict of str to torch.Tensor
        The factors of each layer, views of ``factors``, shapes (in, r) and (r, out).

    Notes
    -----
    For a layer with input x the adapter adds ``scale * dropout(x) @ a[layer] @ b[layer]``; ``a`` is
    uniform in +-1/sqrt(in) and ``b`` is zero at first, as in PEFT. Weights are float32 whatever the
    backbone's precision. All randomness comes from ``spec.seed``, the step number and names.
    """

    def __init__(
        self,
        name: str,
        spec: AdapterSpec,
        layers: Mapping[str, tuple[int, int]],
        hidden: int,
        device: torch.device,
    ) -> None:
        self.name = name
        self.spec = spec
        self.hidden = hidden
        self.device = device
        self.steps = 0
        self.layers = dict(layers)
        self.heads: dict[str, Head] = {}
        generator = _generator(torch.device("cpu"), spec.seed, "factors")
        parts = []
        for width_in, width_out in layers.values():
            bound = 1 / math.sqrt(width_in)
            parts.append(torch.empty(width_in * spec.r).uniform_(-bound, bound, generator=generator))
            parts.append(torch.zeros(spec.r * width_out))
        self.factors = torch.nn.Parameter(torch.cat(parts).to(device))
        self.a, self.b = self._by_layer(self.factors.detach())
        self.optimiser = OPTIMISERS[spec.optim](
            [{"params": [self.factors], "lr": spec.learning_rate}],
            lr=spec.learning_rate,
            weight_decay=spec.weight_decay,
            fused=True,
        )
        self._rates = [spec.learning_rate]

    @property
    def sizes(self) -> list[int]:
        """Numbers in each factor, in the order of ``factors``."""
        r = self.spec.r
        return [
            size for width_in, width_out in self.layers.values() for size in (width_in * r, r * width_out)
        ]

    @property
    def shape(self) -> tuple[int, tuple[tuple[str, tuple[int, int]], ...]]:
        """What two adapters have in common whose factors are laid out alike."""
        return self.spec.r, tuple(self.layers.items())

    def by_layer(self) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Return ``a`` and ``b`` such that gradients reach ``factors``."""
        return self._by_layer(self.factors)

    def _by_layer(self, vector: torch.Tensor) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Return a vector like ``factors`` as views by layer."""
        parts = torch.split(vector, self.sizes)
        r = self.spec.r
        widths = self.layers.items()
        a = {layer: parts[2 * i].view(w, r) for i, (layer, (w, _)) in enumerate(widths)}
        return a, {layer: parts[2 * i + 1].view(r, w) for i, (layer, (_, w)) in enumerate(widths)}

    def add_head(self, task: str, classes: int, seeded_as: str | None = None) -> Head:
        """Add a classifier for a task; its initial weights depend on the seed and the task's name.

        Parameters
        ----------
        task : str
        classes : int
        seeded_as : str, optional
            The name to take the initial weights by, instead of the task's.

        Raises
        ------
        InputError
            If there are fewer than two classes, or another number than the head already has.
        """
        if classes < 2:
            raise InputError(f"task {task}", f"has {classes} class", "a classifier needs two or more")
        if task in self.heads:
            if self.heads[task].classes != classes:
                raise InputError(
                    f"task {task}", f"has {classes} classes, its head {self.heads[task].classes}", "rename it"
                )
            return self.heads[task]
        generator = _generator(torch.device("cpu"), self.spec.seed, "head", seeded_as or task)
        weight = torch.empty(classes, self.hidden).normal_(0.0, 0.02, generator=generator)
        head = Head(
            torch.nn.Parameter(weight.to(self.device)),
            torch.nn.Parameter(torch.zeros(classes, device=self.device)),
        )
        self.heads[task] = head
        given = self.spec.head_learning_rate
        rate = self.spec.learning_rate if given is None else given
        self.optimiser.add_param_group({"params": [head.weight, head.bias], "lr": rate})
        self._rates.append(rate)
        return head

    def _named(self, vector: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        a, b = self._by_layer(vector)
        for layer in self.layers:
            yield f"{layer}.lora_a", a[layer]
            yield f"{layer}.lora_b", b[layer]

    def _head_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        for task, head in self.heads.items():
            yield f"head.{task}.weight", head.weight
            yield f"head.{task}.bias", head.bias

    def named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every weight with a stable name; what is written to it changes the adapter."""
        yield from self._named(self.factors.detach())
        yield from self._head_parameters()

    def named_gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the gradient of every weight that has one."""
        if self.factors.grad is not None:
            yield from self._named(self.factors.grad)
        yield from ((name, w.grad) for name, w in self._head_parameters() if w.grad is not None)

    def optimiser_state(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return the optimiser's numbers by kind (``exp_avg``, ``step``, ...) and weight; empty at first."""
        found: dict[str, dict[str, torch.Tensor]] = {}
        for weight, names in self._weights():
            for kind, value in self.optimiser.state.get(weight, {}).items():
                if not isinstance(value, torch.Tensor):
                    continue
                parts = found.setdefault(kind, {})
                if value.dim() == 0:
                    parts.update(dict.fromkeys(names, value))
                elif weight is self.factors:
                    parts.update(self._named(value))
                else:
                    parts[names[0]] = value
        return found

    def restore_optimiser(self, found: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Take over what :meth:`optimiser_state` returned; weights that it lacks keep nothing."""
        for weight, names in self._weights():
            state = {}
            for kind, parts in found.items():
                if not all(name in parts for name in names):
                    continue
                if parts[names[0]].dim() == 0:
                    # the step counter lies where a fused optimiser wants it
                    state[kind] = parts[names[0]].to(weight.device, torch.float32).clone()
                else:
                    joined = torch.cat([parts[name].reshape(-1) for name in names])
                    state[kind] = joined.reshape(weight.shape).to(weight.device)
            if state:
                self.optimiser.state[weight] = state

    def _weights(self) -> Iterator[tuple[torch.nn.Parameter, list[str]]]:
        yield self.factors, [name for name, _ in self._named(self.factors.detach())]
        yield from ((weight, [name]) for name, weight in self._head_parameters())

    def copy_factors(self, source: Adapter) -> None:
        """Start from another adapter's factors (a warm start); heads and optimiser stay new.

        Raises
        ------
        InputError
            If the ranks or the adapted layers differ.
        """
        if source.shape != self.shape:
            raise InputError(
                f"adapter {self.name}", f"cannot start from {source.name}: another shape", "use the same rank"
            )
        with torch.no_grad():
            self.factors.copy_(source.factors)

    def copy_for(self, name: str, heads: Iterable[str], spec: AdapterSpec | None = None) -> Adapter:
        """Return a copy under another name with some of the heads, optimiser and step counter included.

        ``spec`` gives it other hyper-parameters of the same rank.
        """
        copy = Adapter(name, spec or self.spec, self.layers, self.hidden, self.device)
        copy.steps = self.steps
        copy.copy_factors(self)
        for task in heads:
            copy.adopt_head(task, self)
        copy.restore_optimiser(self.optimiser_state())
        return copy

    def adopt_head(self, task: str, source: Adapter) -> None:
        """Take over another adapter's head with its weights; its optimiser state stays behind."""
        head = self.add_head(task, source.heads[task].classes)
        with torch.no_grad():
            head.weight.copy_(source.heads[task].weight)
            head.bias.copy_(source.heads[task].bias)

    def drop_gradients(self) -> None:
        """Forget gradients of an unfinished step."""
        self.optimiser.zero_grad(set_to_none=True)

    def dropout_generator(self, width: int, part: int = 0) -> torch.Generator:
        """Return the randomness of this step's dropout masks: the same alone and in company.

        Parameters
        ----------
        width : int
            Of the layers' inputs.
        part : int
            Which part of the step's rows, where they are worked through in several passes.
        """
        return _generator(self.device, self.spec.seed, "dropout", self.steps, part, width)

    def update(self) -> bool:
        """Take one optimiser step on the gradients; return False, changing nothing, if one is not finite."""
        weights = [self.factors, *(weight for _, weight in self._head_parameters())]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        norm = float(torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients])))
        finite = math.isfinite(norm)
        if finite:
            limit = self.spec.max_grad_norm
            if limit is not None and norm > limit:
                for gradient in gradients:
                    gradient.mul_(limit / norm)
            spec = self.spec
            factor = rate_factor(spec.lr_scheduler_type, self.steps, spec.warmup_steps, spec.training_steps)
            for group, rate in zip(self.optimiser.param_groups, self._rates, strict=True):
                group["lr"] = rate * factor
            self.optimiser.step()
        self.drop_gradients()
        self.steps += 1
        return finite
