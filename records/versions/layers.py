"""layers.py [NAME...]: one step of single layers and functions of PyTorch by themselves, and the most bytes that each had allocated at once."""
import gc
import sys
import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

warnings.filterwarnings("ignore")
N, T, D, H = 8, 1024, 1024, 16


def rand(*shape, dtype=torch.float32):
    return torch.randn(*shape, device="cuda", dtype=dtype, requires_grad=dtype.is_floating_point)


def layer(make, *shape, dtype=torch.float32, call=lambda module, x: module(x)):
    def step():
        call(make().to("cuda", dtype), rand(*shape, dtype=dtype)).float().sum().backward()
    return step


def function(body, *shape, dtype=torch.float32):
    return lambda: body(rand(*shape, dtype=dtype)).float().sum().backward()


def under_autocast(step, dtype=torch.bfloat16):
    def inside():
        with torch.autocast("cuda", dtype):
            step()
    return inside


def compiled(make, *shape, dtype=torch.float32):
    return layer(lambda: torch.compile(make()), *shape, dtype=dtype)


def optimizer(name, **options):
    def step():
        model = nn.Sequential(*(nn.Linear(D, D) for _ in range(16))).cuda()
        kind = getattr(torch.optim, name)
        one = kind([p for p in model.parameters() if name != "Muon" or p.ndim == 2], **options)
        for _ in range(2):
            loss = model(rand(8, D)).square().sum()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            one.step()
            one.zero_grad()
    return step


def attention(masked=False, dtype=torch.bfloat16, heads=H, causal=False, size=64):
    def step():
        q, k, v = rand(N, H, T, size, dtype=dtype), rand(N, heads, T, size, dtype=dtype), rand(N, heads, T, size, dtype=dtype)
        mask = torch.ones(N, 1, T, T, dtype=torch.bool, device="cuda").tril() if masked else None
        more = {"enable_gqa": True} if heads != H else {}
        F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, **more).float().sum().backward()
    return step


def loss(body, classes=32000, dtype=torch.float32):
    return lambda: body(rand(4096, classes, dtype=dtype), torch.randint(classes, (4096,), device="cuda")).backward()


def flex():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    q, k, v = (rand(2, H, T, 64, dtype=torch.bfloat16) for _ in range(3))
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, T, T, device="cuda")
    torch.compile(flex_attention)(q, k, v, block_mask=mask).float().sum().backward()


def ctc():
    scores = rand(512, N, 1000)
    lengths = torch.full((N,), 512, device="cuda"), torch.full((N,), 64, device="cuda")
    F.ctc_loss(scores.log_softmax(-1), torch.randint(1, 1000, (N, 64), device="cuda"), *lengths).backward()


def mlp():
    return nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D), nn.Dropout(0.1))


