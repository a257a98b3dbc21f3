//! What our side of a cell and its PyTorch reference hand to each other, as safetensors files: the start, so that both compute from the
//! same numbers, and the reference's outcome, which ours is compared with.

use crate::measure::{Quantity, Step};
use anyhow::{Context, Result, ensure};
use base::order::grouped;
use std::path::Path;
use tch::{Device, Tensor};

/// Writes what a step begins with.
///
/// # Errors
/// The step hands nothing over; the file cannot be written.
pub fn write_start(step: &Step, path: &Path) -> Result<()> {
    let start = step.begins_with();
    ensure!(
        !start.is_empty(),
        "this step hands nothing over, so no reference can begin as it does: Step::start is to give its tensors"
    );
    let start: Vec<(String, Tensor)> = start.iter().map(|(name, t)| (name.clone(), t.detach().to_device(Device::Cpu))).collect();
    Tensor::write_safetensors(&start, path)
        .with_context(|| format!("writing a cell's start to {}; TMPDIR names another folder for temporary files", path.display()))
}

/// Reads the outcome that a reference wrote: tensors `NAME/0`, `NAME/1`, ... for each quantity.
///
/// # Errors
/// The file cannot be read, or a name in it is none of that form.
pub fn read_outcome(path: &Path) -> Result<Vec<Quantity>> {
    let named = |(full, tensor): (String, Tensor)| {
        let number = full.rsplit_once('/').and_then(|(name, number)| Some((name.to_string(), number.parse::<usize>().ok()?)));
        let (name, number) = number.with_context(|| format!("'{full}' is no tensor of an outcome"))?;
        anyhow::Ok((name, (number, tensor)))
    };
    let read = Tensor::read_safetensors(path).context("reading the outcome of PyTorch's side")?;
    let quantities = grouped(read.into_iter().map(named).collect::<Result<Vec<_>>>()?);
    let ordered = |(name, mut tensors): (String, Vec<(usize, Tensor)>)| {
        tensors.sort_by_key(|(number, _)| *number);
        Quantity { name, tensors: tensors.into_iter().map(|(_, tensor)| tensor).collect() }
    };
    Ok(quantities.into_iter().map(ordered).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Kind;

    #[test]
    fn starts_and_outcomes_come_back_as_they_were() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("start.safetensors");
        let value = |i: i64| Tensor::full([2], i, (Kind::Float, Device::Cpu));
        // Eleven, so that their order is not that of their names.
        let tensors: Vec<(String, Tensor)> = (0..11).map(|i| (format!("gradient/{i}"), value(i))).collect();
        let handing = |start| Step::new(|_| Ok(())).start(start);
        let with_gradient = handing(vec![("weight".into(), value(3).set_requires_grad(true))]);
        write_start(&with_gradient, &path).unwrap();
        assert_eq!(Tensor::read_safetensors(&path).unwrap(), [("weight".to_string(), value(3))]);
        write_start(&handing(tensors), &path).unwrap();
        let outcome = read_outcome(&path).unwrap();
        assert_eq!((outcome.len(), outcome[0].name.as_str()), (1, "gradient"));
        assert_eq!(outcome[0].tensors, (0..11).map(value).collect::<Vec<_>>());
        assert!(write_start(&handing(vec![]), &path).unwrap_err().to_string().contains("Step::start"));
        write_start(&with_gradient, &path).unwrap();
        assert!(read_outcome(&path).unwrap_err().to_string().contains("'weight' is no tensor of an outcome"));
    }
}
