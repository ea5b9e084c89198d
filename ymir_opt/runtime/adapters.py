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
        self.a: dict[str, torch.nn.Parameter] = {}
        self.b: dict[str, torch.nn.Parameter] = {}
        self.heads: dict[str, Head] = {}
        generator = _generator(torch.device("cpu"), spec.seed, "factors")
        for layer, (width_in, width_out) in layers.items():
            bound = 1 / math.sqrt(width_in)
            a = torch.empty(width_in, spec.r).uniform_(-bound, bound, generator=generator)
            self.a[layer] = torch.nn.Parameter(a.to(device))
            self.b[layer] = torch.nn.Parameter(torch.zeros(spec.r, width_out, device=device))
        factors = [*self.a.values(), *self.b.values()]
        self.optimiser = OPTIMISERS[spec.optim](
            [{"params": factors, "lr": spec.learning_rate}],
            lr=spec.learning_rate,
            weight_decay=spec.weight_decay,
        )
        self._rates = [spec.learning_rate]

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

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Yield every weight with a stable name."""
        for layer in self.a:
            yield f"{layer}.lora_a", self.a[layer]
            yield f"{layer}.lora_b", self.b[layer]
        for task, head in self.heads.items():
            yield f"head.{task}.weight", head.weight
            yield f"head.{task}.bias", head.bias

    def parameters(self) -> list[torch.nn.Parameter]:
        """Return every weight."""
        return [weight for _, weight in self.named_parameters()]

    def copy_factors(self, source: Adapter) -> None:
        """Start from another adapter's factors (a warm start); heads and optimiser stay new.

        Raises
        ------
        InputError
            If the ranks or the adapted layers differ.
        """
        if source.spec.r != self.spec.r or source.a.keys() != self.a.keys():
            raise InputError(
                f"adapter {self.name}", f"cannot start from {source.name}: another shape", "use the same rank"
            )
        with torch.no_grad():
            for layer in self.a:
                self.a[layer].copy_(source.a[layer])
                self.b[layer].copy_(source.b[layer])

    def copy_for(self, name: str, heads: Iterable[str], spec: AdapterSpec | None = None) -> Adapter:
        """Return a copy under another name with some of the heads, optimiser and step counter included.

        ``spec`` gives it other hyper-parameters of the same rank.
        """
        layers = {layer: (a.shape[0], self.b[layer].shape[1]) for layer, a in self.a.items()}
        copy = Adapter(name, spec or self.spec, layers, self.hidden, self.device)
        copy.steps = self.steps
        for task in heads:
            copy.add_head(task, self.heads[task].classes)
        mine = dict(self.named_parameters())
        with torch.no_grad():
            for key, weight in copy.named_parameters():
                weight.copy_(mine[key])
                state = self.optimiser.state.get(mine[key])
                if state:
                    copy.optimiser.state[weight] = {
                        k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in state.items()
                    }
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

    def dropout_generator(self, part: int = 0) -> torch.Generator:
        """Return the randomness of this step's dropout masks: the same alone and in company.

        Parameters
        ----------
        part : int
            Which part of the step's rows, where they are worked through in several passes.
        """
        return _generator(self.device, self.spec.seed, "dropout", self.steps, *([part] if part else []))

    def update(self) -> bool:
        """Take one optimiser step on the gradients; return False, changing nothing, if one is not finite."""
        gradients = [w.grad for w in self.parameters() if w.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients]))
        finite = bool(torch.isfinite(norm))
        if finite:
            limit = self.spec.max_grad_norm
            if limit is not None and float(norm) > limit:
                for gradient in gradients:
                    gradient.mul_(limit / norm)
            spec = self.spec
            factor = rate_factor(spec.lr_scheduler_type, self.steps, spec.warmup_steps, spec.training_steps)
            for group, rate in zip(self.optimiser.param_groups, self._rates, strict=True):
                group["lr"] = rate * factor
            self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.steps += 1
        return finite
