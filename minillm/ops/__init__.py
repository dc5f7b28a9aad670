"""The specification: one op a file, forward above backward, in plain NumPy.

    y, saved      = rms_norm_forward(x, weight, eps)
    dx, dweight   = rms_norm_backward(dy, saved)      # one gradient per array input, in input order

An op keeps the dtype it is given and returns fresh arrays.  `saved` is private to its pair.  A single gradient comes
bare; an input without one (ids, an absent bias) gets None.  A bare name (`add`, `adamw`) has no gradient.
"""

from minillm.ops.adamw import adamw
from minillm.ops.add import add, add_backward, add_forward, add_into
from minillm.ops.attention import attention_backward, attention_forward
from minillm.ops.clip import clip, gradient_norm
from minillm.ops.cross_entropy import cross_entropy_backward, cross_entropy_forward, num_targets
from minillm.ops.dropout import dropout_backward, dropout_forward
from minillm.ops.embedding import embedding_backward, embedding_forward
from minillm.ops.gelu import gelu_erf_backward, gelu_erf_forward, gelu_tanh_backward, gelu_tanh_forward
from minillm.ops.layer_norm import layer_norm_backward, layer_norm_forward
from minillm.ops.linear import linear_backward, linear_backward_input, linear_forward
from minillm.ops.paged_attention import paged_attention
from minillm.ops.quantized import integer_linear, quantized_linear
from minillm.ops.rms_norm import rms_norm_backward, rms_norm_forward
from minillm.ops.rope import rope_backward, rope_forward
from minillm.ops.softmax import log_softmax_backward, log_softmax_forward, softmax_backward, softmax_forward
from minillm.ops.swiglu import swiglu_backward, swiglu_forward

__all__ = [
    "adamw",
    "add", "add_backward", "add_forward", "add_into",
    "attention_backward", "attention_forward",
    "clip", "gradient_norm",
    "cross_entropy_backward", "cross_entropy_forward", "num_targets",
    "dropout_backward", "dropout_forward",
    "embedding_backward", "embedding_forward",
    "gelu_erf_backward", "gelu_erf_forward", "gelu_tanh_backward", "gelu_tanh_forward",
    "layer_norm_backward", "layer_norm_forward",
    "integer_linear", "quantized_linear",
    "linear_backward", "linear_backward_input", "linear_forward",
    "log_softmax_backward", "log_softmax_forward",
    "paged_attention",
    "rms_norm_backward", "rms_norm_forward",
    "rope_backward", "rope_forward",
    "softmax_backward", "softmax_forward",
    "swiglu_backward", "swiglu_forward",
]  # fmt: skip
