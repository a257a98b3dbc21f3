"""The guides' code blocks, each run as it stands (`experiments/as_written/blocks/`), for experiments/as_written.

Around a block stands what it uses and does not define: a small model, data, `...` for layers and an optimizer's arguments; and after it the use that its
guide has for it, such as a training step with the class that it defines. The newest PyTorch runs the same in an environment of its own:
the Python of VRAMLAB_NEWEST_PYTHON; on a simulated GPU by `vramlab rehearse`.
"""

import ast
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

PROJECT = Path(__file__).resolve().parents[2]
BLOCKS = PROJECT / "experiments/as_written/blocks"

WIDTH, DEPTH, BATCH, BATCHES, STEPS = 256, 6, 64, 20, 8
# Batches that the guides' eight accumulation steps divide: what is left over is another figure (`unused`).
WHOLE = 3 * STEPS


def layers(depth=DEPTH):
    return [layer for _ in range(depth) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]


class Sequential(nn.Sequential):
    """`nn.Sequential(...)` as a guide writes it: three dots are two layers."""

    def __init__(self, *modules):
        super().__init__(*(layers(2) if modules == (...,) else modules))


class Loader:
    """Batches that nobody keeps, the same ones each time."""

    def __init__(self, device, batch=BATCH, batches=BATCHES):
        self.device, self.batch, self.batches = device, batch, batches

    def __len__(self):
        return self.batches

    def __iter__(self):
        random = torch.Generator().manual_seed(1)
        for _ in range(self.batches):
            yield tuple(torch.randn(self.batch, WIDTH, generator=random).to(self.device) for _ in range(2))


class Dataset(torch.utils.data.Dataset):
    def __init__(self, *_):
        pass

    def __len__(self):
        return 256

    def __getitem__(self, index):
        return torch.full((8,), float(index)), index


def model_on(device):
    torch.manual_seed(1)
    return nn.Sequential(*layers()).to(device)


def plain_loop(device, together=1, model=None, batches=BATCHES):
    """The loop without a technique, over as many batches at once; gives what it trained."""
    model, criterion = model or model_on(device), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    waiting = []
    for number, batch in enumerate(Loader(device, batches=batches)):
        waiting.append(batch)
        if len(waiting) < together and number + 1 < batches:
            continue
        inputs, labels = (torch.cat(parts) if together > 1 else parts[0] for parts in zip(*waiting))
        waiting.clear()
        optimizer.zero_grad()
        criterion(model(inputs), labels).backward()
        optimizer.step()
        del inputs, labels, batch
    return model


class Trial:
    """One run of one block, with what it told."""

    def __init__(self, block, form, device):
        self.block, self.device = block, torch.device(device)
        self.source = (BLOCKS / f"{block}{'-corrected' if form == 'corrected' else ''}.py").read_text()
        self.warned, self.raised = set(), ""

    def names(self, batches=BATCHES):
        """What the block finds around it."""
        model, loader = model_on(self.device), Loader("cpu", batches=batches)
        names = {
            "torch": torch, "nn": nn, "device": self.device, "model": model, "loader": loader, "dataloader": loader, "accumulation_steps": STEPS,
            "data_loader": Loader(self.device, batches=batches), "criterion": nn.MSELoss(), "dataset": Dataset(), "MyDataset": Dataset, "BATCH": BATCH,
            "DataLoader": torch.utils.data.DataLoader, "optimizer": torch.optim.SGD(model.parameters(), lr=0.001), "tensor": torch.tensor([1, 2, 3]),
            "MyModel": lambda: model, **dict.fromkeys(["P", "B", "A", "O", "D_param", "D_act", "D_opt"], 4),
        }  # fmt: skip
        return names

    def use(self, names):
        """What the block's guide does with it."""
        if self.block.endswith("loader") or self.block == "5-pinned":
            loader = names.get("data_loader" if self.block == "1-loader" else "loader" if self.block == "3-loader" else "dataloader")
            assert sum(1 for _ in loader) == len(loader)
        if self.block == "3-checkpoint":
            names["model"] = big = names["BigModel"]().to(self.device)
            names["optimizer"] = torch.optim.SGD(big.parameters(), lr=0.001)
            names["before"] = [p.detach().clone() for p in big.parameters()]
            # A plain batch, as any training loop has it.
            inputs, labels = next(iter(Loader(self.device)))
            nn.MSELoss()(big(inputs), labels).backward()
            names["optimizer"].step()

    def run(self, figure, peak):
        """Runs it and gives figures: `figure(name, unit, value)`; `peak(run)` says how many bytes lived at once at most while something ran."""
        names, self.raised = self.names(), ""
        before = [p.detach().clone() for p in names["model"].parameters()]
        waiting, is_in_place = 0, False

        def took(*_):
            nonlocal waiting
            waiting += 1

        def stepped(*_):
            nonlocal waiting
            waiting = 0

        list(names["model"].parameters())[-1].register_post_accumulate_grad_hook(took)
        # Of whatever optimizer the block makes.
        hook = register_optimizer_step_post_hook(stepped)

        def everything():
            nonlocal is_in_place
            for statement in ast.parse(self.source).body:
                exec(compile(ast.Module([statement], []), self.block, "exec"), names)
                x, y = names.get("x"), names.get("y")
                is_in_place |= isinstance(y, torch.Tensor) and x.data_ptr() == y.data_ptr()
            self.use(names)

        if "accumulation" in self.block:
            # What is allocated once in a process, cuBLAS's workspace above all, is neither loop's.
            plain_loop(self.device)

        with self.stubs(names), warnings.catch_warnings(record=True) as told, tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            warnings.simplefilter("always")
            try:
                with contextlib.redirect_stdout(sys.stderr):
                    most = peak(everything)
            except Exception as error:  # What a reader would see is the figure.
                self.raised, most = f"{type(error).__name__}: {error}", None
        hook.remove()
        self.warned |= {(w.category.__name__, str(w.message)[:60]) for w in told}
        figure("runs", "1", float(not self.raised))
        figure("warnings", "1", float(len(self.warned)))
        if self.block == "1-inplace":
            figure("in_place", "1", float(is_in_place))
        if "accumulation" in self.block:
            figure("unused", "1", float(waiting))
            if most is not None:
                # The model is there before, as the block's is.
                model = model_on(self.device)
                figure("of_plain", "1", most / peak(lambda: plain_loop(self.device, model=model)))
        if self.trains:
            before = names.get("before", before)
            after = [p.detach() for p in names["model"].parameters()]
            figure("trained", "1", sum(not torch.equal(a, b) for a, b in zip(after, before)) / len(before) if not self.raised else 0.0)
        if "accumulation" in self.block and self.computes and not self.raised:
            figure("update_error", "1", self.apart(before, after, BATCHES))
            names = self.names(WHOLE)
            exec(compile(self.source, self.block, "exec"), names)
            figure("whole_update_error", "1", self.apart(before, [p.detach() for p in names["model"].parameters()], WHOLE))

    def apart(self, before, after, batches):
        """How far an update is from that of the larger batches, relative to it."""
        wanted = [p.detach() - b for p, b in zip(plain_loop(self.device, STEPS, batches=batches).parameters(), before)]
        apart = sum(float((a - b - w).double().square().sum()) for a, b, w in zip(after, before, wanted))
        return (apart / sum(float(w.double().square().sum()) for w in wanted)) ** 0.5

    @property
    def computes(self):
        """Whether values mean anything: a simulated GPU has none."""
        return self.device.type == "cpu" or not {"VRAMLAB_DRY_CARD", "VRAMLAB_REHEARSAL"} & os.environ.keys()

    @property
    def trains(self):
        return self.computes and self.block in ("1-accumulation", "2-accumulation", "3-amp", "3-checkpoint")

    @contextlib.contextmanager
    def stubs(self, names):
        """`...` where a guide leaves something out."""
        adam, sequential = torch.optim.Adam, nn.Sequential
        torch.optim.Adam = lambda parameters, *rest: adam(names["MyModel"]().parameters() if parameters is ... else parameters, *rest)
        nn.Sequential = Sequential
        try:
            yield
        finally:
            torch.optim.Adam, nn.Sequential = adam, sequential


