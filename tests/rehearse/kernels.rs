//! How long single kernels take on cards, by the model that predicts a step's time.

use rehearse::Trace;
use rehearse::time::{Work, by_class, predict, work_of};

/// `matmul half m=8192 n=8192 k=8192`, with what its sizes say of FLOPs and bytes where they are not given.
fn kernel(text: &str) -> Work {
    let mut words = text.split(' ');
    let (kind, precision) = (words.next().unwrap(), words.next().unwrap());
    let given: Vec<(&str, f64)> =
        words.map(|word| word.split_once('=').unwrap()).map(|(name, value)| (name, value.parse().unwrap())).collect();
    let of = |name: &str| given.iter().find(|(other, _)| *other == name).map_or(0.0, |(_, value)| *value);
    let size = if precision == "half" { 2.0 } else { 4.0 };
    let (m, n, k, batch) = (of("m"), of("n"), of("k"), of("batch").max(1.0));
    let (flops, bytes) = match kind {
        "matmul" => (2.0 * m * n * k, size * (m * k + k * n + m * n)),
        // Causal, unless `share` is 1.
        "attention" => (4.0 * batch * m * n * k * of("share").max(0.5), 8.0 * batch * m * k),
        "attention_backward" => (5.0 * batch * m * n * k, 18.0 * batch * m * k),
        "convolution" => (2.75e11, 1e9),
        _ => (0.0, 1e9),
    };
    let text = |name: &str| match name {
        "kind" => kind.to_string(),
        "precision" => precision.to_string(),
        "operator" => String::new(),
        "flops" => if of("flops") > 0.0 { of("flops") } else { flops }.to_string(),
        "bytes" => if of("bytes") > 0.0 { of("bytes") } else { bytes }.to_string(),
        "launches" | "batch" => of(name).max(1.0).to_string(),
        "alignment" if kind == "matmul" && of(name) == 0.0 => "8".to_string(),
        _ => of(name).to_string(),
    };
    // `work_of` borrows its columns.
    work_of(|name| Some(String::leak(text(name)))).unwrap_or_else(|| panic!("{kind}"))
}

fn takes(card: &str, works: &[Work]) -> (&'static str, f64) {
    let found = by_class(works, &card.parse().unwrap()).unwrap();
    (found[0].0, found.iter().map(|(_, seconds)| seconds).sum())
}

fn seconds(card: &str, text: &str) -> f64 {
    takes(card, &[kernel(text)]).1
}

/// As they were published and sold: what is more in everything takes no longer for anything.
#[test]
fn cards_of_one_family_are_in_order() {
    const FAMILIES: [&str; 8] = [
        "rtx-3070 rtx-3080 rtx-3080-ti rtx-3090",
        "rtx-4060 rtx-4060-ti-16g rtx-4070 rtx-4070-super rtx-4070-ti rtx-4070-ti-super rtx-4080 rtx-4080-super rtx-4090",
        "rtx-5060-ti-16g rtx-5070 rtx-5070-ti rtx-5080 rtx-5090",
        "rtx-a4000 rtx-a5000",
        "l4 l40s",
        "a30 a100-40g a100-80g",
        "h100-pcie h100 h200",
        "b200 gb200",
    ];
    const KERNELS: [&str; 17] = [
        "matmul half m=4096 n=4096 k=4096",
        "matmul half m=16 n=4096 k=4096",
        "matmul single m=4096 n=4096 k=4096",
        "attention half m=2048 n=2048 k=128 batch=128",
        "attention half m=2048 n=2048 k=64 batch=128",
        "attention_backward half m=2048 n=2048 k=128 batch=128",
        "convolution half k=576 taps=9",
        "convolution half k=576 taps=9 direction=1",
        "convolution half k=576 taps=9 direction=2",
        "convolution tf32 k=576 taps=9",
        "convolution tf32 k=576 taps=9 direction=1",
        "convolution half k=576 taps=9 groups=8 direction=2",
        "convolution half k=9 taps=9 groups=64 direction=2",
        "pointwise half",
        "compiled half",
        "reduction half",
        "reduction half direction=1",
    ];
    for family in FAMILIES {
        let names: Vec<&str> = family.split(' ').collect();
        for pair in names.windows(2) {
            for text in KERNELS {
                let (lesser, better) = (seconds(pair[0], text), seconds(pair[1], text));
                // An H200's and an H100's depthwise convolutions were timed each by itself, with as many rows.
                let apart = if text.contains("k=9 ") { 1.06 } else { 1.002 };
                assert!(better < apart * lesser, "{text}: {lesser} s on {}, {better} s on {}", pair[0], pair[1]);
            }
        }
    }
}

