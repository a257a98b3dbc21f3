"""Weights of Hugging Face's hub: of a safetensors file that the user's cache lacks its header alone is fetched, which has each tensor's name, type and
shape. What the script opens is that header and a hole: zeros that take no disk. Such files lie in a cache of ours, never in the user's.
"""

import copy
import functools
import io
import json
import os
import tempfile
import threading

from .guard import instead
from .notes import tell
from .session import settings

_WEIGHTS = ".safetensors"
# What is asked for first, and what the format allows at most; most headers have some kB.
_FIRST, _MOST = 1 << 18, 100_000_000
_now = threading.local()
# Gone with the session; as this process was started.
_HELD = os.environ.get("VRAMLAB_REHEARSAL_HELD")
_OF_A_REPOSITORY = ("revision", "subfolder", "cache_dir", "token", "local_files_only", "force_download", "use_safetensors", "variant", "use_auth_token")
_TYPES = dict(float64="F64", float32="F32", float16="F16", bfloat16="BF16", int64="I64", int32="I32", int16="I16", int8="I8", uint8="U8", bool="BOOL")


class _Whole(Exception):
    pass


class _Header(io.BytesIO):
    """Takes bytes of a safetensors file until its header is whole."""

    def size(self):
        return 8 + int.from_bytes(self.getvalue()[:8], "little") if self.tell() >= 8 else 8

    def write(self, data):
        super().write(data)
        if self.tell() > 8 and (self.tell() >= self.size() or self.size() > _MOST):
            raise _Whole


def _tell(repo_id):
    tell(
        f"the weights of {repo_id} were not downloaded: the headers of its safetensors say their shapes, and all values are 0; "
        "with --writes the script downloads them"
    )


def _of_headers(more):
    return getattr(_now, "headers", False) and "xet_file_data" in more


def follow(module):
    """Of huggingface_hub.file_download, what scripts and other libraries call."""
    download, look_up, get = module.hf_hub_download, getattr(module, "try_to_load_from_cache", None), getattr(module, "http_get", None)
    if look_up is None or get is None:
        return
    move, constants = getattr(module, "_download_to_tmp_and_move", None), getattr(module, "constants", None)
    if move is not None:
        # Over HTTP, where a part can be asked for.
        module._download_to_tmp_and_move = lambda *each, **more: move(*each, **(more | {"xet_file_data": None} if _of_headers(more) else more))
    if getattr(constants, "HF_HUB_ENABLE_HF_TRANSFER", False):
        constants.HF_HUB_ENABLE_HF_TRANSFER = False

    @instead("hf_hub_download", module)
    def hf_hub_download(repo_id, filename, *arguments, **more):
        names = {name: more[name] for name in ("revision", "repo_type") if name in more}
        of_weights = filename.endswith(_WEIGHTS) and more.get("repo_type") in (None, "model")
        whole = "/".join(filter(None, (more.get("subfolder"), filename)))
        try:
            if not of_weights or isinstance(look_up(repo_id, whole, cache_dir=more.get("cache_dir"), **names), str):
                return download(repo_id, filename, *arguments, **more)
            _now.headers = True
            found = download(repo_id, filename, *arguments, **{**more, "cache_dir": settings.hub})
            _tell(repo_id)
            return found
        except Exception as error:
            if type(error).__name__ == "GatedRepoError":
                tell(
                    f"{repo_id} is gated: accept its terms on the hub and log in (hf auth login); or put its config.json and the files of its tokenizer "
                    f"into a folder {repo_id} where the command is started: the weights' shapes are made from that"
                )
            raise
        finally:
            _now.headers = False

    @instead("try_to_load_from_cache", module)
    def try_to_load_from_cache(repo_id, filename, cache_dir=None, revision=None, repo_type=None):
        found = look_up(repo_id, filename, cache_dir=cache_dir, revision=revision, repo_type=repo_type)
        if isinstance(found, str) or not filename.endswith(_WEIGHTS):
            return found
        references = os.path.join(cache_dir or constants.HF_HUB_CACHE, f"models--{repo_id.replace('/', '--')}", "refs", revision or "main")
        if os.path.isfile(references):
            with open(references) as file:
                revision = file.read().strip()
        ours = look_up(repo_id, filename, cache_dir=settings.hub, revision=revision, repo_type=repo_type)
        if isinstance(ours, str):
            _tell(repo_id)
            return ours
        return found

    @instead("http_get", module)
    def http_get(url, temp_file, *arguments, **more):
        if not getattr(_now, "headers", False):
            return get(url, temp_file, *arguments, **more)
        wanted, header = _FIRST, _Header()
        while wanted > header.tell():
            header = _Header()
            try:
                asked = {**(more.get("headers") or {}), "Range": f"bytes=0-{wanted - 1}"}
                get(url, header, *arguments, **{**more, "headers": asked, "resume_size": 0, "expected_size": None})
            except _Whole:
                break
            except OSError:
                # Newer ones see that it is not the whole file.
                if not header.tell():
                    raise
            # A server that has no more.
            wanted = header.size() if header.tell() == wanted else 0
        text = header.getvalue()[: header.size()]
        if len(text) < header.size() or len(text) < 10:
            return get(url, temp_file, *arguments, **more)
        ends = [each["data_offsets"][1] for name, each in json.loads(text[8:]).items() if name != "__metadata__"]
        temp_file.write(text)
        temp_file.truncate(len(text) + max(ends, default=0))


