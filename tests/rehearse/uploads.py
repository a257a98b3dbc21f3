"""Trackers and a hub, called as scripts call them. What stands for them here has their functions and says how it was called."""

import os
import sys
import tempfile

KEPT = {
    "wandb/__init__.py": "def init(project, mode=None): return mode",
    "swanlab/__init__.py": "def init(project, mode='cloud'): return mode",
    "trackio/__init__.py": "def init(project, name=None, space_id=None): return space_id",
    "neptune/__init__.py": "from neptune.metadata_containers.run import Run",
    "neptune/metadata_containers/__init__.py": "",
    "neptune/metadata_containers/run.py": """
class Run:
    def __init__(self, with_id=None, *, project=None, mode=None):
        self.mode = mode
""",
    "comet_ml/__init__.py": "",
    "clearml/__init__.py": "",
    "mlflow/__init__.py": """
def set_tracking_uri(uri): return uri
class MlflowClient:
    def __init__(self, tracking_uri=None, registry_uri=None):
        self.uris = tracking_uri, registry_uri
""",
    "huggingface_hub/__init__.py": "",
    "huggingface_hub/errors.py": "class EntryNotFoundError(Exception): pass",
    "huggingface_hub/file_download.py": "def hf_hub_download(repo_id, filename): return filename",
    "huggingface_hub/hf_api.py": """
class RepoUrl(str): pass
class HfApi:
    def create_repo(self, repo_id, exist_ok=False): raise OSError
    def upload_folder(self, *, folder_path, repo_id, run_as_future=False): raise OSError
    def model_info(self, repo_id): return repo_id
class CommitInfo:
    def __init__(self, **fields): self.__dict__.update(fields)
api = HfApi()
create_repo = api.create_repo
""",
}

folder = tempfile.mkdtemp()
for name, text in KEPT.items():
    os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
    with open(os.path.join(folder, name), "w") as file:
        file.write(text)
sys.path.insert(0, folder)

import clearml  # noqa: E402, F401
import comet_ml  # noqa: E402, F401
import mlflow  # noqa: E402
import neptune  # noqa: E402
import swanlab  # noqa: E402
import torch  # noqa: E402
import trackio  # noqa: E402
import wandb  # noqa: E402
from huggingface_hub import errors, file_download, hf_api  # noqa: E402

torch.ones(1, device="cuda")
assert wandb.init("p", mode="online") == wandb.init("p") == wandb.init("p", "online") == "offline"
assert wandb.init("p", mode="disabled") == "disabled"
assert swanlab.init("p", mode="cloud") == "offline" and swanlab.init("p", mode="local") == "local"
assert trackio.init("p", "run", "me/space") is None
assert (neptune.Run(mode="async").mode, neptune.Run("R-1", mode="offline").mode) == ("debug", "offline")
assert (os.environ["COMET_AUTO_LOG_DISABLE"], os.environ["CLEARML_OFFLINE_MODE"], os.environ["WANDB_MODE"]) == ("1", "1", "offline")
assert mlflow.set_tracking_uri("https://example.com") == os.environ["MLFLOW_TRACKING_URI"] == "file:./mlruns"
assert mlflow.set_tracking_uri("sqlite:///runs.db") == "sqlite:///runs.db"
assert mlflow.MlflowClient("http://example.com", registry_uri="databricks").uris == ("file:./mlruns", "file:./mlruns")
assert hf_api.create_repo("me/new", exist_ok=True) == "https://huggingface.co/me/new"
assert hf_api.api.upload_folder(folder_path=".", repo_id="me/new").oid == "0" * 40
assert hf_api.HfApi().upload_folder(folder_path=".", repo_id="me/new", run_as_future=True).result().oid == "0" * 40
# What changes nothing there is asked as always.
assert hf_api.api.model_info("me/x") == "me/x" and file_download.hf_hub_download("me/x", "config.json") == "config.json"
try:
    file_download.hf_hub_download("me/new", "README.md")
except errors.EntryNotFoundError:
    print("nothing was uploaded")
