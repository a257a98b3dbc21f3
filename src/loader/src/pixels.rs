//! Pixels of images and of parts of them.

/// A part of an image, in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Area {
    pub left: u32,
    pub top: u32,
    pub width: u32,
    pub height: u32,
}

/// Pixels of an image: rows of red, green, blue bytes; none at first.
#[derive(Debug, Default)]
pub struct Pixels {
    pub width: usize,
    pub height: usize,
    /// At least three bytes for each pixel; what follows is left from an earlier, larger one.
    pub rgb: Vec<u8>,
}

impl Pixels {
    /// Makes room for an image of this size.
    pub(super) fn hold(&mut self, width: usize, height: usize) -> &mut [u8] {
        (self.width, self.height) = (width, height);
        if self.rgb.len() < self.bytes() {
            self.rgb.resize(self.bytes(), 0);
        }
        let bytes = self.bytes();
        &mut self.rgb[..bytes]
    }

    pub(super) fn bytes(&self) -> usize {
        3 * self.width * self.height
    }
}
