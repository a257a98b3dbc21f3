//! Safetensors files without a second copy of the model.
//!
//! tch's readers (`VarStore::load`, `Tensor::read_safetensors`) take the whole file into memory first, and then copy each tensor out of it.
//! Here a file is opened by its header alone; a tensor is a view on the mapped file, whose pages come when they are read, and
//! [`SafetensorsFile::load_into`] copies one tensor at a time into the parameters, on whatever device they are. So the peak of a load is the
//! model and one tensor.

use super::native::{map_file, tensor_over_file};
use anyhow::{Context, Result, anyhow, bail, ensure};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use safetensors::{SafeTensorError, SafeTensors};
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use tch::nn::VarStore;
use tch::{Device, Kind, Tensor};

/// An open safetensors file. Its tensors carry no device: they are the CPU's until they are copied elsewhere.
///
/// Nobody may cut the file short while it is open: reading a page that is gone ends the process, as with every mapped file.
#[derive(Debug)]
pub struct SafetensorsFile {
    path: PathBuf,
    file: File,
    metadata: Metadata,
    /// Where the tensors begin, in bytes from the start of the file.
    data: u64,
}

impl SafetensorsFile {
    /// Opens a file and reads its header. That the file has all bytes that the header speaks of is checked here; the tensors are not read.
    ///
    /// # Errors
    /// The file cannot be read; it is no safetensors file; it is shorter or longer than its header says.
    pub fn open(path: impl AsRef<Path>) -> Result<SafetensorsFile> {
        let path = path.as_ref().to_path_buf();
        let file = File::open(&path).with_context(|| format!("opening {}", path.display()))?;
        let about = file.metadata().with_context(|| format!("reading {}", path.display()))?;
        ensure!(about.is_file(), "{} is no file", path.display());
        ensure!(about.len() > 0, "{} is empty", path.display());
        let map = map_file(&file).with_context(|| format!("mapping {}", path.display()))?;
        let (header, metadata) = SafeTensors::read_metadata(&map).map_err(|e| refusal(&path, &map, &e))?;
        let data = header as u64 + 8;
        Ok(SafetensorsFile { path, file, metadata, data })
    }

    /// Names of the tensors, in the order in which they stand in the file.
    pub fn names(&self) -> Vec<String> {
        self.metadata.offset_keys()
    }

    /// Bytes of all tensors together.
    pub fn bytes(&self) -> u64 {
        self.metadata.data_len() as u64
    }

    /// A tensor as a view on the file: no byte of it is read yet, and none is copied. Each call maps the tensor's part of the file anew,
    /// and the last tensor over a part unmaps it, also after this object is gone. Writing to the tensor does not change the file. (A tensor
    /// that stands where its elements are not aligned is copied into memory of its own.)
    ///
    /// # Errors
    /// No such name; a kind that libtorch does not have.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        let info = self.metadata.info(name).with_context(|| {
            let names = self.names();
            let some: Vec<&str> = names.iter().take(8).map(String::as_str).collect();
            format!(
                "{} has no tensor '{name}'; of its {} tensors the first are {}",
                self.path.display(),
                names.len(),
                some.join(", ")
            )
        })?;
        self.view(info).with_context(|| format!("tensor '{name}' of {}", self.path.display()))
    }

    fn view(&self, info: &TensorInfo) -> Result<Tensor> {
        let kind = kind(info.dtype)?;
        let shape = shape(info)?;
        let (start, end) = info.data_offsets;
        let (offset, length) = (self.data + start as u64, end - start);
        if length == 0 {
            return Ok(Tensor::f_empty(&shape, (kind, Device::Cpu))?);
        }
        if offset.is_multiple_of(kind.elt_size_in_bytes() as u64) {
            return Ok(tensor_over_file(&self.file, offset, length, &shape, kind)?);
        }
        let map = map_file(&self.file)?;
        let at = usize::try_from(offset)?;
        let bytes = map.get(at..at + length).context("the file was cut short since it was opened")?;
        Ok(Tensor::f_from_data_size(bytes, &shape, kind)?)
    }

    /// Copies the tensors into the variables of the same names, one at a time, in the order of the file. A variable of another kind gets
    /// the values converted. All names and shapes are compared before anything is written.
    ///
    /// # Errors
    /// Variables that the file lacks, tensors that the store lacks, or shapes that differ: all of them are named, and the variables are as
    /// they were. What the device says to a copy; variables before it are then written.
    pub fn load_into(&self, store: &VarStore) -> Result<()> {
        let variables = store.variables();
        self.compare(&variables)?;
        for name in self.names() {
            if let Some(variable) = variables.get(&name) {
                // Detached, so that autograd allows the write; the memory is the variable's own.
                let mut variable = variable.detach();
                variable.f_copy_(&self.tensor(&name)?).with_context(|| format!("copying '{name}' to {:?}", store.device()))?;
            }
        }
        Ok(())
    }

    fn compare(&self, variables: &HashMap<String, Tensor>) -> Result<()> {
        let mut complaints = Vec::new();
        let mut missing: Vec<&String> = variables.keys().filter(|name| self.metadata.info(name).is_none()).collect();
        missing.sort();
        let unexpected: Vec<String> = self.names().into_iter().filter(|name| !variables.contains_key(name)).collect();
        if !missing.is_empty() {
            complaints.push(format!("missing in the file: {}", listed(&missing)));
        }
        if !unexpected.is_empty() {
            complaints.push(format!("unexpected in the file: {}", listed(&unexpected)));
        }
        let mut names: Vec<(&String, &Tensor)> = variables.iter().collect();
        names.sort_by_key(|(name, _)| *name);
        for (name, variable) in names {
            if let Some(info) = self.metadata.info(name)
                && shape(info)? != variable.size()
            {
                complaints.push(format!("'{name}' has shape {:?} in the file and {:?} in the model", info.shape, variable.size()));
            }
        }
        if complaints.is_empty() {
            return Ok(());
        }
        let shown = complaints.iter().take(8).cloned().collect::<Vec<_>>().join("; ");
        let more = complaints.len().saturating_sub(8);
        let rest = if more > 0 { format!("; and {more} more") } else { String::new() };
        bail!("{} does not fit the model: {shown}{rest}", self.path.display())
    }
}

