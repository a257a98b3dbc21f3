"""vLLM that sleeps while something else is trained on the same card; says what the card has by its own meter.

    sleep.py MODEL
"""

import sys

import torch
from vllm import LLM, SamplingParams


def meter(what):
    free, total = torch.cuda.mem_get_info()
    print("meter", what, total - free, flush=True)


if __name__ == "__main__":
    llm = LLM(sys.argv[1], load_format="dummy", enforce_eager=True, max_model_len=2048, gpu_memory_utilization=0.3, enable_sleep_mode=True)
    ask = lambda: llm.generate([{"prompt_token_ids": list(range(1, 65))}] * 4, SamplingParams(max_tokens=4, ignore_eos=True))
    ask()
    policy = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096) for _ in range(8)]).cuda()
    optimizer = torch.optim.AdamW(policy.parameters())
    for _ in range(2):
        llm.sleep(level=1)
        policy(torch.randn(512, 4096, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        meter("asleep")
        llm.wake_up()
        ask()
        meter("awake")
