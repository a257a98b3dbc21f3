"""Stands in for flash-attn, which would have to be compiled with CUDA's compiler: PyTorch's own flash kernel keeps the same tensors."""
import sys
import types
from importlib.machinery import ModuleSpec

import torch.nn.functional as F
import transformers.utils


def attention(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, **kwargs):
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p, is_causal=causal, scale=softmax_scale).transpose(1, 2)


padding = types.SimpleNamespace(index_first_axis=None, pad_input=None, unpad_input=None)
sys.modules["flash_attn"] = types.SimpleNamespace(flash_attn_func=attention, flash_attn_varlen_func=None, __spec__=ModuleSpec("flash_attn", None))
sys.modules["flash_attn.bert_padding"] = padding
transformers.utils.is_flash_attn_2_available = transformers.utils.is_flash_attn_available = lambda: True
