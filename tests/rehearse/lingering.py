"""Starts processes that outlive what started them, and lingers, or with the argument `leave` goes. The file `pids` has them all."""

import os
import signal
import subprocess
import sys
import time

STUBBORN = "trap '' INT TERM HUP; echo $$ >> pids; sleep 600; sleep 600"

if os.fork() == 0:
    # A daemon: it has left its parent and its session, and has no environment.
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), file=open("pids", "a"), flush=True)
        os.execve("/bin/sleep", ["sleep", "600"], {})
    os._exit(0)
subprocess.Popen(["sh", "-c", STUBBORN])
signal.signal(signal.SIGINT, signal.SIG_IGN)
print(os.getpid(), file=open("pids", "a"), flush=True)
while len(open("pids").read().split()) < 3:
    time.sleep(0.02)
open("ready", "w").close()
if "leave" not in sys.argv:
    time.sleep(600)
