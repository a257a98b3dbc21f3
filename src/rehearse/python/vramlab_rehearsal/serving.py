"""Servers: what an engine says of its own KV cache, and the end of one that listens, after the requests that it is to be asked."""

import functools
import http.client
import importlib
import json
import logging
import os
import socket
import sys
import threading
import time

from . import device, extensions, imports, passes, reach
from .guard import guarded, instead
from .notes import note
from .session import settings, simulated

# As long as nobody may ask a server that listens before it is ended, in seconds: one that a shell started may have a client there that is still to come.
_ALONE, _BESIDE_A_SHELL = 3, 60
# Files of Python in which a thread waits for others.
_WAITS = ("selectors.py", "socket.py", "threading.py", "queue.py")
_SHELLS = ("bash", "sh", "dash", "zsh", "fish", "make")
# As long as a server may take to be ready for requests once it listens.
_READY = 120

_stop = None
_listening = set()


def follow(stop, failed):
    """`stop` ends the process, and `failed` says what ended it."""
    global _stop
    _stop = stop
    imports.when_imported("vllm.v1.executor.multiproc_executor", functools.partial(_watch_failures, failed, False))
    imports.when_imported("sglang.srt.managers.scheduler", functools.partial(_watch_failures, failed, True))
    imports.when_imported("sglang.srt.environ", functools.partial(_leave_to_others, {"SGLANG_ENABLE_JIT_DEEPGEMM": _DEEP_GEMM}))
    imports.when_imported("sglang.srt.model_executor.model_runner", _watch_runner)
    for module, name, value in _COPIES:
        imports.when_imported(module, lambda module, name=name, value=value: setattr(module, name, value))
    imports.when_imported("vllm.envs", _set_up_vllm)
    imports.when_imported("vllm.v1.worker.gpu_worker", _watch_worker)
    imports.when_imported("vllm.compilation.compiler_interface", _watch_compilers)
    imports.when_imported("vllm.v1.core.kv_cache_utils", _watch_check)
    imports.when_imported("vllm.v1.core.sched.utils", _watch_ends)
    imports.when_imported("vllm.device_allocator.cumem", _watch_sleep)
    imports.when_imported("uvicorn.server", _watch_uvicorn)
    for engine in ("vllm", "sglang.srt"):
        imports.when_imported(f"{engine}.distributed.device_communicators.pynccl", _leave_to_pytorch)
        imports.when_imported(f"{engine}.distributed.device_communicators.custom_all_reduce", _count_all_reduces)

    @instead("listen", socket.socket)
    def listen(self, *arguments):
        listen.__wrapped__(self, *arguments)
        if self.family in (socket.AF_INET, socket.AF_INET6):
            _listens(self.getsockname()[1], others=True)


# What SGLang copies are numbers of tokens, which it asks for afterwards: each by PyTorch's copy, which copies here, in place of all by one kernel.
_COPIES = (
    ("sglang.kernels.ops.memory.small_copy", "try_small_copy", lambda *_: False),
    ("sglang.srt.model_executor.cuda_graph_buffer_registry", "_has_foreach_copy", False),
    ("sglang.srt.model_executor.runner_utils.buffers", "_has_foreach_copy", False),
)
# Kernels that engines have compiled as they are used, whatever the weights are: without a CUDA toolkit they end for want of them.
_DEEP_GEMM = "DeepGEMM's kernels for FP8"
_COMPILED_AT_USE = {"VLLM_USE_DEEP_GEMM": _DEEP_GEMM, "VLLM_USE_FLASHINFER_SAMPLER": "FlashInfer's sampling"}


@guarded("vLLM's caches, and what it compiles as it is used")
def _set_up_vllm(_):
    from . import compiling

    # It has one of its own around Inductor's, and asks another process what a model is where that lacks it.
    os.environ["VLLM_CACHE_ROOT"] = os.path.join(compiling.folder(), "vllm")
    # PyTorch's symmetric memory is shared through the driver, which is none: the buffer of 64 MiB that Hopper's have for it is in no figure.
    os.environ.setdefault("VLLM_ALLREDUCE_USE_SYMM_MEM", "0")
    _leave_to_others(_COMPILED_AT_USE)


