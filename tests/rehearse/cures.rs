//! What the short answer says of what fills a card, and that the advice beside it holds.

use super::captures::shown;
use super::scene::{Scene, error, unwrapped};
use serde_json::Value;

/// Bytes of a part of what fills the card.
fn part(answer: &Value, part: &str) -> i64 {
    let rows = answer["account"]["rows"].as_array().unwrap().iter();
    rows.filter(|row| row["part"] == part).map(|row| row["bytes"].as_i64().unwrap()).sum()
}

fn advised(answer: &Value, technique: &str) -> bool {
    answer["advice"].as_array().unwrap().iter().any(|one| one["technique"] == technique)
}

/// So many pools that expandable segments, which reserve addresses for a whole card in each, want more of them than a process has.
#[test]
fn many_pools_of_graphs_have_needs_and_one_cure_on_one_card_and_on_several() {
    let scene = Scene::new(
        "import torch\nx, kept = torch.zeros(256, device='cuda'), []\nfor _ in range(40):\n    graph = torch.cuda.CUDAGraph()\n    \
         with torch.cuda.graph(graph):\n        y = torch.empty(1 << 24, device='cuda'); del y\n    kept.append(graph)\n",
    );
    let one_for_all = "pool=torch.cuda.graph_pool_handle(), the same for all, reserves 6";
    let alone = ["1GiB", "8GiB"].map(|card| {
        let (output, answer) = scene.run(&["--gpu", card]);
        let told = unwrapped(&error(&output));
        assert!(told.contains("memory pool") && told.contains(one_for_all), "{card}: {told}");
        assert!(!advised(&answer, "expandable-segments"), "{card}: {}", answer["advice"]);
        answer["needs_at_least"].as_i64().unwrap()
    });
    let (output, table) = scene.run(&["--gpu", "1GiB,8GiB", "--gpus", "2"]);
    let needs: Vec<i64> = table.as_array().unwrap().iter().filter_map(|answer| answer["needs_at_least"].as_i64()).collect();
    assert_eq!(needs, alone, "{}", error(&output));
}

#[test]
fn what_others_have_of_a_card_that_is_too_small_is_theirs() {
    let scene = Scene::new(
        "import os, torch\nready, wait = os.pipe(), os.pipe()\nfor _ in range(2):\n    if os.fork() == 0:\n        try:\n            \
         held = torch.empty(3 << 30, dtype=torch.uint8, device='cuda')\n        finally:\n            os.write(ready[1], b'x')\n        \
         os.read(wait[0], 1); os._exit(0)\nfor _ in range(2): os.read(ready[0], 1)\nos.write(wait[1], b'xx')\nfor _ in range(2): os.wait()\n",
    );
    let (output, answer) = scene.run(&["--gpu", "5GiB"]);
    assert_eq!(answer["verdict"], "does_not_fit", "{}", error(&output));
    assert!(part(&answer, "other_processes") >= 3 << 30 && part(&answer, "cached") < 64 << 20, "{}", answer["account"]);
    assert!(!advised(&answer, "expandable-segments"), "{}", answer["advice"]);
}

#[test]
fn garbage_is_told_with_its_cure_and_no_technique_is_said_to_free_it() {
    let scene = Scene::new(
        "import torch\nclass Meter(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n        \
         self.sums = torch.zeros(32 << 20, device='cuda')\n        self.update = self.wrap(self.update)\n    \
         def wrap(self, f): return lambda *a: f(*a)\n    def update(self, x): self.sums += x\n\
         net = torch.nn.Linear(64, 64).cuda()\noptimizer = torch.optim.SGD(net.parameters(), lr=0.1)\nfor _ in range(4):\n    \
         Meter().update(1.0)\n    net(torch.randn(8, 64, device='cuda')).mean().backward(); optimizer.step(); optimizer.zero_grad()\n",
    );
    let (output, answer) = scene.run(&["--gpu", "8GiB"]);
    let told = unwrapped(&error(&output));
    assert!(told.contains("are garbage in a circle of references") && told.contains("Break the circle"), "{told}");
    assert!(!["offload-activations", "autocast-bf16"].iter().any(|name| advised(&answer, name)), "{}", answer["advice"]);
}

