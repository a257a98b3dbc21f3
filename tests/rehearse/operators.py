"""One operator or more, forward and backward, of each library that PyTorch's CUDA code opens: one line each says what became of it."""

import torch
import torch.nn.functional as F

GPU = "cuda"


def random(*shape, **more):
    return torch.randn(*shape, device=GPU, requires_grad=True, **more)


def plain(*shape, **more):
    return torch.randn(*shape, device=GPU, **more)


def whole(*shape, **more):
    return torch.ones(*shape, dtype=torch.long, device=GPU, **more)


def sparse(layout, n=16):
    eye = torch.eye(n)
    blocks = {"bsr": eye.to_sparse_bsr, "bsc": eye.to_sparse_bsc}
    made = blocks[layout]((4, 4)) if layout in blocks else getattr(eye, "to_sparse" + {"coo": "", "csr": "_csr", "csc": "_csc"}[layout])()
    return made.to(GPU)


def backward(results):
    results = results if isinstance(results, tuple | list) else [results]
    result = next(result for result in results if result.requires_grad)
    result = torch.view_as_real(result) if result.is_complex() else result
    (result.to_dense() if result.layout != torch.strided else result).sum().backward()


def sparse_adam():
    table = torch.nn.Embedding(8, 4, sparse=True, device=GPU)
    optimizer = torch.optim.SparseAdam(table.parameters())
    backward(table(whole(4)))
    optimizer.step()


def ctc(targets):
    return F.ctc_loss(random(16, 2, 10).log_softmax(2), targets, (16, 16), (5, 5))


def matrix(function):
    return lambda: backward(function(random(8, 8)))


def positive(function):
    return lambda: backward(function((lambda a: a @ a.mT)(random(8, 8))))


