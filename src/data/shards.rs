//! Tar shards in WebDataset's layout: the files of a sample stand next to one another and share their name up to the first dot of its last
//! part, `00017.jpg` and `00017.cls`.

use super::source::{Damage, Source, is_jpeg};
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Images in tar files, each with a label in a `.cls` file beside it. Opening reads the headers of all members, so that samples can be taken
/// in any order and dealt to ranks exactly, unlike a stream's.
#[derive(Debug)]
pub struct TarShards {
    shards: Vec<(PathBuf, File)>,
    images: Vec<Image>,
    damages: Vec<Damage>,
}

#[derive(Debug, Clone, Copy)]
struct Image {
    shard: u32,
    offset: u64,
    bytes: u64,
    label: i64,
}

/// Whether a damaged shard is an error, or loses what cannot be read of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnDamage {
    #[default]
    Stop,
    /// Samples before the damage stay, and those behind it where the next header can still be found. See [`TarShards::damages`].
    Skip,
}

const BLOCK: u64 = 512;

/// No header field or label file is longer; a member that claims to be is damaged.
const LONGEST_TEXT: u64 = 1 << 20;

impl TarShards {
    /// Indexes shards.
    ///
    /// # Errors
    /// A file that cannot be opened; with [`OnDamage::Stop`], a damaged one, with the place of the damage; no image at all.
    pub fn open<P: AsRef<Path>>(shards: &[P], on_damage: OnDamage) -> Result<TarShards> {
        let mut opened = TarShards { shards: Vec::new(), images: Vec::new(), damages: Vec::new() };
        for path in shards {
            let path = path.as_ref();
            let file = File::open(path).with_context(|| format!("opening the shard {}", path.display()))?;
            let bytes = file.metadata().with_context(|| format!("reading the size of {}", path.display()))?.len();
            let number = u32::try_from(opened.shards.len())?;
            let mut index =
                Indexing { file: &file, path, bytes, shard: number, images: Vec::new(), damages: Vec::new(), sample: None };
            index.read();
            opened.images.append(&mut index.images);
            opened.damages.append(&mut index.damages);
            if let (OnDamage::Stop, Some(damage)) = (on_damage, opened.damages.first()) {
                bail!(damage.clone());
            }
            opened.shards.push((path.to_path_buf(), file));
        }
        if opened.images.is_empty() {
            bail!("no sample with an image (.jpg) and a label (.cls) in {} shards", shards.len());
        }
        Ok(opened)
    }

    /// What was lost, where damage is skipped.
    pub fn damages(&self) -> &[Damage] {
        &self.damages
    }
}

impl Source for TarShards {
    fn len(&self) -> usize {
        self.images.len()
    }

    fn read(&self, index: usize, into: &mut Vec<u8>) -> Result<i64> {
        let image = self.images[index];
        let (path, file) = &self.shards[image.shard as usize];
        into.resize(usize::try_from(image.bytes)?, 0);
        file.read_exact_at(into, image.offset)
            .with_context(|| format!("reading {} bytes of {}, at byte {}", image.bytes, path.display(), image.offset))?;
        Ok(image.label)
    }

    fn place(&self, index: usize) -> (PathBuf, u64) {
        let image = &self.images[index];
        (self.shards[image.shard as usize].0.clone(), image.offset)
    }
}

/// A sample whose files are being gathered.
#[derive(Debug)]
struct Sample {
    key: String,
    /// Where its first header stands.
    offset: u64,
    image: Option<(u64, u64)>,
    label: Option<i64>,
}

/// The walk through one shard.
struct Indexing<'a> {
    file: &'a File,
    path: &'a Path,
    bytes: u64,
    shard: u32,
    images: Vec<Image>,
    damages: Vec<Damage>,
    sample: Option<Sample>,
}

