//! Coded data to coefficients.

use super::headers::ZIGZAG;
use anyhow::{Context, Result, bail, ensure};

/// Bits of the next code that are looked up at once.
const LOOKED_UP: u32 = 10;

/// A Huffman code: its symbols say how many zeros come first and how many bits the value behind them has.
#[derive(Debug)]
pub struct Code {
    /// What it was made of.
    table: Vec<u8>,
    /// By the next bits: value << 16 | zeros << 8 | bits of code and value together, where all fit and the value is not 0; else
    /// symbol << 8 | bits of the code, marked by [`WITHOUT_VALUE`]; 0 where the code is longer.
    fast: Box<[i32; 1 << LOOKED_UP]>,
    /// By length: the first number, aligned to 16 bits, that no code of this or a lesser length has, and where symbols of it start.
    ends: [(u32, i32); 17],
    symbols: Vec<u8>,
}

const WITHOUT_VALUE: i32 = 0x80;

impl Default for Code {
    /// No code.
    fn default() -> Self {
        Code { table: Vec::new(), fast: Box::new([0; 1 << LOOKED_UP]), ends: [(0, 0); 17], symbols: Vec::new() }
    }
}

impl Code {
    /// Becomes the code of a table: counts by length, then symbols. Most images have the same tables, which are then left as they are.
    pub fn become_of(&mut self, table: &[u8]) -> Result<()> {
        if self.table == table {
            return Ok(());
        }
        self.table.clear();
        self.fast.fill(0);
        let (counts, symbols) = table.split_at(16);
        self.symbols = symbols.to_vec();
        let (mut code, mut index) = (0u32, 0usize);
        for length in 1..=16u32 {
            let count = usize::from(counts[length as usize - 1]);
            let first = index as i32 - code as i32;
            for _ in 0..count {
                ensure!(code < 1 << length, "a Huffman table with too many codes of {length} bits");
                self.enter(code, length, symbols[index]);
                code += 1;
                index += 1;
            }
            self.ends[length as usize] = (code << (16 - length), first);
            code <<= 1;
        }
        self.table.extend_from_slice(table);
        Ok(())
    }

    fn enter(&mut self, code: u32, length: u32, symbol: u8) {
        let Some(free) = LOOKED_UP.checked_sub(length) else { return };
        let size = u32::from(symbol & 15);
        for rest in 0..1u32 << free {
            let entry = if (1..=free).contains(&size) {
                let value = extend(rest >> (free - size), size);
                value << 16 | i32::from(symbol >> 4) << 8 | (length + size) as i32
            } else {
                i32::from(symbol) << 8 | WITHOUT_VALUE | length as i32
            };
            self.fast[(code << free | rest) as usize] = entry;
        }
    }

    /// The next symbol of a code longer than what is looked up, and its length.
    #[cold]
    fn long(&self, next: u32) -> Result<(u8, u32)> {
        for length in LOOKED_UP + 1..=16 {
            let (end, first) = self.ends[length as usize];
            if next < end {
                let symbol = self.symbols.get((first + (next >> (16 - length)) as i32) as usize);
                return Ok((*symbol.context("a Huffman code without a symbol")?, length));
            }
        }
        bail!("bits that are no Huffman code")
    }
}

/// A value of so many bits: those that begin with 0 stand for negative ones.
#[inline(always)]
fn extend(bits: u32, size: u32) -> i32 {
    let value = bits as i32;
    if size > 0 && bits >> (size - 1) == 0 { value - (1 << size) + 1 } else { value }
}

/// The bits of coded data, without the zero bytes that follow each 0xff in it.
pub struct Bits<'a> {
    data: &'a [u8],
    at: usize,
    /// The next bits, from the top, and how many there are.
    buffer: u64,
    count: u32,
    /// Bits that were made up behind the end.
    made_up: u32,
}

