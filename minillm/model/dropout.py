"""Dropout where the pass asks for it; nothing at all where it does not."""

ATTENTION, FEED_FORWARD, EMBEDDING = 0, 1, 2  # the places of a layer that draw masks of their own


def drop_forward(x, layer, place, run):
    """x with the elements of this place dropped, or x itself when the pass has no dropout."""
    if run.dropout is None:
        return x, None
    return run.ops.dropout_forward(x, run.dropout.rate, run.dropout.generator(layer, place))


def drop_backward(dy, saved, run):
    """dx."""
    return dy if run.dropout is None else run.ops.dropout_backward(dy, saved)
