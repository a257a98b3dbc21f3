//! Servers of one's own: found by what they do, and answered as such. Engines are tried by `tests/ecosystem`.

use super::scene::{Scene, error, said, unwrapped};
use serde_json::Value;
use std::fs;
use std::process::Output;

const SERVER: &str = include_str!("scripts/server.py");

/// The bytes of the pool that the server itself counts.
fn meter(text: &str) -> i64 {
    text.lines().find_map(|line| line.strip_prefix("meter ")).unwrap_or_else(|| panic!("{text}")).parse().unwrap()
}

fn fill(answer: &Value, what: &str) -> i64 {
    let fills = answer["serves"]["fills"].as_array().unwrap();
    fills.iter().find(|fill| fill["what"] == what).map_or(0, |fill| fill["bytes"].as_i64().unwrap())
}

#[test]
fn a_pool_of_free_memory_is_kv_cache() {
    let scene = Scene::new(SERVER);
    let (output, answer) = scene.ask(&["rehearse", "--gpu", "rtx-4090"], &["loop"]);
    let serves = &answer["serves"];
    assert_eq!(serves["kv_cache"].as_i64().unwrap(), meter(&said(&output)), "{}", error(&output));
    let memory = answer["gpu"]["memory"].as_i64().unwrap();
    assert!(serves["kv_cache"].as_i64().unwrap() * 10 > memory * 8, "{serves}");
    // All of the card is told, and the weights are those of the model: two matrices of the vocabulary, and four layers.
    let sum: i64 = serves["fills"].as_array().unwrap().iter().map(|fill| fill["bytes"].as_i64().unwrap()).sum();
    assert_eq!(sum, memory);
    assert_eq!(fill(&answer, "weights"), 2 * (2 * 8192 * 512 + 4 * (512 * 1024 + 512 * 512 + 2 * 512 * 2048)));
    assert!(fill(&answer, "CUDA graphs") > 0 && fill(&answer, "activations") > 0, "{serves}");
    let rows = answer["account"]["rows"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["part"] == "kv_cache" && row["bytes"].as_i64() >= serves["kv_cache"].as_i64()), "{rows:?}");
    assert!(rows.iter().all(|row| row["part"] != "sized_by_free"), "{rows:?}");
    assert_eq!(answer["advice"].as_array().unwrap().len(), 0, "{}", answer["advice"]);
    // A step of more requests takes no less, and none less than the card's memory for its weights.
    let times: Vec<[f64; 2]> = serves["token_times"]
        .as_array()
        .unwrap()
        .iter()
        .map(|time| ["seconds", "floor"].map(|of| time[of].as_f64().unwrap()))
        .collect();
    assert!(times.len() == 3 && times.is_sorted_by(|a, b| a[0] <= b[0]), "{times:?}");
    assert!(times.iter().all(|[seconds, floor]| seconds >= floor && *floor > 0.0), "{times:?}");
    // It starts on what it is said to need, which is less than a card of 8 GiB has, and not on a tenth less.
    let (output, answer) = scene.ask(&["rehearse", "--gpu", "8GiB"], &["loop"]);
    let needs = answer["needs_at_least"].as_i64().unwrap_or_else(|| panic!("{}", error(&output)));
    assert!(needs < 1 << 30, "{needs}");
    // Which is that to within a twentieth, and says so.
    let from = answer["serves"]["starts_from"].as_i64().unwrap();
    assert!(from < needs && (needs - from) * 20 <= needs, "{from} {needs}");
    for (share, starts) in [(100, true), (90, false)] {
        let card = format!("{}B", needs * share / 100);
        let (output, answer) = scene.ask(&["rehearse", "--gpu", &card, "--quiet"], &["loop"]);
        assert_eq!(answer["serves"]["starts"] == true, starts, "{card}: {}", error(&output));
    }
}

