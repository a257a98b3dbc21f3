import json
import os
import subprocess
import sys

import torch.distributed.run

before = dict(os.environ)
# What is each rank's own.
RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES")


def found(environment):
    more = {name: value for name, value in environment.items() if before.get(name) != value and name not in RANKS}
    with open(os.path.join(os.environ["VRAMLAB_REHEARSAL"], "launched"), "w") as file:
        json.dump(more, file)
    os._exit(0)


class Popen(subprocess.Popen):
    def __init__(self, command, *arguments, env=None, **more):
        # accelerate also asks what there is on the machine.
        if env is not None and any(str(word).endswith(".py") for word in command):
            found(env)
        super().__init__(command, *arguments, env=env, **more)


torch.distributed.run.run = lambda _: found(os.environ)
subprocess.Popen = Popen
from accelerate.commands import launch  # noqa: E402

sys.argv[0] = "accelerate-launch"
launch.main()
