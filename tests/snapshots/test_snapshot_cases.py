from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_documents import job_row, node_row, snapshot_data, snapshot_of
from strategies import Recipe, Seeded, build_snapshot

from ymir_opt.cli.main import run
from ymir_opt.domain.documents import dump_json, parse_plan, parse_snapshot, snapshot_sha256
from ymir_opt.domain.errors import InputError, SolverError
from ymir_opt.domain.outcome import outcome
from ymir_opt.planner import solve
from ymir_opt.snapshots import Request, anonymize_case, anonymize_snapshot, capture, parse_case, replay
from ymir_opt.snapshots.compare import first_difference, same_plan


@pytest.fixture
def snapshot():
    return snapshot_of(snapshot_data())


def seeded(seed, **fields):
    return build_snapshot(Seeded(random.Random(seed)), Recipe(**fields))


def written(path, document):
    path.write_text(dump_json(document))
    return str(path)


# -- capture and replay ---------------------------------------------------------------------------


def test_a_case_survives_the_file_and_replays_to_the_same_plan(snapshot):
    case = parse_case(dump_json(capture(snapshot, note="n0 idle"), exclude_defaults=True))
    assert case.note == "n0 idle"
    assert case.plan is not None
    assert case.versions["ymir-opt"]
    found = replay(case)
    assert (found.same, found.difference, found.versions, found.notes) == (True, None, (), ())
    assert found.plan is not None
    assert found.plan.solver.wall_s >= 0


def test_a_plan_that_a_user_has_is_replayed_with_its_policy_and_seed(snapshot):
    plan = solve(snapshot, policy="ymir-no-merge", seed=3)
    case = capture(snapshot, plan, request=Request(policy="ymir-no-merge", seed=3))
    assert replay(case).same
    other = replay(case.model_copy(update={"request": Request(policy="ymir", seed=3)}))
    assert not other.same
    assert other.difference == "planner.policy"


def test_a_plan_of_another_snapshot_is_refused(snapshot):
    plan = solve(snapshot)
    other = snapshot_of(snapshot_data([job_row("a")]))
    with pytest.raises(InputError, match="snapshot_sha256"):
        capture(other, plan)


def test_a_changed_plan_is_found_and_named(snapshot):
    case = capture(snapshot)
    action = case.plan.actions[0].model_copy(update={"prepare_ahead_s": 7.0})
    plan = case.plan.model_copy(update={"actions": (action, *case.plan.actions[1:])})
    found = replay(case.model_copy(update={"plan": plan}))
    assert not found.same
    assert found.difference == "actions[0].prepare_ahead_s"


def test_wall_time_does_not_count(snapshot):
    plan = solve(snapshot)
    slower = plan.model_copy(update={"solver": plan.solver.model_copy(update={"wall_s": 99.0})})
    assert same_plan(plan, slower)
    assert first_difference(plan, slower) == "field order"


def test_other_versions_are_named(snapshot):
    case = capture(snapshot)
    changed = case.model_copy(update={"versions": {**case.versions, "numpy": "0.1", "lost": "2"}})
    found = replay(changed)
    assert found.same
    assert [text.split()[0] for text in found.versions] == ["numpy", "lost"]
    assert "lost 2 -> absent" in found.versions


def test_a_failure_is_a_case_too(snapshot, monkeypatch):
    import ymir_opt.api

    def broken(*_args, **_options):
        raise SolverError("node n0", "is confusing", "rest")

    monkeypatch.setattr(ymir_opt.api, "solve", broken)
    case = parse_case(dump_json(capture(snapshot)))
    assert case.plan is None
    assert (case.failure.kind, case.failure.message) == ("SolverError", "node n0: is confusing; rest")
    assert replay(case).same
    monkeypatch.undo()
    found = replay(case)
    assert (found.same, found.difference) == (False, "the planner did not fail")


def test_a_request_that_is_refused_is_a_failure_without_folders(snapshot):
    case = capture(snapshot, request=Request(policy="nobody"))
    assert case.failure is not None
    assert "nobody" in case.failure.message
    assert case.failure.where.startswith("ymir_opt/")


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"plan": None}, "neither a plan nor a failure"),
        ({"failure": {"kind": "x", "message": "y"}}, "both a plan and a failure"),
        ({"schema": "ymir.case/2"}, "schema"),
        ({"request": {"gap": 2}}, "request.gap"),
        ({"reqest": {}}, "did you mean 'request'?"),
        ({"snapshot": None}, "snapshot"),
    ],
)
def test_a_wrong_case_names_its_place(snapshot, change, place):
    data = json.loads(dump_json(capture(snapshot))) | change
    with pytest.raises(InputError) as error:
        parse_case(json.dumps(data))
    assert place in error.value.one_line()


