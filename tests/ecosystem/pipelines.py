"""Inference as the documentation of transformers, diffusers and sentence-transformers has it, each with a model of real shapes from inputs.py.

    pipelines.py text-generation|fill-mask|speech|images|text-to-image|rag
"""

import sys

import torch


def text_generation():
    from transformers import pipeline

    generator = pipeline("text-generation", model="meta-llama/Llama-3.2-1B-Instruct", dtype=torch.bfloat16, device=0)
    generator(["The cat sat on"] * 4, max_new_tokens=64, do_sample=False, batch_size=4)


def fill_mask():
    from transformers import pipeline

    filler = pipeline("fill-mask", model="google-bert/bert-base-uncased", device=0)
    filler(["the cat sat on a [MASK]"] * 64, batch_size=32)


def speech():
    import numpy
    from transformers import pipeline

    recognizer = pipeline("automatic-speech-recognition", model="openai/whisper-small", device=0)
    recognizer(numpy.zeros(16000 * 60, dtype=numpy.float32), chunk_length_s=30, batch_size=2, generate_kwargs={"max_new_tokens": 32})


def images():
    from PIL import Image
    from transformers import pipeline

    classifier = pipeline("image-classification", model="google/vit-base-patch16-224-in21k", device=0)
    classifier([Image.new("RGB", (640, 480))] * 64, batch_size=64)


def text_to_image():
    from diffusers import StableDiffusionPipeline

    pipe = StableDiffusionPipeline.from_pretrained("CompVis/stable-diffusion-v1-4", torch_dtype=torch.float16).to("cuda")
    pipe("a cat on a mat", num_inference_steps=10, num_images_per_prompt=4)


def rag():
    """Passages of a corpus and their queries, embedded and compared, as retrieval does it."""
    from sentence_transformers import SentenceTransformer, util

    model = SentenceTransformer("google-bert/bert-base-uncased", device="cuda")
    corpus = model.encode(["the cat sat on a mat and the model answers why " * 12] * 512, batch_size=64, convert_to_tensor=True)
    queries = model.encode(["why is the cat on a mat"] * 8, convert_to_tensor=True)
    util.semantic_search(queries, corpus, top_k=10)


if __name__ == "__main__":
    {function.__name__.replace("_", "-"): function for function in (text_generation, fill_mask, speech, images, text_to_image, rag)}[sys.argv[1]]()