class SwiGlu(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.gate, self.up, self.down = nn.RMSNorm(D), nn.Linear(D, 3 * D), nn.Linear(D, 3 * D), nn.Linear(3 * D, D)

    def forward(self, x):
        h = self.norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(D, 32000)

    def forward(self, x):
        return F.cross_entropy(self.head(x.flatten(0, 1)), torch.zeros(x.shape[0] * x.shape[1], dtype=torch.long, device="cuda"))


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(mlp() for _ in range(4))

    def forward(self, x):
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return x


def scatter():
    x, index = rand(65536, 256), torch.randint(4096, (65536,), device="cuda")
    torch.zeros(4096, 256, device="cuda").index_add(0, index, x).sum().backward()


def scatter_reduce():
    x, index = rand(65536, 256), torch.randint(4096, (65536, 1), device="cuda").expand(-1, 256)
    torch.zeros(4096, 256, device="cuda").scatter_reduce(0, index, x, "amax").sum().backward()


IMAGES = (16, 64, 112, 112)
STEPS = {
    "linear": layer(lambda: nn.Linear(D, 4 * D), N, T, D),
    "linear bf16": layer(lambda: nn.Linear(D, 4 * D), N, T, D, dtype=torch.bfloat16),
    "linear autocast": under_autocast(layer(lambda: nn.Linear(D, 4 * D), N, T, D)),
    "layer_norm": layer(lambda: nn.LayerNorm(D), N, T, D),
    "layer_norm autocast": under_autocast(layer(lambda: nn.LayerNorm(D), N, T, D, dtype=torch.bfloat16)),
    "rms_norm": layer(lambda: nn.RMSNorm(D), N, T, D),
    "rms_norm bf16": layer(lambda: nn.RMSNorm(D), N, T, D, dtype=torch.bfloat16),
    "rms_norm autocast": under_autocast(layer(lambda: nn.RMSNorm(D), N, T, D)),
    "group_norm": layer(lambda: nn.GroupNorm(8, 64), *IMAGES),
    "group_norm channels_last": function(lambda x: F.group_norm(x.to(memory_format=torch.channels_last), 8), *IMAGES),
    "batch_norm": layer(lambda: nn.BatchNorm2d(64), *IMAGES),
    "instance_norm": layer(lambda: nn.InstanceNorm2d(64, affine=True), *IMAGES),
    "conv2d": layer(lambda: nn.Conv2d(64, 64, 3, padding=1), *IMAGES),
    "conv2d channels_last": layer(lambda: nn.Conv2d(64, 64, 3, padding=1).to(memory_format=torch.channels_last), *IMAGES),
    "conv2d autocast": under_autocast(layer(lambda: nn.Conv2d(64, 64, 3, padding=1), *IMAGES)),
    "conv3d bf16": layer(lambda: nn.Conv3d(16, 16, 3, padding=1), 2, 16, 32, 64, 64, dtype=torch.bfloat16),
    "conv_transpose2d": layer(lambda: nn.ConvTranspose2d(64, 64, 4, 2, 1), *IMAGES),
    "conv1d depthwise": layer(lambda: nn.Conv1d(D, D, 4, groups=D, padding=3), N, D, T),
    "embedding": lambda: nn.Embedding(50000, D).cuda()(torch.randint(50000, (N, T), device="cuda")).sum().backward(),
    "embedding_bag": lambda: nn.EmbeddingBag(50000, D).cuda()(torch.randint(50000, (N * 32, 64), device="cuda")).sum().backward(),
    "sdpa": attention(),
    "sdpa causal": attention(causal=True),
    "sdpa masked": attention(masked=True),
    "sdpa fp32": attention(dtype=torch.float32),
    "sdpa fp32 masked": attention(masked=True, dtype=torch.float32),
    "sdpa grouped": attention(heads=4, causal=True),
    "sdpa grouped masked": attention(heads=4, masked=True),
    "sdpa size 256": attention(size=256, causal=True),
    "sdpa size 512": attention(size=512, causal=True),
    "multihead_attention": layer(
        lambda: nn.MultiheadAttention(D, H, batch_first=True), N, T, D, call=lambda module, x: module(x, x, x, need_weights=False)[0]
    ),
    "multihead_attention weights": layer(lambda: nn.MultiheadAttention(D, H, batch_first=True), N, T, D, call=lambda m, x: m(x, x, x)[0]),
    "transformer_encoder_layer": layer(lambda: nn.TransformerEncoderLayer(D, H, 4 * D, batch_first=True), N, T, D),
    "transformer_decoder_layer": layer(
        lambda: nn.TransformerDecoderLayer(D, H, 4 * D, batch_first=True), N, T, D, call=lambda module, x: module(x, x)
    ),
    "transformer_encoder_layer autocast": under_autocast(layer(lambda: nn.TransformerEncoderLayer(D, H, 4 * D, batch_first=True), N, T, D)),
    "flex_attention": flex,
    "cross_entropy": loss(F.cross_entropy),
    "cross_entropy bf16": loss(F.cross_entropy, dtype=torch.bfloat16),
    "cross_entropy smoothed": loss(lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1)),
    "cross_entropy autocast": under_autocast(loss(F.cross_entropy, dtype=torch.bfloat16)),
    "nll_loss": loss(lambda x, y: F.nll_loss(x.log_softmax(-1), y)),
    "multi_margin_loss": loss(F.multi_margin_loss, 4096),
    "kl_div": function(lambda x: F.kl_div(x.log_softmax(-1), torch.full_like(x, 1e-3), reduction="batchmean"), 4096, 8192),
    "bce_with_logits": function(lambda x: F.binary_cross_entropy_with_logits(x, torch.zeros_like(x)), 4096, 8192),
    "huber_loss": function(lambda x: F.huber_loss(x, torch.zeros_like(x)), 4096, 8192),
    "ctc_loss": ctc,
    **{
        name: function(body, 4096, 8192)
        for name, body in {
            "gelu": F.gelu, "silu": F.silu, "softmax": lambda x: x.softmax(-1), "mish": F.mish, "glu": F.glu, "softplus": F.softplus,
            "dropout": lambda x: F.dropout(x, 0.1), "logsumexp": lambda x: x.logsumexp(-1), "cumsum": lambda x: x.cumsum(-1),
            "sort": lambda x: x.sort(-1)[0], "topk": lambda x: x.topk(64, -1)[0], "var": lambda x: x.var(-1), "std_mean": lambda x: torch.std_mean(x, -1)[0],
            "norm": lambda x: x.norm(dim=-1), "normalize": lambda x: F.normalize(x, dim=-1), "cosine_similarity": lambda x: F.cosine_similarity(x, x.detach(), -1),
            "prelu": lambda x: F.prelu(x, torch.ones(1, device="cuda", requires_grad=True)), "rrelu": lambda x: F.rrelu(x, training=True),
            "gather": lambda x: x.gather(1, torch.zeros(4096, 4096, dtype=torch.long, device="cuda")), "flip": lambda x: x.flip(-1),
            "roll": lambda x: x.roll(1, -1), "where": lambda x: torch.where(x > 0, x, 0.0), "masked_fill": lambda x: x.masked_fill(x > 0, 0.0),
            "clamp": lambda x: x.clamp(-1, 1), "pow": lambda x: x.pow(3), "median": lambda x: x.median(-1)[0], "amax": lambda x: x.amax(-1),
            "cat": lambda x: torch.cat([x, x], -1), "addcmul": lambda x: torch.addcmul(x, x, x), "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
            "prod": lambda x: x.prod(-1), "logcumsumexp": lambda x: x.logcumsumexp(-1), "nan_to_num": lambda x: x.nan_to_num(),
        }.items()
    },
    "cdist": function(lambda x: torch.cdist(x, x.detach()), 4096, 256),
    "bilinear": function(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", antialias=True), 16, 16, 112, 112),
    "nearest": function(lambda x: F.interpolate(x, scale_factor=2), 16, 16, 112, 112),
    "grid_sample": function(lambda x: F.grid_sample(x, rand(16, 112, 112, 2)), 16, 16, 112, 112),
    "max_pool2d": function(lambda x: F.max_pool2d(x, 3, 2), *IMAGES),
    "avg_pool2d": function(lambda x: F.avg_pool2d(x, 3, 2), *IMAGES),
    "adaptive_avg_pool2d": function(lambda x: F.adaptive_avg_pool2d(x, 7), *IMAGES),
    "pixel_shuffle": function(lambda x: F.pixel_shuffle(x, 2), *IMAGES),
    "pad reflect": function(lambda x: F.pad(x, (4, 4, 4, 4), mode="reflect"), *IMAGES),
    "unfold": function(lambda x: F.unfold(x, 3), 4, 64, 112, 112),
    "stft": function(lambda x: torch.stft(x, 1024, window=torch.hann_window(1024, device="cuda"), return_complex=True).abs(), 8, 160000),
    "fft2": function(lambda x: torch.fft.fft2(x).abs(), 16, 1024, 1024),
    "index_add": scatter,
    "scatter_reduce": scatter_reduce,
    "weight_norm": layer(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4 * D, 4 * D)), N, 4 * D),
    "spectral_norm": layer(lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4 * D, 4 * D)), N, 4 * D),
    "checkpoint": layer(Checkpointed, N, T, D),
    "checkpoint autocast": under_autocast(layer(Checkpointed, N, T, D)),
    "swiglu autocast": under_autocast(layer(SwiGlu, N, T, D)),
    "head bf16": layer(Head, 4, T, D, dtype=torch.bfloat16),
    "head autocast": under_autocast(layer(Head, 4, T, D)),
    **{f"optimizer {name}": optimizer(name) for name in ["SGD", "Adam", "AdamW", "Adafactor", "RMSprop", "Adagrad", "NAdam", "RAdam", "Muon"]},
    "optimizer Adam fused": optimizer("Adam", fused=True),
    "optimizer AdamW loop": optimizer("AdamW", foreach=False),
    "optimizer SGD fused": optimizer("SGD", fused=True, lr=0.1, momentum=0.9),
    **{
        f"compiled {name}": compiled(make, N, T, D, dtype=dtype)
        for name, make, dtype in [
            ("mlp", mlp, torch.float32), ("mlp bf16", mlp, torch.bfloat16), ("swiglu", SwiGlu, torch.float32), ("swiglu bf16", SwiGlu, torch.bfloat16),
            ("checkpoint bf16", Checkpointed, torch.bfloat16), ("head bf16", Head, torch.bfloat16),
            ("encoder layer bf16", lambda: nn.TransformerEncoderLayer(D, H, 4 * D, batch_first=True), torch.bfloat16),
        ]
    },
    "compiled mlp autocast": under_autocast(compiled(mlp, N, T, D)),
    "compiled swiglu autocast": under_autocast(compiled(SwiGlu, N, T, D)),
    "compiled head autocast": under_autocast(compiled(Head, 4, T, D)),
    "compiled group_norm": compiled(lambda: nn.Sequential(nn.GroupNorm(8, 64), nn.SiLU(), nn.Conv2d(64, 64, 3, padding=1)), *IMAGES),
    "cholesky": function(lambda x: torch.linalg.cholesky(x @ x.mT), 64, 256, 256),
    "svd": function(lambda x: torch.linalg.svd(x, full_matrices=False)[1], 64, 256, 256),
    "solve": function(lambda x: torch.linalg.solve(x, torch.ones(64, 256, 1, device="cuda")), 64, 256, 256),
}

for name in sys.argv[1:] or STEPS:
    # What the one before has left is gone.
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    try:
        STEPS[name]()
        print(f"peak {name}: {torch.cuda.max_memory_allocated() - before}", flush=True)
    except Exception as error:
        print(f"peak {name}: none, {type(error).__name__} {str(error).splitlines()[0][:150] if str(error) else ''}", flush=True)
