"""What SGLang does, as far as it is followed: its model is in a process of its own, and who waits for that is killed where it fails."""

import multiprocessing
import os
import signal
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "site-packages"))
    from sglang.srt.managers.scheduler import run_scheduler_process

    signal.signal(signal.SIGQUIT, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    share = 1e-5 if "small" in sys.argv else 0.8
    given = dict(mem_fraction_static=share, _raw_input=dict(mem_fraction_static=share if {"given", "small"} & {*sys.argv} else None))
    scheduler = multiprocessing.get_context("spawn").Process(target=run_scheduler_process, args=(given, "fails" in sys.argv))
    scheduler.start()
    scheduler.join()
