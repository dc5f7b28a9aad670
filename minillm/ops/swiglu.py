"""SwiGLU: a SiLU gate times a linear branch (Shazeer 2020, arXiv 2002.05202)."""

from scipy.special import expit

from minillm.ops.check_inputs import same_shape


def swiglu_forward(gate, up):
    """y = gate * s * up,  s = 1 / (1 + exp(-gate)).  gate, up, y: (..., F)."""
    same_shape("swiglu", gate=gate, up=up)
    s = expit(gate)  # the logistic function, without overflow at either end
    return gate * s * up, (gate, up, s)


def swiglu_backward(dy, saved):
    """dgate = dy * up * s * (1 + gate * (1 - s)),  dup = dy * gate * s."""
    gate, up, s = saved
    dys = dy * s
    return dys * up * (1 + gate * (1 - s)), dys * gate
