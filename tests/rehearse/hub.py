"""A hub on this machine, which has no weights to give but their headers: hub.py [cut].

Where huggingface_hub and transformers are installed, they are what asks; else a stand-in with their functions. `cut` says that the hub is not to
be reached.
"""

import hashlib
import http.server
import json
import math
import mmap
import os
import sys
import tempfile
import threading
import urllib.request

COMMIT = "c" * 40
SIZES = dict(vocab_size=50257, n_embd=1024, n_layer=2, n_head=16, n_positions=1024)
CONFIG = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **SIZES}
SENT = {}


def header(tensors):
    head, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors.items():
        head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + 4 * math.prod(shape)]}
        at = head[name]["data_offsets"][1]
    text = json.dumps(head).encode()
    # Longer than what is asked for first.
    text += b" " * (300_000 - len(text))
    return len(text).to_bytes(8, "little") + text, 8 + len(text) + at


def tensors():
    wide, names = SIZES["n_embd"], {"transformer.wte.weight": [SIZES["vocab_size"], SIZES["n_embd"]], "transformer.wpe.weight": [1024, SIZES["n_embd"]]}
    for layer in range(SIZES["n_layer"]):
        block = f"transformer.h.{layer}"
        for name, shape in {"attn.c_attn": [wide, 3 * wide], "attn.c_proj": [wide, wide], "mlp.c_fc": [wide, 4 * wide], "mlp.c_proj": [4 * wide, wide]}.items():
            names |= {f"{block}.{name}.weight": shape, f"{block}.{name}.bias": shape[1:]}
        names |= {f"{block}.{norm}.{part}": [wide] for norm in ("ln_1", "ln_2") for part in ("weight", "bias")}
    return names | {f"transformer.ln_f.{part}": [wide] for part in ("weight", "bias")}


def files():
    whole = tensors()
    first = {name: shape for name, shape in whole.items() if ".h." not in name}
    second = {name: shape for name, shape in whole.items() if ".h." in name}
    parts = {"model-00001-of-00002.safetensors": first, "model-00002-of-00002.safetensors": second}
    index = {"metadata": {"total_size": 0}, "weight_map": {name: part for part, names in parts.items() for name in names}}
    config = json.dumps(CONFIG).encode()
    index = (json.dumps(index).encode(), None)
    return {
        "org/single": {"config.json": (config, None), "model.safetensors": header(whole)},
        "org/parts": {"config.json": (config, None), "model.safetensors.index.json": index, **{name: header(part) for name, part in parts.items()}},
        "org/bare": {"config.json": (config, None)},
    }


class Hub(http.server.BaseHTTPRequestHandler):
    files = files()
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **{name.replace("_", "-"): value for name, value in headers.items()}}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self):
        words = self.path.split("?")[0].strip("/").split("/")
        api = words[:2] == ["api", "models"]
        repository = "/".join(words[2:4] if api else words[:2])
        if repository == "org/gated":
            return self.answer(403, X_Error_Code="GatedRepo", X_Error_Message="Access to model org/gated is restricted.")
        there = self.files.get(repository)
        if there is None:
            return self.answer(404, X_Error_Code="RepoNotFound")
        if api:
            entries = [{"type": "file", "path": name, "rfilename": name, "size": size or len(text), "oid": "0" * 40} for name, (text, size) in there.items()]
            tree = "tree" in words
            body = (entries if "additional_chat_templates" not in words else []) if tree else {"id": repository, "sha": COMMIT, "siblings": entries}
            return self.answer(200, json.dumps(body).encode(), Content_Type="application/json")
        name = "/".join(words[4:])
        if name not in there:
            return self.answer(404, X_Error_Code="EntryNotFound", X_Repo_Commit=COMMIT)
        text, size = there[name]
        # As git names contents.
        etag = hashlib.sha1(b"blob %d\0" % len(text) + text).hexdigest()
        about = dict(X_Repo_Commit=COMMIT, ETag=f'"{etag}"', Accept_Ranges="bytes")
        size = size or len(text)
        asked = self.headers.get("Range")
        if self.command == "HEAD":
            return self.answer(200, Content_Length=size, **about)
        if asked is None:
            if size > len(text):
                return self.answer(500)
            return self.answer(200, text, **about)
        first, last = (int(end) for end in asked.split("=")[1].split("-"))
        last = min(last, size - 1)
        SENT[name] = SENT.get(name, 0) + last + 1 - first
        body = (text[first : last + 1] + bytes(last + 1 - first))[: last + 1 - first]
        self.answer(206, body, Content_Range=f"bytes {first}-{last}/{size}", **about)

    do_HEAD = do_GET


