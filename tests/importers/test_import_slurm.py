from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ymir_opt.cli.main import run
from ymir_opt.domain.documents import parse_snapshot
from ymir_opt.domain.errors import InputError
from ymir_opt.domain.snapshot import JobState, NodeState
from ymir_opt.importers.slurm import import_slurm
from ymir_opt.importers.slurm_text import Gres, expand_hosts, expand_indices, gpus_of

NOW = 1_700_000_000
META = {"plugin": {"data_parser": "data_parser/v0.0.42"}, "slurm": {"release": "24.11.5"}}


def some(number):
    return {"set": True, "infinite": False, "number": number}


UNSET = {"set": False, "infinite": False, "number": 0}
ENDLESS = {"set": False, "infinite": True, "number": 0}


def job(number=1, **fields):
    return {
        "job_id": number,
        "job_state": ["PENDING"],
        "account": "bio",
        "partition": "gpu",
        "submit_time": some(NOW - 600),
        "eligible_time": some(NOW - 600),
        "time_limit": some(60),
        "node_count": some(1),
        "tasks": some(1),
        "tres_per_job": "gres/gpu:2",
        "gres_detail": [],
    } | fields


def running(number=1, **fields):
    return job(
        number,
        job_state=["RUNNING"],
        nodes="g1",
        gres_detail=["gpu:a100:2(IDX:1-2)"],
        start_time=some(NOW - 300),
        end_time=some(NOW + 3300),
        **fields,
    )


def node(name="g1", **fields):
    return {
        "name": name,
        "state": ["IDLE"],
        "gres": "gpu:a100:4",
        "gres_used": "gpu:a100:0(IDX:N/A)",
        "partitions": ["gpu"],
        "active_features": ["fast"],
    } | fields


def imported(tmp_path, jobs, nodes=None, meta=META, **options):
    path, where = tmp_path / "jobs.json", tmp_path / "nodes.json"
    path.write_text(json.dumps({"jobs": jobs, "meta": meta, "last_update": some(NOW)}))
    where.write_text(json.dumps({"nodes": [node()] if nodes is None else nodes, "meta": meta}))
    return import_slurm(str(path), nodes=str(where), **options)


# -- small languages ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("cn1", ("cn1",)),
        ("cn[001-003]", ("cn001", "cn002", "cn003")),
        ("cn[1,3-4],gpu7", ("cn1", "cn3", "cn4", "gpu7")),
        ("r[1-2]n[8-9]", ("r1n8", "r1n9", "r2n8", "r2n9")),
        ("n[9-10].site", ("n9.site", "n10.site")),
        ("", ()),
    ],
)
def test_host_lists(text, wanted):
    assert expand_hosts(text) == wanted


@pytest.mark.parametrize("text", ["cn[1-", "cn[a]", "cn[3-1]", "cn[1-999999999]"])
def test_wrong_host_lists_are_refused(text):
    with pytest.raises(ValueError):
        expand_hosts(text)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("gpu:h100:2,gpu:h200:4", (Gres("h100", 2), Gres("h200", 4))),
        ("gpu:h100:2(IDX:0-1),gpu:h200:4(IDX:2-5)", (Gres("h100", 2, (0, 1)), Gres("h200", 4, (2, 3, 4, 5)))),
        ("gpu:tesla:2(IDX:0,3)", (Gres("tesla", 2, (0, 3)),)),
        ("gpu:a100:8(S:0-1),shard:80", (Gres("a100", 8),)),
        ("gpu:a100_1g.5gb:7", (Gres("a100_1g.5gb", 7),)),
        ("gpu:4", (Gres(None, 4),)),
        ("gpu", (Gres(None, 1),)),
        ("gres/gpu:h100:1,gres/gpu:h200:1", (Gres("h100", 1), Gres("h200", 1))),
        ("gres:gpu:2", (Gres(None, 2),)),
        ("cpu=8,mem=64G,node=1,gres/gpu=4,gres/gpu:h100=4", (Gres("h100", 4),)),
        ("cpu=1,mem=512M", ()),
        ("craynetwork:2,mps:100", ()),
        ("", ()),
    ],
)
def test_gpu_strings(text, wanted):
    assert gpus_of(text) == wanted