def test_a_case_whose_snapshot_is_wrong_names_the_place_in_it(snapshot):
    data = json.loads(dump_json(capture(snapshot)))
    data["snapshot"]["jobs"][1]["id"] = "a"
    with pytest.raises(InputError, match=r"snapshot\.jobs\[1\]\.id"):
        parse_case(json.dumps(data))


# -- names taken out ------------------------------------------------------------------------------

SECRETS = ("acme", "secret", "/data/", "payroll", "wärme")


def telling():
    """Return a snapshot full of names that must not be told."""
    return snapshot_of(
        snapshot_data(
            [
                job_row("acme-1", task="payroll", tenant="acme", labels={"path": "/data/acme", "n": [4]}),
                job_row("secret 2", task="payroll", config="/data/x", node_selector={"zone": "4"}),
                job_row("wärme", task="acme", node_selector={"rack": "secret-rack"}),
            ],
            cluster={
                "nodes": [
                    node_row("secret-n0", rack="secret-rack", labels={"zone": 4, "owner": "acme"}),
                    node_row("acme-n1", resident_fm=["bert", None, None, None]),
                ]
            },
            queues=[{"name": "default", "cohort": "acme", "quotas": [{"gpu_type": "*", "nominal_gpus": 8}]}],
            adapters=[{"id": "payroll", "foundation_model": "bert", "task": "acme"}],
            labels={"secret": {"deep": ["acme", True, None]}},
        )
    )


def test_no_chosen_text_remains():
    text = dump_json(anonymize_snapshot(telling()))
    for secret in (*SECRETS, "bert", "A100", "LORA", "zone"):
        assert secret not in text


def test_numbers_and_vocabulary_stay():
    before, after = telling(), anonymize_snapshot(telling())
    assert [j.remaining_samples for j in after.jobs] == [j.remaining_samples for j in before.jobs]
    assert [j.submitted_at_s for j in after.jobs] == [j.submitted_at_s for j in before.jobs]
    assert [r.samples_per_s for r in after.profiles.throughput] == [
        r.samples_per_s for r in before.profiles.throughput
    ]
    assert after.jobs[0].queue == "default"
    assert after.queues[0].quotas[0].gpu_type == "*"
    assert after.jobs[0].state is before.jobs[0].state


def test_equalities_stay_across_fields():
    after = anonymize_snapshot(telling())
    a, b, c = after.jobs
    assert a.task == b.task == after.adapters[0].id  # one name, one pseudonym
    assert a.task != c.task
    assert a.tenant == after.queues[0].cohort == c.task
    assert after.cluster.nodes[1].resident_fm[0] == a.foundation_model
    assert after.cluster.nodes[1].resident_fm[1] is None
    # a selector still matches the node's label, also where the label was a number
    key, value = next(iter(b.node_selector.items()))
    assert after.cluster.nodes[0].labels[key] == value
    assert c.node_selector == {"rack": after.cluster.nodes[0].rack}


def test_pseudonyms_sort_as_the_names_did():
    before, after = telling(), anonymize_snapshot(telling())

    def ranks(names):
        return [sorted(names).index(name) for name in names]

    for names in ("jobs", "nodes"):
        old = [x.id for x in (before.jobs if names == "jobs" else before.cluster.nodes)]
        new = [x.id for x in (after.jobs if names == "jobs" else after.cluster.nodes)]
        assert ranks(old) == ranks(new)
    queues = ["Zebra", "default", "eve"]
    snapshot = snapshot_of(
        snapshot_data(
            [job_row(str(i), queue=q) for i, q in enumerate(queues)], queues=[{"name": q} for q in queues]
        )
    )
    assert ranks([q.name for q in anonymize_snapshot(snapshot).queues]) == [0, 1, 2]


def test_another_run_gives_other_pseudonyms_and_the_key_decides():
    one, two = anonymize_snapshot(telling()), anonymize_snapshot(telling())
    assert one.jobs[0].id != two.jobs[0].id
    assert anonymize_snapshot(telling(), b"k") == anonymize_snapshot(telling(), b"k")


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_any_snapshot_stays_valid_and_keeps_its_shape(seed):
    before = seeded(seed)
    after = anonymize_snapshot(before, b"key")

    def shape(value):
        if isinstance(value, dict):
            # the keys of a model stay; those of a mapping are counted
            return sorted(map(str, map(shape, value.values())))
        if isinstance(value, list):
            return [shape(item) for item in value]
        return "text" if isinstance(value, str) else value

    one, two = (json.loads(dump_json(s)) for s in (before, after))
    assert shape(one) == shape(two)
    assert not {job.id for job in before.jobs} & set(_texts(two))


def _texts(value):
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, str):
        yield value


