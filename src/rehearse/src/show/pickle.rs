//! The part of pickle's language (protocol 2) that <https://pytorch.org/memory_viz> reads. As in PyTorch's own files, a text or a list that
//! comes again is a reference to its first place.

use std::collections::HashMap;
use std::io::{self, Write};

/// Entries that are put into a list at once, as Python has it.
const BATCH: usize = 1000;

pub struct Pickle<'a> {
    output: &'a mut dyn Write,
    /// Where texts and numbered lists were kept.
    texts: HashMap<String, u32>,
    lists: HashMap<u32, u32>,
    kept: u32,
}

impl Pickle<'_> {
    /// Writes one object.
    pub fn write(output: &mut dyn Write, object: impl FnOnce(&mut Pickle) -> io::Result<()>) -> io::Result<()> {
        let mut pickle = Pickle { output, texts: HashMap::new(), lists: HashMap::new(), kept: 0 };
        pickle.bytes(&[0x80, 2])?;
        object(&mut pickle)?;
        pickle.bytes(b".")
    }

    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.output.write_all(bytes)
    }

    pub fn dict(&mut self, entries: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        self.bytes(b"}(")?;
        entries(self)?;
        self.bytes(b"u")
    }

    pub fn key(&mut self, name: &str, value: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        self.text(name)?;
        value(self)
    }

    pub fn list<T>(&mut self, items: &[T], mut write: impl FnMut(&mut Self, &T) -> io::Result<()>) -> io::Result<()> {
        self.bytes(b"]")?;
        for batch in items.chunks(BATCH) {
            self.bytes(b"(")?;
            batch.iter().try_for_each(|item| write(self, item))?;
            self.bytes(b"e")?;
        }
        Ok(())
    }

    /// A list that is the same wherever it has this number.
    pub fn numbered<T>(
        &mut self,
        number: u32,
        items: impl Iterator<Item = T>,
        write: impl FnMut(&mut Self, &T) -> io::Result<()>,
    ) -> io::Result<()> {
        if let Some(kept) = self.lists.get(&number) {
            return self.get(*kept);
        }
        self.list(&items.collect::<Vec<T>>(), write)?;
        let kept = self.put()?;
        self.lists.insert(number, kept);
        Ok(())
    }

    pub fn text(&mut self, text: &str) -> io::Result<()> {
        if let Some(kept) = self.texts.get(text) {
            return self.get(*kept);
        }
        let length = u32::try_from(text.len()).map_err(io::Error::other)?;
        self.bytes(b"X")?;
        self.bytes(&length.to_le_bytes())?;
        self.bytes(text.as_bytes())?;
        let kept = self.put()?;
        self.texts.insert(text.to_string(), kept);
        Ok(())
    }

    /// Keeps what was written last.
    fn put(&mut self) -> io::Result<u32> {
        let number = self.kept;
        self.kept += 1;
        self.bytes(b"r")?;
        self.bytes(&number.to_le_bytes())?;
        Ok(number)
    }

    fn get(&mut self, number: u32) -> io::Result<()> {
        self.bytes(b"j")?;
        self.bytes(&number.to_le_bytes())
    }

    pub fn integer(&mut self, value: i64) -> io::Result<()> {
        match (u8::try_from(value), i32::try_from(value)) {
            (Ok(byte), _) => self.bytes(&[b'K', byte]),
            (_, Ok(word)) => {
                self.bytes(b"J")?;
                self.bytes(&word.to_le_bytes())
            }
            _ => {
                self.bytes(&[0x8a, 8])?;
                self.bytes(&value.to_le_bytes())
            }
        }
    }

    pub fn flag(&mut self, is_set: bool) -> io::Result<()> {
        self.bytes(if is_set { &[0x88] } else { &[0x89] })
    }

    pub fn pair(&mut self, values: [i64; 2]) -> io::Result<()> {
        values.into_iter().try_for_each(|value| self.integer(value))?;
        self.bytes(&[0x86])
    }
}
