//! Where encoded images lie: files in folders.

use anyhow::{Context, Result, ensure};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Encoded images with labels that can be read in any order by several threads.
pub trait SampleSource: Send + Sync + 'static {
    /// Number of images.
    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads one image's file into a buffer, whose contents are replaced, and gives its label.
    ///
    /// # Errors
    /// A file that has vanished, was cut short or cannot be read.
    fn read(&self, index: usize, into: &mut Vec<u8>) -> Result<i64>;

    /// The image's file.
    fn path(&self, index: usize) -> PathBuf;
}

/// Something that is wrong with a file, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    pub file: PathBuf,
    /// The byte at which it was noticed.
    pub offset: usize,
    pub what: String,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}, at byte {}: {}", self.file.display(), self.offset, self.what)
    }
}

impl std::error::Error for Damage {}

/// JPEG files in one folder for each class, as torchvision's `ImageFolder` takes them: classes are the subfolders in order of their names,
/// images the files below them (at any depth) in order of their paths.
#[derive(Debug)]
pub struct ImageFolder {
    root: PathBuf,
    classes: Vec<String>,
    /// Paths below the root, one after another: a million of them as strings of their own would take three times as much.
    paths: String,
    /// Where each path ends, and the image's class.
    ends: Vec<(usize, u32)>,
}

impl ImageFolder {
    /// Lists a folder.
    ///
    /// # Errors
    /// A folder that cannot be read; no class or no JPEG file in it; a path that is not UTF-8.
    pub fn open(root: &Path) -> Result<ImageFolder> {
        let mut classes = Vec::new();
        for (name, path) in sorted(root)? {
            if path.is_dir() {
                classes.push(name);
            }
        }
        ensure!(
            !classes.is_empty(),
            "{} has no subfolder. A data set is a folder with one subfolder of JPEG files for each class",
            root.display()
        );
        let mut folder = ImageFolder { root: root.to_path_buf(), classes: Vec::new(), paths: String::new(), ends: Vec::new() };
        for (label, class) in (0u32..).zip(&classes) {
            folder.collect(class, label)?;
        }
        ensure!(!folder.ends.is_empty(), "no .jpg or .jpeg file in any subfolder of {}", root.display());
        folder.classes = classes;
        Ok(folder)
    }

    fn collect(&mut self, below: &str, label: u32) -> Result<()> {
        for (name, path) in sorted(&self.root.join(below))? {
            let inside = format!("{below}/{name}");
            if path.is_dir() {
                self.collect(&inside, label)?;
            } else if is_jpeg(&name) {
                self.paths.push_str(&inside);
                self.ends.push((self.paths.len(), label));
            }
        }
        Ok(())
    }

    /// Names of the classes; an image's label is the place of its class.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }
}

impl SampleSource for ImageFolder {
    fn len(&self) -> usize {
        self.ends.len()
    }

    fn read(&self, index: usize, into: &mut Vec<u8>) -> Result<i64> {
        let path = self.path(index);
        let mut read = || {
            into.clear();
            File::open(&path)?.read_to_end(into)
        };
        read().with_context(|| format!("reading {}", path.display()))?;
        Ok(i64::from(self.ends[index].1))
    }

    fn path(&self, index: usize) -> PathBuf {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before].0);
        self.root.join(&self.paths[start..self.ends[index].0])
    }
}

fn is_jpeg(name: &str) -> bool {
    let extension = name.rsplit_once('.').map(|(_, extension)| extension);
    extension.is_some_and(|e| e.eq_ignore_ascii_case("jpg") || e.eq_ignore_ascii_case("jpeg"))
}

/// What a folder holds, by name.
fn sorted(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let reading = || format!("reading the folder {}", folder.display());
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(reading)? {
        let entry = entry.with_context(reading)?;
        let name = entry.file_name().into_string();
        let name = name.map_err(|name| anyhow::anyhow!("{}: a name that is not UTF-8: {name:?}", folder.display()))?;
        entries.push((name, entry.path()));
    }
    entries.sort();
    Ok(entries)
}
