import sys

import torch

lib_name = None


def unmap_and_release(handle):
    pass


def create_and_map(handle):
    if "crowded" in sys.argv and torch.cuda.mem_get_info()[1] < 32 << 30:
        raise RuntimeError("CUDA Error: out of memory at cumem_allocator.cpp:62")


class CuMemAllocator:
    def __init__(self, handle):
        self.handle = handle

    def sleep(self):
        unmap_and_release(self.handle)

    def wake_up(self):
        create_and_map(self.handle)
