"""Tasks: local files in three formats, splits, halves, faults; recipes' faults."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from profiler_kit import tiny_recipe, write_task
from ymir_profiler.data import packages
from ymir_profiler.data.corpora import read_corpus
from ymir_profiler.data.tasks import batches, load_task
from ymir_profiler.recipe import TaskRecipe, read_recipe

from ymir_opt.domain.errors import InputError, NotFoundError
from ymir_opt.runtime.files import read_file

ROWS = [("a b", "x"), ("c, d", "y"), ("é\nf", "x")]


def _write(folder: Path, suffix: str) -> Path:
    path = folder / f"rows{suffix}"
    if suffix == ".csv":
        path.write_text('text,label\na b,x\n"c, d",y\n"é\nf",x\n,y\n')
    elif suffix == ".jsonl":
        lines = [json.dumps({"text": t, "label": y}) for t, y in ROWS]
        path.write_text("\n".join([*lines, "", json.dumps({"text": None, "label": "y"})]))
    else:
        import pyarrow as pa
        from pyarrow import parquet

        texts, labels = zip(*ROWS, (None, "y"), strict=True)
        parquet.write_table(pa.table({"text": texts, "label": labels}), path)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_three_formats_give_the_same_rows(tmp_path: Path, suffix: str) -> None:
    path = _write(tmp_path, suffix)
    assert read_file(path, "text", "label") == ROWS
    with pytest.raises(NotFoundError, match="did you mean 'label'"):
        read_file(path, "text", "labels")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.txt", "a", "unknown ending"),
        ("missing.csv", None, "no such file"),
        ("x.jsonl", "[1]", "not an object"),
        ("x.jsonl", "{", "cannot be read"),
        ("x.parquet", "no", "cannot be read"),
        ("x.csv", "a,b\n\xff", None),
    ],
)
def test_bad_files_are_one_line(tmp_path: Path, name: str, content: str | None, message: str | None) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError, match=message) as caught:
        read_file(path, "text", "label")
    assert "\n" not in caught.value.one_line()


def test_splits_are_balanced_disjoint_and_depend_on_content_only(tmp_path: Path) -> None:
    words = {"fruit": ["apple"], "tool": ["saw"], "sea": ["wave"]}
    write_task(tmp_path / "t.csv", words, 300, 0)
    lines = (tmp_path / "t.csv").read_text().splitlines()
    (tmp_path / "turned.csv").write_text("\n".join([lines[0], *lines[:0:-1], lines[1]]) + "\n")
    task = load_task(TaskRecipe(name="t", file=str(tmp_path / "t.csv")), 90, 60)
    turned = load_task(TaskRecipe(name="t", file=str(tmp_path / "turned.csv")), 90, 60)
    assert task.sha256 == turned.sha256
    assert (len(task.train), len(task.test), task.majority) == (90, 60, pytest.approx(1 / 3))
    assert not {text for text, _ in task.train} & {text for text, _ in task.test}
    halves = [
        load_task(TaskRecipe(name=half, file=str(tmp_path / "t.csv"), half=half), 90, 60) for half in "ab"
    ]
    seen = [{text for part in (half.train, half.test) for text, _ in part} for half in halves]
    assert not seen[0] & seen[1]
    assert len(seen[0]) > 60 < len(seen[1])


def test_batches_cover_every_row_in_every_epoch_and_follow_the_seed(tmp_path: Path) -> None:
    write_task(tmp_path / "t.csv", {"a": ["x"], "b": ["y"]}, 60, 0)
    task = load_task(TaskRecipe(name="t", file=str(tmp_path / "t.csv")), 24, 10)
    one, same, other = (batches(task, 8, seed) for seed in (0, 0, 1))
    first = [next(one) for _ in range(6)]
    assert first == [next(same) for _ in range(6)]
    assert first[0] != next(other)
    for epoch in (first[:3], first[3:]):
        assert sorted(i for batch in epoch for i in batch) == list(range(24))


def test_label_subsets_groups_and_digits(tmp_path: Path) -> None:
    write_task(tmp_path / "t.csv", {"a": ["x"], "b": ["y"], "c": ["z"]}, 90, 0)
    file = str(tmp_path / "t.csv")
    assert load_task(TaskRecipe(name="t", file=file, labels=("a", "c")), 40, 20).classes == ("a", "c")
    grouped = TaskRecipe(name="t", file=file, label_groups={"a": "p", "b": "q", "c": "q"})
    assert load_task(grouped, 40, 20).classes == ("p", "q")
    with pytest.raises(InputError, match="1 class"):
        load_task(TaskRecipe(name="t", file=file, labels=("a",)), 40, 20)
    with pytest.raises(InputError, match="0 class"):
        load_task(TaskRecipe(name="t", file=file, labels=("q",)), 40, 20)
    digits = load_task(TaskRecipe(name="d", corpus="digits", labels=("0", "1", "2")), 300, 90)
    assert digits.images
    assert digits.test[0][0].shape == (1, 8, 8)
    assert len(digits.test) == 90


def test_packages_are_installed_once_and_completely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def install(package: packages.Package, folder: Path) -> None:
        calls.append(package.name)
        (folder / "usr" / "share" / "wordnet").mkdir(parents=True)
        if len(calls) == 1:
            raise subprocess.CalledProcessError(100, "apt-get", stderr="E: no network\n")
        for part in ("noun", "verb", "adj", "adv"):
            line = f'0000 05 {part[0]} 01 dog 0 000 | a gloss of a {part}; "an example"  \n'
            (folder / "usr/share/wordnet" / f"data.{part}").write_text("  1 licence\n" + line)

    monkeypatch.setitem(packages.INSTALLERS, "apt", install)
    bare = replace(packages.PACKAGES["wordnet"], marker="")
    monkeypatch.setattr(packages, "PACKAGES", {**packages.PACKAGES, "wordnet": bare})
    with pytest.raises(NotFoundError, match="no network"):
        read_corpus("wordnet-pos", tmp_path)
    assert list((tmp_path / "packages").iterdir()) == []
    rows = read_corpus("wordnet-pos", tmp_path)
    assert rows == read_corpus("wordnet-pos", tmp_path)
    assert rows == [(f"a gloss of a {part}", part) for part in ("noun", "verb", "adj", "adv")]
    assert read_corpus("wordnet-domain", tmp_path) == [("a gloss of a noun", "animal")]
    assert len(calls) == 2
    with pytest.raises(NotFoundError, match="did you mean 'wordnet-pos'"):
        read_corpus("wordnet-poss", tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = 1", "name"),
        ('name = "x"\nnam = 2', "did you mean 'name'"),
        ("name = ", "is not TOML"),
        ("a = " + "[" * 100_000, "is not TOML"),
        ('name = "x"\n[[tasks]]\nname = "a"', "one of corpus and file"),
        ('name = "x"\n[transfer]\npairs = [["a", "b"]]', "unknown task"),
        ('name = "x"\n[training]\neval_at = [64, 32]', "must grow"),
        ('name = "x"\n[training]\nseeds = [1, 1]', "twice"),
        ('name = "x"\n[adapter]\nlora_dropout = 1.0', "lora_dropout"),
    ],
)
def test_bad_recipes_name_the_place(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "r.toml").write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        read_recipe(tmp_path / "r.toml")
    assert "\n" not in caught.value.one_line()


def test_files_are_relative_to_the_recipe_and_shipped_recipes_are_valid(
    tmp_path: Path, examples: Path
) -> None:
    (tmp_path / "r.toml").write_text('name = "x"\n[[tasks]]\nname = "a"\nfile = "d/t.csv"\n')
    assert read_recipe(tmp_path / "r.toml").tasks[0].file == str(tmp_path / "d" / "t.csv")
    shipped = sorted((examples / "recipes").glob("*.toml"))
    assert len(shipped) >= 4
    for path in shipped:
        read_recipe(path)
    assert tiny_recipe(tmp_path).pairs()[0] == ("things-a", "things-b")
