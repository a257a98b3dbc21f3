//! Pixels of images and of parts of them.

/// A part of an image, in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Area {
    pub left: u32,
    pub top: u32,
    pub width: u32,
    pub height: u32,
}

/// Pixels of an image, or of a part of it: rows of red, green, blue bytes.
#[derive(Debug)]
pub struct Pixels {
    /// Size of the whole image.
    pub width: usize,
    pub height: usize,
    /// The part whose pixels these are.
    pub held: Area,
    /// At least three bytes for each pixel of the part; what follows is left from an earlier, larger one.
    pub rgb: Vec<u8>,
}

impl Default for Pixels {
    /// None.
    fn default() -> Self {
        Pixels { width: 0, height: 0, held: Area { left: 0, top: 0, width: 0, height: 0 }, rgb: Vec::new() }
    }
}

impl Pixels {
    pub(super) fn hold(&mut self, (width, height): (usize, usize), held: Area) -> &mut [u8] {
        let bytes = 3 * held.width as usize * held.height as usize;
        if self.rgb.len() < bytes {
            self.rgb.resize(bytes, 0);
        }
        (self.width, self.height, self.held) = (width, height, held);
        &mut self.rgb[..bytes]
    }
}