#[test]
fn each_kernel_that_attention_could_not_take_has_its_reason() {
    let scene = Scene::new(
        "import torch\nq = torch.randn(1, 8, 4096, 64, dtype=torch.float16, device='cuda')\nk = q[:, :2].contiguous()\n\
         mask = torch.zeros(4096, 4096, dtype=torch.float16, device='cuda')\nwith torch.inference_mode():\n    \
         torch.nn.functional.scaled_dot_product_attention(q, k, k, attn_mask=mask, enable_gqa=True)\n",
    );
    let (output, _) = scene.run(&["--gpu", "t4"]);
    let told = unwrapped(&error(&output));
    assert!(told.contains("flash: ") && told.contains("memory-efficient: "), "{told}");
}

#[test]
fn the_second_card_of_a_process_has_its_figure() {
    let scene = Scene::new(
        "import torch\nheld = [torch.empty(n << 30, dtype=torch.uint8, device=f'cuda:{at}') for at, n in enumerate((3, 1))]\n",
    );
    let (output, answer) = scene.run(&["--gpu", "8GiB", "--gpus", "2"]);
    assert!(unwrapped(&error(&output)).contains("That is GPU 0; GPU 1 1.50 GiB."), "{}", error(&output));
    assert_eq!(answer["cards"].as_array().unwrap().len(), 2);
}

/// What the card's power leaves of its clock is another share in each pass.
#[test]
fn passes_of_several_lengths_take_together_what_each_takes_alone() {
    let takes = |rows: &str| shown(&format!("lengths-{rows}")).1["time"]["total_seconds"].as_f64().unwrap();
    let (together, alone) = (takes("2048-16384-4096"), ["2048", "16384", "4096"].map(takes));
    let sum: f64 = alone.iter().sum();
    assert!((together / sum - 1.0).abs() < 0.03, "{together} and {alone:?}");
}

/// What each backward pass needs is not said to be dropped, and what it does not is.
#[test]
fn what_a_variable_keeps_is_told_where_no_graph_needs_it() {
    let of = |name: &str| {
        let (said, answer) = shown(name);
        let names = answer["processes"][0]["leftovers"].as_array().unwrap().iter().map(|left| left["variable"].clone());
        (names.collect::<Vec<Value>>(), said)
    };
    let (names, said) = of("output-needed");
    assert!(names.is_empty(), "{said}");
    let (names, said) = of("output-unneeded");
    assert_eq!(names, ["y"], "{said}");
    // The peak is after the backward pass, which needed it.
    let (names, said) = of("output-later");
    assert_eq!(names, ["y"], "{said}");
}

#[test]
fn what_a_limit_leaves_is_not_cached() {
    let scene = Scene::new(
        "import torch\ntorch.cuda.set_per_process_memory_fraction(0.5)\nheld = torch.empty(3 << 30, dtype=torch.uint8, device='cuda')\n",
    );
    let (output, answer) = scene.run(&["--gpu", "5GiB"]);
    let total = answer["account"]["total"].as_i64().unwrap();
    assert!(answer["verdict"] == "does_not_fit" && (total - (6 << 30)).abs() < 64 << 20, "{}", error(&output));
    assert!(part(&answer, "withheld") > 2 << 30 && part(&answer, "cached") < 64 << 20, "{}", answer["account"]);
}

/// A pool that is sized by free memory beside a model that is given no tokens.
#[test]
fn a_pool_beside_a_model_of_images_is_no_cache_of_keys_and_values() {
    let (said, answer) = shown("image_pool");
    assert!(answer["serves"].is_null() && answer["verdict"] == "fits", "{said}");
    assert!(part(&answer, "sized_by_free") > 6 << 30 && part(&answer, "kv_cache") == 0, "{}", answer["account"]);
    assert!(answer["needs_at_least"].as_i64().unwrap() < 2 << 30, "{answer}");
}

/// Pools that the script makes, of which no graph has one; and threads that train by themselves, whose steps come in any order.
#[test]
fn pools_of_the_script_and_threads_that_train_are_no_fault() {
    let scene = Scene::new(
        "import threading, torch\nfor _ in range(2):\n    globals().setdefault('pools', []).append(torch.cuda.MemPool())\n    \
         with torch.cuda.use_mem_pool(pools[-1]): pools.append(torch.empty(1 << 28, device='cuda'))\n\
         turns = [threading.Semaphore(1), threading.Semaphore(0)]\ndef train(at):\n    net = torch.nn.Linear(2048, 2048).cuda()\n    \
         optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n    for _ in range(3):\n        turns[at].acquire()\n        \
         net(torch.randn(8, 2048, device='cuda')).mean().backward()\n        turns[1 - at].release(); turns[at].acquire()\n        \
         optimizer.step(); optimizer.zero_grad(); turns[1 - at].release()\n\
         threads = [threading.Thread(target=train, args=(at,), daemon=True) for at in range(2)]\n\
         for each in threads: each.start()\nfor each in threads: each.join(20)\n",
    );
    let (output, answer) = scene.run(&["--gpu", "8GiB", "--steps", "all"]);
    let told = unwrapped(&error(&output));
    assert!(answer["processes"][0]["steps"].as_i64() >= Some(3) && told.contains("2 memory pools: 2.00 GiB"), "{told}");
    assert!(!told.contains("CUDA graph") && !told.contains("does not take"), "{told}");
}

