//! A checkpoint, and how each reader brings it into a model.

use super::*;
use models::Model;
use std::path::{Path, PathBuf};
use tch::nn::{Adam, OptimizerConfig};
use tempfile::TempDir;
use torch::{SafetensorsFile, save_pickle};

/// Named tensors, as a reader gives them.
pub type LoadedState = Vec<(String, Tensor)>;

/// A checkpoint in a folder that goes with it, and the model that it is to come into.
pub struct Load {
    pub model: Model,
    /// Of the model.
    pub bytes: f64,
    path: PathBuf,
    _folder: TempDir,
    reader: Reader,
    map: Option<Device>,
}

impl Load {
    /// Writes the file, from the device that it is to be tagged with; then makes the model, empty unless it is left as it was saved.
    /// `between` is run when the file is there and the model is not.
    pub fn new(cell: Loaded, bench: &Bench, between: impl FnOnce() -> Result<()>) -> Result<Load> {
        let saved_on = if cell.saved == Saved::OnDevice { bench.device } else { Device::Cpu };
        let map = match cell.map {
            Map::Nothing => None,
            Map::ToDevice => Some(bench.device),
            Map::Cpu => Some(Device::Cpu),
        };
        let folder = tempfile::Builder::new().prefix("vramlab-").tempdir().context("making a folder for the checkpoint")?;
        let path = write(&filled(cell.model.0, saved_on, bench)?, folder.path(), cell.reader)?;
        between()?;
        let model = filled(cell.model.0, bench.device, bench)?;
        if cell.reader != Reader::AsSaved {
            no_grad(|| model.store.variables().values_mut().for_each(|variable| drop(variable.zero_())));
        }
        let bytes = bytes(model.store.variables().values()) as f64;
        Ok(Load { model, bytes, path, _folder: folder, reader: cell.reader, map })
    }

    /// Reads the file and copies what it gives into the model; the state is what a program then still holds.
    pub fn load(&self) -> Result<LoadedState> {
        let path: &Path = &self.path;
        let state = match (self.reader, self.map) {
            (Reader::AsSaved, _) => return Ok(LoadedState::new()),
            (Reader::Ot, None) => Tensor::load_multi(path)?,
            (Reader::Ot, Some(device)) => Tensor::load_multi_with_device(path, device)?,
            (Reader::Pickle, None) => Tensor::loadz_multi(path)?,
            (Reader::Pickle, Some(device)) => Tensor::loadz_multi_with_device(path, device)?,
            (Reader::Safetensors, device) => moved(Tensor::read_safetensors(path)?, device)?,
            (Reader::Views, device) => {
                let file = SafetensorsFile::open(path)?;
                let views = file.names().into_iter().map(|name| Ok((name.clone(), file.tensor(&name)?))).collect::<Result<_>>()?;
                moved(views, device)?
            }
            (Reader::Mapped, _) => {
                SafetensorsFile::open(path)?.load_into(&self.model.store)?;
                return Ok(LoadedState::new());
            }
            (Reader::Load | Reader::LoadUnrestricted | Reader::LoadMmap, _) => bail!("{:?} is PyTorch's in Python", self.reader),
        };
        let mut variables = self.model.store.variables();
        ensure!(state.len() == variables.len(), "the file has {} tensors and the model {}", state.len(), variables.len());
        for (name, tensor) in &state {
            // The formats of libtorch's modules write a dot in a name as a bar.
            let name = name.replace('|', ".");
            let variable = variables.get_mut(&name).with_context(|| format!("the model has no '{name}'"))?;
            no_grad(|| variable.f_copy_(tensor))?;
        }
        Ok(state)
    }

    /// One step with Adam, whose state is new.
    pub fn train(&self) -> Result<()> {
        let batch = self.model.batch(8);
        let mut optimizer = Adam::default().build(&self.model.store, 0.0)?;
        self.model.loss(&self.model.forward(&batch.inputs, true), &batch.targets, Reduction::Mean).f_backward()?;
        optimizer.step();
        optimizer.zero_grad();
        Ok(())
    }

    pub fn parameters(&self) -> Vec<Tensor> {
        self.model.parameters().iter().map(Tensor::detach).collect()
    }
}

/// A model with the values that the seed gives on the CPU, wherever it is: a GPU's generator gives others.
fn filled(name: &str, device: Device, bench: &Bench) -> Result<Model> {
    tch::manual_seed(bench.seed);
    let model = Model::named(name, device)?;
    if bench.platform == Platform::Gpu && device != Device::Cpu {
        tch::manual_seed(bench.seed);
        let values = Model::named(name, Device::Cpu)?.store.variables();
        for (name, mut variable) in model.store.variables() {
            no_grad(|| variable.f_copy_(&values[&name]))?;
        }
    }
    Ok(model)
}

/// Writes a model in the reader's format.
fn write(model: &Model, folder: &Path, reader: Reader) -> Result<PathBuf> {
    use Reader::*;
    let variables = model.store.variables();
    let mut named: Vec<(&str, &Tensor)> = variables.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    named.sort_by_key(|(name, _)| *name);
    let room = || format!("writing a checkpoint to {}; TMPDIR names another folder for temporary files", folder.display());
    let path = folder.join("weights");
    match reader {
        AsSaved => {}
        Ot => Tensor::save_multi(&named, &path).with_context(room)?,
        Pickle => save_pickle(&path, &named).with_context(room)?,
        Safetensors | Views | Mapped => Tensor::write_safetensors(&named, &path).with_context(room)?,
        Load | LoadUnrestricted | LoadMmap => bail!("{reader:?} is PyTorch's in Python"),
    }
    Ok(path)
}

/// A state of the CPU on the device that it is mapped to.
fn moved(state: LoadedState, device: Option<Device>) -> Result<LoadedState> {
    let Some(device) = device else { return Ok(state) };
    state.into_iter().map(|(name, tensor)| Ok((name, tensor.f_to_device(device)?))).collect()
}
