"""A small library under the names of CUDA's, whose functions fail: the loader wants them to be there, and a rehearsal takes no step in them. It is
written as it lies in memory (ELF, x86-64: https://refspecs.linuxfoundation.org/elf/elf.pdf), so that it takes neither compiler nor linker."""

import mmap
import re
import struct
from itertools import repeat

# Sections of a shared library by their type.
DYNAMIC, DYNSYM, VERNEED, VERSYM = 6, 11, 0x6FFFFFFE, 0x6FFFFFFF
PAGE = 4096


class Library:
    """What a shared library defines, what it looks for with which version, and which libraries it needs."""

    def __init__(self, path):
        with path.open("rb") as file:
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        at, size, count = struct.unpack_from("<Q", self.data, 40)[0], *struct.unpack_from("<HH", self.data, 58)
        self.sections = [struct.unpack_from("<IIQQQQIIQQ", self.data, at + i * size) for i in range(count)]
        versions = self.versions()
        self.defined, self.undefined = set(), {}
        for (name, _, _, section, _, _), version in zip(self.rows(DYNSYM, "<IBBHQQ"), self.rows(VERSYM, "<H") or repeat((0,))):
            name = self.text(self.names(DYNSYM), name)
            if section:
                self.defined.add(name)
            elif name:
                self.undefined[name] = versions.get(version[0] & 0x7FFF, "")
        self.needed = {self.text(self.names(DYNAMIC), value) for tag, value in self.rows(DYNAMIC, "<QQ") if tag == 1}

    def find(self, kind):
        return next((section for section in self.sections if section[1] == kind), None)

    def rows(self, kind, form):
        section = self.find(kind)
        return struct.iter_unpack(form, self.data[section[4] : section[4] + section[5]]) if section else ()

    def names(self, kind):
        """Where the names begin that a section of this type refers to."""
        return self.sections[self.find(kind)[6]][4]

    def text(self, names, at):
        return self.data[names + at : self.data.find(b"\0", names + at)].decode()

    def versions(self):
        """Names of versions by their numbers."""
        found, section = {}, self.find(VERNEED)
        at = section[4] if section else None
        while at is not None:
            _, count, _, first, following = struct.unpack_from("<HHIII", self.data, at)
            each = at + first
            for _ in range(count):
                _, _, number, name, after = struct.unpack_from("<IHHII", self.data, each)
                found[number] = self.text(self.names(VERNEED), name)
                each += after
            at = at + following if following else None
        return found


def hashed(name):
    """As System V's ABI says."""
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        value = (value ^ (value & 0xF0000000) >> 24) & 0x0FFFFFFF
    return value


def library(functions, bodies):
    """The bytes of a library with these functions, by the version that each has ("" for none), and machine code for some."""
    names = sorted(functions)
    text = {"": 0}
    strings = bytearray(b"\0")

    def string(name):
        if name not in text:
            text[name] = len(strings)
            strings.extend(name.encode() + b"\0")
        return text[name]

    versions = ["libstand_in.so", *sorted(set(functions.values()) - {""})]
    defined = b"".join(
        struct.pack("<HHHHIII", 1, at == 0, at + 1, 1, hashed(name), 20, 28 * (at + 1 < len(versions))) + struct.pack("<II", string(name), 0)
        for at, name in enumerate(versions)
    )
    numbers = struct.pack(f"<{len(names) + 1}H", 0, *(versions.index(functions[name]) + 1 if functions[name] else 1 for name in names))
    # mov eax, 1; ret: the code of an error, in CUDA and in cuDNN.
    code, begins = bytearray(b"\xb8\x01\0\0\0\xc3"), {}
    for name, body in bodies.items():
        begins[name] = len(code)
        code += body
    buckets = len(names) | 1
    heads, chain = [0] * buckets, [0] * (len(names) + 1)
    for at, name in enumerate(names, 1):
        place = hashed(name) % buckets
        chain[at], heads[place] = heads[place], at
    table = struct.pack(f"<{2 + buckets + len(chain)}I", buckets, len(chain), *heads, *chain)
    places = [string(name) for name in names]
    # What is read or run lies in the first segment; the loader writes to the second.
    sizes = {"head": 64 + 4 * 56, "symbols": 24 * len(chain), "strings": len(strings), "table": len(table), "numbers": len(numbers), "defined": len(defined), "code": len(code)}
    begin, end = {}, 0
    for part, size in sizes.items():
        begin[part] = end
        end += size + -size % 16
    symbols = bytes(24) + b"".join(
        # A function, and any section.
        struct.pack("<IBBHQQ", place, 0x12, 0, 1, begin["code"] + begins.get(name, 0), 6) for name, place in zip(names, places)
    )
    dynamic = end + -end % PAGE
    tags = [(4, begin["table"]), (5, begin["strings"]), (6, begin["symbols"]), (10, len(strings)), (11, 24), (0x6FFFFFF0, begin["numbers"])]
    tags += [(0x6FFFFFFC, begin["defined"]), (0x6FFFFFFD, len(versions)), (0, 0)]
    told = b"".join(struct.pack("<QQ", *tag) for tag in tags)
    # Two segments to load, the dynamic one, and a stack that is not run.
    segments = [(1, 5, 0, end, PAGE), (1, 6, dynamic, len(told), PAGE), (2, 6, dynamic, len(told), 8), (0x6474E551, 6, 0, 0, 16)]
    head = struct.pack("<4s12sHHIQQQIHHHHHH", b"\x7fELF", b"\2\1\1", 3, 62, 1, 0, 64, 0, 0, 64, 56, len(segments), 0, 0, 0)
    head += b"".join(struct.pack("<IIQQQQQQ", kind, flags, at, at, at, size, size, align) for kind, flags, at, size, align in segments)
    made = bytearray(dynamic)
    for part, data in [("head", head), ("symbols", symbols), ("strings", strings), ("table", table), ("numbers", numbers), ("defined", defined), ("code", code)]:
        made[begin[part] : begin[part] + len(data)] = data
    return bytes(made + told)


