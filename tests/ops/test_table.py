"""Every row of the table of ops: gradients against finite differences, contract, dtypes, awkward memory."""

import inspect

import numpy as np
import pytest

from minillm import ops
from minillm.ops.cases import OPS, cast, read_only, strided, tolerance
from minillm.ops.check import array_inputs, call, check_gradients, gradients

ROWS = [(name, case) for name, op in OPS.items() for case in op.cases]
SMALL = [(name, case) for name, case in ROWS if case != "benchmark"]
SMOOTH = [  # finite differences mean nothing where an op saturates, nor between two minus infinities
    row for row in SMALL if row[1] != "extreme" and row != ("log_softmax", "masked")
]


def pair(name):
    return getattr(ops, f"{name}_forward"), getattr(ops, f"{name}_backward")


def make(name, case, dtype=np.float64):
    return cast(OPS[name].cases[case](np.random.default_rng(7)), dtype)


def run(name, inputs):
    """Output and gradients for a random upstream gradient."""
    forward, backward = pair(name)
    y, saved = call(forward, inputs)
    dy = np.random.default_rng(8).standard_normal(y.shape).astype(y.dtype)
    return y, gradients(backward, dy, saved)


@pytest.mark.parametrize(("name", "case"), SMOOTH)
def test_gradients_match_finite_differences_in_float64(name, case):
    inputs = make(name, case)
    compared = check_gradients(*pair(name), inputs, np.random.default_rng(9), OPS[name].num_constants)
    num_tables = 2 if name == "rope" else 0
    assert compared + num_tables == sum(isinstance(x, np.ndarray) and x.dtype.kind == "f" for x in inputs)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("name", "case"), SMALL)
def test_outputs_and_gradients_keep_dtype_and_shape(name, case, dtype):
    inputs = make(name, case, dtype)
    y, grads = run(name, inputs)
    assert y.dtype == dtype
    arrays = [inputs[i] for i in array_inputs(inputs)]
    for x, grad in zip(arrays, grads, strict=False):
        if grad is not None:
            assert grad.dtype == dtype
            assert grad.shape == x.shape


@pytest.mark.parametrize(("name", "case"), ROWS)
def test_float32_is_as_accurate_as_its_rounding_allows(name, case):
    inputs = make(name, case, np.float32)
    exact = run(name, cast(inputs, np.float64))
    allowed = tolerance(OPS[name], inputs, np.float32)
    for got, want in zip((run(name, inputs)[0], *run(name, inputs)[1]), (exact[0], *exact[1]), strict=True):
        assert (got is None) == (want is None)
        if want is not None and want.size:
            finite = np.isfinite(want)
            np.testing.assert_array_equal(np.isfinite(got), finite)
            size = np.abs(want[finite]).max(initial=0)
            assert np.abs(got[finite] - want[finite]).max(initial=0) <= allowed * size + np.finfo(np.float32).tiny


@pytest.mark.parametrize("layout", [read_only, strided])
@pytest.mark.parametrize(("name", "case"), SMALL)
def test_read_only_and_strided_inputs_give_the_same_answer(name, case, layout):
    inputs = make(name, case)
    expected_y, expected_grads = run(name, inputs)
    y, grads = run(name, layout(inputs))
    np.testing.assert_allclose(y, expected_y, rtol=1e-12, atol=1e-12)
    for got, want in zip(grads, expected_grads, strict=True):
        if want is not None:
            np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize(("name", "case"), SMALL)
def test_forward_twice_gives_the_same_bytes_and_leaves_its_inputs_alone(name, case):
    inputs = make(name, case)
    before = [x.copy() if isinstance(x, np.ndarray) else x for x in inputs]
    first, first_grads = run(name, inputs)
    for x, copy in zip(inputs, before, strict=True):
        if isinstance(x, np.ndarray):
            np.testing.assert_array_equal(x, copy)
            assert not np.shares_memory(first, x)
            # add hands dy itself to both inputs; no gradient may be a view of an input
            assert not any(g is not None and np.shares_memory(g, x) for g in first_grads)
    second, second_grads = run(name, inputs)
    np.testing.assert_array_equal(first, second)
    for a, b in zip(first_grads, second_grads, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", OPS)
def test_every_op_has_a_documented_pair_whose_names_match(name):
    forward, backward = pair(name)
    assert forward.__doc__
    assert backward.__doc__
    assert list(inspect.signature(backward).parameters)[1] == "saved"
    assert {f"{name}_forward", f"{name}_backward"} <= set(ops.__all__)


def test_the_table_misses_no_op():
    assert {n.removesuffix("_forward") for n in ops.__all__ if n.endswith("_forward")} == set(OPS)