#[test]
fn weights_that_no_cache_holds_come_from_memory() {
    // A token through 64 matrices of 23 MB, each less than half of an L4's L2, and through one of them.
    let works = vec![kernel("matmul half m=1 n=5632 k=2048"); 64];
    let bytes: f64 = works.iter().map(|work| work.bytes).sum();
    let (all, alone) = (takes("l4", &works).1, takes("l4", &works[..1]).1);
    assert!(all > bytes / 300e9 && 64.0 * alone < bytes / 300e9, "{all} s, {alone} s");
}

#[test]
fn attention_is_slower_where_it_is_short_narrow_or_leaves_the_card_idle() {
    let rate = |text: &str| {
        let work = kernel(text);
        work.flops / takes("h200", &[work]).1
    };
    let long = rate("attention half m=16384 n=16384 k=128 batch=32");
    // aiconfigurator's H200: 0.68 of the peak, 0.35 at a length of 1,024; 0.50 with heads of 64.
    assert!((0.6..0.75).contains(&(long / 989e12)), "{long}");
    let [short, narrow] = ["attention half m=1024 n=1024 k=128 batch=128", "attention half m=16384 n=16384 k=64 batch=32"]
        .map(|text| long / rate(text));
    assert!((1.6..2.4).contains(&short) && (1.2..1.6).contains(&narrow), "{short} {narrow}");
    let [few, many, whole] =
        ["batch=4", "batch=128", "batch=128 share=1"].map(|more| rate(&format!("attention half m=1024 n=1024 k=128 {more}")));
    assert!(few < 0.5 * many && whole > many, "{few} {many} {whole}");
}

#[test]
fn a_large_product_is_bound_by_compute_and_an_odd_one_takes_longer() {
    let even = seconds("h100", "matmul half m=8192 n=8192 k=8192");
    // 1.1e12 FLOPs at 989e12 a second take 1.1 ms at least, and no H100 takes three times as long.
    assert!((1.1e-3..3.3e-3).contains(&even), "{even}");
    assert!(seconds("h100", "matmul half m=8192 n=8191 k=8192 alignment=1") > 2.0 * even);
}

#[test]
fn a_third_dimension_is_one_more_loop_where_there_are_channels() {
    let of = |text: &str| takes("h200", &[kernel(&format!("convolution tf32 taps=27 flops=1e12 {text}"))]);
    let [many, few, alone] = ["flags=64 k=1728 groups=1", "flags=64 k=81 groups=1", "flags=64 k=27 groups=64 direction=2"].map(of);
    assert_eq!([many.0, few.0, alone.0], ["convolution_tf32_forward", "volume_tf32", "depthwise_tf32_weights"]);
    assert!(few.1 > 2.0 * many.1, "{few:?} {many:?}");
    assert!((many.1 / of("k=1728 groups=1").1 - 1.0).abs() < 1e-9);
}

#[test]
fn a_3x3_filter_in_fp32_has_fewer_multiplications() {
    let of = |text: &str| seconds("t4", &format!("convolution {text} k=576 taps=9 bytes=1 flops=1e12"));
    assert!(of("single stride=1") < 0.5 * of("single stride=2") && of("half stride=1") == of("half stride=2"));
}

#[test]
fn gradients_of_depthwise_convolutions_take_longer_in_channels_first() {
    let of = |flags: u32, direction: u32| {
        seconds("rtx-3090", &format!("convolution half k=9 taps=9 groups=64 flags={flags} direction={direction}"))
    };
    assert_eq!(of(0, 0), of(16, 0));
    assert!(of(0, 1) > 1.2 * of(16, 1) && of(0, 2) > 2.5 * of(16, 2));
}

/// What an H100 and an L40S keep for long beside what they reach in short loops: 645 and 750 TFLOP/s, 187 and 210.
#[test]
fn products_alone_run_into_a_limit_of_power_and_a_mixed_step_does_not() {
    let clock = |card: &str, texts: &[&str]| {
        let mut trace = Trace::default();
        trace.work = texts.iter().map(|text| kernel(text)).collect();
        predict(&trace, &card.parse().unwrap(), 1, None).unwrap().clock
    };
    let (products, passes) = ("matmul half m=16384 n=16384 k=16384", "pointwise half bytes=2e10");
    for (card, kept) in [("h100", 645.0 / 750.0), ("l40s", 187.0 / 210.0)] {
        assert!((clock(card, &[products]) / kept - 1.0).abs() < 0.05, "{card} {}", clock(card, &[products]));
    }
    assert_eq!(clock("h100", &[products, passes, passes]), 1.0);
    // Half of the power with the same chip; a card of which nothing is known.
    assert!(clock("h100-pcie", &[products]) < 0.8 && clock("rtx-4090", &[products]) == 1.0);
}
