"""Rigid jobs from the Standard Workload Format and from Philly's job log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ymir_opt.cli.main import run
from ymir_opt.domain.errors import InputError, NotFoundError
from ymir_opt.importers.philly import import_philly
from ymir_opt.importers.swf import COLUMNS, import_swf
from ymir_opt.importers.traces import TraceDocument, parse_trace, workload_of
from ymir_opt.policies.base import load_policy
from ymir_opt.simulator.cluster import parse_cluster
from ymir_opt.simulator.engine import simulate
from ymir_opt.simulator.traces import TraceOptions, load_trace

SWF = """\
; Version: 2.2
; Computer: Toy Cluster
; UnixStartTime: 1143000000
; MaxProcs: 64

    1     0    10   100   8  -1 -1   8  200 -1 1  3  1 -1 2 -1 -1 -1
    3    60     5    50  -1  -1 -1   3   -1 -1 0  4  1 -1 -1 -1 -1 -1
    2    30    -1    -1   4  -1 -1   4   -1 -1 5  4  1 -1 1 -1 -1 -1
    4    90     0     0   4  -1 -1  -1   -1 -1 1  5  1 -1 1 -1 -1 -1
    5   100     0    77   4  -1 -1   4   -1 -1 2  5  1 -1 1 -1 -1 -1
    6   110     0    77  -1  -1 -1  -1   -1 -1 1  5  1 -1 1 -1 -1 -1