impl<'a> Bits<'a> {
    pub fn new(data: &'a [u8]) -> Bits<'a> {
        Bits { data, at: 0, buffer: 0, count: 0, made_up: 0 }
    }

    /// Bytes that were read.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Whether more bits were taken than there are.
    pub fn is_past_end(&self) -> bool {
        self.made_up > self.count
    }

    /// Has at least 32 bits.
    #[inline(always)]
    fn refill(&mut self) {
        if self.count >= 32 {
            return;
        }
        if let Some(next) = self.data[self.at..].first_chunk::<8>() {
            let next = u64::from_be_bytes(*next);
            let inverse = !next;
            // No byte is 0xff: none of the inverse is 0.
            if inverse.wrapping_sub(0x0101_0101_0101_0101) & !inverse & 0x8080_8080_8080_8080 == 0 {
                self.buffer |= next >> self.count;
                self.at += ((63 - self.count) / 8) as usize;
                self.count |= 56;
                return;
            }
        }
        self.refill_slowly();
    }

    #[cold]
    fn refill_slowly(&mut self) {
        // A refill at speed may have left bits beyond the count.
        self.buffer &= !(u64::MAX >> self.count);
        while self.count <= 56 {
            let byte = match self.data[self.at..] {
                [0xff, 0, ..] => {
                    self.at += 2;
                    0xff
                }
                [0xff, ..] | [] => {
                    self.made_up += 8;
                    0
                }
                [byte, ..] => {
                    self.at += 1;
                    byte
                }
            };
            self.buffer |= u64::from(byte) << (56 - self.count);
            self.count += 8;
        }
    }

    #[inline(always)]
    fn skip(&mut self, bits: u32) {
        self.buffer <<= bits;
        self.count -= bits;
    }

    #[inline(always)]
    fn peek(&self, bits: u32) -> u32 {
        (self.buffer >> 32) as u32 >> (32 - bits)
    }

    #[inline(always)]
    fn take(&mut self, bits: u32) -> u32 {
        // In two steps, as a shift by 64 is none.
        let value = (self.buffer >> 1 >> (63 - bits)) as u32;
        self.skip(bits);
        value
    }

    /// Goes on behind a restart marker, which must be the next.
    pub fn restart(&mut self, number: usize) -> Result<()> {
        // What is left in the buffer is padding.
        ensure!(!self.is_past_end(), "coded data that ends early");
        let unread = (self.count.saturating_sub(self.made_up)) / 8;
        ensure!(unread == 0, "coded data goes on where a restart marker is due");
        // A marker may have padding before it.
        while self.data[self.at..].starts_with(&[0xff, 0xff]) {
            self.at += 1;
        }
        ensure!(self.data[self.at..].starts_with(&[0xff, 0xd0 + (number % 8) as u8]), "a restart marker is missing");
        *self = Bits { at: self.at + 2, ..Bits::new(self.data) };
        Ok(())
    }

    /// Decodes how much the next block's first coefficient differs from the last one's.
    #[inline(always)]
    pub fn first(&mut self, code: &Code) -> Result<i32> {
        self.refill();
        let entry = code.fast[self.peek(LOOKED_UP) as usize];
        if entry & WITHOUT_VALUE == 0 && entry != 0 {
            ensure!(entry >> 8 & 0xff == 0, "a first coefficient of too many bits");
            self.skip(entry as u32 & 0x7f);
            return Ok(entry >> 16);
        }
        let (symbol, length) = if entry != 0 { ((entry >> 8) as u8, entry as u32 & 0x7f) } else { code.long(self.peek(16))? };
        ensure!(symbol <= 11, "a first coefficient of {symbol} bits");
        self.skip(length);
        let bits = self.take(symbol.into());
        Ok(extend(bits, symbol.into()))
    }

    /// Decodes a block's other coefficients, times their divisors. Gives the place of the last, in the file's order.
    #[inline(always)]
    pub fn others(&mut self, code: &Code, divisors: &[u16; 64], block: &mut [i16; 64]) -> Result<usize> {
        self.go_over(code, |place, value| {
            let divisor = divisors.get(place).context("a coefficient beyond the block")?;
            block[usize::from(ZIGZAG[place])] = (value as i16).wrapping_mul(*divisor as i16);
            Ok(())
        })
    }

    /// Reads over a block's other coefficients.
    #[inline(always)]
    pub fn skip_others(&mut self, code: &Code) -> Result<()> {
        self.go_over(code, |_, _| Ok(())).map(drop)
    }

    #[inline(always)]
    fn go_over(&mut self, code: &Code, mut keep: impl FnMut(usize, i32) -> Result<()>) -> Result<usize> {
        let mut place = 0;
        while place < 63 {
            self.refill();
            let entry = code.fast[self.peek(LOOKED_UP) as usize];
            let value = if entry & WITHOUT_VALUE == 0 && entry != 0 {
                place += 1 + (entry >> 8 & 0xff) as usize;
                self.skip(entry as u32 & 0x7f);
                entry >> 16
            } else {
                let (symbol, length) =
                    if entry != 0 { ((entry >> 8) as u8, entry as u32 & 0x7f) } else { code.long(self.peek(16))? };
                self.skip(length);
                if symbol == 0 {
                    break;
                }
                if symbol & 15 == 0 {
                    ensure!(symbol == 0xf0, "a symbol that baseline JPEG does not have");
                    place += 16;
                    continue;
                }
                place += 1 + usize::from(symbol >> 4);
                let bits = self.take(u32::from(symbol & 15));
                extend(bits, u32::from(symbol & 15))
            };
            keep(place, value)?;
        }
        ensure!(place < 64, "a coefficient beyond the block");
        Ok(place)
    }
}
