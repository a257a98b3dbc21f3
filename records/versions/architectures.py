"""architectures.py [NAME...]: a step of models of transformers, two layers of each, and the most bytes that each had allocated at once."""
import gc
import sys
import warnings

import torch
import transformers
from transformers import AutoConfig

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
CAUSAL = dict(
    num_hidden_layers=2, hidden_size=1024, intermediate_size=2816, num_attention_heads=16, num_key_value_heads=4, vocab_size=32000, head_dim=64, pad_token_id=0
)
OLDER = dict(n_layer=2, n_embd=1024, n_head=16, vocab_size=32000)
EXPERTS = dict(CAUSAL, num_experts=8, num_local_experts=8, num_experts_per_tok=2, moe_intermediate_size=1408, n_routed_experts=8)
STATE = dict(num_hidden_layers=2, hidden_size=1024, vocab_size=32000)
ENCODER, SHORT, LAYERS = dict(num_hidden_layers=2), dict(encoder_layers=2, decoder_layers=2), dict(num_layers=2, num_decoder_layers=2, decoder_start_token_id=0)
TEXT, MASKED, BOTH = "AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModelForSeq2SeqLM"
IMAGE, SOUND, HEARD = "AutoModelForImageClassification", "AutoModelForCTC", "AutoModelForSpeechSeq2Seq"
# The class, its configuration, samples, and tokens, pixels or samples of sound of each.
MODELS = {
    **{name: (TEXT, CAUSAL, 2, 2048) for name in "llama mistral qwen2 qwen3 gemma gemma2 gemma3_text phi phi3 olmo2 stablelm starcoder2 granite cohere2 glm4 smollm3".split()},
    **{name: (TEXT, EXPERTS, 2, 2048) for name in "mixtral qwen2_moe qwen3_moe olmoe granitemoe gpt_oss".split()},
    **{name: (TEXT, OLDER, 2, 1024) for name in "gpt2 gptj bloom".split()},
    **{name: (TEXT, dict(CAUSAL, ffn_dim=4096), 2, 1024) for name in "opt gpt_neox".split()},
    "mamba": (TEXT, STATE, 2, 1024),
    "mamba2": (TEXT, dict(STATE, num_heads=32, head_dim=64), 2, 1024),
    **{name: (MASKED, ENCODER, 8, 512) for name in "bert roberta electra albert deberta-v2 modernbert mpnet".split()},
    "distilbert": (MASKED, dict(n_layers=2), 8, 512),
    "longformer": (MASKED, dict(ENCODER, attention_window=256), 2, 2048),
    **{name: (BOTH, LAYERS, 8, 512) for name in "t5 longt5".split()},
    **{name: (BOTH, SHORT, 8, 512) for name in "bart m2m_100".split()},
    **{name: (IMAGE, ENCODER, 16, 224) for name in "vit beit dinov2 siglip clip".split()},
    **{name: (IMAGE, {}, 8, 224) for name in "swin swinv2 convnextv2 resnet segformer".split()},
    **{name: (SOUND, ENCODER, 4, 80000) for name in "wav2vec2 wavlm wav2vec2-conformer".split()},
    "whisper": (HEARD, SHORT, 4, 256),
    **{f"{name} checkpointed": (TEXT, CAUSAL, 2, 2048) for name in ["llama", "gemma2"]},
    "gpt2 checkpointed": (TEXT, OLDER, 2, 1024),
    "bert checkpointed": (MASKED, ENCODER, 8, 512),
    "t5 checkpointed": (BOTH, LAYERS, 8, 512),
    **{f"{name} padded": (TEXT, CAUSAL, 2, 2048) for name in ["llama", "gemma2"]},
    "bert padded": (MASKED, ENCODER, 8, 512),
    "llama eager": (TEXT, CAUSAL, 2, 2048),
    "llama generates": (TEXT, CAUSAL, 8, 512),
    "bart generates": (BOTH, SHORT, 8, 512),
}


def step(kind, sizes, samples, length):
    family, _, how = name.partition(" ")
    config = AutoConfig.for_model(family, **sizes)
    more = {"attn_implementation": "eager"} if how == "eager" else {}
    # There from the start, so that its values are not drawn on the CPU.
    with torch.device("cuda"):
        model = getattr(transformers, kind).from_config(config, **more).to(torch.bfloat16).train()
    if how == "checkpointed":
        model.gradient_checkpointing_enable()
    if kind == IMAGE:
        given = {"pixel_values": torch.randn(samples, 3, length, length, device="cuda", dtype=torch.bfloat16), "labels": torch.zeros(samples, dtype=torch.long, device="cuda")}
    elif kind == SOUND:
        given = {"input_values": torch.randn(samples, length, device="cuda", dtype=torch.bfloat16), "labels": torch.ones(samples, 20, dtype=torch.long, device="cuda")}
    else:
        ids = torch.randint(5, 1000, (samples, length), device="cuda")
        given = {"input_ids": ids, "labels": ids}
        if kind == HEARD:
            given = {"input_features": torch.randn(samples, 80, 3000, device="cuda", dtype=torch.bfloat16), "labels": ids}
    if how == "padded":
        given["attention_mask"] = torch.ones_like(ids)
        given["attention_mask"][:, : length // 4] = 0
    if how == "generates":
        model.eval()
        return model.generate(given["input_ids"], max_new_tokens=16, min_new_tokens=16, do_sample=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(**given).loss.backward()
    optimizer.step()


for name in sys.argv[1:] or MODELS:
    # What the one before has left is gone.
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    try:
        step(*MODELS[name])
        print(f"peak {name}: {torch.cuda.max_memory_allocated() - before}", flush=True)
    except Exception as error:
        print(f"peak {name}: none, {type(error).__name__} {' '.join(str(error).split())[:150]}", flush=True)