def _leave_to_others(compiled, _=None):
    for name, what in compiled.items():
        if not extensions.has_toolkit() and name not in os.environ:
            os.environ[name] = "0"
            note(note=f"{name}=0: {what} would be compiled at run time, and there is no CUDA toolkit (nvcc) here; other kernels were rehearsed")


def _leave_to_pytorch(module):
    """An NCCL that an engine opens by itself asks a real driver. Without one it goes on with PyTorch's groups, which move as much."""
    from . import collectives

    collectives.holds_buffers()

    def library(*_):
        raise OSError("a rehearsal has no NCCL beside PyTorch's groups")

    module.NCCLLibrary = library


def _count_all_reduces(module):
    """Those of few bytes go by a kernel of the engine's own, which a rehearsal knows no more of than that it writes."""

    @instead("custom_all_reduce", module.CustomAllreduce)
    def reduce(self, tensor):
        result = reduce.__wrapped__(self, tensor)
        if result is not None:
            self.group.moves_by_a_kernel("all_reduce", tensor)
        return result


def _watch_sleep(module):
    """The pages that vLLM has for what sleeps are PyTorch's allocator's, which is not told when they are given back and taken again."""
    import torch

    plug = simulated["libnvidia-ml.so.1"].vramlab_dry_plug
    plug(os.fsencode(module.lib_name or ""))
    sleeps = [0]

    @instead("sleep", module.CuMemAllocator)
    def sleep(self, *arguments, **more):
        sleeps[0] = 1
        try:
            sleep.__wrapped__(self, *arguments, **more)
        finally:
            sleeps[0] = 0

    @instead("unmap_and_release", module)
    def release(handle):
        release.__wrapped__(handle)
        device.library.vl_pages(handle[0], handle[2], -handle[1], sleeps[0])

    @instead("create_and_map", module)
    def create(handle):
        try:
            create.__wrapped__(handle)
        except RuntimeError as error:
            if "out of memory" in str(error):
                error.is_of_memory = True
                device.library.vl_ran_out(handle[0], handle[1], torch.cuda.mem_get_info(handle[0])[0])
            raise
        device.library.vl_pages(handle[0], handle[2], handle[1], 1)


def _watch_failures(failed, says_hit, module):
    """A rank that fails writes that to its log, and ends well: who waits for it says no more than that it has gone. `says_hit`: whether it writes that it
    hit an exception, which vLLM does of a call that is answered so."""

    def read(record):
        error = (record.exc_info or sys.exc_info())[1]
        if error is not None and says_hit == ("hit an exception" in str(record.msg)):
            failed(error)
        return True

    logging.getLogger(module.__name__).addFilter(read)


def _watch_ends(module):
    @instead("check_stop", module)
    def check_stop(request, *arguments, **more):
        has_ended = check_stop.__wrapped__(request, *arguments, **more)
        if has_ended and _told:
            _tell_end(request)
        return has_ended


@guarded("whether vLLM's requests have all their tokens")
def _tell_end(request):
    is_full = _told.get("is_full", True) and request.status.name == "FINISHED_LENGTH_CAPPED"
    if _told.get("is_full") != is_full:
        _told["is_full"] = is_full
        note(engine=_told)


# What was told of the engine of this process.
_told = {}


def _watch_worker(module):
    @instead("init_device", module.Worker)
    def init_device(self, *arguments, **more):
        try:
            return init_device.__wrapped__(self, *arguments, **more)
        except ValueError as error:
            if str(error).startswith("Free memory on device"):
                _tell_no_share(self.vllm_config)
            raise

    @instead("determine_available_memory", module.Worker)
    def determine(self, *arguments, **more):
        runner, passes_made = self.model_runner, []
        profile = getattr(runner, "profile_run", None)
        if profile is None:
            return determine.__wrapped__(self, *arguments, **more)

        # Whatever a release gives it.
        def profile_run(*arguments, **more):
            again = functools.partial(profile, *arguments, **more)
            peak, result = _peak_of(again)
            passes_made.append((again, peak))
            return result

        _compiled.clear()
        runner.profile_run = profile_run
        try:
            return determine.__wrapped__(self, *arguments, **more)
        finally:
            del runner.profile_run
            if _compiled and passes_made:
                _profile_again(*passes_made[0])

    @instead("initialize_from_config", module.Worker)
    def initialize(self, config):
        result = initialize.__wrapped__(self, config)
        _tell_vllm(self, config)
        return result


