"""The PyTorch reference for experiments/published: recipes of others whose memory they published, written anew in PyTorch."""

import functools
import os

import lab
import presets
import torch
import torch.nn.functional as F
import training

# Bytes of one copy of the logits, in fp32, that a tile may have: as ALST, for a quarter of its tokens.
TILE = 2**30 // 4
FUSED = F.scaled_dot_product_attention


def vision_transformer(name, device, **options):
    """torchvision's, with random parameters that are made on the device."""
    lab.need("torchvision")
    from torchvision import models

    with device:
        return {"vit-l16": models.vit_l_16, "vit-h14": models.vit_h_14}[name](**options)


def head_and_targets(cell, device):
    """What a loss over a vocabulary is of: hidden states and weights of the head, in bf16, and a target for each token."""
    tokens, width, vocabulary = map(cell.number, ("tokens", "width", "vocabulary"))
    options = {"device": device, "dtype": torch.bfloat16}
    given = [(torch.randn(rows, width, **options) * 0.05).requires_grad_() for rows in (tokens, vocabulary)]
    return given, torch.randint(vocabulary, (tokens,), device=device)


class InBackward:
    """Adam as it is by default, or a step of each parameter as soon as its gradient is there, which is then dropped."""

    def __init__(self, cell, bench):
        self.device = bench.device
        self.model = vision_transformer(cell["model"], bench.device)
        parameters = list(self.model.parameters())
        self.optimizer = None
        if cell["stepping"] == "in-the-end":
            self.optimizer = torch.optim.Adam(parameters)
            return
        alone = {parameter: torch.optim.Adam([parameter], foreach=False) for parameter in parameters}

        def update(parameter):
            alone[parameter].step()
            alone[parameter].zero_grad()

        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(update)

    def run(self, probe):
        image = torch.rand(1, 3, 224, 224, device=self.device)
        self.model(image).sum().backward()
        if self.optimizer:
            self.optimizer.step()
            self.optimizer.zero_grad()

    def outcome(self):
        return {"parameter": [parameter.detach() for parameter in self.model.parameters()]}


