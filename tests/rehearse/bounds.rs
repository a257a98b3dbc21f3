//! What binds memory: pools of CUDA graphs, limits that a script sets itself, what it makes as large as a card allows. A table of cards says of each
//! what a run there alone says, and a script runs on what it is said to need.

use super::scene::{Scene, error};
use serde_json::Value;

const TRAINS: &str = "
net = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.Adam(net.parameters())
for _ in range(4):
    net(torch.randn(64, 256, device='cuda')).sum().backward(); optimizer.step(); optimizer.zero_grad()
";

/// Graphs with a pool each; one after the other, each gone with its pool when the next is captured; one pool for all.
fn graphs(keep: &str, pool: &str) -> String {
    format!(
        "import torch\nx, kept, pool = torch.zeros(256, device='cuda'), [], torch.cuda.graph_pool_handle()\nfor _ in range(6):\n    \
         graph = torch.cuda.CUDAGraph()\n    with torch.cuda.graph(graph{pool}):\n        y = torch.empty(1 << 28, device='cuda'); del y\n    {keep}\n"
    )
}

/// Name, script, and cards of which it fits the last.
fn cases() -> Vec<(&'static str, String, [&'static str; 2])> {
    vec![
        ("a pool for each graph", graphs("kept.append(graph)", ""), ["4GiB", "8GiB"]),
        ("graphs that are gone", graphs("graph.replay(); del graph; torch.cuda.empty_cache()", ""), ["1GiB", "8GiB"]),
        ("one pool", graphs("kept.append(graph)", ", pool=pool"), ["1GiB", "8GiB"]),
        (
            "half of the card",
            format!(
                "import torch\ntorch.cuda.set_per_process_memory_fraction(0.5)\nheld = torch.empty(3 << 30, dtype=torch.uint8, device='cuda')\n{TRAINS}"
            ),
            ["5GiB", "8GiB"],
        ),
        (
            "nine tenths of what is free",
            format!(
                "import torch\nfree, _ = torch.cuda.mem_get_info()\npool = torch.empty(int(0.9 * free), dtype=torch.uint8, device='cuda')\n{TRAINS}"
            ),
            ["600MiB", "8GiB"],
        ),
        (
            "a batch that is halved until it fits",
            format!(
                "import torch\nsize = 8 << 30\nwhile True:\n    try:\n        torch.empty(size, dtype=torch.uint8, device='cuda')\n        break\n    \
                 except torch.OutOfMemoryError:\n        size //= 2\nheld = torch.empty(size, dtype=torch.uint8, device='cuda')\n{TRAINS}"
            ),
            ["540MiB", "6GiB"],
        ),
    ]
}

#[test]
fn a_table_of_cards_agrees_with_single_runs() {
    agree(&cases()[..1]);
}

#[test]
#[ignore = "long"]
fn tables_of_cards_agree_with_single_runs() {
    agree(&cases()[1..]);
}

fn agree(cases: &[(&str, String, [&str; 2])]) {
    for (name, script, cards) in cases {
        let scene = Scene::new(script);
        let alone: Vec<Value> = cards.iter().map(|card| scene.run(&["--gpu", card]).1).collect();
        let (output, table) = scene.run(&["--gpu", &cards.join(",")]);
        for ((card, alone), row) in cards.iter().zip(&alone).zip(table.as_array().unwrap()) {
            for field in ["verdict", "needs_at_least"] {
                assert_eq!(alone[field], row[field], "{name} on {card}, {field}: {}", error(&output));
            }
        }
        let part = |part: &str| {
            let rows = alone[1]["account"]["rows"].as_array().unwrap();
            rows.iter().filter(|row| row["part"] == part).map(|row| row["bytes"].as_i64().unwrap()).sum::<i64>()
        };
        assert_eq!(part("graph_pools") >= 5 << 30, *name == "a pool for each graph", "{name}: {}", alone[1]["account"]);
        assert_eq!(part("sized_by_free") > 6 << 30, name.starts_with("nine tenths"), "{name}: {}", alone[1]["account"]);
        let fits = |answer: &Value| matches!(answer["verdict"].as_str(), Some("fits" | "barely_fits"));
        assert!(fits(&alone[1]), "{name}: {}", alone[1]["verdict"]);
        // Of one that goes on with less, what it asked for first is needed.
        let Some(needs) = alone[1]["needs_at_least"].as_i64().filter(|_| !name.contains("halved")) else { continue };
        let (output, enough) = scene.run(&["--gpu", &format!("{needs}B"), "--quiet"]);
        assert!(fits(&enough), "{name} on {needs} bytes: {}", error(&output));
        let (output, less) = scene.run(&["--gpu", &format!("{}B", needs - (4 << 20)), "--quiet"]);
        assert!(!fits(&less), "{name} on 4 MiB less than {needs}: {}", error(&output));
    }
}
