"""A Lightning module in bf16-mixed, gradients of four batches added up."""

import lightning as L
import torch
from torch import nn


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(768, 12, 3072, dropout=0.1, activation="gelu", batch_first=True, norm_first=True)
        self.words, self.layers, self.head = nn.Embedding(32000, 768), nn.TransformerEncoder(layer, 6, enable_nested_tensor=False), nn.Linear(768, 32000)

    def training_step(self, batch, _):
        mask = nn.Transformer.generate_square_subsequent_mask(batch.shape[1], device=self.device)
        return nn.functional.cross_entropy(self.head(self.layers(self.words(batch), mask, is_causal=True)).flatten(0, 1), batch.flatten())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-4)


loader = torch.utils.data.DataLoader([torch.randint(32000, (512,)) for _ in range(8 * 48)], batch_size=8)
L.Trainer(max_epochs=1, precision="bf16-mixed", accumulate_grad_batches=4, gradient_clip_val=1.0, logger=False, enable_checkpointing=False,
          enable_progress_bar=False, accelerator="gpu", devices=1).fit(Module(), loader)