fn with_packages(script: &str, packages: &[(&str, &str)]) -> Scene {
    let scene = Scene::new(script);
    for (name, text) in packages {
        let path = scene.path("site-packages").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    scene
}

/// The script of an engine that is followed as vLLM is.
fn engine() -> Scene {
    let packages = [
        ("vllm/__init__.py", include_str!("scripts/engine/vllm/__init__.py")),
        ("vllm/compilation/compiler_interface.py", include_str!("scripts/engine/vllm/compilation/compiler_interface.py")),
        ("vllm/device_allocator/cumem.py", include_str!("scripts/engine/vllm/device_allocator/cumem.py")),
        ("vllm/v1/core/kv_cache_utils.py", include_str!("scripts/engine/vllm/v1/core/kv_cache_utils.py")),
        ("vllm/v1/core/sched/utils.py", include_str!("scripts/engine/vllm/v1/core/sched/utils.py")),
        ("vllm/v1/executor/multiproc_executor.py", include_str!("scripts/engine/vllm/v1/executor/multiproc_executor.py")),
        ("vllm/v1/worker/gpu_worker.py", include_str!("scripts/engine/vllm/v1/worker/gpu_worker.py")),
        (
            "vllm/distributed/device_communicators/custom_all_reduce.py",
            include_str!("scripts/engine/vllm/distributed/device_communicators/custom_all_reduce.py"),
        ),
        (
            "vllm/distributed/device_communicators/pynccl.py",
            include_str!("scripts/engine/vllm/distributed/device_communicators/pynccl.py"),
        ),
    ];
    with_packages(include_str!("scripts/engine/engine.py"), &packages)
}

/// The same as SGLang.
fn second_engine() -> Scene {
    let packages = [
        ("sglang/__init__.py", include_str!("scripts/engine/sglang/__init__.py")),
        ("sglang/srt/managers/scheduler.py", include_str!("scripts/engine/sglang/srt/managers/scheduler.py")),
        ("sglang/srt/model_executor/model_runner.py", include_str!("scripts/engine/sglang/srt/model_executor/model_runner.py")),
        ("flashinfer/jit/core.py", include_str!("scripts/engine/flashinfer/jit/core.py")),
        ("cutlass/base_dsl/dsl.py", include_str!("scripts/engine/cutlass/base_dsl/dsl.py")),
    ];
    with_packages(include_str!("scripts/engine/sgl.py"), &packages)
}

/// With kernels that are compiled as it runs, of which none are here.
#[test]
fn an_engine_in_processes_of_its_own_serves() {
    serves_in_processes_of_its_own(&["given"]);
}

#[test]
#[ignore = "long"]
fn an_engine_in_processes_of_its_own_serves_on_its_share_or_says_why_not() {
    serves_in_processes_of_its_own(&[]);
    let scene = second_engine();
    let (output, answer) = scene.ask(&["rehearse", "--gpu", "rtx-4090"], &["fails"]);
    let failure = &answer["failed"]["failure"];
    assert_eq!(failure["message"], "no kernel of attention for this head", "{}", error(&output));
    // One whose share has no room for a token lacks memory, and is no script that fails.
    let (output, answer) = scene.ask(&["rehearse", "--gpu", "rtx-4090"], &["small"]);
    let text = unwrapped(&error(&output));
    assert!(answer["verdict"] == "does_not_fit" && text.contains("leaves nothing of its share of the card"), "{text}");
    assert!(text.contains("It would start with a larger --mem-fraction-static"), "{text}");
}

fn serves_in_processes_of_its_own(arguments: &[&str]) {
    let scene = second_engine();
    let (output, answer) = scene.ask(&["rehearse", "--gpu", "rtx-4090"], arguments);
    let (text, serves) = (said(&output), &answer["serves"]);
    assert_eq!(serves["engine"], "SGLang 0.5.23", "{}", error(&output));
    assert_eq!(serves["kv_cache"].as_i64().unwrap(), meter(&text), "{serves}");
    assert!(text.contains(&format!("tokens {}\n", serves["tokens"])), "{text}: {serves}");
    // Keys and values of a request alone, not all that there are: 22 GiB take no less than 20 ms.
    assert!(serves["token_times"][0]["seconds"].as_f64().unwrap() < 5e-3, "{serves}");
    // It starts on what it is said to need: its share of any card where that is given, else all but what it leaves of this one.
    let needs = answer["needs_at_least"].as_i64().unwrap_or_else(|| panic!("{}", error(&output)));
    assert_eq!(needs > answer["gpu"]["memory"].as_i64().unwrap() / 5, arguments.is_empty(), "{needs}");
    let (output, answer) = scene.ask(&["rehearse", "--gpu", &format!("rtx-4090:{needs}B"), "--quiet"], arguments);
    assert_eq!(answer["serves"]["starts"], true, "{needs}: {}", error(&output));
}

#[test]
fn an_engine_beside_a_training_is_no_server_and_each_model_is_named() {
    let scene = engine();
    let (output, answer) = scene.ask(&["rehearse", "--gpu", "rtx-4090"], &["trains"]);
    let text = said(&output);
    assert!(answer["serves"].is_null() && answer["verdict"] == "fits", "{}", error(&output));
    assert_eq!(answer["engine"]["kv_cache"], meter(&text));
    assert!(error(&output).contains("vLLM 0.30.0 generates beside it: "), "{}", error(&output));
    let rows = answer["account"]["rows"].as_array().unwrap();
    let models: Vec<&str> =
        rows.iter().filter_map(|row| row["models"].as_array()).flatten().map(|of| of["model"].as_str().unwrap()).collect();
    assert_eq!(models, ["policy", "reference"], "{rows:?}");
    // The engine's own are no weights of a model that is trained, for which there would be advice.
    let of_engine = rows.iter().find(|row| row["part"] == "engine_weights").map(|row| row["bytes"].as_i64());
    assert_eq!(of_engine.flatten(), Some((1024 * 1024 + 1024) * 4), "{rows:?}");
    // What it samples decides nothing where each request has as many tokens as it may.
    let again = |output: &Output| error(output).contains("once more, with other values");
    let (stopped, _) = scene.ask(&["rehearse", "--gpu", "rtx-4090"], &["trains", "stops"]);
    assert_eq!((again(&output), again(&stopped)), (false, true), "{}", error(&output));
    // It runs on what it is said to need, of which the engine has its share, and not on a tenth less.
    let needs = answer["needs_at_least"].as_i64().unwrap();
    for (share, fits) in [(100, true), (90, false)] {
        let card = format!("rtx-4090:{}B", needs * share / 100);
        let (output, answer) = scene.ask(&["rehearse", "--gpu", &card, "--quiet"], &["trains"]);
        assert_eq!(answer["verdict"] == "fits" || answer["verdict"] == "barely_fits", fits, "{card}: {}", error(&output));
    }
}

/// With no more than the engine itself says, and on the fewest cards.
#[test]
fn fit_finds_how_long_and_on_how_many_cards_an_engine_starts() {
    let scene = engine();
    let flags = ["fit", "--gpu", "rtx-4090", "--context", "--max-model-len {}"];
    let (output, fits) = scene.ask(&flags, &["--max-model-len", "5000000"]);
    let text = said(&output);
    let (largest, tried) = (fits[0]["largest"].as_u64().unwrap_or_else(|| panic!("{text}")), fits[0]["tried"].as_array().unwrap());
    assert!((3_000_000..5_000_000).contains(&largest) && tried.len() == 2, "{text}");
    assert!(text.contains(&format!("With --max-model-len {largest} it has ")) && text.contains(" of KV cache"), "{text}");
    // It says itself what it lacks, and starts with what it says.
    let (output, answer) = scene.ask(&["rehearse", "--gpu", "rtx-4090"], &["--max-model-len", "5000000"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(
        error(&output).contains("DOES NOT START on rtx-4090: it ends before it has a KV cache: one request of"),
        "{}",
        error(&output)
    );
    assert_eq!(answer["serves"]["would_start"][0], format!("--max-model-len {largest}"));
    let flags = ["fit", "--gpu", "rtx-4090", "--cards", "--tensor-parallel-size {}"];
    let (output, fits) = scene.ask(&flags, &["--max-model-len", "9000000"]);
    assert_eq!((&fits[0]["largest"], fits[0]["tried"].as_array().map(Vec::len)), (&Value::from(4), Some(3)), "{}", error(&output));
}

#[test]
fn an_engine_that_sleeps_is_not_on_the_card_meanwhile() {
    let (output, answer) = engine().ask(&["rehearse", "--gpu", "rtx-4090"], &["trains", "sleeps"]);
    let (text, sleep) = (error(&output), &answer["engine"]["sleep"]);
    let [asleep, awake] = ["asleep", "awake"].map(|of| sleep[of].as_i64().unwrap_or_else(|| panic!("{text}")));
    assert_eq!((&sleep["times"], awake - asleep), (&Value::from(3), meter(&said(&output))), "{text}");
    assert!(sleep["asleep_at"]["line"].is_u64() && text.contains("It sleeps 3 times: "), "{sleep}");
    // And does not fit where there is no room for it when it wakes up.
    let (output, answer) = engine().ask(&["rehearse", "--gpu", "rtx-4090"], &["trains", "sleeps", "crowded"]);
    assert_eq!((output.status.code(), &answer["verdict"]), (Some(3), &"does_not_fit".into()), "{}", error(&output));
    assert!(error(&output).contains("(wake_up)"), "{}", error(&output));
    // What would do is told by one rehearsal on a card that is large enough.
    assert!(!error(&output).contains("once more on a card"), "{}", error(&output));
}

#[test]
fn ranks_of_an_engine_have_a_pool_each_beside_nccls_buffers() {
    let scene = engine();
    let mut command = scene.program();
    command.args(["rehearse", "--gpu", "rtx-4090", "--gpus", "2", "--json"]).arg(scene.path("answer.json")).arg("--");
    command.arg(common::python()).args(["-m", "torch.distributed.run", "--nproc_per_node", "2"]);
    let output = command.arg(scene.path("train.py")).arg("ranks").output().unwrap();
    let (text, answer) = (error(&output), scene.answer());
    assert!(answer["serves"]["gpus"] == 2 && text.contains(" of KV cache on each of 2 GPUs, "), "{text}");
    assert_eq!(fill(&answer, "outside of PyTorch"), 36 << 20, "{text}");
    assert!(answer["nccl"].is_null(), "{text}");
    let pools: Vec<i64> = said(&output).lines().filter_map(|line| line.strip_prefix("meter ")?.parse().ok()).collect();
    assert_eq!(pools, [answer["serves"]["kv_cache"].as_i64().unwrap(); 2], "{text}");
}

#[test]
fn an_engine_starts_on_what_it_needs() {
    let scene = engine();
    // Its share has to be free, and what it takes beyond that.
    for (arguments, step) in [(&[][..], 64 << 20), (&["beyond"], 256 << 20)] {
        let (_, answer) = scene.ask(&["rehearse", "--gpu", "rtx-4090", "--quiet"], arguments);
        let needs = answer["needs_at_least"].as_i64().unwrap();
        for (less, starts) in [(0, true), (step, false)] {
            let card = format!("rtx-4090:{}B", needs - less);
            let (output, answer) = scene.ask(&["rehearse", "--gpu", &card], arguments);
            assert_eq!(answer["serves"]["starts"] == true, starts, "{card}: {}", error(&output));
            let has_no_share = error(&output).contains("before it loads its model: its share of the card is");
            assert_eq!(has_no_share, !starts && arguments.is_empty(), "{}", error(&output));
        }
    }
}

/// Layers that have a block each are rounded up together, by next to nothing or by a page each: between those two it may start or not.
#[test]
fn an_engine_says_how_far_rounding_decides_what_it_starts_on() {
    let scene = engine();
    let (output, answer) = scene.ask(&["rehearse", "--gpu", "rtx-4090"], &["layers", "beyond"]);
    let (most, least) = (answer["needs_at_least"].as_i64().unwrap(), answer["serves"]["starts_from"].as_i64().unwrap());
    let width = most - least;
    // 32 pages, of a card of which a tenth has to do for them.
    assert!((400 << 20..700 << 20).contains(&width), "{most} {least}: {}", error(&output));
    assert!(unwrapped(&error(&output)).contains(" GiB to "), "{}", error(&output));
    for (memory, starts) in
        [(most, true), (most + (20 << 20), true), (most + (40 << 20), true), (least, true), (least - (64 << 20), false)]
    {
        let (output, answer) = scene.ask(&["rehearse", "--gpu", &format!("rtx-4090:{memory}B"), "--quiet"], &["layers", "beyond"]);
        assert_eq!(answer["serves"]["starts"] == true, starts, "{memory}: {}", error(&output));
    }
}

/// What an engine sets by the card's size is another thing on each side of it.
#[test]
fn cards_of_an_engine_have_the_defaults_of_their_size() {
    let scene = engine();
    // On the first it has its share, and no room for what it takes beyond.
    let (cards, arguments) = (["h100:8GiB", "h100:40GiB", "h100:80GiB"], ["defaults", "beyond"]);
    let (output, answers) = scene.ask(&["rehearse", "--gpu", &cards.join(",")], &arguments);
    for (card, of_both) in cards.iter().zip(answers.as_array().unwrap()) {
        let (_, alone) = scene.ask(&["rehearse", "--gpu", card, "--quiet"], &arguments);
        let [both, alone] = [of_both, &alone].map(|answer| &answer["serves"]);
        assert_eq!(
            (&both["starts"], &alone["starts"]),
            (&Value::from(*card != cards[0]), &both["starts"]),
            "{card}: {}",
            error(&output)
        );
        let [both, alone] = [both, alone].map(|serves| serves["tokens"].as_i64().unwrap_or(0));
        // Four gibibytes are a tenth of the larger two's.
        assert!((both - alone).abs() * 1000 < alone || *card == cards[0], "{card}: {alone}: {}", error(&output));
    }
}

#[test]
fn a_table_of_cards_says_why_one_failed() {
    let scene = engine();
    let path = scene.path("site-packages").join("flashinfer.py");
    fs::write(path, "def build():\n    raise RuntimeError('Could not find nvcc')\n").unwrap();
    let (output, answers) = scene.ask(&["rehearse", "--gpu", "rtx-4090,t4"], &["compiles"]);
    let text = error(&output);
    assert_eq!(
        (&answers[0]["serves"]["starts"], &answers[1]["processes"][0]["exception"]["package"]),
        (&true.into(), &"flashinfer".into())
    );
    assert!(
        text.contains("  t4: RuntimeError: Could not find nvcc (flashinfer compiles kernels for this card as it runs"),
        "{text}"
    );
}

/// What is timed as it is compiled is in the first start's profile and not in the next one's.
#[test]
fn an_engine_that_compiles_says_what_its_next_start_has() {
    let scene = engine();
    let (output, first) = scene.ask(&["rehearse", "--gpu", "rtx-4090"], &["cold"]);
    let (_, next) = scene.ask(&["rehearse", "--gpu", "rtx-4090"], &[]);
    let [has, later, second] =
        [&first["serves"]["tokens"], &first["serves"]["later"], &next["serves"]["tokens"]].map(|of| of.as_u64().unwrap());
    assert!(has < later && later.abs_diff(second) * 1000 < second, "{has} {later} {second}: {}", error(&output));
    assert!(
        next["serves"]["later"].is_null() && unwrapped(&error(&output)).contains("; the next one has about "),
        "{}",
        error(&output)
    );
}

#[test]
fn an_engine_names_why_its_rank_failed() {
    let (output, answer) = engine().ask(&["rehearse", "--gpu", "rtx-4090"], &["fails"]);
    let failure = &answer["failed"]["failure"];
    assert_eq!((&failure["type"], &failure["message"]), (&"ValueError".into(), &"no kernel of attention for this head".into()));
    assert!(!error(&output).contains("See root cause above. ("), "{}", error(&output));
}

#[test]
fn layers_of_an_engine_that_share_a_block_are_counted_once() {
    let scene = engine();
    for arguments in [&["logs"][..], &[]] {
        let (output, answer) = scene.ask(&["rehearse", "--gpu", "rtx-4090", "--quiet"], arguments);
        assert!(
            said(&output).contains(&format!("tokens {}\n", answer["serves"]["tokens"])),
            "{}: {}",
            said(&output),
            answer["serves"]
        );
    }
    let (output, answer) = scene.ask(&["rehearse", "--gpu", "rtx-4090"], &[]);
    let (text, serves) = (said(&output), &answer["serves"]);
    assert_eq!(serves["engine"], "vLLM 0.30.0", "{}", error(&output));
    assert_eq!(serves["kv_cache"], meter(&text));
    assert!(text.contains(&format!("tokens {}", serves["tokens"])), "{text}: {serves}");
    // What it takes off its share: all that stays at once, and the graphs not twice.
    let beside: Vec<(&str, i64)> = serves["beside"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (one["what"].as_str().unwrap(), one["bytes"].as_i64().unwrap()))
        .collect();
    let measured =
        [("weights", 4 << 20), ("activations", 2 << 20), ("CUDA graphs as estimated", 1 << 20), ("kept beside weights", 2 << 20)];
    assert_eq!(beside[..4], measured);
}

#[test]
fn the_code_of_kernels_comes_with_the_first_product_and_counts_as_outside_of_pytorch() {
    let scene = Scene::new(
        "import torch\ndef outside():\n    free, total = torch.cuda.mem_get_info()\n    return total - free - torch.cuda.memory_reserved()\n\
         x = torch.empty(64, 64, device='cuda'); before = outside(); x.fill_(1); few = outside(); x @ x\n\
         print('meter', (outside() - before) * (few == before))\nx @ x\n",
    );
    for (card, code) in [("h100", 136 << 20), ("t4", 40 << 20), ("h100:40GiB", 136 << 20)] {
        let (output, answer) = scene.run(&["--gpu", card]);
        assert_eq!(meter(&said(&output)), code, "{card}: {}", error(&output));
        // All of it is told, whenever it came.
        assert_eq!(answer["gpu"]["name"], card);
    }
}

#[test]
fn a_server_is_ended_when_it_listens_or_has_answered_what_it_is_asked() {
    let scene = Scene::new(SERVER);
    for (flags, ended) in [
        (&[][..], "the server listens on port"),
        (&["--requests", "3×40+8"][..], "--requests: 3 of 3 were answered; then the server was ended"),
    ] {
        let (output, answer) = scene.ask(&[&["rehearse", "--gpu", "rtx-4090"][..], flags].concat(), &["http"]);
        let text = error(&output);
        assert!(output.status.success() && answer["serves"]["starts"] == true, "{text}");
        assert!(answer["notes"].to_string().contains(ended), "{text}");
        let passes = answer["passes"].as_u64().unwrap();
        assert_eq!(passes >= 3 * 9, !flags.is_empty(), "{passes}: {text}");
    }
    let (output, _) = scene.ask(&["rehearse", "--requests", "8+64"], &["http"]);
    assert!(!output.status.success() && error(&output).contains("as in 8x512+64"), "{}", error(&output));
}

#[test]
fn what_a_training_makes_of_what_is_free_is_no_servers() {
    let scene = Scene::new(
        "import torch\nfree, _ = torch.cuda.mem_get_info()\npool = torch.empty(int(0.5 * free), dtype=torch.uint8, device='cuda')\n\
         net = torch.nn.Linear(256, 256).cuda()\noptimizer = torch.optim.Adam(net.parameters())\nfor _ in range(4):\n    \
         net(torch.randn(64, 256, device='cuda')).sum().backward(); optimizer.step(); optimizer.zero_grad()\n",
    );
    let (output, answer) = scene.run(&["--gpu", "8GiB"]);
    assert!(answer["serves"].is_null() && answer["verdict"] == "fits", "{}", error(&output));
}
