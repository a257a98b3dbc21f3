
import torch, triton, triton.language as tl

@triton.autotune([triton.Config({'BLOCK': 1024}), triton.Config({'BLOCK': 2048})], key=['n'])
@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

@triton.jit
def starts(lengths, offsets, out, BLOCK: tl.constexpr):
    begin = tl.load(offsets + tl.program_id(0))
    address = out + begin + tl.arange(0, BLOCK)
    tl.store(address, tl.load(lengths + tl.program_id(0)))

# What a kernel only reads is known afterwards, as an engine asks for it.
lengths, offsets, out = torch.tensor([3, 5], device='cuda'), torch.tensor([0, 8], device='cuda'), torch.zeros(16, device='cuda', dtype=torch.int64)
starts[(2,)](lengths, offsets, out, 8)
assert lengths.cumsum(0).tolist() == [3, 8] and offsets.tolist() == [0, 8]

@triton.jit
def copy(sources, destinations, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    for i in tl.static_range(len(sources)):
        destination = destinations[i]
        tl.store(destination + at, tl.load(sources[i] + at))

# What it writes to is not, in a tuple, either: that a placeholder is read is told.
copies = torch.zeros(2, device='cuda', dtype=torch.int64)
copy[(1,)]((lengths,), (copies,), 2)
copies.tolist()
del lengths, offsets, out, copies

x = torch.ones(1 << 20, device='cuda')
y = torch.empty_like(x)
double[lambda meta: (triton.cdiv(x.numel(), meta['BLOCK']),)](x, y, x.numel())
