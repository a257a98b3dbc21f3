"""transformers#25709: Mask2Former with its default configuration labels 16 images of 768 x 768, without gradients.

The thread's notebook is not public; its error wants 56.25 GiB at once, which is what these images take, among others.
"""
import torch
import transformers
from transformers import Mask2FormerConfig, Mask2FormerForUniversalSegmentation

model = Mask2FormerForUniversalSegmentation(Mask2FormerConfig()).to("cuda").eval()
with torch.no_grad():
    model(pixel_values=torch.randn(16, 3, 768, 768, device="cuda"))
print(transformers.__version__, torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
