"""{
"sdpa": {"group": "attention", "use": "both", "short": "no scores of attention", "package": "transformers", "line": "`scaled_dot_product_attention` where a transformers model computes attention explicitly"}
}"""

from .shared.technique import OfModel, technique


@technique
class FusedAttention(OfModel):
    nothing = "the script runs no model of transformers, whose attention could be chosen"

    def first(self, root):
        models = [m for m in root.modules() if hasattr(m, "set_attn_implementation") and getattr(m, "config", None) is not None]
        if not models:
            return
        chosen = getattr(models[0].config, "_attn_implementation", None)
        if chosen != "eager":
            return self.refused(f"the model's attention is {chosen} already")
        models[0].set_attn_implementation("sdpa")
        self.applied('model.set_attn_implementation("sdpa")')