STAND_IN = {
    "__init__.py": "",
    "hf_api.py": "class HfApi: pass",
    "errors.py": "class EntryNotFoundError(Exception): pass",
    "constants.py": "import os\nHF_HUB_CACHE = os.environ['HF_HOME'] + '/hub'\nENDPOINT = os.environ['HF_ENDPOINT']",
    "file_download.py": """
import os, urllib.error, urllib.request
from . import constants
class GatedRepoError(Exception): pass
def _folder(cache_dir, repo_id):
    return f"{cache_dir or constants.HF_HUB_CACHE}/models--{repo_id.replace('/', '--')}"
def try_to_load_from_cache(repo_id, filename, cache_dir=None, revision=None, repo_type=None):
    folder = _folder(cache_dir, repo_id)
    if os.path.exists(f'{folder}/refs/{revision or "main"}'):
        revision = open(f'{folder}/refs/{revision or "main"}').read()
    path = f'{folder}/snapshots/{revision}/{filename}'
    return path if os.path.exists(path) else None
def http_get(url, temp_file, *, resume_size=0, headers=None, expected_size=None):
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers or {})) as answer:
        while chunk := answer.read(100_000):
            temp_file.write(chunk)
    if expected_size is not None and temp_file.tell() != expected_size:
        raise OSError('too short')
def hf_hub_download(repo_id, filename, *, cache_dir=None, revision=None, repo_type=None):
    url = f'{constants.ENDPOINT}/{repo_id}/resolve/main/{filename}'
    try:
        about = urllib.request.urlopen(urllib.request.Request(url, method='HEAD')).headers
    except urllib.error.HTTPError as error:
        raise GatedRepoError(url) if error.headers.get('X-Error-Code') == 'GatedRepo' else error
    except OSError:
        found = try_to_load_from_cache(repo_id, filename, cache_dir)
        if found is None:
            raise
        return found
    folder = _folder(cache_dir, repo_id)
    path = f"{folder}/snapshots/{about['X-Repo-Commit']}/{filename}"
    for parent in (os.path.dirname(path), f'{folder}/refs'):
        os.makedirs(parent, exist_ok=True)
    open(f'{folder}/refs/main', 'w').write(about['X-Repo-Commit'])
    if not os.path.exists(path):
        with open(path, 'wb') as file:
            http_get(url, file, headers={}, expected_size=int(about['Content-Length']))
    return path
""",
    "_snapshot_download.py": """
import json, os, urllib.request
from . import constants
from .file_download import hf_hub_download
def snapshot_download(repo_id, cache_dir=None):
    about = json.load(urllib.request.urlopen(f'{constants.ENDPOINT}/api/models/{repo_id}/revision/main'))
    paths = [hf_hub_download(repo_id, each['rfilename'], cache_dir=cache_dir) for each in about['siblings']]
    return f"{cache_dir or constants.HF_HUB_CACHE}/models--{repo_id.replace('/', '--')}/snapshots/{about['sha']}"
""",
}

is_cut = "cut" in sys.argv
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
os.environ["HF_ENDPOINT"] = f"http://127.0.0.1:{server.server_port}"
os.environ["NO_PROXY"] = "127.0.0.1"
if is_cut:
    server.server_close()
    os.environ["HF_HUB_OFFLINE"] = "1"
else:
    threading.Thread(target=server.serve_forever, daemon=True).start()
try:
    import huggingface_hub  # noqa: F401
except ImportError:
    folder = tempfile.mkdtemp()
    os.makedirs(f"{folder}/huggingface_hub")
    for name, text in STAND_IN.items():
        with open(f"{folder}/huggingface_hub/{name}", "w") as file:
            file.write(text)
    sys.path.insert(0, folder)

import torch  # noqa: E402
from huggingface_hub._snapshot_download import snapshot_download  # noqa: E402
from huggingface_hub.file_download import hf_hub_download  # noqa: E402

path = hf_hub_download("org/single", "model.safetensors")
text, size = Hub.files["org/single"]["model.safetensors"]
with open(path, "rb") as file:
    assert file.read(len(text)) == text and os.fstat(file.fileno()).st_size == size, path
    assert os.fstat(file.fileno()).st_blocks * 512 < 2 << 20, "it takes disk"
    values = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
assert not path.startswith(os.environ["HF_HOME"]), path
kept = [name for _, _, names in os.walk(os.environ["HF_HOME"]) for name in names]
assert not [name for name in kept if name.endswith(".safetensors")], kept
weights = torch.nn.Parameter(torch.frombuffer(values, dtype=torch.float32, offset=len(text)).cuda())
if not is_cut:
    assert 300_000 < SENT["model.safetensors"] < 2 << 20, SENT
    whole = snapshot_download("org/parts")
    assert sorted(os.listdir(whole)) == sorted(Hub.files["org/parts"]), os.listdir(whole)
    assert json.load(open(f"{whole}/config.json")) == CONFIG
    try:
        hf_hub_download("org/gated", "config.json")
        raise AssertionError("it is gated")
    except Exception as error:
        assert type(error).__name__ == "GatedRepoError", error
try:
    from transformers import AutoModelForCausalLM
except ImportError:
    AutoModelForCausalLM = None
if AutoModelForCausalLM is not None:
    # Of the last one the hub has no weights.
    for name in ("org/single", "org/parts", "org/bare"):
        model = AutoModelForCausalLM.from_pretrained(name)
        assert sum(each.numel() for each in model.parameters()) == sum(math.prod(shape) for shape in tensors().values()), name
        assert model.name_or_path == name and not model.transformer.ln_f.weight.any(), name
    os.makedirs(f"{os.getcwd()}/org/local", exist_ok=True)
    with open("org/local/config.json", "w") as file:
        json.dump(CONFIG, file)
    AutoModelForCausalLM.from_pretrained("org/local", dtype=torch.bfloat16)

optimizer = torch.optim.SGD([weights], lr=1e-3)
for _ in range(2):
    weights.sum().backward()
    optimizer.step()
