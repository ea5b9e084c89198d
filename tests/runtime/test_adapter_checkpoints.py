"""Adapters on disk: go on as if nothing had happened, never half written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("torch")

from runtime_kit import fresh, largest_difference, rows, small_bert, weights

from ymir_opt.domain.errors import InputError, NotFoundError
from ymir_opt.runtime.backbone import BackboneSpec, load_backbone
from ymir_opt.runtime.checkpoint import load_adapter, save_adapter


def test_training_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    whole = fresh("b")
    for step in range(6):
        whole.step([rows("b", step)])
    first = fresh("b")
    for step in range(3):
        first.step([rows("b", step)])
    save_adapter(first.adapters["b"], tmp_path / "b", foundation_model="small")
    second = small_bert().runtime()
    load_adapter(second, tmp_path / "b")
    for step in range(3, 6):
        second.step([rows("b", step)])
    assert largest_difference(weights(whole, "b"), weights(second, "b")) == 0


def test_a_crash_while_writing_leaves_the_former_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = fresh("a")
    runtime.step([rows("a", 0)])
    save_adapter(runtime.adapters["a"], tmp_path)
    kept = weights(runtime, "a")
    runtime.step([rows("a", 1)])

    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    for broken in ("replace", "fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(os, broken, no_space)
            with pytest.raises(InputError, match="No space left"):
                save_adapter(runtime.adapters["a"], tmp_path)
        again = small_bert().runtime()
        load_adapter(again, tmp_path)
        assert largest_difference(weights(again, "a"), kept) == 0
    assert len(list(tmp_path.iterdir())) == 2
    save_adapter(runtime.adapters["a"], tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_damaged_and_foreign_checkpoints_are_refused(tmp_path: Path) -> None:
    runtime = fresh("a")
    with pytest.raises(NotFoundError, match="holds no adapter"):
        load_adapter(runtime, tmp_path)
    index = save_adapter(runtime.adapters["a"], tmp_path)
    with pytest.raises(InputError, match="does not fit"):
        load_adapter(load_backbone(BackboneSpec("random:bert", layers=2, width=64)).runtime(), tmp_path)
    (tensors,) = tmp_path.glob("*.safetensors")
    content = bytearray(tensors.read_bytes())
    content[-1] ^= 1
    tensors.write_bytes(bytes(content))
    with pytest.raises(InputError, match="damaged"):
        load_adapter(runtime, tmp_path)
    document = json.loads(index.read_text())
    index.write_text(json.dumps({**document, "tensors": "../x.safetensors"}))
    with pytest.raises(InputError, match="names"):
        load_adapter(runtime, tmp_path)
