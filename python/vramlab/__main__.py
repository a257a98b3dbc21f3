"""The program: `python -m vramlab rehearse -- python train.py`."""

import os
import sys

from . import PROGRAM


def main() -> None:
    os.execv(PROGRAM, ["vramlab", *sys.argv[1:]])


if __name__ == "__main__":
    main()
