"""Runs the function of `vramlab.rehearse` in the process that is rehearsed: called.py CALL OUTPUT."""

import os
import pickle
import sys
from multiprocessing import spawn


def main() -> None:
    call, output = sys.argv[1:]
    descriptor = os.open(output, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    with open(call, "rb") as file:
        spawn.prepare(pickle.load(file))
        function, arguments = pickle.load(file)
    function(*arguments)


if __name__ == "__main__":
    main()
