"""What every op asks of its inputs, with errors that say what came and what to do."""

import numpy as np


def same_shape(op, **arrays):
    """Raise ValueError unless all the named arrays have one shape."""
    if len({a.shape for a in arrays.values()}) > 1:
        raise ValueError(f"{op}: shapes must be equal: " + ", ".join(f"{n} {a.shape}" for n, a in arrays.items()))


def last_axis(op, name, array, size, wanted_by):
    """Raise ValueError unless the last axis of `array` has `size` elements, as `wanted_by` says."""
    if array.ndim == 0 or array.shape[-1] != size:
        raise ValueError(f"{op}: the last axis of {name} must be {size}, as {wanted_by} says: {name} is {array.shape}")


def ids_in_range(op, name, ids, limit, ignore=None):
    """Raise unless `ids` are integers in [0, limit), or equal to `ignore` where one is given."""
    if not np.issubdtype(ids.dtype, np.integer):
        raise TypeError(f"{op}: {name} must be integers: got {ids.dtype}; try {name}.astype(np.int64)")
    wrong = (ids < 0) | (ids >= limit)
    if ignore is not None:
        wrong &= ids != ignore
    if wrong.any():
        allowed = f"in [0, {limit})" + ("" if ignore is None else f" or {ignore} (ignored)")
        raise ValueError(f"{op}: {name} must be {allowed}: got {ids[wrong].flat[0]} among {ids.size}")
