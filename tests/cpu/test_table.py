"""Every row of the table of ops, on the numba twins: values and gradients are the reference's, however it is run."""

import inspect

import numpy as np
import pytest

from minillm import backend, ops, threads
from minillm.cpu import rows
from minillm.ops.cases import OPS, cast, read_only, strided, tolerance
from minillm.ops.check import array_inputs, call, gradients

CPU = backend.load("cpu")
ROWS = [(name, case) for name, op in OPS.items() for case in op.cases]
SMALL = [row for row in ROWS if row[1] != "benchmark"]


@pytest.fixture(params=[1, 2, 3])
def num_threads(request, monkeypatch):
    """However small the work, it is spread."""
    before = threads.num_threads()
    threads.set_num_threads(request.param)
    monkeypatch.setattr(rows, "WORTH", 0)
    yield request.param
    threads.set_num_threads(before)


def make(name, case, dtype=np.float32):
    return cast(OPS[name].cases[case](np.random.default_rng(7)), dtype)


def run(module, name, inputs):
    """Output and gradients for a random upstream gradient."""
    y, saved = call(getattr(module, f"{name}_forward"), inputs)
    dy = np.random.default_rng(8).standard_normal(y.shape).astype(y.dtype)
    y = y.copy()
    return (y, *gradients(getattr(module, f"{name}_backward"), dy, saved))


def assert_close(got, want, allowed):
    """Within `allowed` of the largest value of each array; what is not finite is so in the same places."""
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert (a is None) == (b is None)
        if b is None:
            continue
        assert a.shape == b.shape
        assert a.dtype == np.float32
        np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
        finite = np.isfinite(b)
        np.testing.assert_array_equal(np.where(finite, 0, a), np.where(finite, 0, b))
        largest = np.abs(b[finite]).max(initial=0)
        assert np.abs(a[finite] - b[finite]).max(initial=0) <= allowed * largest + np.finfo(np.float32).tiny


@pytest.mark.parametrize(("name", "case"), ROWS)
def test_values_and_gradients_are_the_references(name, case, num_threads):
    inputs = make(name, case)
    exact = run(ops, name, cast(inputs, np.float64))
    assert_close(run(CPU, name, inputs), exact, tolerance(OPS[name], inputs, np.float32))


@pytest.mark.parametrize(("name", "case"), ROWS)
def test_bytes_do_not_depend_on_the_number_of_threads_nor_on_the_run(name, case, num_threads):
    inputs = make(name, case)
    spread = run(CPU, name, inputs)
    threads.set_num_threads(1)
    for a, b in zip(spread, run(CPU, name, inputs), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("layout", [read_only, strided])
@pytest.mark.parametrize(("name", "case"), SMALL)
def test_read_only_and_strided_inputs_give_the_same_bytes(name, case, layout):
    inputs = make(name, case)
    for a, b in zip(run(CPU, name, layout(inputs)), run(CPU, name, inputs), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("name", "case"), SMALL)
def test_inputs_are_left_alone_and_nothing_returned_is_a_view_of_them(name, case):
    inputs = make(name, case)
    before = [x.copy() if isinstance(x, np.ndarray) else x for x in inputs]
    results = run(CPU, name, inputs)
    for x, copy in zip(inputs, before, strict=True):
        if isinstance(x, np.ndarray):
            np.testing.assert_array_equal(x, copy)
            assert not any(r is not None and np.shares_memory(r, x) for r in results)


@pytest.mark.parametrize(("name", "case"), SMALL)
def test_float64_is_left_to_the_reference(name, case):
    inputs = make(name, case, np.float64)
    for a, b in zip(run(CPU, name, inputs), run(ops, name, inputs), strict=True):
        np.testing.assert_array_equal(a, b)


BAD = [np.nan, np.inf, -np.inf]


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("name", OPS)
def test_nan_and_infinity_come_out_where_the_reference_has_them(name, value):
    inputs = make(name, "odd")
    for place in (i for i in array_inputs(inputs) if inputs[i] is not None and inputs[i].dtype.kind == "f"):
        spoilt = tuple(x.copy() if isinstance(x, np.ndarray) else x for x in inputs)
        spoilt[place].reshape(-1)[spoilt[place].size // 2] = value
        with np.errstate(all="ignore"):
            want, got = run(ops, name, spoilt), run(CPU, name, spoilt)
        np.testing.assert_array_equal(np.isnan(got[0]), np.isnan(want[0]))
        for a, b in zip(got, want, strict=True):
            if b is not None and name == "attention":
                # the reference multiplies what is hidden by 0, which for NaN is NaN; we do not look at it
                assert np.isfinite(a[np.isfinite(b)]).all()
            elif b is not None:
                np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
                np.testing.assert_array_equal(np.isinf(a), np.isinf(b))


def test_every_twin_has_the_references_signature_and_docstring():
    assert set(CPU.__all__) == set(ops.__all__)
    for name in ops.__all__:
        assert inspect.signature(getattr(CPU, name)) == inspect.signature(getattr(ops, name))
        assert getattr(CPU, name).__doc__ == getattr(ops, name).__doc__


MISTAKES = {
    "add_forward": (np.ones((2, 3)), np.ones((2, 4))),
    "linear_forward": (np.ones((2, 3)), np.ones((5, 4))),
    "embedding_forward": (np.array([0, 9]), np.ones((5, 4))),
    "layer_norm_forward": (np.ones((2, 3)), np.ones(4), np.ones(4)),
    "rms_norm_forward": (np.ones((2, 3)), np.ones(4)),
    "swiglu_forward": (np.ones((2, 3)), np.ones((3, 2))),
    "rope_forward": (np.ones((1, 2, 1, 4)), np.array([[0, 7]]), np.ones((3, 2)), np.ones((3, 2))),
    "attention_forward": (np.ones((1, 2, 3, 4)), np.ones((1, 2, 2, 4)), np.ones((1, 2, 2, 4))),
    "cross_entropy_forward": (np.ones((2, 3)), np.array([0, 3])),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gets_the_references_message(name):
    inputs = cast(MISTAKES[name], np.float32)
    with pytest.raises(ValueError) as reference:
        getattr(ops, name)(*inputs)
    with pytest.raises(ValueError) as twin:
        getattr(CPU, name)(*inputs)
    assert str(twin.value) == str(reference.value)


def test_out_is_written_also_where_it_has_gaps():
    logits = np.random.default_rng(0).standard_normal((2, 3, 5)).astype(np.float32)
    out = np.full((2, 4, 5), np.nan, np.float32)[:, :3]
    targets, dlosses = np.array([[0, 1, 2], [3, 4, 0]]), np.ones((2, 3), np.float32)
    _, saved = CPU.cross_entropy_forward(logits, targets)
    got, _ = CPU.cross_entropy_backward(dlosses, saved, out)
    assert got is out
    np.testing.assert_array_equal(out, CPU.cross_entropy_backward(dlosses, saved)[0])


def test_float64_by_keyword_goes_to_the_reference():
    assert CPU.softmax_forward(x=np.ones((2, 3)))[0].dtype == np.float64
