"""A named tree of arrays over one flat vector.

Weights, gradients and optimizer moments are all this one type.  The maths reads names (`w.blocks[0].norm1.weight`);
the optimizer, the gradient norm and the checkpoint work on the vector or its slices.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from minillm import store

ALIGN = 16  # elements: in float32 each array starts on a cache line, 64 bytes, as the vector does


class Tree(dict):
    """A dict whose keys are also attributes.  Leaves are arrays, or None where a family has no such array."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no {name!r} in this tree; it has {', '.join(self) or 'nothing'}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


def walk(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, leaf) in order, skipping None.  An array with two names (a tied head) is met twice."""
    if isinstance(tree, dict | list):
        for key, child in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from walk(child, f"{prefix}.{key}" if prefix else str(key))
    elif tree is not None:
        yield prefix, tree


def map(function: Callable[[Any], Any], tree: Any) -> Any:
    """The same tree with `function` of each leaf; None stays None."""
    if isinstance(tree, dict):
        return Tree({key: map(function, child) for key, child in tree.items()})
    if isinstance(tree, list):
        return [map(function, child) for child in tree]
    return None if tree is None else function(tree)


def add_into(total: Any, part: Any, add_leaf: Callable[[Any, Any], None]) -> None:
    """total += part, leaf by leaf and in place.  Two names of one array in `total` receive both their parts."""
    if isinstance(total, dict):
        assert total.keys() == part.keys(), f"trees differ: {list(total)} and {list(part)}"
        for key, child in total.items():
            add_into(child, part[key], add_leaf)
    elif isinstance(total, list):
        assert len(total) == len(part), f"trees differ: {len(total)} and {len(part)} children"
        for child, other in zip(total, part):
            add_into(child, other, add_leaf)
    elif total is not None or part is not None:
        assert total is not None and part is not None, "trees differ: one has an array that the other has not"
        assert total.shape == part.shape, f"trees differ: arrays of {total.shape} and {part.shape}"
        add_leaf(total, part)


@dataclass(frozen=True)
class Packed:
    """One flat vector and the tree of views into it; `slots` maps each array's name to its slice of the vector."""

    vector: np.ndarray
    tree: Tree
    slots: dict[str, slice]

    def zeros_like(self) -> "Packed":
        """The same names and places over a new vector of zeros; what is tied stays tied."""
        vector = store.zeros(self.vector.shape, self.vector.dtype)
        return Packed(vector, map(lambda place: vector[place[0]].reshape(place[1]), self._places), self.slots)

    def with_array(self, name: str, shape: tuple[int, ...]) -> "Packed":
        """A copy with one more array, of zeros, behind the others."""
        end = self.vector.size
        slot = slice(end, end + math.prod(shape))
        vector = store.zeros((_aligned(slot.stop),), self.vector.dtype)
        vector[:end] = self.vector
        tree = map(lambda place: vector[place[0]].reshape(place[1]), self._places)
        tree[name] = vector[slot].reshape(shape)
        return Packed(vector, tree, self.slots | {name: slot})

    @cached_property
    def _places(self) -> Tree:
        """Where each array lies, two names of one array in the same place: (slice of the vector, shape)."""
        start = self.vector.__array_interface__["data"][0]

        def place(leaf: np.ndarray) -> tuple[slice, tuple[int, ...]]:
            offset = (leaf.__array_interface__["data"][0] - start) // self.vector.itemsize
            return slice(offset, offset + leaf.size), leaf.shape

        return map(place, self.tree)

    def named(self) -> dict[str, np.ndarray]:
        """Each array once, by its first name."""
        leaves = dict(walk(self.tree))
        return {name: leaves[name] for name in self.slots}

    @property
    def num_parameters(self) -> int:
        """Elements that belong to an array (the vector also holds padding between them)."""
        return sum(leaf.size for leaf in self.named().values())


def pack(shapes: Any, dtype: Any = np.float32) -> Packed:
    """Lay out a tree of shapes (tuples) over one new vector of zeros."""
    slots, end = {}, 0
    for name, shape in walk(shapes):
        slots[name] = slice(end, end + math.prod(shape))
        end = _aligned(end + math.prod(shape))
    vector = store.zeros((end,), dtype)
    views = iter([vector[slots[name]].reshape(shape) for name, shape in walk(shapes)])
    return Packed(vector, map(lambda _: next(views), shapes), slots)


def _aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN
