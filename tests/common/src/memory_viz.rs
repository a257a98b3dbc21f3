//! What the page memory_viz takes.

/// Asserts that a pickle is of the part of its language that the page reads, by the opcodes of the page's own reader.
pub fn reads_as_memory_viz(pickle: &[u8]) {
    let mut at = 0;
    while at < pickle.len() {
        let long = |from: usize| u32::from_le_bytes(pickle[from..from + 4].try_into().unwrap()) as usize;
        at += match pickle[at] {
            b'.' => return assert_eq!(at + 1, pickle.len()),
            b'}' | b']' | b'(' | b'u' | b'e' | b'a' | b'N' | 0x86 | 0x88 | 0x89 => 1,
            0x80 | b'K' | b'h' | b'q' => 2,
            b'M' => 3,
            b'J' | b'r' | b'j' => 5,
            0x8a => 2 + pickle[at + 1] as usize,
            b'X' => 5 + long(at + 1),
            other => panic!("opcode {other:#x} at {at} is not read by memory_viz"),
        };
    }
    panic!("the pickle has no end");
}
