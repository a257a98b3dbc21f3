"""{
"sliced-vae": {"group": "images", "use": "inference", "short": "images decoded one by one", "package": "diffusers", "line": "a VAE of diffusers decodes one image after the other"},
"tiled-vae": {"group": "images", "use": "inference", "short": "images decoded in tiles", "package": "diffusers", "line": "a VAE of diffusers decodes an image in overlapping tiles"},
"sliced-attention": {"group": "attention", "use": "both", "short": "attention of half of the heads", "package": "diffusers", "line": "a model of diffusers computes attention in slices, half of the heads at a time"}
}"""


from ..guard import instead
from ..imports import when_imported
from .shared.technique import Technique, technique

_VAES = "diffusers.models.autoencoders.autoencoder_kl"


@technique
class Images(Technique):
    def begin(self):
        self.refused("the script decodes no images by diffusers' AutoencoderKL" if self.name.endswith("vae") else "the script runs no model of diffusers")
        if self.name.endswith("vae"):
            when_imported(_VAES, self.follow)
        else:
            self.at_first_forward(self.slice)

    def follow(self, module):
        kind, switch = module.AutoencoderKL, f"enable_{'slicing' if self.name == 'sliced-vae' else 'tiling'}"

        @self.or_refused
        def choose(vae):
            if getattr(vae, switch.replace("enable", "use")) and not self.said["applied"]:
                return self.refused("the script does")
            getattr(vae, switch)()
            return self.applied(f"pipe.vae.{switch}()", "seams between tiles are blended" if switch == "enable_tiling" else "")

        @instead("decode", kind)
        def decode(vae, *arguments, **more):
            choose(vae)
            return decode.__wrapped__(vae, *arguments, **more)

    def slice(self, root):
        if hasattr(root, "set_attention_slice"):
            root.set_attention_slice("auto")
            self.applied("pipe.enable_attention_slicing()")
