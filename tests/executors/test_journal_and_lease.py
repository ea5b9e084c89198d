"""The journal: one writer at a time, nothing half written, nothing on a disk that cannot lock."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ymir_opt.domain.errors import InputError
from ymir_opt.executors.filesystem import kind_of, require_local
from ymir_opt.executors.journal import Journal, LeaseHeldError, LeaseLostError, read_only
from ymir_opt.executors.processes import ProcessId, alive, find_by_argument, identity, send

HOLD = """
import sys, time
from pathlib import Path
from ymir_opt.executors.journal import Journal
journal = Journal(Path(sys.argv[1]), lease_s=float(sys.argv[2]))
print(journal.acquire(), flush=True)
time.sleep(60)
"""


def holder(path: Path, lease_s: float = 30.0) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), str(lease_s)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline().strip() == "1"
    return child


def ended(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.communicate()


def test_a_second_writer_is_refused_while_the_first_runs(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    child = holder(path)
    try:
        with pytest.raises(
            LeaseHeldError, match=f"is written by process {child.pid}; stop that one"
        ) as caught:
            Journal(path).acquire()
        assert caught.value.exit_code == 2
    finally:
        ended(child)
    # kill -9 leaves the lease in the file; nobody waits for it to run out
    assert Journal(path).acquire() == 2


def test_a_writer_that_slept_past_its_lease_can_write_no_more(tmp_path: Path) -> None:
    now = [1000.0]
    first = Journal(tmp_path / "journal.db", lease_s=10, clock=lambda: now[0])
    first.acquire()
    first.put("meta", "x", {"by": 1})
    now[0] += 11
    second = Journal(tmp_path / "journal.db", lease_s=10, clock=lambda: now[0])
    assert second.acquire() == 2
    for act in (first.renew, lambda: first.put("meta", "x", {"by": "first"}), lambda: first.happened({})):
        with pytest.raises(LeaseLostError):
            act()
    assert second.get("meta", "x") == {"by": 1}
    first.release()
    second.put("meta", "x", {"by": 2})
    assert second.get("meta", "x") == {"by": 2}


def test_renewal_keeps_the_lease(tmp_path: Path) -> None:
    now = [1000.0]
    first = Journal(tmp_path / "journal.db", lease_s=10, clock=lambda: now[0])
    first.acquire()
    for _ in range(5):
        now[0] += 9
        first.renew()
        with pytest.raises(LeaseHeldError):
            Journal(tmp_path / "journal.db", clock=lambda: now[0]).acquire()
    first.release()
    assert Journal(tmp_path / "journal.db", clock=lambda: now[0]).acquire() == 2


def test_a_transaction_is_all_or_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    journal.acquire()

    def half() -> None:
        with journal.transaction():
            journal.put("job", "a", {"n": 1})
            with journal.transaction():
                journal.put("job", "b", {"n": 2})
            raise KeyError

    with pytest.raises(KeyError):
        half()
    assert journal.all("job") == {}
    journal.put("job", "b", {"n": 2})
    journal.put("job", "a", {"n": 1})
    assert list(journal.all("job").items()) == [("a", {"n": 1}), ("b", {"n": 2})]
    journal.remove("job", "a")
    assert journal.get("job", "a") is None


def test_readers_do_not_disturb_the_writer(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    journal.acquire()
    with journal.transaction():
        journal.put("job", "a", {})
        copy = read_only(tmp_path / "journal.db")
        assert copy is not None
        assert copy.all("job") == {}
    copy = read_only(tmp_path / "journal.db")
    assert copy is not None
    assert copy.all("job") == {"a": {}}
    # the copy is a journal of its own
    copy.acquire()
    copy.put("job", "b", {})
    assert journal.get("job", "b") is None
    assert read_only(tmp_path / "none.db") is None


def test_a_file_that_is_no_journal(tmp_path: Path) -> None:
    (tmp_path / "journal.db").write_bytes(b"x" * 5000)
    with pytest.raises(InputError, match="is no journal"):
        Journal(tmp_path / "journal.db")
    with pytest.raises(InputError, match="is no journal"):
        read_only(tmp_path / "journal.db")


MOUNTS = r"""21 1 8:1 / / rw - ext4 /dev/sda1 rw
30 21 0:40 / /home rw,relatime shared:1 - nfs4 server:/home rw
31 30 8:2 / /home/ann/my\040disk rw - xfs /dev/sdb rw
32 21 0:41 / /mnt rw - fuse.sshfs host:/ rw
33 21 8:3 / /mnt rw - btrfs /dev/sdc rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/var", "ext4"),
        ("/home/ann", "nfs4"),
        ("/home/ann/my disk/x", "xfs"),
        ("/homely", "ext4"),
        ("/mnt/x", "btrfs"),
    ],
)
def test_the_innermost_last_mount_counts(folder: str, kind: str, tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert kind_of(Path(folder), mounts) == kind
    assert kind_of(Path(folder), tmp_path / "none") is None


def test_network_file_systems_are_refused(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    with pytest.raises(InputError, match=r"network file system \(nfs4\).*local disk"):
        require_local(Path("/home/ann"), mounts)
    require_local(Path("/home/ann/my disk"), mounts)


def test_a_process_is_known_by_number_and_start(tmp_path: Path) -> None:
    code = "import time; time.sleep(60)"
    words = ["--action", "w1", "--jobs-dir", str(tmp_path)]
    child = subprocess.Popen([sys.executable, "-c", code, *words])
    try:
        me = identity(child.pid)
        assert me is not None
        assert dict(find_by_argument("--action", "--jobs-dir", str(tmp_path))) == {"w1": me}
        assert not dict(find_by_argument("--action", "--jobs-dir", str(tmp_path.parent)))
        other = ProcessId(me.pid, me.started + 1)
        assert (alive(me), alive(other)) == (True, False)
        # neither another process of that number nor one without the id is ever signalled
        assert not send(other, "w1", 9)  # type: ignore[arg-type]
        assert not send(me, "w2", 9)  # type: ignore[arg-type]
        assert child.poll() is None
        assert send(me, "w1", 9)  # type: ignore[arg-type]
        # not waited for yet: a zombie does not run
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not alive(me)
        assert identity(child.pid) is None
    finally:
        ended(child)  # type: ignore[arg-type]