@given(st.text(max_size=40))
def test_no_text_breaks_the_readers(text):
    for reader in (expand_hosts, expand_indices, gpus_of):
        with contextlib.suppress(ValueError):
            reader(text)


@given(st.sets(st.integers(0, 40), min_size=1))
def test_indices_written_singly_are_read_back(numbers):
    assert expand_indices(",".join(map(str, sorted(numbers)))) == tuple(sorted(numbers))


# -- nodes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "wanted"),
    [
        (["IDLE"], NodeState.READY),
        ("mixed", NodeState.READY),
        ("idle*", NodeState.READY),
        ("MIXED+PLANNED", NodeState.READY),
        (["IDLE", "DRAIN"], NodeState.DRAINING),
        ("allocated+drain", NodeState.DRAINING),
        (["IDLE", "RESERVED"], NodeState.DRAINING),
        (["DOWN"], NodeState.DOWN),
        (["DOWN", "DRAIN"], NodeState.DOWN),
        (["IDLE", "NOT_RESPONDING"], NodeState.DOWN),
        (["IDLE", "SPLENDID"], NodeState.DRAINING),
    ],
)
def test_node_states(tmp_path, state, wanted):
    found = imported(tmp_path, [], [node(state=state)])
    assert found.document.cluster.nodes[0].state is wanted
    assert any("SPLENDID" in note for note in found.notes) == ("SPLENDID" in state)


def test_state_flags_of_older_versions_count(tmp_path):
    found = imported(tmp_path, [], [node(state="idle", state_flags=["DRAIN"])])
    assert found.document.cluster.nodes[0].state is NodeState.DRAINING


def test_a_machine_with_two_types_becomes_two_nodes(tmp_path):
    nodes = imported(tmp_path, [], [node(gres="gpu:h100:2,gpu:h200:4", gres_used="")]).document.cluster.nodes
    assert [(n.id, n.gpu_type, n.gpus, n.gpu_memory_gib) for n in nodes] == [
        ("g1:h100", "h100", 2, 80.0),
        ("g1:h200", "h200", 4, 141.0),
    ]


def test_machines_without_gpus_are_left_out(tmp_path):
    assert imported(tmp_path, [], [node(gres="")]).document.cluster.nodes == ()


def test_gpus_in_use_by_no_listed_job_are_unavailable(tmp_path):
    found = imported(tmp_path, [running()], [node(gres_used="gpu:a100:3(IDX:0-2)")])
    assert found.document.cluster.nodes[0].unavailable_gpus == (0,)
    assert any("in use by no listed job" in note for note in found.notes)


def test_unknown_memory_is_said_and_can_be_given(tmp_path):
    found = imported(tmp_path, [], [node(gres="gpu:4", gres_used="")])
    assert found.document.cluster.nodes[0].gpu_memory_gib == 0
    assert any("--gpu-memory gpu=GIB" in note for note in found.notes)
    given = imported(tmp_path, [], [node(gres="gpu:4", gres_used="")], gpu_memory=("gpu=24",))
    assert given.document.cluster.nodes[0].gpu_memory_gib == 24


# -- jobs -----------------------------------------------------------------------------------------


def only(found):
    (job,) = found.document.jobs
    return job


def test_a_pending_job_is_rigid_with_its_time_limit(tmp_path):
    found = only(imported(tmp_path, [job(7)]))
    assert (found.id, found.queue, found.state) == ("7", "bio", JobState.PENDING)
    assert (found.requested_gpus, found.remaining_s) == (2, 3600.0)
    assert found.submitted_at_s == NOW - 600
    assert found.node_selector == {"partition/gpu": "true"}


def test_a_running_job_holds_its_gpus_and_keeps_them(tmp_path):
    found = only(imported(tmp_path, [running()]))
    assert found.allocation == {"g1": (1, 2)}
    assert (found.remaining_s, found.running_s, found.attained_gpu_s) == (3300.0, 300.0, 600.0)
    assert found.movable is False


