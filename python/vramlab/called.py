"""Runs the function of `vramlab.rehearse` in the process that is rehearsed: called.py CALL."""

import os
import pickle
import sys
from multiprocessing import spawn


def main() -> None:
    # vramlab's own answer is on the standard error, so both go where the output does.
    os.dup2(1, 2)
    with open(sys.argv[1], "rb") as file:
        spawn.prepare(pickle.load(file))
        function, arguments = pickle.load(file)
    function(*arguments)


if __name__ == "__main__":
    main()