/// Inference without an end, whose state is fed back with its graph.
#[test]
fn what_endless_inference_feeds_back_is_named() {
    let (said, answer) = shown("endless");
    let growth = &answer["processes"][0]["growth"];
    assert!(growth["bytes_per_round"] == 4096 && growth["kept_by"][0]["keeps"] == "state", "{growth}");
    let told = unwrapped(&said);
    assert!(told.contains("state.detach() before it is fed back") && !told.contains("`out`"), "{told}");
    // A workspace is nothing that a backward pass would need.
    assert!(answer["processes"][0]["needless_graphs"]["bytes_at_peak"].as_i64().unwrap() < 1 << 20, "{answer}");
}

/// Of a network that a CUDA graph is captured of after steps that warm it up.
#[test]
fn nothing_of_a_captured_graph_is_offloaded() {
    let scene = Scene::new(
        "import torch\nnet = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]).cuda()\noptimizer = \
         torch.optim.AdamW(net.parameters(), capturable=True); x = torch.randn(8192, 1024, device='cuda')\ndef step():\n    \
         optimizer.zero_grad(); net(x).square().mean().backward(); optimizer.step()\nside = torch.cuda.Stream(); \
         side.wait_stream(torch.cuda.current_stream())\nwith torch.cuda.stream(side):\n    for _ in range(3): \
         step()\ntorch.cuda.current_stream().wait_stream(side); torch.cuda.empty_cache(); graph = torch.cuda.CUDAGraph()\nwith \
         torch.cuda.graph(graph): step()\nfor _ in range(9): graph.replay()\n",
    );
    let (output, answer) = scene.run(&["--gpu", "rtx-4090"]);
    assert_eq!(answer["steps"], 4, "{}", error(&output));
    assert!(advised(&answer, "checkpoint-second") || !answer["advice"].as_array().unwrap().is_empty(), "{}", answer["advice"]);
    assert!(!advised(&answer, "offload-activations"), "{}", answer["advice"]);
    let (_, tried) = scene.ask(&["rehearse", "--gpu", "rtx-4090", "--what-if", "--only", "offload-activations"], &[]);
    assert!(tried.to_string().contains("a CUDA graph is captured, and its copies cannot wait"), "{tried}");
}

/// Of convolutions in channels first it is open how much a GPU reserves: a person is told where that fills the card.
#[test]
fn what_cudnn_chooses_on_a_gpu_has_a_range() {
    let scene = Scene::new(
        "import sys, torch\nnet = torch.nn.Sequential(*[torch.nn.Conv2d(64, 64, 3, padding=1) for _ in range(8)]).cuda()\nformat = \
         getattr(torch, sys.argv[1])\nnet = net.to(memory_format=format); optimizer = torch.optim.SGD(net.parameters(), 0.1)\nfor _ in \
         range(3):\n    x = torch.randn(64, 64, 128, 128, device='cuda').to(memory_format=format)\n    net(x).sum().backward(); \
         optimizer.step(); optimizer.zero_grad()\n",
    );
    let found = |answer: &Value| answer["processes"][0]["findings"].to_string().contains("\"engines\"");
    let title = "On a GPU cuDNN offers other engines for convolutions in channels first";
    let short = |gpu: &str, format: &str| {
        let output = scene.command(&["--gpu", gpu]).arg(format).env_remove("VRAMLAB_VERBOSE").output().unwrap();
        (unwrapped(&error(&output)), scene.answer())
    };
    let (said, answer) = short("80GiB", "contiguous_format");
    assert!(found(&answer) && !said.contains(title), "{said}");
    let near = format!("{}MiB", (answer["peak_on_device"].as_i64().unwrap() >> 20) * 11 / 10);
    let (said, answer) = short(&near, "contiguous_format");
    assert!(found(&answer) && said.contains(title), "{said}");
    assert!(!found(&short("80GiB", "channels_last").1));
}