# Names of what compiled a graph, and did not find it in vLLM's cache.
_compiled = set()


def _watch_compilers(module):
    def watch(kind):
        @instead("compile", kind)
        def compile_(*arguments, **more):
            _compiled.add(kind.__name__)
            return compile_.__wrapped__(*arguments, **more)

    for name in ("InductorAdaptor", "InductorStandaloneAdaptor"):
        if hasattr(module, name):
            watch(getattr(module, name))


def _peak_of(profile):
    import torch

    before = torch.cuda.memory_allocated()
    result = profile()
    return torch.cuda.max_memory_allocated() - before, result


@guarded("what a start of vLLM that compiles nothing would have")
def _profile_again(profile, first):
    """Inductor times kernels as it compiles them, with arguments of their own, while vLLM profiles its memory: the next start finds them compiled."""
    import torch

    torch.cuda.reset_peak_memory_stats()
    _told["saved_later"] = max(first - _peak_of(profile)[0], 0)
    torch.cuda.empty_cache()


@guarded("the share of the card that vLLM lacks")
def _tell_no_share(config):
    import torch

    free, total = torch.cuda.mem_get_info()
    note(engine=dict(**_engine(config), before=total - free, longest=0))


@guarded("vLLM's own figures of its KV cache")
def _tell_vllm(worker, made):
    """By its objects of the V1 engine: what its log says of tokens and of requests of the whole length."""
    # A rank of its own does not import it.
    utils = importlib.import_module("vllm.v1.core.kv_cache_utils")
    config, groups = worker.vllm_config, made.kv_cache_groups
    if not groups:
        return
    passes.label_cache(worker.model_runner.kv_caches)
    length = config.model_config.max_model_len
    concurrency = utils.get_max_concurrency_for_kv_cache_config(config, made)
    kv_cache = sum(tensor.size for tensor in made.kv_cache_tensors)
    # What a user sets is not measured.
    available = getattr(worker, "available_kv_cache_memory_bytes", None)
    if kv_cache > (available or config.cache_config.kv_cache_memory_bytes):
        # Layers may have views of one block, each as large as it.
        storages = [tensor.untyped_storage() for tensor in passes.tensors_of(worker.model_runner.kv_caches)]
        kv_cache = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
    snapshot = getattr(worker, "init_snapshot", None)
    # Of one request of the whole length; releases from 0.33 on have no function for it.
    least = getattr(utils, "_max_memory_usage_bytes_from_groups", lambda *_: int(kv_cache / concurrency))
    _told.update(
        **_engine(config),
        kv_cache=kv_cache,
        tokens=_logged.get("tokens", int(concurrency * length)),
        blocks=made.num_blocks,
        block=min(group.kv_cache_spec.block_size for group in groups),
        concurrency=concurrency,
        least_kv_cache=least(config, groups),
        before=snapshot.total_memory - snapshot.free_memory if snapshot else 0,
        available=kv_cache if available is None else int(available),
        beside=[] if available is None else _beside(worker, available),
    )
    note(engine=_told)


def _beside(worker, available):
    """What it takes off its share of the card before the KV cache, by its own measures; releases before 0.10 have not all of them."""
    graphs = getattr(worker, "cudagraph_memory_estimate", 0) if os.environ.get("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS") != "0" else 0
    parts = {
        "weights": worker.model_runner.model_memory_usage,
        "activations": getattr(worker, "peak_activation_memory", 0),
        "outside of PyTorch": getattr(worker, "non_torch_memory", 0),
        "CUDA graphs as estimated": graphs,
    }
    if hasattr(worker, "total_consumed"):
        # Releases from 0.30 on, or earlier, measure all that stays at once, and have the graphs among activations.
        parts["activations"] -= graphs
        parts["kept beside weights"] = worker.total_consumed - parts["weights"]
    parts["the rest"] = worker.requested_memory - available - sum(parts.values())
    return [dict(what=what, bytes=int(taken)) for what, taken in parts.items() if taken]