class Here:
    """In this process, on its own PyTorch."""

    def __init__(self, cell, bench):
        self.trial = Trial(cell["block"], cell["form"], bench.device)

    def run(self, probe):
        def peak(run):
            probe.reset_peaks()
            rest = probe.live()
            run()
            return probe.peak() - rest or 1

        self.trial.run(probe.figure, peak)


class Newest:
    """In a process of the newest PyTorch."""

    tells_all = True

    def __init__(self, cell, bench):
        import lab

        self.python = os.environ.get("VRAMLAB_NEWEST_PYTHON", "")
        if not os.path.exists(self.python):
            raise lab.Unavailable("set VRAMLAB_NEWEST_PYTHON to the Python of an environment that has the newest PyTorch (python3 -m venv, pip install torch)")
        self.command = [self.python, "-B", __file__, cell["block"], cell["form"], bench.device.type]
        self.figures = None
        # What makes this process's GPU a simulated one is made for this PyTorch.
        self.environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD" and not name.startswith("VRAMLAB_DRY")}
        if bench.device.type == "cuda" and "VRAMLAB_DRY_CARD" in os.environ:
            places = ["bin", "target/release", "target/debug"]
            program = next((path for path in (PROJECT / place / "vramlab" for place in places) if path.exists()), None)
            if program is None:
                raise lab.Unavailable("there is no program vramlab to rehearse the newest PyTorch with: `cargo build --release -p vramlab`")
            self.command = [program, "rehearse", "--writes", "--steps", "all", "--", *self.command]

    def run(self, probe):
        if self.figures is None:
            with tempfile.NamedTemporaryFile("r") as file:
                done = subprocess.run([*self.command, file.name], env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
                told = file.read()
            if not told:
                raise RuntimeError(f"the newest PyTorch told nothing: {(done.stderr or done.stdout)[-300:]}")
            self.figures = json.loads(told)
        for name, unit, value in self.figures:
            probe.figure(name, unit, value)


def alone(block, form, device, file):
    """One trial in a process of its own: its figures as JSON."""
    if device == "cuda":
        torch.cuda.init()

    def peak(run):
        if device != "cuda":
            run()
            return None
        torch.cuda.reset_peak_memory_stats()
        requested = lambda moment: torch.cuda.memory_stats()[f"requested_bytes.all.{moment}"]
        rest = requested("current")
        run()
        return requested("peak") - rest or 1

    figures, trial = {}, Trial(block, form, device)
    trial.run(lambda name, unit, value: figures.__setitem__(name, (unit, value)), peak)
    print(block, form, torch.__version__, trial.raised, sorted(trial.warned), file=sys.stderr)
    with open(file, "w") as out:
        json.dump([(name, *figure) for name, figure in figures.items()], out)


if __name__ == "__main__":
    if len(sys.argv) == 5:
        alone(*sys.argv[1:])
    else:
        import lab

        lab.main(lambda cell, bench: (Newest if cell["torch"] == "newest" else Here)(cell, bench))