def test_indices_of_a_second_type_are_counted_from_its_first_gpu(tmp_path):
    nodes = [node(gres="gpu:h100:2,gpu:h200:4", gres_used="")]
    held = running() | {"gres_detail": ["gpu:h200:2(IDX:3,5)"]}
    assert only(imported(tmp_path, [held], nodes)).allocation == {"g1:h200": (1, 3)}


def test_a_gang_over_several_machines(tmp_path):
    held = running() | {"nodes": "g[1-2]", "gres_detail": ["gpu:a100:4(IDX:0-3)", "gpu:a100:2(IDX:0-1)"]}
    found = only(imported(tmp_path, [held], [node("g1"), node("g2")]))
    assert found.allocation == {"g1": (0, 1, 2, 3), "g2": (0, 1)}
    assert found.requested_gpus == 6


def test_a_job_on_two_types_is_left_out_but_its_gpus_are_taken(tmp_path):
    nodes = [node(gres="gpu:h100:2,gpu:h200:4", gres_used="")]
    held = running() | {"gres_detail": ["gpu:h100:1(IDX:0),gpu:h200:1(IDX:2)"]}
    found = imported(tmp_path, [held], nodes)
    assert found.document.jobs == ()
    assert [n.unavailable_gpus for n in found.document.cluster.nodes] == [(0,), (0,)]
    assert any("several GPU types" in note for note in found.notes)


def test_two_jobs_on_one_gpu_do_not_break_the_snapshot(tmp_path):
    found = imported(tmp_path, [running(1), running(2) | {"gres_detail": ["gpu:a100:2(IDX:2-3)"]}])
    assert [j.id for j in found.document.jobs] == ["1"]
    assert found.document.cluster.nodes[0].unavailable_gpus == (3,)


def test_unknown_indices_take_free_gpus_and_say_so(tmp_path):
    found = imported(tmp_path, [running(1), running(2) | {"gres_detail": ["gpu:a100:2"]}])
    assert [j.allocation for j in found.document.jobs] == [{"g1": (1, 2)}, {"g1": (0, 3)}]
    assert any("which GPUs" in note for note in found.notes)


@pytest.mark.parametrize(
    ("fields", "gpus", "workers"),
    [
        ({"tres_per_job": "", "tres_per_node": "gres/gpu:4", "node_count": some(2)}, None, (2, 4)),
        ({"tres_per_job": "", "tres_per_task": "gres/gpu:1", "tasks": some(8)}, None, (8, 1)),
        ({"tres_per_job": "", "tres_per_node": "gpu:4"}, 4, None),
        ({"tres_per_job": "", "tres_req_str": "cpu=4,gres/gpu=3"}, 3, None),
        ({"tres_per_job": "gres/gpu:A100:2"}, 2, None),
    ],
)
def test_requests(tmp_path, fields, gpus, workers):
    found = only(imported(tmp_path, [job(**fields)]))
    assert found.requested_gpus == gpus
    assert (found.workers and (found.workers.count, found.workers.gpus_each)) == workers
    assert found.gpu_types == (("a100",) if "A100" in str(fields) else None)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"tres_per_job": ""}, "1 without GPUs"),
        ({"state_reason": "Dependency"}, "held or waiting for another job"),
        ({"hold": True}, "held or waiting for another job"),
        ({"job_state": ["COMPLETED"]}, "1 ended"),
        ({"job_state": "CANCELLED"}, "1 ended"),
        ({"job_state": ["BEWITCHED"]}, "in an unknown state"),
        ({"tres_per_job": "gres/gpu:h100:1,gres/gpu:h200:1"}, "several GPU types"),
        ({"job_state": "RUNNING", "nodes": "elsewhere"}, "on GPUs that the nodes do not list"),
    ],
)
def test_what_is_left_out_is_said(tmp_path, fields, why):
    found = imported(tmp_path, [job(**fields)])
    assert found.document.jobs == ()
    assert any(why in note for note in found.notes)


def test_an_array_is_its_waiting_tasks(tmp_path):
    found = imported(
        tmp_path, [job(58, array_job_id=some(58), array_task_id=UNSET, array_task_string="1,4-5%2")]
    )
    assert [j.id for j in found.document.jobs] == ["58_1", "58_4", "58_5"]
    assert any("array" in note for note in found.notes)
    task = only(imported(tmp_path, [job(61, array_job_id=some(58), array_task_id=some(7))]))
    assert task.id == "58_7"