def _engine(config):
    import torch

    cache, scheduler = config.cache_config, config.scheduler_config
    return dict(
        name=f"vLLM {sys.modules['vllm'].__version__}",
        share=cache.gpu_memory_utilization,
        share_flag="--gpu-memory-utilization",
        length=config.model_config.max_model_len,
        length_flag="--max-model-len",
        batched=scheduler.max_num_batched_tokens,
        batched_flag="--max-num-batched-tokens",
        # From so many bytes of a card on it takes more tokens in a pass, and more requests, but on an A100.
        others_from=0 if "a100" in torch.cuda.get_device_name().lower() else 70 << 30,
        # Of a size that the user sets itself nothing hangs on the card.
        is_sized=cache.kv_cache_memory_bytes is None and cache.num_gpu_blocks_override is None,
        halves=[] if "fp8" in str(cache.cache_dtype) else ["--kv-cache-dtype fp8"],
    )


# How SGLang says that its share of the card has no room for one token.
_NO_TOKEN = ("Not enough memory", "Loaded weights leave no GPU memory")


def _watch_runner(module):
    """Of SGLang: its pool is made by the first of these, and has its size by the second where CUDA graphs are captured before."""
    for name in ("alloc_memory_pool", "init_memory_pool", "post_capture_resize_kv_pool"):

        def around(made):
            @functools.wraps(made)
            def make(self, *arguments, **more):
                try:
                    result = made(self, *arguments, **more)
                except (RuntimeError, ValueError) as error:
                    if str(error).startswith(_NO_TOKEN):
                        note(engine=dict(**_engine_of_sglang(self), longest=0))
                    raise
                if not getattr(self, "is_draft_worker", False):
                    _tell_sglang(self)
                return result

            return make

        if hasattr(module.ModelRunner, name):
            setattr(module.ModelRunner, name, around(getattr(module.ModelRunner, name)))


@guarded("SGLang's own figures of its KV cache")
def _tell_sglang(runner):
    pool, length, page = runner.token_to_kv_pool, runner.model_config.context_len, runner.page_size or 1
    passes.label_cache(vars(pool))
    made = pool.get_kv_size_bytes()
    kv_cache, tokens = sum(made) if isinstance(made, tuple) else made, runner.max_total_num_tokens
    _told.update(
        **_engine_of_sglang(runner),
        kv_cache=int(kv_cache),
        tokens=tokens,
        # With that of its own, to which it writes what is no request's.
        blocks=tokens // page + 1,
        concurrency=tokens / length,
        least_kv_cache=int(kv_cache / (tokens + page) * (length + page)),
        available=int(kv_cache),
        halves=[] if "float8" in str(pool.dtype) else ["--kv-cache-dtype fp8_e4m3"],
    )
    note(engine=_told)


def _engine_of_sglang(runner):
    # What it leaves of the card is a share where that is given, else some bytes by the kind of card.
    given = (getattr(runner.server_args, "_raw_input", None) or {}).get("mem_fraction_static")
    return dict(
        name=f"SGLang {sys.modules['sglang'].__version__}",
        share=1.0 if given is None else given,
        share_flag="--mem-fraction-static",
        is_by_card=given is None,
        length=runner.model_config.context_len,
        length_flag="--context-length",
        is_sized=runner.server_args.max_total_tokens is None,
    )


# What its log says of its tokens: of layers with a window releases count them in different ways. With several ranks others say it than those that have it.
_logged = {}


@guarded("what vLLM's log says of its tokens")
def _read_log(record):
    if str(record.msg).startswith("GPU KV cache size: %s tokens"):
        _logged["tokens"] = int(record.args[0].replace(",", ""))


def _watch_check(module):
    configs = []
    logging.getLogger(module.__name__).addFilter(lambda record: _read_log(record) or True)

    @instead("get_kv_cache_configs", module)
    def plan(config, *arguments, **more):
        configs[:] = [config]
        return plan.__wrapped__(config, *arguments, **more)

    # Releases before 0.12 have this one alone, which tries lengths in the configuration itself.
    @instead("check_enough_kv_cache_memory", module)
    def check_of(config, specs, available, *more):
        length = config.model_config.max_model_len
        try:
            check_of.__wrapped__(config, specs, available, *more)
        except ValueError:
            config.model_config.max_model_len = length
            if not hasattr(module, "_check_enough_kv_cache_memory"):
                needed = functools.partial(module.max_memory_usage_bytes, config, specs.values())
                _tell_lack(config, available, needed, functools.partial(module.estimate_max_model_len, config, specs))
            raise

    @instead("_check_enough_kv_cache_memory", module)
    def check(available, needed, length, longest):
        try:
            check.__wrapped__(available, needed, length, longest)
        except ValueError:
            _tell_lack(configs[0], available, needed, longest)
            raise


