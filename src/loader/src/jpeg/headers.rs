//! What stands before an image's data: sizes, tables, how colours are stored.

/// Where the coefficients of a block stand, in the order of the file.
pub const ZIGZAG: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21, 28, 35, 42,
    49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
];

/// Longer sides are for nobody's training, and would take memory before they are found to be damage.
const LONGEST: usize = 1 << 14;

/// One of the planes that an image is stored in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Component {
    id: u8,
    /// Blocks in a unit, from left to right and from top to bottom.
    pub across: usize,
    pub down: usize,
    /// Number of its table of divisors.
    pub divisors: usize,
    pub dc: usize,
    pub ac: usize,
}

/// An image in one scan of Huffman codes: one grey plane, or luma and two planes of chroma.
#[derive(Debug)]
pub struct Headers<'a> {
    pub width: usize,
    pub height: usize,
    components: [Component; 3],
    count: usize,
    /// What coefficients were divided by, in the file's order.
    pub divisors: [[u16; 64]; 4],
    /// Counts of codes by length, then symbols: first coefficients', then the others', by number.
    pub codes: [[Option<&'a [u8]>; 4]; 2],
    /// Units between two restart markers; 0 where there are none.
    pub restart: usize,
    /// The byte at which the coded data begins.
    pub data: usize,
}

impl<'a> Headers<'a> {
    /// Reads them; none where the file is of another kind, or no JPEG at all.
    pub fn read(file: &'a [u8]) -> Option<Headers<'a>> {
        let mut headers = Headers {
            width: 0,
            height: 0,
            components: [Component::default(); 3],
            count: 0,
            divisors: [[0; 64]; 4],
            codes: [[None; 4]; 2],
            restart: 0,
            data: 0,
        };
        let (mut jfif, mut adobe) = (false, None);
        let mut at = file.starts_with(&[0xff, 0xd8]).then_some(2)?;
        loop {
            let marker = match file.get(at..at + 2)? {
                [0xff, 0xff] => {
                    at += 1;
                    continue;
                }
                [0xff, marker] => *marker,
                _ => return None,
            };
            let length = usize::from(u16::from_be_bytes([*file.get(at + 2)?, *file.get(at + 3)?]));
            let body = file.get(at + 4..at + 2 + length)?;
            at += 2 + length;
            match marker {
                0xc0 | 0xc1 if headers.count == 0 => headers.frame(body)?,
                0xc4 => headers.huffman(body)?,
                0xdb => headers.tables_of_divisors(body)?,
                0xdd => headers.restart = usize::from(u16::from_be_bytes(body.try_into().ok()?)),
                0xe0 => jfif |= body.starts_with(b"JFIF\0"),
                0xee if body.starts_with(b"Adobe") => adobe = body.get(11).copied(),
                0xe1..=0xef | 0xfe => {}
                0xda => {
                    headers.scan(body)?;
                    headers.data = at;
                    // As libjpeg guesses it.
                    let ids = headers.components.map(|component| component.id);
                    let coloured = jfif || adobe.map_or(ids != *b"RGB", |transform| transform == 1);
                    return (headers.count == 1 || coloured).then_some(headers);
                }
                _ => return None,
            }
        }
    }

    pub fn components(&self) -> &[Component] {
        &self.components[..self.count]
    }

    fn frame(&mut self, body: &[u8]) -> Option<()> {
        let [8, h1, h0, w1, w0, count, of @ ..] = body else { return None };
        (self.height, self.width) = (u16::from_be_bytes([*h1, *h0]).into(), u16::from_be_bytes([*w1, *w0]).into());
        self.count = usize::from(*count);
        let sides = 1..=LONGEST;
        if !sides.contains(&self.width) || !sides.contains(&self.height) || !matches!(count, 1 | 3) || of.len() != 3 * self.count {
            return None;
        }
        for (component, said) in self.components.iter_mut().zip(of.chunks_exact(3)) {
            let (across, down, divisors) = (usize::from(said[1] >> 4), usize::from(said[1] & 15), usize::from(said[2]));
            *component = Component { id: said[0], across, down, divisors, dc: 0, ac: 0 };
            self.divisors.get(divisors)?;
        }
        let factors = self.components.map(|component| (component.across, component.down));
        match (count, factors) {
            // Alone in its scan, a plane has units of one block.
            (1, [(1..=4, 1..=4), ..]) => (self.components[0].across, self.components[0].down) = (1, 1),
            (3, [(1 | 2, 1 | 2), (1, 1), (1, 1)]) => {}
            _ => return None,
        }
        // Where chroma is two samples wide or less, libjpeg does not interpolate.
        (*count == 1 || self.components[0].across == 1 || self.width > 4).then_some(())
    }

    fn huffman(&mut self, mut body: &'a [u8]) -> Option<()> {
        while let Some((&which, rest)) = body.split_first() {
            let symbols: usize = rest.get(..16)?.iter().map(|count| usize::from(*count)).sum();
            let (table, after) = rest.split_at_checked(16 + symbols)?;
            *self.codes.get_mut(usize::from(which >> 4))?.get_mut(usize::from(which & 15))? = Some(table);
            body = after;
        }
        Some(())
    }

    fn tables_of_divisors(&mut self, mut body: &[u8]) -> Option<()> {
        while let Some((&which, rest)) = body.split_first() {
            let table = self.divisors.get_mut(usize::from(which & 15))?;
            let bytes = if which >> 4 == 0 { 1 } else { 2 };
            let (values, after) = rest.split_at_checked(64 * bytes)?;
            for (divisor, value) in table.iter_mut().zip(values.chunks_exact(bytes)) {
                *divisor = value.iter().fold(0, |sum, byte| sum << 8 | u16::from(*byte));
            }
            body = after;
        }
        Some(())
    }

    fn scan(&mut self, body: &[u8]) -> Option<()> {
        let (&count, body) = body.split_first()?;
        // All coefficients of all planes at once, or it is a progressive image or one in several scans.
        if count == 0 || usize::from(count) != self.count || body.get(2 * self.count..)? != [0, 63, 0] {
            return None;
        }
        for (component, said) in self.components[..self.count].iter_mut().zip(body.chunks_exact(2)) {
            (component.dc, component.ac) = (usize::from(said[1] >> 4), usize::from(said[1] & 15));
            self.codes[0].get(component.dc)?.as_ref()?;
            self.codes[1].get(component.ac)?.as_ref()?;
            if component.id != said[0] {
                return None;
            }
        }
        Some(())
    }
}
