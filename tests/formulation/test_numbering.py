"""Numbering rows, and the row-wise reductions, against numpy and dictionaries."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ymir_opt.formulation import numbering
from ymir_opt.formulation.numbering import Numbering, rank_in_runs, unique_rows
from ymir_opt.formulation.rowwise import rank_of, sorted_columns


@st.composite
def row_batches(draw, fields=3, top=40):
    sizes = draw(st.lists(st.integers(0, 12), min_size=1, max_size=5))
    return [
        np.array(
            [[draw(st.integers(-1, top)) for _ in range(fields)] for _ in range(size)], dtype=np.int64
        ).reshape(-1, fields)
        for size in sizes
    ]


@pytest.mark.parametrize("cells", [1 << 22, 64, 1])
@given(row_batches())
def test_equal_rows_have_equal_numbers_for_good(cells, found):
    """With room for a dense table, with too little, and with none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numbering, "MOST_CELLS", cells)
        ours, expected = Numbering(3), {}
        for rows in found:
            before = len(expected)
            numbers, new = ours.numbers(list(rows.T))
            for row, number in zip(rows.tolist(), numbers.tolist(), strict=True):
                assert ours.rows[number] == tuple(row)
                assert expected.setdefault(tuple(row), number) == number
            assert new == len(expected) - before
            assert len(ours.rows) == len(set(ours.rows)) == len(expected)


def test_large_values_need_no_table():
    ours = Numbering(2)
    numbers, new = ours.numbers([np.array([5, 10**15, 5]), np.array([0, 1, 0])])
    assert numbers.tolist() == [0, 1, 0]
    assert new == 2
    numbers, new = ours.numbers([np.array([10**15, 7]), np.array([1, 7])])
    assert numbers.tolist() == [1, 2]
    assert new == 1


@given(arrays(np.int64, st.tuples(st.integers(0, 20), st.integers(1, 9)), elements=st.integers(-1, 4)))
def test_ranks_and_sorted_columns(values):
    assert np.array_equal(np.array(sorted_columns(values)).T.reshape(values.shape), np.sort(values, axis=1))
    order = np.argsort(values, axis=1, kind="stable")
    assert np.array_equal(
        np.take_along_axis(rank_of(values), order, axis=1),
        np.broadcast_to(np.arange(values.shape[1]), values.shape),
    )


@given(arrays(np.int64, st.tuples(st.integers(1, 20), st.integers(1, 4)), elements=st.integers(-1, 4)))
def test_unique_rows(values):
    rows, inverse = unique_rows(values)
    assert np.array_equal(rows[inverse], values)
    assert len({tuple(row) for row in values.tolist()}) == len(rows)


@given(st.lists(st.integers(0, 3), max_size=20))
def test_rank_in_runs(keys):
    found = rank_in_runs(np.array(keys, dtype=np.int64)).tolist()
    assert found == [
        next(k for k in range(i + 1) if i == k or keys[i - k - 1] != keys[i]) for i in range(len(keys))
    ]
