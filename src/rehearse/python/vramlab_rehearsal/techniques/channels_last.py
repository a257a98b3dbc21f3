"""{
"channels-last": {"against": "activations", "use": "both", "time": "layout", "short": "kernels of another layout", "unless": ["channels_last"], "line": "the model and its images"}
}"""

from .shared.technique import OfModel, technique


@technique
class ChannelsLast(OfModel):
    def first(self, root):
        torch = self.torch
        if not any(isinstance(module, (torch.nn.Conv2d, torch.nn.ConvTranspose2d)) for module in root.modules()):
            return self.refused("the model has no two-dimensional convolution")
        root.to(memory_format=torch.channels_last)

        def channels_last(_, inputs):
            for x in inputs:
                if isinstance(x, torch.Tensor) and x.dim() == 4 and not x.requires_grad:
                    # In the script's own tensor: nothing else is left of it there, either.
                    x.data = x.contiguous(memory_format=torch.channels_last)

        root.register_forward_pre_hook(channels_last)
        grouped = any(isinstance(module, torch.nn.Conv2d) and module.groups > 1 for module in root.modules())
        # docs/time.md: on cuDNN 8 such models took longer so, on others less, and no record decides.
        doubt = "# it has convolutions with groups, which can take longer so: measure a step before you keep it" if grouped else ""
        self.applied(
            f"""
{doubt}
model = model.to(memory_format=torch.channels_last)
images = images.to(memory_format=torch.channels_last)  # in the loop
"""
        )
