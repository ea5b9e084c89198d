"""The runtime's LoRA is PEFT's: same hidden states, same gradients."""

from __future__ import annotations

import warnings

import pytest

pytest.importorskip("torch")
pytest.importorskip("peft")

import peft
import torch
from runtime_kit import rows, small_bert

from ymir_opt.runtime.adapters import AdapterSpec
from ymir_opt.runtime.session import pooled


def test_states_and_gradients_equal_those_of_peft() -> None:
    spec = AdapterSpec(r=3, lora_alpha=7.0, lora_dropout=0.0, seed=5)
    part = rows("a", 0)
    runtime = small_bert().runtime()
    adapter = runtime.add("a", spec)
    head = adapter.add_head("task-a", 2)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        head.weight.mul_(50)
        for weight in adapter.b.values():
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.1)
    ours = runtime.gradients([part])["a"]
    states = runtime.features(part.inputs, "a")

    config = peft.LoraConfig(r=3, lora_alpha=7.0, lora_dropout=0.0, target_modules=["query", "value"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = peft.get_peft_model(small_bert().model, config)
    model.eval()
    layers = dict(model.base_model.model.named_modules())
    with torch.no_grad():
        for name in adapter.a:
            layers[name].lora_A["default"].weight.copy_(adapter.a[name].T)
            layers[name].lora_B["default"].weight.copy_(adapter.b[name].T)
    hidden = pooled(model(**part.inputs).last_hidden_state, part.inputs)
    assert torch.allclose(hidden.detach(), states, atol=1e-6)
    logits = hidden @ head.weight.detach().T + head.bias.detach()
    torch.nn.functional.cross_entropy(logits, part.labels).backward()
    for name in adapter.a:
        for own, theirs in (("lora_a", layers[name].lora_A), ("lora_b", layers[name].lora_B)):
            gradient = ours[f"{name}.{own}"]
            assert torch.allclose(gradient, theirs["default"].weight.grad.T, rtol=1e-4, atol=1e-6)
            assert float(gradient.abs().max()) > 1e-4
