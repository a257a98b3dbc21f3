"""Uploads of a script under rehearsal, whose weights and losses nobody computed: trackers are put offline, and pushes to hubs are left out.

And files of a writer that the library in writes.cpp cannot follow.
"""

import functools
import os

from . import imports
from .notes import note

# What was said of each; and whether there is where to say it, which is so once torch is there.
_told = {}
_can_tell = False
# As this process was started.
_HELD = os.environ.get("VRAMLAB_REHEARSAL_HELD")
# What a tracker reads: in its place, whatever the user has set.
_OFFLINE = {
    "wandb": {"WANDB_MODE": "offline"},
    "comet_ml": {"COMET_START_ONLINE": "0", "COMET_OFFLINE": "1", "COMET_MODE": "disabled"},
    "neptune": {"NEPTUNE_MODE": "debug"},
    "clearml": {"CLEARML_OFFLINE_MODE": "1"},
    "swanlab": {"SWANLAB_MODE": "offline"},
    "trackio": {"TRACKIO_SPACE_ID": ""},
}
# Of huggingface_hub's HfApi: what changes something there. Others of its methods come to these.
_PUSHES = (
    "create_commit", "create_repo", "delete_repo", "move_repo", "update_repo_settings", "update_repo_visibility", "upload_file", "upload_folder",
    "upload_large_folder", "delete_file", "delete_files", "delete_folder", "create_branch", "delete_branch", "create_tag", "delete_tag",
    "super_squash_history", "create_discussion", "create_pull_request", "merge_pull_request", "preupload_lfs_files",
)  # fmt: skip


def hold():
    for values in _OFFLINE.values():
        os.environ.update(values)
    if not os.environ.get("MLFLOW_TRACKING_URI", "file:").startswith(("file:", "/", ".", "sqlite:")):
        os.environ["MLFLOW_TRACKING_URI"] = "file:./mlruns"
    waiting = {
        "wandb": functools.partial(_with_mode, "offline", ("offline", "disabled", "dryrun")),
        "swanlab": functools.partial(_with_mode, "offline", ("offline", "disabled", "local")),
        "comet_ml": functools.partial(_tell_of, "Comet"),
        "neptune": functools.partial(_tell_of, "Neptune"),
        "clearml": functools.partial(_tell_of, "ClearML"),
        "mlflow": _mlflow,
        "huggingface_hub.hf_api": _hub,
        "safetensors": _safetensors,
    }
    for name, callback in waiting.items():
        imports.when_imported(name, callback)


def _tell(what, how):
    if what not in _told:
        _told[what] = f"{what}: {how}, since nothing here was computed; --writes lets the script upload"
        if _can_tell:
            note(note=_told[what])


def begin_telling():
    global _can_tell
    _can_tell = True
    for said in _told.values():
        note(note=said)


def _tell_of(name, module):
    _tell(name, "put offline")


def _with_mode(mode, allowed, module):
    """A mode that the script itself names is stronger than one of the environment."""
    init = getattr(module, "init", None)
    if init is None:
        return

    @functools.wraps(init)
    def offline(*arguments, **more):
        if more.get("mode") not in allowed:
            more["mode"] = mode
        _tell(module.__name__, "put offline")
        return init(*arguments, **more)

    module.init = offline


def _safetensors(module):
    """It calls the kernel itself to rename the file that it has written, as 0.8 does, so it writes where what is written is held."""
    original = module.serialize_file

    @functools.wraps(original)
    def serialize_file(tensors, filename, *arguments, **more):
        open(filename, "ab").close()
        held = f"{_HELD}/files{os.path.realpath(filename)}"
        return original(tensors, held if os.path.exists(held) else filename, *arguments, **more)

    module.serialize_file = serialize_file


def _mlflow(module):
    use = module.set_tracking_uri

    @functools.wraps(use)
    def local(uri):
        if str(uri).startswith(("http", "databricks")):
            _tell("MLflow", "its runs are kept in files")
            uri = "file:./mlruns"
        return use(uri)

    module.set_tracking_uri = local


def _hub(module):
    for name in _PUSHES:
        original = getattr(module.HfApi, name, None)
        if original is not None:
            setattr(module.HfApi, name, _left_out(module, name, original))
    # Functions of the module are methods of an HfApi that it has made, bound before.
    api = getattr(module, "api", None)
    for name in _PUSHES if api is not None else ():
        if callable(getattr(module, name, None)):
            setattr(module, name, getattr(api, name))


def _left_out(module, name, original):
    @functools.wraps(original)
    def left_out(self, *arguments, **more):
        _tell("Hugging Face's hub", "pushes to it are left out")
        repository = more.get("repo_id") or next((each for each in arguments if isinstance(each, str)), "") or "user/repository"
        repository = repository if "/" in repository else f"user/{repository}"
        url = f"{getattr(self, 'endpoint', None) or 'https://huggingface.co'}/{repository}"
        try:
            if name == "create_repo":
                made = module.RepoUrl(url)
            elif name in ("create_commit", "upload_file", "upload_folder", "delete_file", "delete_files", "delete_folder"):
                made = module.CommitInfo(commit_url=f"{url}/commit/{'0' * 40}", commit_message="", commit_description="", oid="0" * 40)
            else:
                made = None
        except Exception:
            made = None
        # As PyTorch's hub has it, what is asked for in the background is a future.
        if more.get("run_as_future"):
            from concurrent.futures import Future

            future = Future()
            future.set_result(made)
            return future
        return made

    return left_out