@pytest.mark.parametrize("runs", [True, False])
def test_a_field_that_cannot_be_one_leaves_the_job_out(tmp_path, runs):
    made = (running if runs else job)(account="two\nlines")
    found = imported(tmp_path, [made])
    assert found.document.jobs == ()
    assert found.document.cluster.nodes[0].unavailable_gpus == ((1, 2) if runs else ())
    assert any(note.startswith("jobs[0].queue: ") for note in found.notes)


def test_a_job_that_may_not_begin_yet_says_when(tmp_path):
    found = only(imported(tmp_path, [job(eligible_time=some(NOW + 900))]))
    assert found.not_before_s == NOW + 900


@pytest.mark.parametrize("limit", [ENDLESS, UNSET, 0, None])
def test_a_job_without_a_limit_gets_the_default_and_it_is_said(tmp_path, limit):
    found = imported(tmp_path, [job(time_limit=limit)], default_time_s=500.0)
    assert only(found).remaining_s == 500.0
    assert any("without a time limit" in note for note in found.notes)


def test_features_joined_by_and_select_nodes(tmp_path):
    found = only(imported(tmp_path, [job(features="fast&big")]))
    assert found.node_selector == {
        "partition/gpu": "true",
        "feature/fast": "true",
        "feature/big": "true",
    }
    other = imported(tmp_path, [job(features="fast|big")])
    assert only(other).node_selector == {"partition/gpu": "true"}
    assert any("choice of features" in note for note in other.notes)


def test_plain_scalars_of_older_versions(tmp_path):
    old = {
        "job_id": 9,
        "job_state": "RUNNING",
        "account": "bio",
        "partition": "gpu",
        "submit_time": NOW - 600,
        "start_time": NOW - 300,
        "end_time": NOW + 300,
        "time_limit": 10,
        "node_count": 1,
        "tasks": 1,
        "nodes": "g1",
        "gres_detail": ["gpu:a100:1(IDX:3)"],
        "array_job_id": 0,
        "array_task_id": None,
        "priority": 12,
    }
    meta = {"plugin": {"type": "openapi/v0.0.38", "name": "Slurm OpenAPI v0.0.38"}}
    found = imported(tmp_path, [old], [node(partitions=["gpu"], features="fast")], meta)
    assert only(found).allocation == {"g1": (3,)}
    assert only(found).remaining_s == 300.0
    assert not any("not known" in note for note in found.notes)


def test_an_unknown_version_warns_and_names_the_field(tmp_path):
    meta = {"plugin": {"data_parser": "data_parser/v0.0.99"}}
    found = imported(
        tmp_path, [job(time_limit={"minutes": [60]}), job(2, time_limit={"minutes": 5})], meta=meta
    )
    assert any("meta.plugin.data_parser" in note and "0.0.99" in note for note in found.notes)
    (named,) = [note for note in found.notes if "time_limit" in note]
    assert named.startswith("jobs[0].time_limit: ")
    assert named.endswith("(and 1 more)")
    assert len(found.document.jobs) == 2


def test_the_time_is_that_of_the_listing_unless_given(tmp_path):
    assert imported(tmp_path, [job()]).document.taken_at_s == NOW
    assert imported(tmp_path, [job()], at=5.0).document.taken_at_s == 5.0
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"jobs": [job()], "nodes": [node()], "meta": META}))
    assert import_slurm(str(path)).document.taken_at_s == NOW - 600


@pytest.mark.parametrize(
    ("document", "place"),
    [
        ({"nodes": []}, "has no list 'jobs'"),
        ({"jobs": []}, "--nodes"),
        ({"jobs": {}, "nodes": []}, "has no list 'jobs'"),
        ({"jobs": [3], "nodes": []}, "jobs[0]: 3 is not an object"),
        ([], "has no list 'jobs'"),
    ],
)
def test_wrong_documents(tmp_path, document, place):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InputError) as error:
        import_slurm(str(path))
    assert place in error.value.one_line()


