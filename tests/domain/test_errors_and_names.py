"""Error lines, hints and frozen mappings."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ymir_opt.domain.base import FrozenDict, freeze, nearest, short
from ymir_opt.domain.errors import InputError, InvalidPlanError, NotFoundError, SolverError, YmirError


def test_place_problem_and_remedy_on_one_line() -> None:
    error = InputError("jobs[3].max_gpus", "0 is less than min_gpus 1", "raise max_gpus")
    assert str(error) == "jobs[3].max_gpus: 0 is less than min_gpus 1; raise max_gpus"
    assert InputError("", "no place").one_line() == "no place"
    assert InputError("x", "no remedy").one_line() == "x: no remedy"


@given(st.text(), st.text(), st.text())
def test_an_error_is_one_printable_line(place: str, problem: str, remedy: str) -> None:
    assert YmirError(place, problem, remedy).one_line().isprintable()


def test_exit_codes() -> None:
    codes = {
        kind: kind("", "").exit_code for kind in (InputError, NotFoundError, InvalidPlanError, SolverError)
    }
    assert codes == {InputError: 2, NotFoundError: 2, InvalidPlanError: 1, SolverError: 1}


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        ("sovle", {"solve", "check"}, "did you mean 'solve'?"),
        ("zzz", {"solve", "check"}, "known: check, solve"),
        ("zzz", set(), "none is defined"),
        (
            "zzz",
            {f"name{i:02d}" for i in range(50)},
            "known: " + ", ".join(f"name{i:02d}" for i in range(12)),
        ),
    ],
)
def test_the_nearest_name(name: str, known: set[str], hint: str) -> None:
    assert nearest(name, known) == hint


@given(st.one_of(st.text(), st.integers(), st.floats(), st.lists(st.text())))
def test_a_value_in_a_message_is_short_and_printable(value: object) -> None:
    text = short(value)
    assert len(text) <= 60
    assert text.isprintable()


@pytest.mark.parametrize("change", ["d['x'] = 1", "del d['a']", "d.clear()", "d.pop('a')", "d.popitem()",
                                    "d.setdefault('x', 1)", "d.update(x=1)", "d |= {'x': 1}"])  # fmt: skip
def test_a_frozen_mapping_refuses_every_change(change: str) -> None:
    frozen = freeze({"a": 1})
    with pytest.raises(TypeError, match="immutable"):
        exec(change, {"d": frozen})
    assert frozen == {"a": 1}


def test_a_frozen_mapping_is_a_mapping() -> None:
    frozen = freeze({"a": 1, "b": 2})
    assert freeze(frozen) is frozen
    assert dict(frozen) == frozen == {"b": 2, "a": 1}
    assert hash(frozen) == hash(freeze({"b": 2, "a": 1}))
    assert frozen | {"c": 3} == {"a": 1, "b": 2, "c": 3}
    for other in (copy.copy(frozen), copy.deepcopy(frozen)):
        assert other == frozen
        assert isinstance(other, FrozenDict)