impl Indexing<'_> {
    fn read(&mut self) {
        if let Err((offset, what)) = self.walk() {
            self.damage(offset, what);
            // Whether its other files followed cannot be known.
            self.sample = None;
        }
        self.finish_sample();
    }

    fn damage(&mut self, offset: u64, what: impl Into<String>) {
        self.damages.push(Damage { file: self.path.to_path_buf(), offset, what: what.into() });
    }

    fn walk(&mut self) -> Result<(), (u64, String)> {
        let mut at = 0;
        // What an extended header says of the next member.
        let (mut long_name, mut long_size) = (None, None);
        loop {
            if at == self.bytes {
                return Err((at, "the archive ends without its end marker; it may have been cut short".into()));
            }
            let header = self.header(at)?;
            if header.iter().all(|byte| *byte == 0) {
                return Ok(());
            }
            let field = parse(&header).map_err(|what| (at, what))?;
            let bytes = long_size.take().unwrap_or(field.bytes);
            let data = at + BLOCK;
            let end = data.checked_add(bytes).filter(|end| *end <= self.bytes);
            let end = end.ok_or_else(|| (at, format!("a member of {bytes} bytes in a file that has {}", self.bytes - data)))?;
            match field.kind {
                b'0' | 0 | b'7' => {
                    let name = long_name.take().unwrap_or(field.name);
                    self.member(&name, at, data, bytes);
                }
                b'L' => long_name = Some(c_text(&self.text(data, bytes)?)),
                b'x' => {
                    for (key, value) in pax(&self.text(data, bytes)?).map_err(|what| (data, what))? {
                        match key.as_str() {
                            "path" => long_name = Some(value),
                            "size" => {
                                let size = value.parse().map_err(|_| (data, format!("'{value}' is no size")))?;
                                long_size = Some(size);
                            }
                            _ => {}
                        }
                    }
                }
                // Folders, links, global headers: nothing that a sample is made of.
                _ => long_name = None,
            }
            at = end.next_multiple_of(BLOCK).min(self.bytes);
        }
    }

    fn header(&self, at: u64) -> Result<[u8; 512], (u64, String)> {
        let mut header = [0; 512];
        match self.file.read_exact_at(&mut header, at) {
            Ok(()) => Ok(header),
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => {
                Err((at, "the archive was cut short inside a header".into()))
            }
            Err(e) => Err((at, e.to_string())),
        }
    }

    fn text(&self, at: u64, bytes: u64) -> Result<Vec<u8>, (u64, String)> {
        if bytes > LONGEST_TEXT {
            return Err((at, format!("a text of {bytes} bytes")));
        }
        let mut text = vec![0; bytes as usize];
        self.file.read_exact_at(&mut text, at).map_err(|e| (at, e.to_string()))?;
        Ok(text)
    }

    /// Takes one file into the sample that it belongs to.
    fn member(&mut self, name: &str, header: u64, data: u64, bytes: u64) {
        let base = name.rfind('/').map_or(0, |slash| slash + 1);
        let Some(dot) = name[base..].find('.') else {
            return;
        };
        let (key, extension) = (&name[..base + dot], &name[base + dot..]);
        if self.sample.as_ref().is_none_or(|sample| sample.key != key) {
            self.finish_sample();
            self.sample = Some(Sample { key: key.to_string(), offset: header, image: None, label: None });
        }
        if is_jpeg(extension) {
            let twice = self.sample.as_mut().is_some_and(|sample| sample.image.replace((data, bytes)).is_some());
            if twice {
                self.damage(header, format!("sample '{key}' has a second image, '{name}'"));
            }
        } else if extension == ".cls" {
            match self.label(data, bytes) {
                Ok(label) => {
                    if let Some(sample) = &mut self.sample {
                        sample.label = Some(label);
                    }
                }
                Err((offset, what)) => self.damage(offset, format!("the label of '{key}': {what}")),
            }
        }
    }

    fn label(&self, data: u64, bytes: u64) -> Result<i64, (u64, String)> {
        let text = self.text(data, bytes)?;
        let text = String::from_utf8_lossy(&text);
        let label = text.trim().parse::<i64>().ok().filter(|label| *label >= 0);
        label.ok_or_else(|| (data, format!("'{}' is no class number", text.trim().chars().take(40).collect::<String>())))
    }

    /// The sample is complete: another follows, or nothing does.
    fn finish_sample(&mut self) {
        let Some(Sample { key, offset, image, label }) = self.sample.take() else {
            return;
        };
        match (image, label) {
            (Some((data, bytes)), Some(label)) => self.images.push(Image { shard: self.shard, offset: data, bytes, label }),
            (Some(_), None) => self.damage(offset, format!("sample '{key}' has an image and no label (.cls)")),
            (None, Some(_)) => self.damage(offset, format!("sample '{key}' has a label and no image (.jpg)")),
            // Files of other kinds alone are no sample of ours.
            (None, None) => {}
        }
    }
}

/// What a header says that matters here.
struct Field {
    name: String,
    bytes: u64,
    kind: u8,
}

/// Reads a tar header (POSIX.1-1988 ustar, with GNU's sizes in base 256).
fn parse(header: &[u8; 512]) -> Result<Field, String> {
    let stated =
        octal(&header[148..156]).ok_or("a header whose checksum is no number: this is no tar archive, or it is damaged")?;
    // The checksum's own field counts as spaces.
    let sum: u64 = header.iter().enumerate().map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u64::from(*byte) }).sum();
    if stated != sum {
        return Err(format!("a header whose checksum is {sum} and should be {stated}: this is no tar archive, or it is damaged"));
    }
    let bytes = octal(&header[124..136]).ok_or("a header whose size is no number")?;
    let mut name = c_text(&header[..100]);
    let prefix = c_text(&header[345..500]);
    if &header[257..263] == b"ustar\0" && !prefix.is_empty() {
        name = format!("{prefix}/{name}");
    }
    Ok(Field { name, bytes, kind: header[156] })
}

fn c_text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// A number in octal digits, or in base 256 where its first bit is set.
fn octal(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        let large = field.iter().skip(1).fold(u128::from(field[0] & 0x7f), |n, byte| (n << 8) | u128::from(*byte));
        return u64::try_from(large).ok();
    }
    let text = std::str::from_utf8(field).ok()?;
    u64::from_str_radix(text.trim_matches(['\0', ' ']), 8).ok()
}