@pytest.mark.parametrize("seed", range(12))
def test_the_anonymous_snapshot_has_the_same_plan_under_other_names(seed):
    before = seeded(seed)
    after = anonymize_snapshot(before)
    one, two = solve(before), solve(after)
    assert one.solver.objective == two.solver.objective
    assert one.solver.bound == two.solver.bound
    names = {b.id: a.id for b, a in zip(before.jobs, after.jobs, strict=True)}
    nodes = {b.id: a.id for b, a in zip(before.cluster.nodes, after.cluster.nodes, strict=True)}

    def situations(plan, job, node):
        return {
            job(a.job): (
                a.action,
                None if a.to is None else (a.to.gpus, {node(n): tuple(g) for n, g in a.to.placement.items()}),
            )
            for a in plan.actions
        }

    assert situations(one, names.get, nodes.get) == situations(two, str, str)


def test_a_case_is_planned_again_under_pseudonyms():
    before = telling()
    case = capture(before, note="acme is slow")
    hidden = anonymize_case(case)
    text = dump_json(hidden)
    for secret in SECRETS:
        assert secret not in text
    assert hidden.plan.solver.objective == case.plan.solver.objective
    assert replay(hidden).same


def test_a_previous_plan_is_renamed_with_its_snapshot():
    before = telling()
    previous = solve(before)
    case = capture(before, previous=previous)
    hidden = anonymize_case(case)
    assert hidden.previous.snapshot_sha256 == snapshot_sha256(hidden.snapshot)
    assert {a.job for a in hidden.previous.actions} == {j.id for j in hidden.snapshot.jobs}
    text = dump_json(hidden)
    for secret in SECRETS:
        assert secret not in text
    assert hidden.plan.solver.objective == case.plan.solver.objective


def test_a_round_that_only_goes_on_still_does_under_pseudonyms():
    before = telling()
    previous = solve(before)
    case = capture(outcome(before, previous), previous=previous)
    hidden = anonymize_case(case)
    assert hidden.plan.solver.stopped_by is case.plan.solver.stopped_by
    assert [a.action for a in hidden.plan.actions] == [a.action for a in case.plan.actions]
    assert hidden.plan.solver.objective == case.plan.solver.objective


def test_an_empty_snapshot_has_nothing_to_hide():
    empty = parse_snapshot('{"schema": "ymir.snapshot/1", "taken_at_s": 5}')
    assert anonymize_snapshot(empty) == empty
    assert replay(capture(empty)).same


# -- the command ----------------------------------------------------------------------------------


def test_the_command_round_trip(tmp_path, capsys):
    source = written(tmp_path / "s.json", telling())
    case, hidden, plan = (str(tmp_path / name) for name in ("case.json", "hidden.json", "plan.json"))
    assert run(["snapshot", "capture", source, "-o", case, "--note", "acme"]) == 0
    assert run(["snapshot", "replay", case, "-o", plan, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["same"] is True
    assert same_plan(parse_plan((tmp_path / "plan.json").read_bytes()), solve(telling()))
    assert run(["snapshot", "anonymize", case, "-o", hidden]) == 0
    assert "acme" not in (tmp_path / "hidden.json").read_text()
    assert run(["snapshot", "replay", hidden]) == 0
    assert run(["snapshot", "anonymize", source, "-o", hidden]) == 0
    assert len(parse_snapshot((tmp_path / "hidden.json").read_bytes()).jobs) == 3


def test_the_command_takes_policy_and_seed_from_the_plan(tmp_path):
    source = written(tmp_path / "s.json", telling())
    plan = written(tmp_path / "p.json", solve(telling(), policy="ymir-no-merge", seed=5))
    assert run(["snapshot", "capture", source, plan, "-o", str(tmp_path / "c.json")]) == 0
    request = parse_case((tmp_path / "c.json").read_bytes()).request
    assert (request.policy, request.seed) == ("ymir-no-merge", 5)
    assert run(["snapshot", "replay", str(tmp_path / "c.json")]) == 0


def test_another_plan_is_exit_code_1(tmp_path, capsys):
    case = capture(telling())
    plan = case.plan.model_copy(update={"snapshot_sha256": "0"})
    path = written(tmp_path / "c.json", case.model_copy(update={"plan": plan}))
    assert run(["snapshot", "replay", path, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["difference"] == "snapshot_sha256"


@pytest.mark.parametrize(
    "arguments",
    [
        ["capture", "/nowhere.json"],
        ["replay", "/nowhere.json"],
        ["anonymize", "/nowhere.json"],
        ["capture"],
        ["shrink"],
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(arguments, capsys):
    assert run(["snapshot", *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_snapshot_is_not_a_case(tmp_path, capsys):
    source = written(tmp_path / "s.json", telling())
    assert run(["snapshot", "replay", source]) == 2
    assert capsys.readouterr().err.count("\n") == 1
