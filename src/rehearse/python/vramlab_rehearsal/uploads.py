"""Uploads of a script under rehearsal, whose weights and losses nobody computed: trackers are put offline, and pushes to hubs are left out.

And files of programs that the library in overlay.cpp cannot follow.
"""

import functools
import inspect
import os
import tempfile

from . import hub, imports
from .guard import instead
from .notes import tell
from .session import settings

# Repositories of a hub that a script would have made.
_new = set()
# As this process was started.
_HELD = os.environ.get("VRAMLAB_REHEARSAL_HELD")
# What a tracker reads: in its place, whatever the user has set.
_OFFLINE = {
    "WANDB_MODE": "offline",
    "COMET_AUTO_LOG_DISABLE": "1",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
    "SWANLAB_MODE": "offline",
    # MLflow's files are refused by its newer versions, unless they are asked for.
    "MLFLOW_ALLOW_FILE_STORE": "true",
}
_NOT_SET = ("TRACKIO_SPACE_ID", "TRACKIO_DATASET_ID", "TRACKIO_BUCKET_ID", "TRACKIO_SERVER_URL")
_LOCAL = "file:./mlruns"
# Of huggingface_hub's HfApi: what changes something there. Others of its methods come to these.
_PUSHES = (
    "create_commit", "create_repo", "delete_repo", "move_repo", "update_repo_settings", "update_repo_visibility", "upload_file", "upload_folder",
    "upload_large_folder", "delete_file", "delete_files", "delete_folder", "create_branch", "delete_branch", "create_tag", "delete_tag",
    "super_squash_history", "create_discussion", "create_pull_request", "merge_pull_request", "preupload_lfs_files",
)  # fmt: skip


def hold():
    _make_temporary_folders_of_its_own()
    os.environ.update(_OFFLINE)
    for name in _NOT_SET:
        os.environ.pop(name, None)
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):
        if _is_remote(os.environ.get(name)):
            os.environ[name] = _LOCAL
    # What a script itself names is stronger than the environment.
    waiting = {
        "wandb": functools.partial(_given, "init", ("offline", "disabled", "dryrun"), mode="offline"),
        "swanlab": functools.partial(_given, "init", ("offline", "disabled", "local"), mode="offline"),
        "trackio": functools.partial(_given, "init", (), space_id=None, dataset_id=None, bucket_id=None, server_url=None),
        "comet_ml": functools.partial(_tell_of, "Comet"),
        "clearml": functools.partial(_tell_of, "ClearML"),
        "mlflow": _mlflow,
        "huggingface_hub.hf_api": _hub,
        "huggingface_hub.file_download": _of_new_repositories,
        "safetensors": _safetensors,
    }
    if not settings.measures:
        waiting["huggingface_hub._snapshot_download"] = hub.follow_snapshots
        waiting["transformers.modeling_utils"] = hub.follow_transformers
    for kind, module in {"Run": "run", "Model": "model", "ModelVersion": "model_version", "Project": "project"}.items():
        waiting[f"neptune.metadata_containers.{module}"] = functools.partial(_neptune, kind)
    for name, callback in waiting.items():
        imports.when_imported(name, callback)


def _make_temporary_folders_of_its_own():
    """Where programs find them by their names that call the kernel themselves, as wandb's does; they are gone with the rehearsal."""
    with open(f"{_HELD}/temporary") as file:
        own = file.read()

    @instead("mkdtemp", tempfile)
    def mkdtemp(suffix=None, prefix=None, dir=None):
        return mkdtemp.__wrapped__(suffix, prefix, own if dir is None else dir)


def _tell(what, how):
    tell(f"{what}: {how}, since nothing here was computed; --writes lets the script upload")


def _tell_of(name, module):
    _tell(name, "put offline")


def _given(function, allowed, owner, name=None, **wanted):
    """A function that is called with these values of those arguments that it has, unless one that is as good was given."""
    original = getattr(owner, function, None)
    if original is None:
        return
    has = inspect.signature(original).parameters
    wanted = {name: value for name, value in wanted.items() if name in has}

    @instead(function, owner)
    def offline(*arguments, **more):
        # By name, since one that was given by its place would be given twice.
        more.update(zip(has, arguments))
        more.update((name, value) for name, value in wanted.items() if more.get(name) not in allowed)
        _tell(name or owner.__name__, "put offline")
        return original(**more)


def _neptune(kind, module):
    of = getattr(module, kind, None)
    if of is not None:
        _given("__init__", ("debug", "offline"), of, "neptune", mode="debug")


def _safetensors(module):
    """It calls the kernel itself to rename the file that it has written, as 0.8 does, so it writes where what is written is held."""

    @instead("serialize_file", module)
    def serialize_file(tensor_dict, filename, *arguments, **more):
        open(filename, "ab").close()
        held = f"{_HELD}/files{os.path.realpath(filename)}"
        return serialize_file.__wrapped__(tensor_dict, held if os.path.exists(held) else filename, *arguments, **more)


def _is_remote(uri):
    return str(uri or "").startswith(("http", "databricks", "uc:", "postgresql", "mysql", "mssql"))


def _mlflow(module):
    for owner, name in ((module, "set_tracking_uri"), (module, "set_registry_uri"), (getattr(module, "MlflowClient", None), "__init__")):
        _to_files(owner, name)


def _to_files(owner, name):
    @instead(name, owner)
    def local(*arguments, **more):
        def of(uri):
            if isinstance(uri, str) and _is_remote(uri):
                _tell("MLflow", "its runs are kept in files")
                return _LOCAL
            return uri

        return local.__wrapped__(*map(of, arguments), **{name: of(value) for name, value in more.items()})


def _hub(module):
    for name in _PUSHES:
        _leave_out(module, name)
    # Functions of the module are methods of an HfApi that it has made, bound before.
    api = getattr(module, "api", None)
    for name in _PUSHES if api is not None else ():
        if callable(getattr(module, name, None)):
            setattr(module, name, getattr(api, name))


def _of_new_repositories(module):
    """What a script asks of a repository that it would have made is not there yet."""
    if not settings.measures:
        hub.follow(module)

    @instead("hf_hub_download", module)
    def hf_hub_download(repo_id, filename, *arguments, **more):
        if repo_id in _new:
            from huggingface_hub import errors

            raise errors.EntryNotFoundError(f"{filename} is not in {repo_id}, which was not made: vramlab leaves out what changes a hub")
        return hf_hub_download.__wrapped__(repo_id, filename, *arguments, **more)


def _leave_out(module, name):
    @instead(name, module.HfApi)
    def left_out(self, *arguments, **more):
        _tell("Hugging Face's hub", "pushes to it are left out")
        repository = more.get("repo_id") or next((each for each in arguments if isinstance(each, str)), "") or "user/repository"
        repository = repository if "/" in repository else f"user/{repository}"
        url = f"{getattr(self, 'endpoint', None) or 'https://huggingface.co'}/{repository}"
        try:
            if name == "create_repo":
                _new.add(repository)
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
