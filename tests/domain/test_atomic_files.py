"""Files are written whole or not at all."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from ymir_opt.domain.documents import write_atomic
from ymir_opt.domain.errors import InputError


def test_the_text_is_there_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    write_atomic(target, "été\n")
    assert target.read_bytes() == "été\n".encode()
    write_atomic(target, "second")
    assert target.read_text() == "second"
    assert os.listdir(tmp_path) == ["plan.json"]


def test_permissions_are_those_of_an_ordinary_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomic(tmp_path / "x", "")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o640


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    target.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(target, "new \ud800")
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["plan.json"]


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "plan.json"
    target.write_text("old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"plan\.json: cannot be written \(No space left on device\)"):
        write_atomic(target, "new")
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["plan.json"]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        write_atomic(tmp_path / "no" / "plan.json", "x")
    assert os.listdir(tmp_path) == []


def test_a_folder_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        write_atomic(tmp_path / "d", "x")
    assert os.listdir(tmp_path) == ["d"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_atomic(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    write_atomic(pipe, "through")
    reader.join(timeout=10)
    assert got == ["through"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    write_atomic(Path("/dev/null"), "x")
    assert not Path("/dev/null").is_file()


def test_a_long_name(tmp_path: Path) -> None:
    name = "n" * 250
    write_atomic(tmp_path / name, "x")
    assert os.listdir(tmp_path) == [name]


def test_readers_never_see_half_a_file(tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    texts = {"a" * 200_000, "b" * 300_000}
    write_atomic(target, "a" * 200_000)
    seen: list[str] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.append(target.read_text())

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(10):
        for text in sorted(texts):
            write_atomic(target, text)
    done.set()
    reader.join()
    assert seen
    assert set(seen) <= texts


def test_a_loop_of_links(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(InputError, match=r"a: cannot be written \(.+\); name a writable folder"):
        write_atomic(tmp_path / "a", "x")
