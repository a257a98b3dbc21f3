//! The witness of a step: the same wherever the same is asked for, and what differs first has its name.

use tch::{Device, Kind, Tensor};
use torch::{use_cpu_meter, witness};

/// One test, because the witness is of all that the process does.
#[test]
fn a_witness_follows_what_is_asked_for_and_names_what_differs_first() {
    tch::set_num_threads(1);
    use_cpu_meter(true);
    let step = |gelu: bool, width: i64| {
        move || {
            let input = Tensor::zeros([8, width], (Kind::Float, Device::Cpu));
            (0..40).for_each(|_| drop(&input + &input));
            drop(if gelu { input.gelu("none") } else { input.relu() });
            (0..40).for_each(|_| drop(&input * &input));
            Ok(())
        }
    };
    let of = |known: &str, gelu: bool, width: i64| witness(Device::Cpu, known, step(gelu, width)).unwrap();
    let (relu, none) = of("", false, 16);
    assert!(none.is_empty() && relu.len() < 160, "{relu}");
    assert_eq!(of(&relu, false, 16), (relu.clone(), String::new()));
    let (gelu, differs) = of(&relu, true, 16);
    assert!(gelu[..16] != relu[..16] && differs.starts_with("aten::gelu (of rows "), "{differs}");
    let (_, differs) = of(&relu, false, 32);
    assert!(differs.starts_with("aten::zeros (of rows 1 to "), "{differs}");
    // A step that fails is no witness, and nothing is followed after it.
    assert!(witness(Device::Cpu, "", || anyhow::bail!("fails")).is_err());
    assert_eq!(of(&relu, false, 16).1, "");
}
