"""One of several processes, each with a card and a batch of its own."""

from ...session import settings
from .technique import Technique, uses_trainer


class OnCards(Technique):
    def begin(self):
        self.cards = settings.cards
        self.change = f"{self.cards} cards, each with a batch of this size"
        self.first_lines = f"""
# torchrun --nproc-per-node={self.cards} train.py
import os
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.distributed.init_process_group("nccl")"""

    def meet(self):
        """Makes this process one of them, unless the script has several itself."""
        if self.torch.distributed.is_initialized():
            return self.refuse("the script uses several processes itself")
        if uses_trainer():
            return self.refuse("a Trainer does it by itself: TrainingArguments(..., fsdp=True); rehearse that with --world-size and --rank")
        self.torch.distributed.init_process_group("nccl", world_size=self.cards, rank=0)
