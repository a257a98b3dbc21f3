import logging
import os
import signal
import traceback

import torch
from sglang.srt.model_executor.model_runner import ModelRunner

logger = logging.getLogger(__name__)


@torch.inference_mode()
def run_scheduler_process(arguments, fails):
    try:
        runner = ModelRunner(arguments)
        if fails:
            raise ValueError("no kernel of attention for this head")
        runner.alloc_memory_pool()
        for tokens in (64, 1, 1):
            runner.model(torch.zeros(tokens, 1024, dtype=torch.bfloat16, device="cuda"), runner)
    except Exception:
        logger.error(f"Scheduler hit an exception: {traceback.format_exc()}")
        os.kill(os.getppid(), signal.SIGQUIT)