def follow_snapshots(module):
    """A folder of a whole repository: where weights of it are ours, one of ours that has links to all others."""

    @instead("snapshot_download", module)
    def snapshot_download(repo_id, *arguments, **more):
        folder = snapshot_download.__wrapped__(repo_id, *arguments, **more)
        ours = os.path.join(settings.hub, f"models--{repo_id.replace('/', '--')}", "snapshots", os.path.basename(str(folder)))
        files = [os.path.relpath(os.path.join(at, name), ours) for at, _, names in os.walk(ours) for name in names if name.endswith(_WEIGHTS)]
        if more.get("local_dir") or all(os.path.exists(os.path.join(folder, name)) for name in files):
            return folder
        for at, _, names in os.walk(folder):
            there = os.path.join(ours, os.path.relpath(at, folder))
            os.makedirs(there, exist_ok=True)
            for name in names:
                if not os.path.lexists(os.path.join(there, name)):
                    os.symlink(os.path.join(at, name), os.path.join(there, name))
        return ours


def follow_transformers(module):
    """Weights that are neither there nor to be had are made from the configuration."""
    original = module.PreTrainedModel.from_pretrained.__func__

    @functools.wraps(original)
    def from_pretrained(cls, pretrained_model_name_or_path, *arguments, **more):
        name = pretrained_model_name_or_path
        try:
            return original(cls, name, *arguments, **more)
        except (OSError, AttributeError) as error:
            # The second is what transformers 4 raises offline: it reads a name that it has not found.
            folder, why = _of_configuration(cls, name, more), str(error).strip().splitlines()
            if folder is None:
                raise
        found = original(cls, folder, *arguments, **{key: value for key, value in more.items() if key not in _OF_A_REPOSITORY})
        tell(f"the weights of {name} are not there: their shapes are those of its config.json, and all values are 0 ({why[0] if why else 'no reason'})")
        model = found[0] if isinstance(found, tuple) else found
        model.name_or_path = model.config._name_or_path = name
        return found

    module.PreTrainedModel.from_pretrained = classmethod(from_pretrained)


def _of_configuration(cls, name, more):
    """A folder as the hub has it, with holes for weights; None where the configuration is not there, either."""
    import torch

    config = more.get("config")
    try:
        if not hasattr(config, "to_dict"):
            config = cls.config_class.from_pretrained(config or name, **{key: more[key] for key in _OF_A_REPOSITORY[:5] if key in more})
        if getattr(config, "quantization_config", None):
            # Its tensors have other names and shapes.
            return None
        with torch.device("meta"):
            tensors = cls._from_config(copy.deepcopy(config)).state_dict()
    except Exception:
        return None
    kept = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None) or torch.float32
    head, at = {"__metadata__": {"format": "pt"}}, 0
    for key, tensor in tensors.items():
        tensor = tensor.to(getattr(torch, kept) if isinstance(kept, str) else kept) if tensor.is_floating_point() else tensor
        kind, size = _TYPES[str(tensor.dtype).split(".")[1]], tensor.numel() * tensor.element_size()
        head[key] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    folder = tempfile.mkdtemp(prefix="weights-", dir=_HELD)
    config.save_pretrained(folder)
    with open(os.path.join(folder, f"model{_WEIGHTS}"), "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
    return folder
