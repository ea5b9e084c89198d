"""Fitted parameters on disk: what is not exactly what was written is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ymir_models import FITTED
from ymir_models.artefact import Artefact, read_artefact, render
from ymir_models.predictor import VERSIONS, load

from ymir_opt.domain.errors import InputError, NotFoundError

BODY = {"weights": [1.5, float("nan"), -0.0], "name": "vit", "table": np.eye(2), "count": 3, "nothing": None}


def write(folder: Path, kind: str = "throughput", version: int = 1) -> Path:
    path = folder / f"{kind}.json"
    path.write_text(render(kind, version, BODY, {"data": []}))
    return path


def refused(path: Path, kind: str = "throughput", version: int = 1) -> str:
    with pytest.raises(InputError) as caught:
        read_artefact(path, kind, version)
    line = caught.value.one_line()
    assert "\n" not in line
    assert str(path) in line
    return line


def test_what_was_written_is_read(tmp_path: Path) -> None:
    fields = read_artefact(write(tmp_path), "throughput", 1).fields()
    weights = fields.array("weights", 3)
    assert weights[0] == 1.5
    assert np.isnan(weights[1])
    assert np.array_equal(fields.array("table", 2, 2), np.eye(2))
    assert fields.text("name") == "vit"
    assert fields.count("count") == 3
    assert fields.optional_text("nothing") is None


def test_the_same_parameters_give_the_same_bytes() -> None:
    again = dict(reversed(list(BODY.items())))
    assert render("a", 1, BODY, {"x": 1}) == render("a", 1, again, {"x": 1})


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_changed_byte_is_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = write(tmp_path_factory.mktemp("artefact"))
    raw = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(raw) - 2))
    byte = data.draw(st.integers(32, 126).filter(lambda b: b != raw[at]))
    before = json.loads(raw)
    raw[at] = byte
    path.write_bytes(bytes(raw))
    try:
        same = json.loads(raw) == before
    except ValueError:
        same = False
    if not same:
        refused(path)


@pytest.mark.parametrize("keep", [0, 1, 20, 100, -2])
def test_a_file_that_is_cut_off_is_refused(tmp_path: Path, keep: int) -> None:
    path = write(tmp_path)
    path.write_bytes(path.read_bytes()[:keep])
    assert "cut off" in refused(path) or "no checksum" in refused(path)


def test_another_version_kind_and_format_are_named(tmp_path: Path) -> None:
    assert "holds version 1 of throughput, this version reads 2" in refused(write(tmp_path), version=2)
    assert "is a model of kind 'throughput', not 'transfer'" in refused(write(tmp_path), kind="transfer")
    path = write(tmp_path)
    path.write_text(path.read_text().replace("ymir.model/1", "ymir.model/9"))
    assert "ymir.model/9" in refused(path)


def test_a_missing_file_and_a_missing_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="cannot be read"):
        read_artefact(tmp_path / "throughput.json", "throughput", 1)
    with pytest.raises(NotFoundError, match="no such folder"):
        load(tmp_path / "absent")
    with pytest.raises(NotFoundError, match="holds no fitted model"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("absent", lambda f: f.number("absent")),
        ("name", lambda f: f.number("name")),
        ("weights", lambda f: f.array("weights", 4)),
        ("table", lambda f: f.array("table", 3, 2)),
        ("name", lambda f: f.array("name")),
        ("weights", lambda f: f.indices("weights", 5)),
        ("name", lambda f: f.part("name")),
        ("name", lambda f: f.parts("name")),
        ("weights", lambda f: f.texts("weights")),
        ("weights", lambda f: f.keys("weights")),
        ("count", lambda f: f.text("count")),
    ],
)
def test_a_parameter_of_the_wrong_kind_is_named(tmp_path: Path, name: str, read: object) -> None:
    fields = read_artefact(write(tmp_path), "throughput", 1).fields()
    with pytest.raises(InputError, match=f"'{name}'"):
        read(fields)  # type: ignore[operator]


def shipped(kind: str) -> Artefact:
    return read_artefact(FITTED / f"{kind}.json", kind, VERSIONS[kind])


@pytest.mark.parametrize("kind", ["throughput", "colocation", "convergence", "transfer"])
def test_every_shipped_model_has_a_card_with_its_checksum(kind: str) -> None:
    artefact = shipped(kind)
    card = (FITTED / f"{kind}.md").read_text()
    assert artefact.sha256 in card
    for source in artefact.source["data"]:
        assert source["upstream"] in card
    assert "## Limits" in card


def test_every_stored_number_is_json_without_infinities() -> None:
    for kind in ("throughput", "colocation", "convergence", "transfer"):
        text = (FITTED / f"{kind}.json").read_text()
        json.loads(text, parse_constant=pytest.fail)