/// The records `length key=value\n` of an extended header.
fn pax(mut text: &[u8]) -> Result<Vec<(String, String)>, String> {
    let mut found = Vec::new();
    while !text.is_empty() {
        let broken = || "an extended header that cannot be read".to_string();
        let space = text.iter().position(|byte| *byte == b' ').ok_or_else(broken)?;
        let length: usize = std::str::from_utf8(&text[..space]).ok().and_then(|n| n.parse().ok()).ok_or_else(broken)?;
        let record = text.get(space + 1..length).and_then(|record| record.strip_suffix(b"\n")).ok_or_else(broken)?;
        let record = std::str::from_utf8(record).map_err(|_| broken())?;
        let (key, value) = record.split_once('=').ok_or_else(broken)?;
        found.push((key.to_string(), value.to_string()));
        text = &text[length..];
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// A member as tar writes it.
    fn member(name: &str, kind: u8, data: &[u8]) -> Vec<u8> {
        let mut header = [0u8; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[100..108].copy_from_slice(b"0000644\0");
        header[124..136].copy_from_slice(format!("{:011o}\0", data.len()).as_bytes());
        header[156] = kind;
        header[257..265].copy_from_slice(b"ustar\x0000");
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        let mut out = header.to_vec();
        out.extend(data);
        out.resize(out.len().next_multiple_of(512), 0);
        out
    }

    /// Some samples, the third with names that need extended headers.
    fn shard() -> Vec<u8> {
        let long = format!("{}/00002", "deep".repeat(30));
        let record = |value: &str| {
            let length = (0..).find(|n: &usize| format!("{n} path={value}\n").len() == *n).unwrap();
            format!("{length} path={value}\n")
        };
        [
            member("train/", b'5', b""),
            member("train/00000.jpg", b'0', b"first image"),
            member("train/00000.cls", b'0', b"3"),
            member("train/00000.json", b'0', b"{}"),
            member("train/00001.cls", b'0', b"1\n"),
            member("train/00001.jpeg", 0, &[7; 700]),
            member("x", b'x', record(&format!("{long}.jpg")).as_bytes()),
            member("short", b'0', b"third image"),
            member("././@LongLink", b'L', format!("{long}.cls\0").as_bytes()),
            member("short", b'0', b"12"),
            vec![0; 1024],
        ]
        .concat()
    }

    fn open(bytes: &[u8], on_damage: OnDamage) -> Result<TarShards> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shard-000.tar");
        std::fs::write(&path, bytes).unwrap();
        TarShards::open(&[path], on_damage)
    }

    fn samples(shards: &TarShards) -> BTreeMap<Vec<u8>, i64> {
        let mut file = Vec::new();
        (0..shards.len()).map(|index| (shards.read(index, &mut file).unwrap(), file.clone())).map(|(l, f)| (f, l)).collect()
    }

    #[test]
    fn samples_are_found_with_their_labels() {
        let shards = open(&shard(), OnDamage::Stop).unwrap();
        let expected = [(b"first image".to_vec(), 3), (vec![7; 700], 1), (b"third image".to_vec(), 12)];
        assert_eq!(samples(&shards), BTreeMap::from(expected));
        assert_eq!(shards.place(0).1, 1024);
        assert!(shards.damages().is_empty());
    }

    #[test]
    fn shards_that_tar_itself_wrote_are_read() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.jpg"), [1; 1000]).unwrap();
        std::fs::write(folder.path().join("a.cls"), "5").unwrap();
        for format in ["ustar", "gnu", "pax"] {
            let path = folder.path().join(format!("{format}.tar"));
            let mut tar = std::process::Command::new("tar");
            let tar =
                tar.arg("-C").arg(folder.path()).arg(format!("--format={format}")).arg("-cf").arg(&path).args(["a.jpg", "a.cls"]);
            assert!(tar.status().unwrap().success());
            assert_eq!(samples(&TarShards::open(&[path], OnDamage::Stop).unwrap()), BTreeMap::from([(vec![1; 1000], 5)]));
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let refused = |bytes: &[u8], what: &str, at: u64| {
            let error = open(bytes, OnDamage::Stop).unwrap_err();
            let damage = error.downcast_ref::<Damage>().unwrap();
            assert!(damage.what.contains(what) && damage.offset == at, "{damage}");
        };
        let whole = shard();
        refused(&whole[..whole.len() - 1024], "end marker", whole.len() as u64 - 1024);
        refused(&whole[..600], "cut short", 512);
        refused(b"not a tar file at all", "cut short", 0);
        refused(&[b'x'; 512], "no tar archive", 0);
        refused(&[member("0.jpg", b'0', b"image"), vec![0; 1024]].concat(), "no label", 0);
        let twice = [member("0.cls", b'0', b"cat"), member("0.jpg", b'0', b"image"), vec![0; 1024]].concat();
        refused(&twice, "'cat' is no class number", 512);
        assert!(open(&[0; 1024], OnDamage::Skip).unwrap_err().to_string().contains("no sample"));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_shard_cut_short_loses_samples_and_says_so(keep in 0usize..6000) {
            let whole = shard();
            let keep = keep.min(whole.len());
            prop_assert_eq!(open(&whole[..keep], OnDamage::Stop).is_ok(), keep > whole.len() - 1024 + 511);
            if let Ok(shards) = open(&whole[..keep], OnDamage::Skip) {
                let all = samples(&open(&whole, OnDamage::Stop).unwrap());
                for (file, label) in samples(&shards) {
                    prop_assert_eq!(all.get(&file), Some(&label));
                }
                prop_assert!(shards.len() == all.len() || !shards.damages().is_empty());
            }
        }

        /// A header's checksum sees every changed byte of it; contents are the image decoder's to check.
        #[test]
        fn a_changed_byte_in_a_header_gives_no_wrong_sample_without_notice(block in 0usize..16, at in 0usize..512, value: u8) {
            let whole = shard();
            let mut changed = whole.clone();
            let position = block * 512 + at;
            let all = samples(&open(&whole, OnDamage::Stop).unwrap());
            if position >= changed.len() || changed[position] == value {
                return Ok(());
            }
            changed[position] = value;
            match open(&changed, OnDamage::Skip) {
                Err(_) => {}
                Ok(shards) if shards.damages().is_empty() => {
                    // Only contents can have changed: as many samples, of the same sizes.
                    let sizes = |samples: &BTreeMap<Vec<u8>, i64>| {
                        let mut sizes: Vec<usize> = samples.keys().map(Vec::len).collect();
                        sizes.sort_unstable();
                        sizes
                    };
                    prop_assert_eq!(sizes(&samples(&shards)), sizes(&all));
                }
                Ok(shards) => prop_assert!(shards.len() <= all.len()),
            }
        }

        #[test]
        fn random_bytes_are_refused_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
            let refused = open(&bytes, OnDamage::Stop).is_err();
            prop_assert!(refused);
        }
    }
}
