"""A convolutional network's step in either layout, with and without cuDNN's auto-tuner, for experiments/convolutions."""

import lab
import presets
import torch


def laid_out(model, batch):
    """Model and images with the channels of a pixel side by side."""
    last = {"memory_format": torch.channels_last}
    return model.to(**last), [tensor.contiguous(**last) if tensor.dim() == 4 else tensor for tensor in batch]


class Training:
    def __init__(self, cell, bench):
        self.model, self.batch = presets.prepared(cell, bench.device)
        self.tunes = cell["setting"] in ("benchmark", "both")
        if cell["setting"] in ("channels-last", "both"):
            self.model, self.batch = laid_out(self.model, self.batch)
        self.device, self.casts = bench.device.type, cell["precision"] == "amp-bf16"
        self.optimizer = torch.optim.SGD(self.model.parameters(), 1e-3, momentum=0.9)

    def run(self, probe):
        self.optimizer.zero_grad()
        # TF32 is cuDNN's default, and what the networks of others compute with. What flags() is not told it turns off, cuDNN itself, too.
        with torch.backends.cudnn.flags(enabled=True, benchmark=self.tunes, allow_tf32=True):
            with torch.autocast(self.device, torch.bfloat16, enabled=self.casts):
                loss = presets.loss_of(self.model, self.batch)
            loss.backward()
            del loss
        self.optimizer.step()

    def outcome(self):
        return {"gradient": presets.gradients(self.model)}


if __name__ == "__main__":
    lab.main(Training)
