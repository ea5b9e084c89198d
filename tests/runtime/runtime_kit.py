"""Small backbones and batches for the runtime's tests."""

from __future__ import annotations

import torch

from ymir_opt.runtime.adapters import AdapterSpec
from ymir_opt.runtime.backbone import Backbone, BackboneSpec, load_backbone
from ymir_opt.runtime.session import Rows, Runtime

torch.set_num_threads(1)

SPECS = {
    "a": AdapterSpec(r=4, learning_rate=5e-3, lora_dropout=0.1, seed=1),
    "b": AdapterSpec(r=8, learning_rate=1e-3, lora_dropout=0.3, lora_alpha=8, weight_decay=0.01, seed=2),
    "c": AdapterSpec(r=1, learning_rate=2e-2, lora_dropout=0.0, warmup_steps=5, max_grad_norm=0.1, seed=3),
}
CLASSES = {"a": 2, "b": 5, "c": 3}
ROWS = {"a": 3, "b": 5, "c": 1}


def small_bert() -> Backbone:
    return load_backbone(BackboneSpec("random:bert", layers=2, width=32))


def fresh(names: str, backbone: Backbone | None = None) -> Runtime:
    """Return a runtime with the named adapters, each with one head."""
    runtime = (backbone or small_bert()).runtime()
    for name in names:
        runtime.add(name, SPECS[name]).add_head(f"task-{name}", CLASSES[name])
    return runtime


def rows(name: str, step: int, vocabulary: int = 2048, count: int | None = None, length: int = 9) -> Rows:
    """Return one adapter's rows of a step: the same whoever asks."""
    generator = torch.Generator().manual_seed(1000 * step + ord(name))
    n = count or ROWS[name]
    ids = torch.randint(2, vocabulary, (n, length), generator=generator)
    mask = torch.ones(n, length, dtype=torch.long)
    mask[0, length - 3 :] = 0
    labels = torch.randint(0, CLASSES[name], (n,), generator=generator)
    return Rows(name, f"task-{name}", {"input_ids": ids, "attention_mask": mask}, labels)


def weights(runtime: Runtime, name: str) -> dict[str, torch.Tensor]:
    return {key: w.detach().clone() for key, w in runtime.adapters[name].named_parameters()}


def largest_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[key] - other[key]).abs().max()) for key in one)