def test_a_node_summary_is_refused_with_the_right_command(tmp_path):
    jobs, nodes = tmp_path / "j.json", tmp_path / "n.json"
    jobs.write_text(json.dumps({"jobs": [], "meta": META}))
    nodes.write_text(json.dumps({"sinfo": [], "meta": META}))
    with pytest.raises(InputError, match="scontrol show nodes --json"):
        import_slurm(str(jobs), nodes=str(nodes))


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**20)
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(sorted(running())), JUNK, max_size=4), st.booleans())
def test_no_field_of_a_job_breaks_the_import(tmp_path_factory, fields, runs):
    folder = tmp_path_factory.getbasetemp() / "junk"
    folder.mkdir(exist_ok=True)
    base = running() if runs else job()
    found = imported(folder, [base | fields, job(2)])
    assert "2" in {j.id for j in found.document.jobs}


def test_the_command_reads_jobs_from_standard_input(tmp_path, monkeypatch, capsys):
    import io
    import sys

    text = json.dumps({"jobs": [job()], "nodes": [node()], "meta": META, "last_update": some(NOW)})
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    out = tmp_path / "s.json"
    assert run(["import", "slurm", "-", "-o", str(out)]) == 0
    assert len(parse_snapshot(out.read_bytes()).jobs) == 1


# -- real documents -------------------------------------------------------------------------------


def real(data_dir, jobs, nodes):
    folder = data_dir / "slurm"
    return import_slurm(str(folder / f"{jobs}.json"), nodes=str(folder / f"{nodes}.json"))


@pytest.mark.data
@pytest.mark.parametrize(
    ("jobs", "nodes", "gpus", "waiting"),
    [
        ("slurmweb_24.11_0.0.42_slurm-jobs", "slurmweb_24.11_0.0.42_slurm-nodes", 12, 0),
        ("slurmweb_24.11_0.0.42_slurm-job-gpus-pending", "slurmweb_24.11_0.0.42_slurm-nodes", 12, 1),
        ("slurmweb_24.05_0.0.41_slurm-jobs", "slurmweb_24.05_0.0.41_slurm-nodes", 0, 0),
        ("slurmweb_24.05_0.0.41_slurm-job-gpus-pending", "slurmweb_24.05_0.0.41_slurm-nodes", 0, 1),
        ("slurmweb_24.05_0.0.41_slurm-job-gpus-running", "slurmweb_24.11_0.0.42_slurm-nodes", 12, 0),
        ("rivosinc_squeue_out", "rivosinc_sinfo_out", 0, 0),
    ],
)
def test_real_documents_are_read_without_complaint(data_dir, jobs, nodes, gpus, waiting):
    found = real(data_dir, jobs, nodes)
    assert sum(node.gpus for node in found.document.cluster.nodes) == gpus
    assert len(found.document.jobs) == waiting
    assert not any("not understood" in note or "not known" in note for note in found.notes)


@pytest.mark.data
def test_a_real_running_job_on_two_types_blocks_its_gpus(data_dir):
    found = real(
        data_dir, "slurmweb_24.11_0.0.42_slurm-job-gpus-running", "slurmweb_24.11_0.0.42_slurm-nodes"
    )
    blocked = {node.id: node.unavailable_gpus for node in found.document.cluster.nodes}
    assert blocked == {"ia1:h100": (0, 1), "ia1:h200": (0, 1, 2, 3), "ia2:h100": (), "ia2:h200": ()}


@pytest.mark.data
def test_a_real_running_job_holds_its_gpus(data_dir, tmp_path):
    """The job of Slurm 24.05 on four H100 of machine gpu1, whose nodes file is not in the collection."""
    nodes = tmp_path / "nodes.json"
    nodes.write_text(json.dumps({"nodes": [node("gpu1", gres="gpu:h100:8", gres_used="")], "meta": META}))
    path = data_dir / "slurm" / "slurmweb_24.05_0.0.41_slurm-job-gpus-running.json"
    found = only(import_slurm(str(path), nodes=str(nodes)))
    assert found.allocation == {"gpu1": (0, 1, 2, 3)}
    assert found.remaining_s == 59.0