def number(value):
    """Machine code that returns a number."""
    return b"\xb8" + struct.pack("<I", value) + b"\xc3"


def is_library(path):
    with path.open("rb") as file:
        return file.read(5) == b"\x7fELF\2"


def stand_in(packages):
    torch, cudnn = packages / "torch", packages / "nvidia/cudnn/lib"
    lib = torch / "lib"
    files = [Library(file) for file in [*lib.glob("*.so*"), *torch.glob("_C*.so")]]
    defined = set().union(*(file.defined for file in files))
    is_stood_in = re.compile("cu(?!dnn)|nccl|nv|__cuda" if cudnn.exists() else "cu|nccl|nv|__cuda")
    # cuDNN itself looks these up, and ends the process where one is not there.
    looked_up = {name.decode() for file in cudnn.glob("*.so*") for name in re.findall(rb"\0((?:cublasLt|nvrtc)\w+)(?=\0)", file.read_bytes())}
    functions = dict.fromkeys(looked_up, "")
    for file in files:
        functions |= {name: version for name, version in file.undefined.items() if name not in defined and is_stood_in.match(name)}
    # Of extensions as vLLM's, beside the libraries that they bring along.
    others = {file.name: Library(file) for file in packages.rglob("*.so*") if file.is_file() and lib not in file.parents and is_library(file)}
    links = set().union(*(file.needed for file in files))
    for file in others.values():
        brought = set().union(*(others[name].defined for name in file.needed & others.keys()))
        # bitsandbytes, which does not need torch, has a file for each version of CUDA.
        links |= file.needed - others.keys() if "libtorch.so" in file.needed else set()
        wanted = {name: version for name, version in file.undefined.items() if is_stood_in.match(name)}
        functions = {name: version for name, version in wanted.items() if name not in defined | brought} | functions
    # lea rax, [rip + 1]; ret; and the text.
    said = b"\x48\x8d\x05\x01\0\0\0\xc3this library is not in an environment of vramlab\0"
    bodies = {name: said for name in functions if name.endswith("ErrorString")}
    # PyTorch chooses by cuDNN's version whether it asks it at all, and refuses another than its own.
    (about,) = packages.glob("torch-*.dist-info/METADATA")
    asked = re.search(r"nvidia-cudnn-cu\d+ ?\(?==(\d+)\.(\d+)\.(\d+)", about.read_text())
    if asked and not cudnn.exists():
        major, minor, patch = map(int, asked.groups())
        bodies["cudnnGetVersion"] = number(major * 10000 + minor * 100 + patch)
        # lea rax, [rip + 10]; mov edi, edi; mov eax, [rax + 4 * rdi]; mov [rsi], eax; xor eax, eax; ret; and the three parts.
        bodies["cudnnGetProperty"] = b"\x48\x8d\x05\x0a\0\0\0\x89\xff\x8b\x04\xb8\x89\x06\x31\xc0\xc3" + struct.pack("<3I", major, minor, patch)
        functions = {"cudnnGetVersion": "", "cudnnGetProperty": ""} | functions
    made = lib / "libstand_in.so"
    made.write_bytes(library(functions, bodies))
    for name in links:
        is_here = name == "libcuda.so.1" or (lib / name).exists() or (cudnn / name).exists()
        if re.match("lib(cu|nccl|nv)", name) and not is_here:
            (lib / name).symlink_to(made.name)
