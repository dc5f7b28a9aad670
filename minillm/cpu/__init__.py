"""The ops in numba, for any CPU: the same names and signatures as minillm.ops, which they are checked against.

README.md in this folder tells what makes them fast and what each idea gained.  An op without a twin here (dropout) is
the reference's.
"""

from scipy.linalg import cython_blas  # the BLAS that compiled code calls; loaded now, so that it is held

from minillm import threads
from minillm.cpu.adamw import adamw
from minillm.cpu.add import add, add_backward, add_forward, add_into
from minillm.cpu.attention import attention_backward, attention_forward
from minillm.cpu.clip import clip, gradient_norm
from minillm.cpu.cross_entropy import cross_entropy_backward, cross_entropy_forward
from minillm.cpu.decode import Decoder
from minillm.cpu.decode_quantized import QuantizedDecoder, QuantizedWeights
from minillm.cpu.embedding import embedding_backward, embedding_forward
from minillm.cpu.gelu import gelu_erf_backward, gelu_erf_forward, gelu_tanh_backward, gelu_tanh_forward
from minillm.cpu.layer_norm import layer_norm_backward, layer_norm_forward
from minillm.cpu.linear import linear_backward, linear_backward_input, linear_forward
from minillm.cpu.paged_attention import paged_attention
from minillm.cpu.quantized import integer_linear, quantized_linear
from minillm.cpu.rms_norm import rms_norm_backward, rms_norm_forward
from minillm.cpu.rope import rope_backward, rope_forward
from minillm.cpu.softmax import log_softmax_backward, log_softmax_forward, softmax_backward, softmax_forward
from minillm.cpu.swiglu import swiglu_backward, swiglu_forward
from minillm.ops import __all__, dropout_backward, dropout_forward, num_targets

threads.hold_blas()