linear, batch = torch.linalg, (2, 8, 8)
complex64, half, bf16 = torch.complex64, torch.half, torch.bfloat16
OPERATORS = {
    "cublas": {
        "mm": lambda: backward(random(8, 8) @ random(8, 8)),
        "bmm": lambda: backward(random(*batch) @ random(*batch)),
        "mv": lambda: backward(random(8, 8) @ random(8)),
        "dot": lambda: backward(torch.dot(random(8), random(8))),
        "vdot": lambda: backward(torch.vdot(random(8, dtype=complex64), random(8, dtype=complex64))),
        "baddbmm": lambda: backward(torch.baddbmm(random(*batch), random(*batch), random(*batch))),
    },
    "cublasLt": {
        "addmm": lambda: backward(torch.addmm(random(8), random(8, 8), random(8, 8))),
        "linear": lambda: backward(F.linear(random(8, 8, dtype=half), random(8, 8, dtype=half), random(8, dtype=half))),
        "_int_mm": lambda: torch._int_mm(torch.zeros(32, 32, dtype=torch.int8, device=GPU), torch.zeros(32, 32, dtype=torch.int8, device=GPU)),
    },
    "cudnn": {
        "conv1d": lambda: backward(F.conv1d(random(2, 4, 16), random(4, 4, 3))),
        "conv2d": lambda: backward(F.conv2d(random(2, 4, 16, 16), random(4, 4, 3, 3), random(4))),
        "conv3d": lambda: backward(F.conv3d(random(2, 4, 8, 8, 8), random(4, 4, 3, 3, 3))),
        "conv_transpose2d": lambda: backward(F.conv_transpose2d(random(2, 4, 16, 16), random(4, 4, 3, 3))),
        "cudnn_convolution_relu": lambda: torch.cudnn_convolution_relu(
            plain(2, 4, 8, 8), plain(4, 4, 3, 3), plain(4), (1, 1), (1, 1), (1, 1), 1
        ),
        "batch_norm": lambda: backward(F.batch_norm(random(4, 4, 8, 8), plain(4), plain(4), random(4), random(4), True)),
        "LSTM": lambda: backward(torch.nn.LSTM(8, 8, device=GPU)(random(4, 2, 8))[0]),
        "ctc_loss": lambda: backward(ctc(torch.ones(10, dtype=torch.int32))),
        "grid_sample": lambda: backward(
            F.grid_sample(random(2, 3, 8, 8), F.affine_grid(random(2, 2, 3), (2, 3, 8, 8), align_corners=True), align_corners=True)
        ),
        "cudnn_affine_grid_generator": lambda: backward(torch.cudnn_affine_grid_generator(random(2, 2, 3), 2, 3, 8, 8)),
        "scaled_dot_product_attention": lambda: backward(
            F.scaled_dot_product_attention(*[random(2, 4, 16, 64, dtype=bf16) for _ in range(3)], is_causal=True)
        ),
    },
    "cufft": {
        "fft": matrix(torch.fft.fft),
        "ifft": lambda: backward(torch.fft.ifft(random(8, 8, dtype=complex64))),
        "rfft": matrix(torch.fft.rfft),
        "irfft": lambda: backward(torch.fft.irfft(random(8, 5, dtype=complex64))),
        "fft2": matrix(torch.fft.fft2),
        "fftn": lambda: backward(torch.fft.fftn(random(*batch))),
        "rfftn": lambda: backward(torch.fft.rfftn(random(*batch))),
        "irfft2": lambda: backward(torch.fft.irfft2(random(4, 8, 5, dtype=complex64))),
        "stft": lambda: backward(torch.stft(random(2, 400), 64, window=plain(64), return_complex=True)),
        "istft": lambda: backward(torch.istft(torch.stft(random(2, 400), 64, return_complex=True), 64, window=torch.ones(64, device=GPU))),
    },
    "cusolver and magma": {
        "cholesky": positive(linear.cholesky),
        "inv": matrix(linear.inv),
        "det": matrix(linear.det),
        "slogdet": matrix(lambda a: linear.slogdet(a)[1]),
        "eigh": positive(linear.eigh),
        "eig": matrix(linear.eig),
        "svd": matrix(linear.svd),
        "svdvals": matrix(linear.svdvals),
        "qr": matrix(linear.qr),
        "lu": matrix(lambda a: linear.lu(a)[1]),
        "lu_factor": matrix(linear.lu_factor),
        "pinv": matrix(linear.pinv),
        "matrix_exp": matrix(linear.matrix_exp),
        "solve": lambda: backward(linear.solve(random(8, 8), random(8, 2))),
        "lu_solve": lambda: backward(linear.lu_solve(*linear.lu_factor(random(8, 8)), random(8, 2))),
        "solve_triangular": lambda: backward(linear.solve_triangular(random(8, 8), random(8, 2), upper=True)),
        "triangular_solve": lambda: backward(torch.triangular_solve(random(8, 2), random(8, 8))),
        "cholesky_solve": lambda: backward(torch.cholesky_solve(random(8, 2), random(8, 8))),
        "cholesky_inverse": lambda: backward(torch.cholesky_inverse(random(8, 8))),
        "ldl_solve": lambda: linear.ldl_solve(*linear.ldl_factor(plain(8, 8)), plain(8, 2)),
        "geqrf": lambda: torch.geqrf(plain(8, 4)),
        "ormqr": lambda: torch.ormqr(plain(8, 8), plain(8), plain(8, 8)),
        "householder_product": lambda: backward(linear.householder_product(random(8, 4), random(4))),
        "lobpcg": lambda: torch.lobpcg(plain(32, 32), k=2),
        "svd_lowrank": lambda: backward(torch.svd_lowrank(random(32, 32))),
        "orthogonal": lambda: backward(torch.nn.utils.parametrizations.orthogonal(torch.nn.Linear(8, 8, device=GPU))(random(2, 8))),
        "lstsq": lambda: backward(linear.lstsq(random(8, 4), random(8, 2))),
    },
    "cusparse": {
        "to_sparse": lambda: plain(8, 8).to_sparse(),
        "to_sparse_csr": lambda: plain(8, 8).to_sparse_csr(),
        "to_dense": lambda: sparse("coo").to_dense(),
        "coalesce": lambda: sparse("coo").t().coalesce(),
        "coo @ dense": lambda: backward(sparse("coo") @ random(16, 4)),
        "coo @ vector": lambda: backward(torch.mv(sparse("coo"), random(16))),
        "sparse.mm": lambda: backward(torch.sparse.mm(sparse("coo").requires_grad_(), random(16, 4))),
        "sparse.addmm": lambda: backward(torch.sparse.addmm(random(16, 4), sparse("coo"), random(16, 4))),
        "bmm": lambda: torch.bmm(torch.stack([torch.eye(4)] * 2).to_sparse().to(GPU), plain(2, 4, 4)),
        "hspmm": lambda: torch.hspmm(sparse("coo"), plain(16, 4)),
        "coo + coo": lambda: sparse("coo") + sparse("coo"),
        "sparse.softmax": lambda: torch.sparse.softmax(sparse("coo"), 1),
        "coo @ coo": lambda: sparse("coo") @ sparse("coo"),
        "csr @ dense": lambda: backward(sparse("csr") @ random(16, 4)),
        "csr @ vector": lambda: backward(sparse("csr") @ random(16)),
        "addmm of csr": lambda: torch.addmm(plain(16, 4), sparse("csr"), plain(16, 4)),
        "linear of csr": lambda: F.linear(plain(4, 16), sparse("csr")),
        "sampled_addmm": lambda: torch.sparse.sampled_addmm(sparse("csr"), plain(16, 4), plain(4, 16)),
        "triangular_solve of csr": lambda: torch.triangular_solve(plain(16, 4), sparse("csr")),
        "csc @ dense": lambda: sparse("csc") @ plain(16, 4),
        "bsr @ dense": lambda: sparse("bsr") @ plain(16, 4),
        "bsr @ vector": lambda: sparse("bsr") @ plain(16),
        "triangular_solve of bsr": lambda: torch.triangular_solve(plain(16, 4), sparse("bsr")),
        "csr @ csr": lambda: sparse("csr") @ sparse("csr"),
        "csr + csr": lambda: sparse("csr") + sparse("csr"),
        "sparse embedding": sparse_adam,
    },
    "cusparseLt": {
        "_cslt_sparse_mm": lambda: torch._cslt_sparse_mm(
            torch._cslt_compress(plain(128, 128, dtype=half)), torch.zeros(128, 128, dtype=half, device=GPU)
        ),
    },
    "curand": {
        "randn": lambda: plain(9),
        "multinomial": lambda: torch.multinomial(torch.ones(8, device=GPU), 3),
        "bernoulli": lambda: torch.bernoulli(torch.ones(8, device=GPU)),
        "poisson": lambda: torch.poisson(torch.ones(8, device=GPU)),
        "gamma": lambda: backward(torch._standard_gamma(random(8))),
        "randperm": lambda: torch.randperm(9, device=GPU),
        "dropout": lambda: backward(F.dropout(random(8))),
    },
    "nvrtc": {
        "erfinv": lambda: backward(torch.erfinv(random(8))),
        "zeta": lambda: torch.special.zeta(plain(8), plain(8)),
        "gcd": lambda: torch.gcd(whole(8), whole(8)),
        "complex prod": lambda: torch.prod(plain(8, dtype=complex64)),
    },
    "nccl": {
        "all_reduce": lambda: torch.cuda.nccl.all_reduce([plain(4)]),
        "broadcast": lambda: torch.cuda.nccl.broadcast([plain(4)]),
        "all_gather": lambda: torch.cuda.nccl.all_gather([plain(4)], [plain(4)]),
        "reduce_scatter": lambda: torch.cuda.nccl.reduce_scatter([plain(4)], [plain(4)]),
    },
}

for library, operators in OPERATORS.items():
    for name, run in operators.items():
        try:
            run()
            print(f"{library}: {name}: works")
        except Exception as error:
            print(f"{library}: {name}: {type(error).__name__}: {str(error).splitlines()[0]}")