"""


def swf(tmp_path: Path, text: str = SWF) -> str:
    path = tmp_path / "log.swf"
    path.write_text(text)
    return str(path)


def document(found: Any) -> TraceDocument:
    assert isinstance(found.document, TraceDocument)
    return found.document


def test_lines_become_rigid_jobs(tmp_path: Path) -> None:
    found = import_swf(swf(tmp_path), processors_per_gpu=4)
    got = document(found)
    assert [(j.id, j.submitted_at_s, j.gpus, j.run_s, j.queue, j.user) for j in got.jobs] == [
        ("job-1", 0.0, 2, 100.0, "queue-2", "user-3"),
        ("job-3", 60.0, 1, 50.0, "default", "user-4"),
        ("job-4", 90.0, 1, 0.5, "queue-1", "user-5"),
    ]
    assert got.name == "Toy Cluster"
    assert "1143000000" in got.clock
    notes = "\n".join(found.notes)
    for why in ("1 lines left out: the run time is unknown", "status 2-4", "number of processors is unknown"):
        assert why in notes


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 0 1", "line 1: has 3 columns; a line has 18 numbers"),
        ("1 0 10 x 8 -1 -1 8 200 -1 1 3 1 -1 2 -1 -1 -1", "line 1, column run time: 'x' is not a number"),
        ("1 nan 10 1 8 -1 -1 8 200 -1 1 3 1 -1 2 -1 -1 -1", "column submit time"),
        ("1 -5 10 1 8 -1 -1 8 200 -1 1 3 1 -1 2 -1 -1 -1", "column submit time: -5 is negative"),
        ("1 0 10 1 8 -1 -1 2.5 200 -1 1 3 1 -1 2 -1 -1 -1", "column requested processors: 2.5"),
        ("1 0 10 1 8 -1 -1 1e9 200 -1 1 3 1 -1 2 -1 -1 -1", "too many"),
    ],
)
def test_wrong_lines_name_file_line_and_column(tmp_path: Path, line: str, message: str) -> None:
    path = swf(tmp_path, line + "\n")
    with pytest.raises(InputError) as error:
        import_swf(path)
    assert message in str(error.value)
    assert str(error.value).startswith(path)


def test_a_number_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    line = "7 0 10 1 8 -1 -1 8 200 -1 1 3 1 -1 2 -1 -1 -1\n"
    with pytest.raises(InputError, match="line 2, column job number: 7 is already on line 1"):
        import_swf(swf(tmp_path, line + line))
    assert len(COLUMNS) == 18
    with pytest.raises(InputError, match="processors-per-gpu"):
        import_swf(swf(tmp_path, line), processors_per_gpu=0)
    with pytest.raises(NotFoundError):
        import_swf(str(tmp_path / "absent.swf"))


def test_without_queueing_each_job_takes_its_run_time(tmp_path: Path) -> None:
    workload = load_trace(swf(tmp_path), TraceOptions(gpu_types=("V100",)))
    result = simulate(workload, parse_cluster("4x8:V100"), load_policy("fifo"))
    assert {job.id: job.jct_s for job in result.jobs} == {"job-1": 100.0, "job-3": 50.0, "job-4": 0.5}


def entry(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "status": "Pass",
        "vc": "ee9e8c",
        "jobid": name,
        "user": "ce2f4c",
        "submitted_time": "2017-10-07 01:11:46",
        "attempts": [
            {
                "start_time": "2017-10-07 01:12:09",
                "end_time": "2017-10-07 01:13:49",
                "detail": [
                    {"ip": "m435", "gpus": ["gpu2", "gpu5"]},
                    {"ip": "m436", "gpus": ["gpu0", "gpu1"]},
                ],
            }
        ],
        **fields,
    }


def philly(tmp_path: Path, *entries: Any, text: str | None = None) -> str:
    path = tmp_path / "cluster_job_log"
    path.write_text(
        text if text is not None else "[\n" + ",\n".join(json.dumps(e) for e in entries) + "\n]\n"
    )
    return str(path)


def attempt(start: str | None, end: str | None, gpus: int) -> dict[str, Any]:
    return {
        "start_time": start if start in (None, "None") else f"2017-10-07 {start}",
        "end_time": end if end in (None, "None") else f"2017-10-07 {end}",
        "detail": [{"ip": "m1", "gpus": [f"gpu{k}" for k in range(gpus)]}] if gpus else [],
    }


def test_attempts_become_one_rigid_job(tmp_path: Path) -> None:
    retried = [attempt("01:00:00", "01:01:00", 2), attempt("02:00:00", "02:02:00", 1), attempt(None, None, 0)]
    found = import_philly(
        philly(
            tmp_path,
            entry("b", submitted_time="2017-10-08 00:00:00", attempts=retried),
            entry("a"),
            entry("never", attempts=[attempt("None", "None", 0)]),
            entry("running", attempts=[attempt("01:00:00", "01:01:00", 2), attempt("02:00:00", "None", 2)]),
            entry("unknown", submitted_time="None"),
            entry("short", attempts=[attempt("01:00:00", "01:00:00", 1)]),
            entry("other", vc="6214e9"),
        )
    )
    got = document(found)
    assert [(j.id, j.gpus, j.run_s, j.queue) for j in got.jobs] == [
        ("a", 4, 100.0, "ee9e8c"),
        ("other", 4, 100.0, "6214e9"),
        ("b", 2, 60.0 + 60.0, "ee9e8c"),
    ]
    assert got.jobs[2].submitted_at_s - got.jobs[0].submitted_at_s == 24 * 3600 - 3600 - 11 * 60 - 46
    assert got.jobs[0].submitted_at_s == 1507338706.0
    assert sum(int(note.split()[0]) for note in found.notes if "left out" in note) == 4


def test_virtual_clusters_are_chosen_by_name(tmp_path: Path) -> None:
    path = philly(tmp_path, entry("a"), entry("b", vc="6214e9"))
    assert [job.id for job in document(import_philly(path, vc=("6214e9",))).jobs] == ["b"]
    with pytest.raises(InputError, match="'nope' is not in the trace; known: ee9e8c, 6214e9"):
        import_philly(path, vc=("nope",))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (entry("x", submitted_time="07/10/2017"), "line 3, field submitted_time: '07/10/2017' is not a time"),
        (entry("x", submitted_time=5), "field submitted_time: 5 is not a time"),
        (entry("x", attempts=None), "field attempts"),
        (entry("x", attempts=[7]), r"field attempts[0]: 7 is not an object"),
        (entry("x", attempts=[{"detail": [{"ip": "m"}]}]), r"attempts[0].detail[0]"),
        (entry("x", attempts=[attempt("02:00:00", "01:00:00", 1)]), "ends before it starts"),
        (entry(""), "field jobid"),
        (entry("<b>"), "field jobid"),
        (entry("a"), "field jobid: 'a' is already on line 2"),
        (17, "line 3: is not an object"),
    ],
)
def test_wrong_entries_name_file_line_and_field(tmp_path: Path, wrong: Any, message: str) -> None:
    path = philly(tmp_path, entry("a"), wrong)
    with pytest.raises(InputError) as error:
        import_philly(path)
    assert message in str(error.value)
    assert str(error.value).startswith(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[\n{"jobid": "a",\n "x": }]', "line 3, column 7"),
        ('[{"jobid": "a", "submitted_time": "None"} {"jobid": "b"}]', "expected , or ]"),
        ("[", "line 1, column 2"),
        ("{}", "is not a JSON list"),
        ("[] x", "text after the list"),
    ],
)
def test_broken_json_names_line_and_column(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        import_philly(philly(tmp_path, text=text))
    assert message in str(error.value)


def test_an_empty_log_is_an_empty_trace(tmp_path: Path) -> None:
    assert document(import_philly(philly(tmp_path, text="\n [ ] \n"))).jobs == ()
    result = simulate(workload_of(TraceDocument(), ("V100",)), parse_cluster("1x1:V100"), load_policy("fifo"))
    assert result.jobs_finished == 0


def test_on_the_command_line_a_log_becomes_a_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "trace.json"
    assert run(["import", "philly", philly(tmp_path, entry("a")), "-o", str(out)]) == 0
    assert [job.gpus for job in parse_trace(out.read_text()).jobs] == [4]
    assert run(["import", "swf", swf(tmp_path), "--processors-per-gpu", "8", "-o", str(out)]) == 0
    assert [job.gpus for job in parse_trace(out.read_text()).jobs] == [1, 1, 1]
    assert run(["import", "swf", swf(tmp_path, "1 2 3\n"), "-o", str(out)]) == 2
    assert "line 1: has 3 columns" in capsys.readouterr().err
