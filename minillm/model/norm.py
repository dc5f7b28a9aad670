"""The normalisation a family uses: layer norm with a bias (gpt2), root-mean-square without (llama)."""

from minillm.tree import Tree


def norm_forward(x, w, run):
    """x: (B, T, C), w: weight (C,) and bias (C,) or None."""
    if run.config.family == "llama":
        return run.ops.rms_norm_forward(x, w.weight, run.config.norm_eps)
    return run.ops.layer_norm_forward(x, w.weight, w.bias, run.config.norm_eps)


def norm_backward(dy, saved, run):
    """dx and the gradients of w."""
    if run.config.family == "llama":
        dx, dweight = run.ops.rms_norm_backward(dy, saved)
        return dx, Tree(weight=dweight, bias=None)
    dx, dweight, dbias = run.ops.layer_norm_backward(dy, saved)
    return dx, Tree(weight=dweight, bias=dbias)