@guarded("what vLLM lacks for its KV cache")
def _tell_lack(config, available, needed, longest):
    told = dict(**_engine(config), least_kv_cache=needed(), available=available)
    note(engine=dict(**told, longest=max(longest(available), 0) if available > 0 else 0))


def _watch_uvicorn(module):
    @instead("startup", module.Server)
    async def startup(self, *arguments, **more):
        await startup.__wrapped__(self, *arguments, **more)
        for server in getattr(self, "servers", ()):
            for each in server.sockets:
                if each.family in (socket.AF_INET, socket.AF_INET6):
                    _listens(each.getsockname()[1], others=False)


@guarded("a server that listens")
def _listens(port, others):
    """Watched by a thread of its own; `others` where it may be no server for users, but a process's own."""
    if port in _listening or settings.measures or (settings.requests is None and settings.steps is None):
        return
    _listening.add(port)
    threading.Thread(target=_watch, args=(port, others), daemon=True, name="vramlab-listens").start()


@guarded("a server that nobody asks")
def _watch(port, others):
    while others and not _waits():
        time.sleep(0.5)
    if settings.requests is not None:
        answered, why = _ask(port)
        said = f"--requests: {answered} of {settings.requests[0]} were answered" + (f" ({why})" if why else "")
        _stop(0, passes.made(), said + "; then the server was ended")
        return
    longest = _BESIDE_A_SHELL if _name_of(os.getppid()) in _SHELLS else _ALONE
    since, made = time.monotonic(), passes.made()
    while time.monotonic() - since < longest:
        if _has_clients(port):
            return
        if passes.made() != made or others and not _waits():
            since, made = time.monotonic(), passes.made()
        time.sleep(0.2)
    note(note="--requests 8x512+64 asks a server over its OpenAI route, and bash -c 'SERVER & CLIENT; kill %1' has a client of yours")
    _stop(0, passes.made(), f"the server listens on port {port} and nobody asks it, so it was ended")


def _waits():
    """Whether a model has run that is not trained, and the script's first thread waits: a port beside other work is no server's."""
    frame = sys._current_frames().get(threading.main_thread().ident)
    is_waiting = frame is not None and os.path.basename(frame.f_code.co_filename) in _WAITS
    return is_waiting and passes.made() > 0 and not reach.has_gone_backward


def _name_of(process):
    try:
        with open(f"/proc/{process}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""


def _has_clients(port):
    """Whether there is a connection with this port at either end, or was in the last minute: an event loop that is no Python tells of none."""
    for table in ("tcp", "tcp6"):
        try:
            with open(f"/proc/self/net/{table}") as file:
                rows = [line.split() for line in list(file)[1:]]
        except OSError:
            continue
        ends = ((row[3], int(row[1].rsplit(":", 1)[1], 16), int(row[2].rsplit(":", 1)[1], 16)) for row in rows)
        if any(port in pair and state != "0A" for state, *pair in ends):
            return True
    return False


def _get(port, method, path, body=None, seconds=600):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def _ask(port):
    """Sends the requests at one time, once the server names its model. How many were answered, and why one was not."""
    count, given, wanted = settings.requests
    since, why, model = time.monotonic(), None, None
    while model is None:
        try:
            status, text = _get(port, "GET", "/v1/models", seconds=5)
            if status != 200:
                return 0, f"GET /v1/models: status {status}"
            model = json.loads(text)["data"][0]["id"]
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError) as error:
            if time.monotonic() - since > _READY:
                return 0, f"GET /v1/models: {type(error).__name__}"
            time.sleep(0.2)
    body = dict(model=model, prompt=list(range(1, given + 1)), max_tokens=wanted, min_tokens=wanted, ignore_eos=True, temperature=0)
    answers = []

    def ask():
        try:
            answers.append(_get(port, "POST", "/v1/completions", body))
        except (OSError, http.client.HTTPException) as error:
            answers.append((0, type(error).__name__.encode()))

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(count)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for status, text in answers:
        if status != 200:
            why = f"status {status}: {text.decode(errors='replace')[:200]}" if status else text.decode()
    return sum(status == 200 for status, _ in answers), why
