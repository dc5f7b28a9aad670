"""Every rung of the softmax ladder, in the emulator and in the simulator, against the reference in float64."""

import numpy as np
import pytest

pytest.importorskip("numba_cuda")

from gpu.emulator import Emulator
from gpu.simulator import Simulator
from gpu.softmax import RUNGS, softmax_backward, softmax_forward
from minillm.ops import softmax as reference
from minillm.ops.cases import OPS, cast, tolerance

OP = OPS["softmax"]
CASES = {name: make for name, make in OP.cases.items() if name != "benchmark"} | {
    "a warp and one": lambda r: (r.standard_normal((2, 33)),),
    "many rows": lambda r: (r.standard_normal((131, 6)),),
    "one block's stride and three": lambda r: (r.standard_normal((2, 1027)),),
    "aligned and long": lambda r: (3 * r.standard_normal((3, 2052)),),
    "rising": lambda r: (np.sort(4 * r.standard_normal((2, 300))),),
    "falling": lambda r: (np.sort(4 * r.standard_normal((2, 300)))[:, ::-1].copy(),),
}
MACHINES = {"checked": lambda: Emulator(checked=True, seed=3), "fast": Emulator, "simulator": lambda: Simulator(seed=3)}


@pytest.fixture(params=MACHINES)
def machine(request):
    return MACHINES[request.param]()


def error(got, expected):
    """Relative to the largest value; infinite where one is NaN and the other not."""
    assert got.dtype == np.float32 and got.shape == expected.shape
    if not np.array_equal(np.isnan(got), np.isnan(expected)):
        return np.inf
    worst = np.max(np.abs(np.nan_to_num(got - expected)), initial=0)
    return worst / max(np.max(np.abs(np.nan_to_num(expected)), initial=0), 1e-30)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rung", RUNGS)
def test_each_rung_equals_the_reference(rung, case, machine):
    if case == "many rows" and isinstance(machine, Simulator):
        pytest.skip("131 blocks, thread by thread, take four seconds")
    forward, backward = RUNGS[rung]
    r = np.random.default_rng(7)
    inputs = CASES[case](r)
    (x,) = cast(inputs, np.float32)
    p, _ = reference.softmax_forward(x.astype(np.float64))
    dp = r.standard_normal(x.shape).astype(np.float32)
    allowed = tolerance(OP, inputs, np.float32)
    on = machine.array(x)
    assert error(forward(on)[0].numpy(), p) <= allowed
    assert np.array_equal(on.numpy(), x, equal_nan=True), "the input changed"
    p = p.astype(np.float32)
    dx = backward(machine.array(dp), machine.array(p))
    assert error(dx.numpy(), reference.softmax_backward(dp.astype(np.float64), p.astype(np.float64))) <= allowed


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 31, 32, 39])
@pytest.mark.parametrize("rung", RUNGS)
def test_what_is_no_number_stays_in_its_row(rung, at, value):
    machine = Emulator(checked=True)
    x = np.random.default_rng(1).standard_normal((3, 40)).astype(np.float32)
    x[1, at] = value
    with np.errstate(invalid="ignore"):
        expected, _ = reference.softmax_forward(x.astype(np.float64))
    assert error(RUNGS[rung][0](machine.array(x))[0].numpy(), expected) <= 1e-6


@pytest.mark.parametrize("lowest", [np.finfo(np.float32).min, -1e38])
@pytest.mark.parametrize("rung", RUNGS)
def test_rows_of_the_lowest_numbers_are_no_masked_rows(rung, lowest):
    x = np.full((2, 5), lowest, np.float32)
    x[0, 2:] = -np.inf
    p = RUNGS[rung][0](Emulator(checked=True).array(x))[0].numpy()
    assert np.allclose(p, [[0.5, 0.5, 0, 0, 0], [0.2] * 5])


def test_the_twin_is_the_last_rung_and_takes_any_number_of_dimensions():
    machine = Emulator()
    x = np.random.default_rng(2).standard_normal((2, 3, 4, 5)).astype(np.float32)
    y, saved = softmax_forward(machine.array(x))
    p, _ = reference.softmax_forward(x)
    np.testing.assert_allclose(y.numpy(), p, atol=1e-6)
    dx = softmax_backward(machine.array(x), saved)
    np.testing.assert_allclose(dx.numpy(), reference.softmax_backward(x, p), atol=1e-6)
