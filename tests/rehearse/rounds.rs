//! What a script repeats: passes without an end, passes of several lengths, what each round leaves behind, models of one class.

use crate::captures::shown;
use crate::scene::{Scene, error};
use serde_json::Value;

fn fitting(script: &str, flags: &[&str]) -> (Value, String) {
    let (output, answer) = Scene::new(script).run(&[&["--gpu", "rtx-4090"][..], flags].concat());
    let said = error(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    (answer, said)
}

#[test]
fn passes_without_an_end_are_stopped_and_those_that_have_one_are_not() {
    let script = |loops: &str| {
        format!(
            "
import itertools, torch
net, x = torch.nn.Linear(64, 64).cuda(), torch.ones(512, 64, device='cuda')
{loops} x = net(x)
print('at its end')
"
        )
    };
    for (loops, flags, passes) in [
        ("while True:", &[][..], Some(32)),
        ("while True:", &["--passes", "7"], Some(7)),
        ("for _ in itertools.count():", &[], Some(32)),
        ("for _ in range(100):", &[], None),
        ("for _ in range(100):", &["--passes", "9"], Some(9)),
    ] {
        let (answer, said) = fitting(&script(loops), flags);
        assert_eq!(answer["passes"].as_u64(), passes, "{loops}: {said}");
        // The graph of each holds the one before.
        assert!(answer["processes"][0]["growth"]["rounds"].as_u64() >= Some(6), "{loops}: {said}");
    }
}

#[test]
fn passes_are_summed_and_a_prefilled_buffer_grows() {
    let (said, answer) = shown("lengths-64-16384-512-8192");
    let time = |name: &str| answer["time"][name].as_f64().unwrap();
    assert!(time("total_seconds") > 1.4 * time("step_seconds") && time("total_seconds") < 2.0 * time("step_seconds"), "{said}");
    let (said, answer) = shown("frames");
    let each = answer["processes"][0]["growth"]["bytes_per_round"].as_i64().unwrap();
    assert!((3 << 16..=5 << 16).contains(&each), "{each}: {said}");
}

#[test]
fn models_of_one_class_are_told_apart_by_the_variables_that_hold_them() {
    let (said, answer) = shown("reference");
    let modules = answer["processes"][0]["peak"]["modules"].to_string();
    assert!(modules.contains("trainer.policy") && modules.contains("trainer.reference"), "{modules}\n{said}");
}
