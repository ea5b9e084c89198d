"""One training step of a configuration, ready to be timed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ymir_opt.domain.base import nearest
from ymir_opt.domain.errors import NotFoundError
from ymir_opt.runtime.adapters import AdapterSpec
from ymir_opt.runtime.backbone import Backbone
from ymir_opt.runtime.session import Inputs, Rows, Runtime, pooled
from ymir_profiler.measure.bench import Bench, backbone_spec, load_model

__all__ = ["PEFT_TYPES", "lora_stepper", "make_stepper", "synthetic"]

CLASSES = 4
RATE = 1e-4


def synthetic(backbone: Backbone, rows: int, length: int, device: str) -> tuple[Inputs, torch.Tensor]:
    """Return rows of random tokens (or images) of one length without padding, and random labels."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, CLASSES, (rows,), generator=generator).to(device)
    if backbone.tokenizer is None:
        size = int(backbone.model.config.image_size)
        pixels = torch.rand(rows, int(backbone.model.config.num_channels), size, size, generator=generator)
        return {"pixel_values": pixels.to(device)}, labels
    ids = torch.randint(2, backbone.vocabulary, (rows, length), generator=generator).to(device)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, labels


def lora_stepper(
    runtime: Runtime, backbone: Backbone, spec: AdapterSpec, members: int, rows: int, length: int
) -> Callable[[], None]:
    """Return a step of K adapters with ``rows`` rows each, in one batch."""
    parts = []
    device = str(runtime.device)
    inputs, labels = synthetic(backbone, rows, length, device)
    for member in range(members):
        name = f"timed {member}"
        runtime.add(name, spec).add_head("synthetic", CLASSES)
        parts.append(Rows(name, "synthetic", inputs, labels))

    def step() -> None:
        runtime.step(parts)

    return step


def _plain_stepper(bench: Bench, rows: int, length: int, prepare: Callable[[Any], Any]) -> Callable[[], None]:
    backbone = load_model(backbone_spec(bench.recipe), bench.device)
    model = prepare(backbone.model)
    model.train()
    inputs, labels = synthetic(backbone, rows, length, bench.device)
    head = torch.nn.Linear(backbone.hidden, CLASSES).to(bench.device)
    weights = [w for w in model.parameters() if w.requires_grad]
    optimiser = torch.optim.AdamW([*weights, *head.parameters()], lr=RATE)

    def step() -> None:
        hidden = model(**inputs).last_hidden_state
        loss = torch.nn.functional.cross_entropy(head(pooled(hidden, inputs)), labels)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return step


def _full(model: Any) -> Any:
    return model.requires_grad_(True)


def _bias_only(model: Any) -> Any:
    model.requires_grad_(False)
    for name, weight in model.named_parameters():
        weight.requires_grad_(name.endswith("bias"))
    return model


def _ia3(model: Any) -> Any:
    import peft

    names = {name.rsplit(".", 1)[-1] for name, _ in model.named_modules()}
    wanted = [n for n in ("key", "value", "k_proj", "v_proj") if n in names]
    return _wrapped(model, peft.IA3Config(target_modules=wanted, feedforward_modules=[]))


def _norms(model: Any) -> Any:
    import peft

    names = {n for n, _ in model.named_modules() if "norm" in n.rsplit(".", 1)[-1].lower()}
    return _wrapped(model, peft.LNTuningConfig(target_modules=sorted(names)))


def _wrapped(model: Any, config: Any) -> Any:
    import peft

    with warnings.catch_warnings():
        # PEFT warns of layers that are no matrices, though these types change just such layers
        warnings.simplefilter("ignore")
        return peft.get_peft_model(model, config)


# FULL and BIAS_ONLY are ours, the others PEFT's names
PLAIN: Mapping[str, Callable[[Any], Any]] = {
    "FULL": _full,
    "BIAS_ONLY": _bias_only,
    "IA3": _ia3,
    "LN_TUNING": _norms,
}
PEFT_TYPES = ("LORA", *PLAIN)


def make_stepper(bench: Bench, peft_type: str, rows: int, length: int) -> Callable[[], None]:
    """Return one training step of a PEFT type alone.

    Raises
    ------
    NotFoundError
        If the type is unknown.
    """
    if peft_type == "LORA":
        return lora_stepper(bench.runtime, bench.backbone, bench.spec(0), 1, rows, length)
    if peft_type not in PLAIN:
        raise NotFoundError("peft_types", f"{peft_type!r} is unknown", nearest(peft_type, set(PEFT_TYPES)))
    return _plain_stepper(bench, rows, length, PLAIN[peft_type])
