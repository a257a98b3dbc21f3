"""The steps that others timed, to be rehearsed by steps.py.

A step that has no optimizer ends with one of a parameter of its own, so that a rehearsal knows where it ends.
"""

import os

import torch
from torch import nn


def timm_step(name, batch, size, layout):
    import timm

    # PyTorch 1.12 had no kernel for attention, updated parameters one by one, and kept gradients, as zeros.
    timm.layers.set_fused_attn(False)
    model = timm.create_model(name, num_classes=1000).cuda().train()
    images = torch.randn(int(batch), 3, int(size), int(size), device="cuda")
    if layout == "nhwc":
        model, images = model.to(memory_format=torch.channels_last), images.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, nesterov=True, foreach=False)
    loss_of = nn.CrossEntropyLoss()

    def step():
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast("cuda", torch.float16):
            output = model(images)
            target = torch.empty(output.shape[0], dtype=torch.long, device="cuda").random_(1000)
            loss_of(output, target).backward()
        optimizer.step()
        torch.cuda.synchronize()

    return step


# Of NeuSight's model configurations: heads, hidden, layers, positions.
GPTS = {"gpt2_large": (20, 1280, 36, 1024), "gpt3_xl": (24, 3072, 24, 2048), "gpt3_27": (32, 2560, 32, 2048)}


def neusight_step(run):
    import transformers

    name, mode, length, batch = run.split("-")
    if name in GPTS:
        heads, hidden, layers, positions = GPTS[name]
        kind, config = transformers.GPT2LMHeadModel, transformers.GPT2Config(
            n_head=heads, n_embd=hidden, n_layer=layers, n_positions=positions)
    elif name == "bert_large":
        # Its script takes classes of its own for both modes.
        kind = transformers.BertForPreTraining if mode == "train" else transformers.BertForSequenceClassification
        config = transformers.BertConfig(
            hidden_size=1024, intermediate_size=4096, num_attention_heads=16, num_hidden_layers=24)
    else:
        kind, config = transformers.OPTForCausalLM, transformers.OPTConfig(
            hidden_size=2048, ffn_dim=8192, num_attention_heads=32, num_hidden_layers=24, word_embed_proj_dim=2048, dropout=0.1)
    config._attn_implementation = "eager"
    config.use_cache = False
    model = kind(config).cuda().train(mode == "train")
    ids = torch.randint(30000, (int(batch), int(length)), device="cuda")
    ends = marker(after_training=True)

    def infer():
        with torch.no_grad():
            model(ids)
        ends()

    def train():
        # Gradients are never cleared there: from the second step on they are added to.
        result = model(ids)
        logits = result[0] if name != "bert_large" else result.prediction_logits
        nn.functional.cross_entropy(logits.view(-1, logits.size(-1)), ids.view(-1)).backward()
        ends()

    return train if mode == "train" else infer


def resnet_step():
    import torchvision

    model = torchvision.models.resnet50().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    images, labels = torch.randn(32, 3, 224, 224), torch.randint(1000, (32,))

    def step():
        loss = nn.functional.cross_entropy(model(images.cuda()), labels.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def timm_inference(name, batch, size, layout):
    import timm

    model = timm.create_model(name, num_classes=1000).cuda().eval()
    images = torch.randn(int(batch), 3, int(size), int(size), device="cuda")
    if layout == "nhwc":
        model, images = model.to(memory_format=torch.channels_last), images.contiguous(memory_format=torch.channels_last)
    ends = marker()

    def step():
        with torch.no_grad(), torch.autocast("cuda", torch.float16):
            model(images)
        ends()

    return step


def kernelbench_step(path, changed=lambda model: model):
    """A problem's forward pass, as its timing script runs it; KERNELBENCH is the folder with its files."""
    import importlib.util

    found = importlib.util.spec_from_file_location("problem", os.path.join(os.environ["KERNELBENCH"], path))
    problem = importlib.util.module_from_spec(found)
    found.loader.exec_module(problem)
    on_device = lambda values: [one.cuda() if isinstance(one, torch.Tensor) else one for one in values]
    with torch.device("cuda"):
        model, inputs = problem.Model(*on_device(problem.get_init_inputs())).cuda(), on_device(problem.get_inputs())
    model, ends = changed(model), marker()

    def step():
        with torch.no_grad():
            model(*inputs)
        ends()

    return step


def marker(after_training=False):
    """Ends a step. Where others of the process were trained, one without a backward pass is none."""
    parameter = nn.Parameter(torch.zeros(1, device="cuda"))
    optimizer = torch.optim.SGD([parameter], lr=0.0)

    def ends():
        if after_training:
            parameter.sum().backward()
        optimizer.step()

    return ends


SOURCES = {"timm-train": timm_step, "timm-infer": timm_inference, "neusight": neusight_step, "kineto": resnet_step,
           "kernelbench": kernelbench_step, "kernelbench-compiled": lambda path: kernelbench_step(path, torch.compile)}


def step_of(source, case):
    return SOURCES[source](*case.split())
