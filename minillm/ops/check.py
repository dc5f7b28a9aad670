"""Is a backward right?  Compare it with finite differences of its forward along random directions, in float64.

Nudge one input by +-h along a random direction u: the change of sum(dy * y), for a random upstream gradient dy, must be
sum(gradient * u).  One direction catches any wrong gradient but a measure-zero set of them, at the cost of two
forwards whatever the size.
"""

import copy

import numpy as np

STEP = 1e-5  # relative to the input's size; central differences: truncation ~ STEP^2 = 1e-10, rounding ~ 1e-16 / STEP
TOLERANCE = 1e-7  # relative to |gradient| |u|: a hundred times the noise above, far below any wrong term


def call(forward, inputs):
    """forward(*inputs), with random generators copied first so that every call draws the same numbers."""
    return forward(*(copy.deepcopy(x) if isinstance(x, np.random.Generator) else x for x in inputs))


def gradients(backward, dy, saved):
    """The backward's answer as a tuple, one entry per array input."""
    answer = backward(dy, saved)
    return answer if isinstance(answer, tuple) else (answer,)


def array_inputs(inputs):
    """Indices of the inputs that count as arrays, in order; an absent optional array is None and counts."""
    return [i for i, x in enumerate(inputs) if x is None or isinstance(x, np.ndarray)]


def check_gradients(forward, backward, inputs, generator, num_constants=0):
    """Raise AssertionError unless every gradient of `backward` matches `forward`.  Returns how many were compared.

    inputs: float64 arrays (compared), integer arrays and None (must get None), other arguments (passed on).
    The last `num_constants` array inputs (a table, a mask) have no place among the gradients.
    """
    y, saved = call(forward, inputs)
    dy = generator.standard_normal(y.shape)
    grads = gradients(backward, dy, saved)
    places = array_inputs(inputs)
    places = places[: len(places) - num_constants]
    if len(grads) != len(places):
        raise AssertionError(f"{len(grads)} gradients for {len(places)} array inputs")
    compared = 0
    for place, grad in zip(places, grads):
        x = inputs[place]
        if x is None or x.dtype.kind != "f":
            if grad is not None:
                raise AssertionError(f"input {place} has no gradient, got one of shape {grad.shape}")
            continue
        _check_one(forward, inputs, place, grad, dy, generator)
        compared += 1
    return compared


def _check_one(forward, inputs, place, grad, dy, generator):
    x = inputs[place]
    if grad.shape != x.shape or grad.dtype != x.dtype:
        raise AssertionError(f"gradient of input {place} is {grad.shape} {grad.dtype}, input {x.shape} {x.dtype}")
    if not np.isfinite(grad).all():
        raise AssertionError(f"gradient of input {place} is not finite")
    direction = generator.standard_normal(x.shape)
    finite = x[np.isfinite(x)]
    step = STEP * (np.sqrt(np.mean(finite * finite)) if finite.any() else 1e-3)

    def nudged(step):
        return call(forward, (*inputs[:place], x + step * direction, *inputs[place + 1 :]))[0]

    expected = np.sum(dy * (nudged(step) - nudged(-step))) / (2 * step)
    got = np.sum(grad * direction)
    scale = np.linalg.norm(grad) * np.linalg.norm(direction) + abs(expected) + 1e-3
    if not abs(got - expected) <= TOLERANCE * scale:
        raise AssertionError(f"gradient of input {place}: finite differences {expected:.9g}, backward {got:.9g}")
