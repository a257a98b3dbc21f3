"""{
"offloaded-cache": {"group": "cache", "use": "inference", "short": "keys and values wait on the host", "frees": {"kv_cache": 0.9}, "time": "unknown", "needs": ["host_memory"], "package": "transformers", "line": "keys and values of a transformers model's `generate` wait on the host, but for those of the layer that is at work"},
"quantized-cache": {"group": "cache", "use": "inference", "short": "keys and values in 4 bits", "frees": {"kv_cache": 0.7}, "time": "unknown", "changes": "rounding", "package": "transformers", "line": "keys and values of `generate` take 4 bits each, where hqq or optimum-quanto is installed"},
"static-cache": {"group": "cache", "use": "inference", "short": "room for all tokens at once", "package": "transformers", "line": "room for all tokens is taken at once, so that nothing is copied as the text grows; transformers compiles the model for it"}
}"""

import functools

from ..guard import instead
from ..imports import when_imported
from .shared.technique import Technique, is_installed, technique


@technique
class Cache(Technique):
    def begin(self):
        self.refused("the script calls no generate() of transformers")
        when_imported("transformers.generation.utils", self.follow)

    def follow(self, module):
        kind = self.name.removesuffix("-cache")
        # quanto compiles its kernels with nvcc.
        backend = next((name for name, package in (("hqq", "hqq"), ("quanto", "optimum.quanto")) if is_installed(package)), None)
        if kind == "quantized" and backend is None:
            self.refuse("neither hqq nor optimum-quanto is installed")
        wanted = {"cache_implementation": kind}
        if kind == "quantized":
            wanted["cache_config"] = {"backend": backend, "nbits": 4} | ({"axis_key": 1, "axis_value": 1} if backend == "hqq" else {})
        choose = self.or_refused(functools.partial(self.choose, wanted))

        @instead("generate", module.GenerationMixin)
        def generate(model, *arguments, **more):
            choose(model, more)
            return generate.__wrapped__(model, *arguments, **more)

    def choose(self, wanted, model, more):
        given = more.get("generation_config") or getattr(model, "generation_config", None)
        has = more.get("past_key_values"), more.get("cache_implementation"), getattr(given, "cache_implementation", None)
        if any(each is not None for each in has) and not (self.said or {}).get("applied"):
            return self.refused("the script chooses a cache itself")
        if more.get("use_cache", getattr(given, "use_cache", True)) is False:
            return self.refused("the script generates without a cache")
        more.update(wanted)
        text = ", ".join(f"{name}={value!r}" for name, value in wanted.items()).replace("'", '"')
        change = "keys and values rounded to 4 bits" if "cache_config" in wanted else ""
        return self.applied(f"model.generate(..., {text})", change)
