"""GRPO of TRL with vLLM beside it that sleeps while the model is trained; says what the card has of this process, by its own meters.

    vramlab rehearse --gpu a100-40g -- python records/serving/grpo.py

It needs trl, datasets and vLLM, writes a Qwen2 of half a billion parameters into the folder `tiny`, and downloads nothing.
"""

import os

import models
import torch
from datasets import Dataset
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer
from vllm import LLM

most = {"asleep": 0, "awake": 0}


def meter(what):
    free, total = torch.cuda.mem_get_info()
    # The most since it fell asleep: what sleeps is in what is reserved, and not on the card.
    more = torch.cuda.max_memory_reserved() - torch.cuda.memory_reserved() if what == "asleep" else 0
    most[what] = max(most[what], total - free + more)
    torch.cuda.reset_peak_memory_stats()


def metered(name, before, after):
    function = getattr(LLM, name)

    def call(self, *arguments, **more):
        meter(before)
        result = function(self, *arguments, **more)
        meter(after)
        return result

    setattr(LLM, name, call)


def main():
    if not os.path.exists("tiny/model.safetensors"):
        models.make("Qwen/Qwen3-0.6B", "tiny")
        sizes = dict(vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2)
        Qwen2ForCausalLM(Qwen2Config(**sizes, max_position_embeddings=2048, tie_word_embeddings=True)).to(torch.bfloat16).save_pretrained("tiny")
    metered("sleep", "awake", "asleep")
    metered("wake_up", "asleep", "awake")
    metered("generate", "awake", "awake")
    config = GRPOConfig(
        output_dir="out", per_device_train_batch_size=4, num_generations=4, max_prompt_length=64, max_completion_length=64, max_steps=2, bf16=True, beta=0.04,
        report_to=[], logging_steps=1, use_vllm=True, vllm_mode="colocate", vllm_gpu_memory_utilization=0.3, vllm_enable_sleep_mode=True,
    )  # fmt: skip
    trainer = GRPOTrainer(
        "tiny", reward_funcs=lambda completions, **_: [0.0] * len(completions), args=config, train_dataset=Dataset.from_dict({"prompt": ["a b c"] * 8}),
        processing_class=AutoTokenizer.from_pretrained("tiny"),
    )  # fmt: skip
    trainer.train()
    meter("asleep")
    print("meters", most, flush=True)


if __name__ == "__main__":
    main()
