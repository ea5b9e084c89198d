"""One step for K adapters is K steps, each alone: gradients, weights, dropout, failures."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

pytest.importorskip("torch")

import torch
from runtime_kit import CLASSES, SPECS, fresh, largest_difference, rows, small_bert, weights

from ymir_opt.domain.errors import InputError, NotFoundError
from ymir_opt.runtime.adapters import AdapterSpec
from ymir_opt.runtime.backbone import BackboneSpec, load_backbone
from ymir_opt.runtime.lora import batched_delta
from ymir_opt.runtime.session import Rows


@pytest.mark.parametrize("counts", [None, 4], ids=["unequal rows", "equal rows"])
def test_batched_gradients_equal_separate_ones(counts: int | None) -> None:
    together = fresh("abc")
    for name in "abc":  # b starts at zero, and so would most gradients
        together.step([rows(name, step=0)])
    alone = {name: fresh(name) for name in "abc"}
    for name in "abc":
        alone[name].step([rows(name, step=0)])
    batched = together.gradients([rows(name, 1, count=counts) for name in "abc"])
    for name in "abc":
        single = alone[name].gradients([rows(name, 1, count=counts)])[name]
        assert largest_difference(batched[name], single) <= 1e-6
        assert max(float(g.abs().max()) for g in single.values()) > 1e-3


@pytest.mark.parametrize("lengths", [(9, 9, 9), (5, 9, 7)], ids=["same length", "padded to the longest"])
def test_weights_after_twenty_steps_equal_those_of_training_alone(lengths: tuple[int, ...]) -> None:
    together = fresh("abc")
    alone = {name: fresh(name) for name in "abc"}
    for step in range(20):
        batch = [rows(name, step, length=n) for name, n in zip("abc", lengths, strict=True)]
        # members come and go: c pauses on every third step
        batch = [part for part in batch if part.adapter != "c" or step % 3]
        shared = together.step(batch)
        for part, result in zip(batch, shared, strict=True):
            (single,) = alone[part.adapter].step([part])
            assert result.correct == single.correct
            assert result.loss == pytest.approx(single.loss, abs=1e-5)
    for name in "abc":
        assert largest_difference(weights(together, name), weights(alone[name], name)) <= 1e-5
        assert largest_difference(weights(fresh(name), name), weights(together, name)) > 1e-2


def test_dropout_is_on_and_follows_the_adapters_own_seed() -> None:
    def gradient(spec: AdapterSpec) -> dict[str, torch.Tensor]:
        runtime = small_bert().runtime()
        runtime.add("a", spec).add_head("task-a", CLASSES["a"])
        for weight in runtime.adapters["a"].b.values():
            torch.nn.init.constant_(weight, 0.05)
        return runtime.gradients([rows("a", 0)])["a"]

    plain = gradient(replace(SPECS["a"], lora_dropout=0.0))
    dropped = gradient(SPECS["a"])
    assert largest_difference(plain, dropped) > 1e-4
    assert largest_difference(dropped, gradient(SPECS["a"])) == 0


def test_a_failed_adapter_keeps_its_weights_and_harms_nobody() -> None:
    together, alone = fresh("ab"), fresh("b")
    with torch.no_grad():
        together.adapters["a"].heads["task-a"].bias.fill_(math.nan)
    before = weights(together, "a")
    for step in range(3):
        bad, good = together.step([rows("a", step), rows("b", step)])
        alone.step([rows("b", step)])
        assert not bad.updated
        assert good.updated
    kept = weights(together, "a")
    assert all(torch.equal(before[key], kept[key]) for key in before if "bias" not in key)
    assert largest_difference(weights(together, "b"), weights(alone, "b")) <= 1e-6


def test_an_infinite_factor_reaches_no_other_group() -> None:
    x = torch.randn(5, 2, 4, generator=torch.Generator().manual_seed(0))
    good = (torch.ones(4, 2), torch.ones(2, 3))
    bad = (torch.full((4, 3), math.nan), torch.ones(3, 3))
    out = batched_delta(x, [good, bad], [2, 3])
    assert torch.equal(out[:2], x[:2] @ good[0] @ good[1])
    assert torch.isnan(out[2:]).all()


def test_joint_heads_share_factors_and_add_their_losses() -> None:
    runtime = small_bert().runtime()
    adapter = runtime.add("a", replace(SPECS["a"], lora_dropout=0.0))
    adapter.add_head("task-a", 2)
    adapter.add_head("other", 4)
    for weight in adapter.b.values():
        torch.nn.init.constant_(weight, 0.05)
    first = rows("a", 0)
    second = Rows("a", "other", first.inputs, first.labels + 1)
    both = runtime.gradients([first, second])["a"]
    one, two = runtime.gradients([first])["a"], runtime.gradients([second])["a"]
    for key in adapter.a:
        name = f"{key}.lora_a"
        assert torch.allclose(both[name], one[name] + two[name], atol=1e-6)
    results = runtime.step([second, first])
    assert results[0].loss == pytest.approx(math.log(4), abs=0.2)
    assert results[1].loss == pytest.approx(math.log(2), abs=0.2)


def test_the_backbone_never_changes_and_is_given_back() -> None:
    backbone = small_bert()
    before = {key: value.clone() for key, value in backbone.model.state_dict().items()}
    bare = rows("a", 0).inputs
    plain = backbone.model(**bare).last_hidden_state.detach()
    runtime = fresh("ab", backbone)
    for step in range(3):
        runtime.step([rows("a", step), rows("b", step)])
    with_adapter = runtime.features(bare, "a")
    assert torch.equal(runtime.features(bare), runtime.features(bare))
    assert not torch.allclose(with_adapter, runtime.features(bare))
    runtime.close()
    assert torch.equal(backbone.model(**bare).last_hidden_state.detach(), plain)
    assert all(torch.equal(before[key], value) for key, value in backbone.model.state_dict().items())


def test_images_train_too() -> None:
    backbone = load_backbone(BackboneSpec("random:vit", layers=1, width=32))
    runtime = backbone.runtime()
    runtime.add("v", AdapterSpec(lora_dropout=0.1, learning_rate=5e-3)).add_head("dark", 2)
    pixels = torch.rand(16, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(16) % 2
    pixels[labels == 1] *= 0.3
    losses = [runtime.step([Rows("v", "dark", {"pixel_values": pixels}, labels)])[0].loss for _ in range(60)]
    assert losses[-1] < 0.8 * losses[0]


def test_faults_name_place_and_remedy() -> None:
    runtime = fresh("a")
    with pytest.raises(NotFoundError, match="did you mean 'task-a'"):
        runtime.step([replace(rows("a", 0), head="task-q")])
    with pytest.raises(NotFoundError, match="is not loaded"):
        runtime.step([rows("b", 0)])
    with pytest.raises(InputError, match="1 class"):
        runtime.adapters["a"].add_head("single", 1)
    with pytest.raises(InputError, match="rank"):
        AdapterSpec(r=0)
    with pytest.raises(NotFoundError, match="did you mean 'bert'"):
        load_backbone(BackboneSpec("random:bort"))
    with pytest.raises(NotFoundError, match="cannot be loaded"):
        load_backbone(BackboneSpec("./no-such-model"))
