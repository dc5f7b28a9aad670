"""The named tree over one flat vector: layout, padding, ties."""

import numpy as np
import pytest

from minillm.tree import ALIGN, Tree, add_into, map, pack, walk

SHAPES = Tree(
    embed=(7, 3),
    positions=None,
    blocks=[Tree(weight=(5, 2), bias=(5,)), Tree(weight=(2, 16), bias=None)],
    scale=(),
    head=None,
)
NAMES = ["embed", "blocks.0.weight", "blocks.0.bias", "blocks.1.weight", "scale"]


def tied():
    """A packed tree whose head is the embedding under a second name."""
    packed = pack(SHAPES)
    packed.tree.head = packed.tree.embed
    return packed


def test_names_are_dotted_paths_in_order_and_none_has_no_name():
    assert [name for name, _ in walk(SHAPES)] == NAMES
    assert list(pack(SHAPES).slots) == NAMES


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_array_is_a_zeroed_view_of_its_slot_and_slots_start_aligned(dtype):
    packed = pack(SHAPES, dtype)
    assert packed.vector.dtype == dtype
    assert not packed.vector.any()
    for number, (name, array) in enumerate(packed.named().items(), start=1):
        array[...] = number
        assert (packed.vector[packed.slots[name]] == number).all(), f"{name} is not a view of its slot"
        assert packed.slots[name].start % ALIGN == 0
        assert array.shape == dict(walk(SHAPES))[name]


def test_slots_do_not_overlap_and_padding_belongs_to_no_array():
    packed = pack(SHAPES)
    owners = np.zeros(packed.vector.size, int)
    for slot in packed.slots.values():
        owners[slot] += 1
    assert owners.max() == 1
    assert owners.sum() == packed.num_parameters == 7 * 3 + 5 * 2 + 5 + 2 * 16 + 1
    for array in packed.named().values():
        array[...] = 1
    np.testing.assert_array_equal(packed.vector, owners)


def test_zeros_like_has_the_same_names_and_places_over_a_new_vector():
    packed = pack(SHAPES, np.float64)
    packed.vector[...] = 3
    other = packed.zeros_like()
    assert other.slots == packed.slots
    assert other.vector.dtype == np.float64
    assert not other.vector.any()
    other.tree.blocks[1].weight[1, 15] = 2
    assert other.vector[other.slots["blocks.1.weight"]][-1] == 2
    assert (packed.vector == 3).all()


def test_a_tied_array_is_met_twice_and_counted_once_and_stays_tied_in_zeros_like():
    packed = tied()
    assert [name for name, _ in walk(packed.tree)] == [*NAMES, "head"]
    assert list(packed.named()) == NAMES
    other = packed.zeros_like()
    other.tree.head[6, 2] = 5
    assert other.tree.embed[6, 2] == 5


def test_add_into_gives_a_tied_array_the_parts_of_both_names():
    total, part = tied(), map(lambda leaf: np.ones(leaf.shape), tied().tree)
    add_into(total.tree, part, lambda a, b: np.add(a, b, out=a))
    assert (total.tree.embed == 2).all()
    assert (total.tree.blocks[0].bias == 1).all()


def test_add_into_refuses_another_tree():
    others = {
        r"arrays of \(\) and \(1,\)": Tree(SHAPES, scale=(1,)),
        "children": Tree(SHAPES, blocks=SHAPES.blocks[:1]),
        "that the other has not": Tree(SHAPES, embed=None),
        r"\['embed', .* and \['embed'\]": Tree(embed=(7, 3)),
    }
    for message, shapes in others.items():
        with pytest.raises(AssertionError, match=f"trees differ: .*{message}"):
            add_into(pack(SHAPES).tree, pack(shapes).tree, lambda a, b: None)


def test_map_keeps_structure_and_none():
    sizes = map(len, SHAPES)
    assert sizes == {"embed": 2, "positions": None, "blocks": [{"weight": 2, "bias": 1}, {"weight": 2, "bias": None}],
                     "scale": 0, "head": None}  # fmt: skip
    assert isinstance(sizes.blocks[0], Tree)


def test_a_missing_name_says_what_there_is():
    with pytest.raises(AttributeError, match="no 'wait' in this tree; it has weight, bias"):
        _ = SHAPES.blocks[0].wait


def test_an_empty_tree_packs_to_an_empty_vector():
    packed = pack(Tree())
    assert packed.vector.size == 0
    assert packed.num_parameters == 0
    assert packed.zeros_like().named() == {}


def test_a_copy_with_one_more_array_keeps_the_others_and_their_ties():
    packed = tied()
    packed.vector[...] = np.arange(packed.vector.size)
    more = packed.with_array("extra", (3, 5))
    assert list(more.slots) == [*NAMES, "extra"] and more.num_parameters == packed.num_parameters + 15
    for name, array in packed.named().items():
        np.testing.assert_array_equal(more.named()[name], array)
    assert more.tree.extra.shape == (3, 5) and not more.tree.extra.any()
    assert more.slots["extra"].start % ALIGN == 0 and more.vector.size % ALIGN == 0
    more.tree.extra[...] = 1
    more.tree.embed[0, 0] = -1
    assert more.tree.head[0, 0] == -1 and packed.tree.embed[0, 0] == 0, "tied as before, and a copy"
    assert np.all(more.vector[more.slots["extra"]] == 1)
    zeros = more.zeros_like()
    zeros.tree.extra[...] = 2
    assert zeros.vector.sum() == 30
