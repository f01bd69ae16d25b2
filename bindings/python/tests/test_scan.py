"""libcarry.scan against a numpy loop in float64."""

from __future__ import annotations

import numpy as np
import pytest

import libcarry
from recurrence import error

# f32 sums of T terms with decays below 1: a few units in the last place of 6e-8, whatever T is. f16 storage rounds each
# step's result once, to 2^-11 = 4.9e-4, and inputs are compared as stored.
BOUND = {np.float32: 2e-6, np.float16: 1e-3}


def loop(A, b, h0=None, reversed=False):
    A, b = A.astype(np.float64), b.astype(np.float64)
    h = np.zeros_like(b[:, 0]) if h0 is None else h0.astype(np.float64)
    out = np.empty_like(b)
    for t in range(b.shape[1])[:: -1 if reversed else 1]:
        h = (A[:, t, :, None] * h if A.ndim == 3 else A[:, t] @ h) + b[:, t]
        out[:, t] = h
    return out


def inputs(rng, dense, batch=2, steps=37, n=5, width=3, dtype=np.float32):
    if dense:
        A = rng.uniform(-0.78, 0.78, (batch, steps, n, n)) / np.sqrt(n)
    else:
        A = rng.uniform(0.8, 1.0, (batch, steps, n))
    b = 0.1 * rng.standard_normal((batch, steps, n, width))
    h0 = rng.standard_normal((batch, n, width))
    return A.astype(dtype), b.astype(dtype), h0.astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("reversed", [False, True])
@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 37, 129])
def test_scan_equals_the_loop(rng, steps, dense, reversed, dtype):
    A, b, h0 = inputs(rng, dense, steps=steps, dtype=dtype)
    for start in (None, h0):
        h = libcarry.scan(A, b, start, reversed=reversed)
        assert h.dtype == dtype
        assert error(h, loop(A, b, start, reversed)) < BOUND[dtype]


@pytest.mark.parametrize("dense", [False, True])
def test_every_algorithm_equals_the_loop_or_says_that_it_does_not_apply(rng, dense):
    A, b, h0 = inputs(rng, dense)
    ran = 0
    for name, _ in libcarry.available("scans"):
        try:
            h = libcarry.scan(A, b, h0, algorithm=name)
        except NotImplementedError as refusal:
            assert name in str(refusal)
            continue
        ran += 1
        assert error(h, loop(A, b, h0)) < 1e-5, name  # matmul_log goes through logarithms
    assert ran >= 5


def test_out_is_written_and_may_be_b(rng):
    A, b, h0 = inputs(rng, False)
    expected = loop(A, b, h0)
    out = np.full_like(b, np.nan)
    assert libcarry.scan(A, b, h0, out=out) is out
    assert error(out, expected) < 2e-6
    assert libcarry.scan(A, b, h0, out=b) is b
    assert error(b, expected) < 2e-6


def test_f32_out_for_f16_inputs(rng):
    A, b, _ = inputs(rng, False, dtype=np.float16)
    out = np.full(b.shape, np.nan, np.float32)
    libcarry.scan(A, b, out=out)
    assert error(out, loop(A, b)) < 2e-6


def test_views_over_batch_and_time_are_not_copied(rng):
    A, b, _ = inputs(rng, False, batch=4, steps=40)
    A_view, b_view = A[::2, 3:31:3], b[::2, 3:31:3]
    out = np.full((10, 2, 5, 3), np.nan, np.float32)
    libcarry.scan(A_view, b_view, out=out.transpose(1, 0, 2, 3))
    assert error(out.transpose(1, 0, 2, 3), loop(A_view, b_view)) < 2e-6
    backwards = libcarry.scan(A[:, ::-1], b[:, ::-1])
    assert error(backwards, loop(A[:, ::-1], b[:, ::-1])) < 2e-6


def test_nan_passes_through(rng):
    A, b, _ = inputs(rng, False)
    b[1, 20, 2, 1] = np.nan
    h = libcarry.scan(A, b)
    assert np.isnan(h[1, 20:, 2, 1]).all() and np.isnan(h).sum() == 17


def test_results_do_not_depend_on_threads(rng):
    A, b, _ = inputs(rng, True, steps=300, n=8)
    results = []
    try:
        for threads in (1, 2, 3):
            libcarry.set_threads(threads)
            assert libcarry.get_threads() == threads
            results.append(libcarry.scan(A, b, algorithm="chunkwise"))
    finally:
        libcarry.set_threads(0)
    assert (results[0] == results[1]).all() and (results[0] == results[2]).all()


def changed(rng, **changes):
    A, b, h0 = inputs(rng, False)
    given = {"A": A, "b": b, "h0": h0}
    for name, change in changes.items():
        given[name] = change(given[name])
    return given


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"A": lambda A: A[0]}, ["A", "2 dimensions"]),
        ({"b": lambda b: b[..., 0]}, ["b", "3 dimensions"]),
        ({"b": lambda b: b[:, :-1]}, ["b", "36", "37"]),
        ({"h0": lambda h0: h0[:1]}, ["h0", "[1, 5, 3]", "[2, 5, 3]"]),
        ({"A": lambda A: A.astype(np.float64)}, ["A", "float64", "float32"]),
        ({"A": lambda A: A.astype(np.float16)}, ["A", "f16", "f32"]),
        ({"b": lambda b: b.astype(np.int64)}, ["i64"]),
        ({"b": lambda b: b.astype(">f4")}, ["b", "byte order"]),
        ({"b": lambda b: np.asfortranarray(b)}, ["b", "packed"]),
    ],
)
def test_refusals_name_the_tensor_and_the_sizes(rng, changes, words):
    with pytest.raises(ValueError) as refusal:
        libcarry.scan(**changed(rng, **changes))
    for word in words:
        assert word in str(refusal.value)


def test_out_that_cannot_be_written_is_refused(rng):
    A, b, _ = inputs(rng, False)
    out = np.zeros_like(b)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        libcarry.scan(A, b, out=out)
    assert (out == 0).all()
    with pytest.raises(ValueError, match="out has shape"):
        libcarry.scan(A, b, out=np.zeros_like(b[:, 1:]))


def test_unknown_algorithms_and_other_objects_are_refused(rng):
    A, b, _ = inputs(rng, False)
    with pytest.raises(ValueError, match="fastest"):
        libcarry.scan(A, b, algorithm="fastest")
    with pytest.raises(TypeError, match="A is a list"):
        libcarry.scan([[[1.0]]], b)


def test_strides_that_split_an_element_are_refused(rng):
    A, b, _ = inputs(rng, False)
    records = np.zeros(b.shape, dtype=np.dtype([("tag", "i1"), ("x", "f4")]))
    with pytest.raises(ValueError, match="strides"):
        libcarry.scan(A, records["x"])
