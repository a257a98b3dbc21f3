"""What SGLang does, as far as it is followed: its model is in a process of its own, and who waits for that is killed where it fails."""

import multiprocessing
import os
import signal
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "site-packages"))
    from sglang.srt.managers.scheduler import run_scheduler_process

    signal.signal(signal.SIGQUIT, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    given = dict(mem_fraction_static=0.8, _raw_input=dict(mem_fraction_static=0.8 if "given" in sys.argv else None))
    scheduler = multiprocessing.get_context("spawn").Process(target=run_scheduler_process, args=(given, "fails" in sys.argv))
    scheduler.start()
    scheduler.join()