/// Some names, and how many there are beyond them.
fn listed<T: AsRef<str>>(names: &[T]) -> String {
    let shown = names.iter().take(8).map(AsRef::as_ref).collect::<Vec<&str>>().join(", ");
    if names.len() > 8 { format!("{shown} and {} more", names.len() - 8) } else { shown }
}

fn shape(info: &TensorInfo) -> Result<Vec<i64>> {
    info.shape.iter().map(|size| i64::try_from(*size).context("a dimension that 63 bits do not hold")).collect()
}

fn kind(dtype: Dtype) -> Result<Kind> {
    Ok(match dtype {
        Dtype::BOOL => Kind::Bool,
        Dtype::U8 => Kind::Uint8,
        Dtype::I8 => Kind::Int8,
        Dtype::I16 => Kind::Int16,
        Dtype::I32 => Kind::Int,
        Dtype::I64 => Kind::Int64,
        Dtype::F16 => Kind::Half,
        Dtype::BF16 => Kind::BFloat16,
        Dtype::F32 => Kind::Float,
        Dtype::F64 => Kind::Double,
        other => bail!("kind {other:?} is not read here: convert the file to one that tch's tensors have"),
    })
}

/// What is wrong with a file, and what it may be instead.
fn refusal(path: &Path, bytes: &[u8], error: &SafeTensorError) -> anyhow::Error {
    let path = path.display();
    match error {
        _ if bytes.starts_with(b"PK") => anyhow!(
            "{path} is no safetensors file but a zip archive, as torch.save and tch's VarStore::save write: load it with \
             Tensor::loadz_multi, or Tensor::load_multi where tch wrote it"
        ),
        SafeTensorError::MetadataIncompleteBuffer => {
            anyhow!("{path} is cut short, or has bytes too many: its {} bytes are not those that its header speaks of", bytes.len())
        }
        SafeTensorError::HeaderTooSmall => anyhow!("{path} is no safetensors file: it has {} bytes", bytes.len()),
        SafeTensorError::InvalidHeaderLength => {
            anyhow!("{path} is cut short inside its header, or no safetensors file: it has {} bytes", bytes.len())
        }
        other => anyhow!("{path} is no safetensors file: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::nn::Init;

    const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

    fn store(shapes: &[(&str, &[i64])]) -> VarStore {
        let store = VarStore::new(Device::Cpu);
        for (name, shape) in shapes {
            let _ = store.root().var(name, shape, Init::Const(0.0));
        }
        store
    }

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    fn written(folder: &tempfile::TempDir, tensors: &[(&str, Tensor)]) -> PathBuf {
        let path = folder.path().join("weights.safetensors");
        Tensor::write_safetensors(tensors, &path).unwrap();
        path
    }

    fn abc() -> [(&'static str, Tensor); 3] {
        [
            ("a", Tensor::arange(6, FLOAT).reshape([2, 3])),
            ("b", Tensor::arange(5, (Kind::Int64, Device::Cpu))),
            ("c", Tensor::from_slice(&[true, false, true])),
        ]
    }

    #[test]
    fn tensors_are_what_was_written_and_outlive_the_file_object() {
        let folder = folder();
        let path = written(&folder, &abc());
        let file = SafetensorsFile::open(&path).unwrap();
        let mut names = file.names();
        names.sort();
        assert_eq!((names, file.bytes()), (vec!["a".to_string(), "b".into(), "c".into()], 24 + 40 + 3));
        let views: Vec<Tensor> = abc().iter().map(|(name, _)| file.tensor(name).unwrap()).collect();
        drop(file);
        for (view, (name, tensor)) in views.iter().zip(abc()) {
            assert_eq!(view, &tensor, "{name}");
            assert_eq!((view.kind(), view.size()), (tensor.kind(), tensor.size()));
        }
    }

    #[test]
    fn writing_to_a_view_leaves_the_file() {
        let folder = folder();
        let path = written(&folder, &abc());
        let before = std::fs::read(&path).unwrap();
        let file = SafetensorsFile::open(&path).unwrap();
        let mut view = file.tensor("a").unwrap();
        let _ = view.fill_(7.0);
        assert_eq!(view, Tensor::full([2, 3], 7.0, FLOAT));
        assert_eq!(std::fs::read(&path).unwrap(), before);
        assert_eq!(file.tensor("a").unwrap(), abc()[0].1, "another view has a mapping of its own");
    }

    #[test]
    fn parameters_get_the_values_and_keep_their_kind_and_gradient() {
        let folder = folder();
        let path =
            written(&folder, &[("x", Tensor::arange(4, FLOAT)), ("y", Tensor::full([2, 2], 0.5, FLOAT).to_kind(Kind::Half))]);
        let model = store(&[("x", &[4]), ("y", &[2, 2])]);
        SafetensorsFile::open(&path).unwrap().load_into(&model).unwrap();
        let variables = model.variables();
        assert_eq!(variables["x"].detach(), Tensor::arange(4, FLOAT));
        assert_eq!(variables["y"].detach(), Tensor::full([2, 2], 0.5, FLOAT));
        assert!(variables["y"].requires_grad() && variables["y"].is_leaf() && variables["y"].kind() == Kind::Float);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(variables["x"].detach().sum(Kind::Float).double_value(&[]), 6.0, "copied, not viewed");
    }

    #[test]
    fn what_does_not_fit_is_named_and_nothing_is_written() {
        let folder = folder();
        let path = written(
            &folder,
            &[("x", Tensor::ones([4], FLOAT)), ("z", Tensor::ones([3], FLOAT)), ("old", Tensor::ones([1], FLOAT))],
        );
        let model = store(&[("x", &[4]), ("y", &[2]), ("z", &[1, 3])]);
        let error = SafetensorsFile::open(&path).unwrap().load_into(&model).unwrap_err().to_string();
        for part in
            ["missing in the file: y", "unexpected in the file: old", "'z' has shape [3] in the file and [1, 3] in the model"]
        {
            assert!(error.contains(part), "{error}");
        }
        assert_eq!(model.variables()["x"].detach(), Tensor::zeros([4], FLOAT));
        let error = format!("{:#}", SafetensorsFile::open(&path).unwrap().tensor("w").unwrap_err());
        assert!(error.contains("has no tensor 'w'") && error.contains("old"), "{error}");
    }

    #[test]
    fn damaged_and_foreign_files_are_refused() {
        let folder = folder();
        let path = written(&folder, &abc());
        let whole = std::fs::read(&path).unwrap();
        let said = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            format!("{:#}", SafetensorsFile::open(&path).unwrap_err())
        };
        assert!(said(&whole[..whole.len() - 1]).contains("is cut short"));
        assert!(said(&[&whole[..], b"more"].concat()).contains("bytes too many"));
        assert!(said(&whole[..20]).contains("cut short inside its header"));
        assert!(said(&whole[..5]).contains("it has 5 bytes"));
        assert!(said(&[]).contains("is empty"));
        assert!(said(b"PK\x03\x04 and so on").contains("zip archive"));
        assert!(said(&[0u8; 64]).contains("is no safetensors file"));
        let foreign = br#"{"a":{"dtype":"F8_E5M2","shape":[2],"data_offsets":[0,2]}}      "#;
        let bytes = [&(foreign.len() as u64).to_le_bytes()[..], foreign, &[0, 0]].concat();
        std::fs::write(&path, bytes).unwrap();
        let error = format!("{:#}", SafetensorsFile::open(&path).unwrap().tensor("a").unwrap_err());
        assert!(error.contains("F8_E5M2") && error.contains("'a'"), "{error}");
        assert!(SafetensorsFile::open(folder.path()).is_err());
        assert!(SafetensorsFile::open(folder.path().join("nothing")).unwrap_err().to_string().contains("opening"));
    }

    #[test]
    fn elements_that_are_not_aligned_are_copied() {
        let folder = folder();
        let path = folder.path().join("odd.safetensors");
        let header =
            br#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}}"#;
        let floats: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header, &[9], &floats].concat();
        std::fs::write(&path, bytes).unwrap();
        let file = SafetensorsFile::open(&path).unwrap();
        assert_eq!(file.tensor("b").unwrap(), Tensor::from_slice(&[1.5f32, -2.0]));
        assert_eq!(file.tensor("a").unwrap(), Tensor::from_slice(&[9u8]));
    }
}