class QuantisedState:
    """The state of torchao's AdamW of 8 or 4 bits. Its step is one compiled kernel for each parameter, without temporaries."""

    def __init__(self, parameters, bits):
        # Numbers that share a scale, as they were when the table was published.
        block = {8: 2048, 4: 128}[bits]
        self.parameters, self.state = parameters, []
        for parameter in parameters:
            numbers = parameter.numel()
            for _ in range(2):
                if numbers >= 4096 and numbers % block == 0:
                    codes = torch.zeros(numbers * bits // 8, dtype=torch.uint8, device=parameter.device)
                    scales = torch.zeros(numbers // block, device=parameter.device)
                    self.state += [codes, scales, torch.zeros(2**bits, device=parameter.device)]
                else:
                    self.state.append(torch.zeros_like(parameter))

    def step(self):
        with torch.no_grad():
            for parameter in self.parameters:
                parameter.add_(parameter.grad, alpha=-1e-4)

    def zero_grad(self):
        for parameter in self.parameters:
            parameter.grad = None


class FewBits:
    """A ViT fine-tuned under autocast to bf16, with AdamW's state in fp32 or in few bits."""

    def __init__(self, cell, bench):
        self.model = vision_transformer(cell["model"], bench.device, num_classes=45)
        parameters = list(self.model.parameters())
        bits = cell.number("bits")
        self.optimizer = torch.optim.AdamW(parameters) if bits == 32 else QuantisedState(parameters, bits)
        self.images = torch.randn(cell.number("batch"), 3, 224, 224, device=bench.device)
        self.targets = torch.randint(0, 45, (cell.number("batch"),), device=bench.device)

    def run(self, probe):
        with torch.autocast(self.images.device.type, torch.bfloat16):
            loss = F.cross_entropy(self.model(self.images), self.targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class TiledLoss(torch.autograd.Function):
    """Cross-entropy of logits that are made a tile at a time, with the gradients of each tile at once."""

    @staticmethod
    def forward(ctx, hidden, weight, targets):
        rows = max(1, TILE // (4 * weight.shape[0]))
        of_hidden, of_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        total = torch.zeros((), device=hidden.device)
        for start in range(0, len(hidden), rows):
            tile, own = hidden[start : start + rows].detach().requires_grad_(), weight.detach().requires_grad_()
            with torch.enable_grad():
                loss = F.cross_entropy((tile @ own.T).float(), targets[start : start + rows], reduction="sum") / len(targets)
            with torch.autograd.set_multithreading_enabled(False):
                gradient, of_tile = torch.autograd.grad(loss, (tile, own))
            of_hidden[start : start + rows] = gradient
            of_weight += of_tile
            total += loss.detach()
            # A name of the last tile must not live through the next.
            del loss, gradient, of_tile
        ctx.save_for_backward(of_hidden, of_weight)
        return total

    @staticmethod
    def backward(ctx, gradient):
        of_hidden, of_weight = ctx.saved_tensors
        return of_hidden * gradient, of_weight * gradient, None


class Loss:
    """The loss over a large vocabulary, of all tokens at once as Hugging Face's models compute it, or in tiles."""

    tells_all = True

    def __init__(self, cell, bench):
        (self.hidden, self.weight), self.targets = head_and_targets(cell, bench.device)
        self.tiled = cell["loss"] == "tiled"

    def gradients(self, tiled):
        if tiled:
            loss = TiledLoss.apply(self.hidden, self.weight, self.targets)
        else:
            logits = self.hidden @ self.weight.T
            loss = F.cross_entropy(logits.float(), self.targets)
        # In this thread, as in the tiles: autograd's own gives its last tensors back a moment later, in this figure or the next.
        with torch.autograd.set_multithreading_enabled(False):
            return torch.autograd.grad(loss, (self.hidden, self.weight))

    def peak(self, probe, tiled):
        probe.reset_peaks()
        before = probe.live()
        self.gradients(tiled)
        return probe.peak() - before

    def run(self, probe):
        if not probe.reading:
            self.given = self.gradients(self.tiled)
            return
        self.given = None
        peak = self.peak(probe, self.tiled)
        probe.figure("above", "B", peak)
        if self.tiled:
            copy = 4 * len(self.hidden) * len(self.weight)
            probe.figure("saved_copies", "1", (self.peak(probe, False) - peak) / copy)

    def outcome(self):
        return {"gradient": list(self.given)}


class LowRank:
    """Adam's two moments for the parameters of a LLaMA, in bf16, of whole gradients or of their projections (GaLore)."""

    tells_all = True
    # Width, width of the MLP, layers, vocabulary, and the rank that it was trained with.
    models = {"llama-7b": (4096, 11008, 32, 32000, 1024), "llama-tiny": (64, 176, 2, 256, 16)}

    def __init__(self, cell, bench):
        self.model, self.low, self.device = self.models[cell["model"]], cell["moments"] == "of-projections", bench.device

    def bytes(self, probe, shapes, rank):
        """What state takes: of a matrix that is projected, its moments and the projection."""
        before, kept = probe.live(), []
        for shape in shapes:
            if rank and len(shape) == 2:
                short, long = min(shape), max(shape)
                shapes_of = [(rank, long), (rank, long), (short, rank)]
            else:
                shapes_of = [shape, shape]
            kept += [torch.zeros(*of, dtype=torch.bfloat16, device=self.device) for of in shapes_of]
        return probe.live() - before

    def run(self, probe):
        if not probe.reading:
            return
        width, inner, layers, vocabulary, rank = self.model
        layer = [(width, width)] * 4 + [(inner, width)] * 3
        # Embeddings, head and norms are not projected.
        others = [(vocabulary * width,)] * 2 + [(width,)] * (2 * layers + 1)

        def whole(rank):
            # All layers are alike, and together they need a larger device.
            return layers * self.bytes(probe, layer, rank) + self.bytes(probe, others, None)

        state = whole(rank if self.low else None)
        probe.figure("state", "B", state)
        probe.figure("state_left", "1", state / whole(None))


class CutLoss:
    """Cut Cross-Entropy's own kernel, as its authors measured it: the loss, then its gradient."""

    tells_all = True

    def __init__(self, cell, bench):
        lab.need("cut_cross_entropy", "triton")
        from cut_cross_entropy import linear_cross_entropy
        from triton.runtime import autotuner, jit

        if "VRAMLAB_DRY_BACKEND" in os.environ:
            # A simulated GPU launches nothing, compiles nothing, and does not know that every token has a target.
            torch.compiler.set_stance("force_eager")
            jit.JITFunction.run = autotuner.Autotuner.run = lambda *_, **__: None
            torch.Tensor.nonzero = lambda mask: torch.nonzero(torch.ones(mask.shape)).to(mask.device)
        self.given, self.targets = head_and_targets(cell, bench.device)
        self.loss = lambda: linear_cross_entropy(*self.given, self.targets, softcap=30.0 if cell["softcap"] == "tanh" else None)

    def run(self, probe):
        for tensor in self.given:
            tensor.grad = None
        probe.reset_peaks()
        rest = probe.live()
        loss = self.loss()
        of_loss, kept = probe.peak(), probe.live()
        probe.reset_peaks()
        loss.backward()
        probe.figure("of_loss", "B", of_loss - rest)
        probe.figure("of_gradient", "B", probe.peak() - kept)
        probe.figure("of_both", "B", max(of_loss, probe.peak()) - rest)


class Offload:
    """Steps of AdamW on the GPU, or of one on the host, of which the GPU knows only that gradients leave it."""

    def __init__(self, cell, bench):
        name, mixed, self.device = cell["model"], cell["weights"] == "fp16", bench.device
        if name == "vit-g14":
            lab.need("timm")
            import timm

            with bench.device:
                self.model = timm.create_model("vit_giant_patch14_dinov2", num_classes=45, img_size=224)
            self.model.set_grad_checkpointing()
            images, targets = torch.randn(cell.number("batch"), 3, 224, 224), torch.randint(45, (cell.number("batch"),))
            self.batch = images.bfloat16(), targets
        else:
            self.model, self.batch = presets.prepared(cell, bench.device)
        self.model.to(torch.float16 if mixed else torch.bfloat16)
        self.parameters, self.optimizer = list(self.model.parameters()), None
        self.copies = []
        if cell["on-host"] == "nothing":
            self.copies = [parameter.detach().float() for parameter in self.parameters] if mixed else []
            self.optimizer = torch.optim.AdamW(self.copies or self.parameters, 1e-4, fused=True)
        if cell["on-host"] == "gradients":
            for parameter in self.parameters:
                parameter.register_post_accumulate_grad_hook(lambda parameter: setattr(parameter, "grad", None))

    def run(self, probe):
        presets.loss_of(self.model, [tensor.to(self.device) for tensor in self.batch]).backward()
        for copy, parameter in zip(self.copies, self.parameters):
            copy.grad = parameter.grad.float()
        state = []
        if self.optimizer:
            self.optimizer.step()
            state = [moment for of in self.optimizer.state.values() for moment in of.values() if moment.dim()]
        for copy in self.copies:
            copy.grad = None
        held = [*self.parameters, *self.copies, *state, *presets.gradients(self.model)]
        probe.figure("model_state", "B", sum(tensor.nbytes for tensor in held) / sum(map(torch.numel, self.parameters)))
        self.model.zero_grad()


class Tuning:
    """A LLaMA's weights, gradients and Adam's state, of 16 bits or with LoRA beside weights of 4 bits, as bitsandbytes keeps them."""

    tells_all = True
    # Width, width of the MLP, layers, vocabulary.
    models = {"llama-65b": (8192, 22016, 80, 32000)}

    def __init__(self, cell, bench):
        self.model, self.tuned, self.device = self.models[cell["model"]], cell["tuned"], bench.device

    def bytes(self, probe, make):
        before, kept = probe.live(), make()
        return probe.live() - before

    def trained(self, *shape):
        return [torch.zeros(shape, dtype=kind, device=self.device) for kind in [torch.bfloat16] * 2 + [torch.float32] * 2]

    def constants(self, count):
        each = lambda block, kind: torch.zeros(count // block, dtype=kind, device=self.device)
        if self.tuned == "4-bit":
            return [each(64, torch.float32)]
        return [each(64, torch.uint8), each(64 * 256, torch.float32)]

    def beside(self, rows, columns):
        return torch.zeros(rows * columns // 2, dtype=torch.uint8, device=self.device), self.trained(64, columns), self.trained(rows, 64)

    def run(self, probe):
        if not probe.reading:
            return
        width, inner, layers, vocabulary = self.model
        linear = [(width, width)] * 4 + [(inner, width)] * 2 + [(width, inner)]
        # All layers are alike, and together they need a larger device.
        whole, constants = self.tuned == "whole", 0
        if whole:
            layer = self.bytes(probe, lambda: [self.trained(*shape) for shape in linear])
        else:
            layer = self.bytes(probe, lambda: [self.beside(*shape) for shape in linear])
            constants = self.bytes(probe, lambda: [self.constants(rows * columns) for rows, columns in linear])
            probe.figure("constants", "1", 8 * constants / sum(rows * columns for rows, columns in linear))
        # Embeddings, head and norms.
        others = self.trained if whole else lambda *shape: torch.zeros(shape, dtype=torch.bfloat16, device=self.device)
        rest = self.bytes(probe, lambda: [others(2 * vocabulary + 2 * layers + 1, width)])
        probe.figure("kept", "B", layers * (layer + constants) + rest)


class Kept(torch.autograd.Function):
    """Nothing, but that the value lives until its backward pass."""

    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        return gradient


@functools.cache
def mask(length, device):
    return torch.ones(length, length, dtype=torch.bool, device=device).triu(1)


def attention(q, k, v, dropout_p=0.0, is_causal=False, keeps_input=False):
    """Step by step, each result a tensor of its own; before PyTorch 1.11 softmax kept its input, too (pytorch/pytorch#64000)."""
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    if is_causal:
        scores = scores.masked_fill(mask(q.shape[-2], q.device), float("-inf"))
    if keeps_input:
        # What autocast gives it is in fp32.
        scores = Kept.apply(scores.float())
    scores = scores.softmax(-1)
    return (F.dropout(scores, dropout_p) if dropout_p else scores) @ v


class Layer:
    """The blocks of a transformer in fp16, forward and backward."""

    def __init__(self, cell, bench):
        F.scaled_dot_product_attention = attention if cell["attention"] == "explicit" else FUSED
        self.blocks = presets.prepared(lab.Cell(cell | {"batch": "1"}), bench.device)[0].block.half()
        b, s, h = cell.number("batch"), cell.number("sequence"), self.blocks[0].qkv.in_features
        # What the embeddings give to the first block.
        self.inputs = torch.randn(b, s, h, dtype=torch.half, device=bench.device, requires_grad=True)
        self.formula = len(self.blocks) * s * b * h * (34 + 5 * (h // 64) * s / h)

    def run(self, probe):
        self.blocks.zero_grad()
        self.inputs.grad = None
        probe.at_rest()
        # The first block's input is not counted and the last block's output is: together each block's input is counted once.
        outputs = probe.forward(lambda: self.blocks(self.inputs))
        probe.figure("formula", "B", self.formula)
        outputs.mean().backward()

    def outcome(self):
        for block in self.blocks:
            block.dropout = block.heads.dropout = 0.0
        with torch.no_grad():
            return {"output": [self.blocks(self.inputs)]}


class Capped:
    """The loss of logits over a large vocabulary, capped or not, and then its gradient: peaks in copies of the logits in bf16."""

    tells_all = True

    def __init__(self, cell, bench):
        self.given, self.targets = head_and_targets(cell, bench.device)
        self.capped, self.copy = cell["softcap"] == "tanh", 2 * cell.number("tokens") * cell.number("vocabulary")

    def loss(self):
        logits = self.given[0] @ self.given[1].T
        if self.capped:
            logits = (logits / 30.0).tanh() * 30.0
        return F.cross_entropy(logits.float(), self.targets)

    def run(self, probe):
        self.gradients = None
        probe.reset_peaks()
        rest, loss = probe.live(), probe.forward(self.loss)
        of_loss, kept = probe.peak(), probe.live()
        probe.reset_peaks()
        with torch.autograd.set_multithreading_enabled(False):
            self.gradients = torch.autograd.grad(loss, self.given)
        del loss
        for metric, bytes in [("loss", of_loss - rest), ("gradient", probe.peak() - kept), ("both", max(of_loss, probe.peak()) - rest)]:
            probe.figure(f"{metric}_copies", "1", bytes / self.copy)

    def outcome(self):
        return {"gradient": list(self.gradients)}


class Table(training.Trainer):
    """BERT-large as Hugging Face's guide trained it."""

    # What the source's GPU, a V100, showed before a model was loaded: kernels were not loaded lazily then.
    context = 1343 << 20

    def __init__(self, cell, bench, drops=True):
        F.scaled_dot_product_attention, setup = functools.partial(attention, keeps_input=True), cell["setup"]
        levels = {
            "optimizer": "adam",
            "accumulate": cell["batch"] if setup in ("accumulate", "accumulate-checkpoint", "all") else "1",
            "checkpoint": "every-block" if setup in ("accumulate-checkpoint", "all") else "none",
            "precision": "amp-fp16" if setup in ("fp16", "all") else "fp32",
        }
        super().__init__(lab.Cell(cell | levels), bench, drops)
        self.bench, self.items, self.zeroes = bench, cell.number("batch"), cell["zero_grad"] == "zeroed"

    def run(self, probe):
        super().run(probe)
        if self.bench.device.type == "cuda":
            probe.figure("shown", "B", torch.cuda.memory_reserved() + self.context)

    def outcome(self):
        # Of a first step without dropout, which would differ from one micro-batch to the next.
        torch.manual_seed(self.bench.seed)
        plain = Table(self.cell, self.bench, drops=False)
        plain.step()
        return {"gradient": presets.gradients(plain.model)}


def prepare(cell, bench):
    recipes = [("setup", Table), ("sequence", Layer), ("dtype", Capped), ("stepping", InBackward), ("bits", FewBits), ("loss", Loss), ("moments", LowRank)]
    for factor, recipe in [*recipes, ("softcap", CutLoss), ("on-host", Offload), ("tuned", Tuning)]:
        if factor in cell:
            return recipe(cell, bench)
    raise ValueError(f"no recipe for {cell}")


if __name__ == "__main__":
    lab.main(prepare)
