//! Files as a disk, an editor or a stranger may leave them: what reads them says so, and neither panics, hangs nor takes all memory.

/// How many damaged files a test reads: few in CI, and as many as `VRAMLAB_DAMAGED` says in a campaign.
pub fn how_many(few: u64) -> u64 {
    std::env::var("VRAMLAB_DAMAGED").ok().and_then(|number| number.parse().ok()).unwrap_or(few)
}

/// Numbers that fit nowhere, texts that are none.
const ODD: [&str; 14] = [
    "-1",
    "0",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "1e308",
    "-1e308",
    "4294967295",
    "null",
    "\"\u{1b}[31m\n::error::\u{202e}\"",
    "[]",
    "{}",
    "true",
    "[[[[[[[[[[[[[[[[[[[[[[[[",
];

/// The same bytes with one to four damages, another for each seed: cut, bytes changed, lines lost or doubled, numbers replaced.
pub fn damaged(bytes: &[u8], seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below.max(1) as u64) as usize
    };
    let mut found = bytes.to_vec();
    for _ in 0..1 + random(4) {
        let at = random(found.len());
        match random(6) {
            0 => found.truncate(at),
            1 if !found.is_empty() => found[at] ^= 1 << random(8),
            2 => {
                let end = found.len().min(at + 8);
                found[at..end].fill([0, 0xff, b'9'][random(3)]);
            }
            3 | 4 => {
                // A number, wherever it begins and ends.
                let is_part = |byte: &u8| byte.is_ascii_digit() || *byte == b'.';
                let Some(begin) = found[at..].iter().position(is_part).map(|more| at + more) else { continue };
                let end = found[begin..].iter().position(|byte| !is_part(byte)).map_or(found.len(), |more| begin + more);
                found.splice(begin..end, ODD[random(ODD.len())].bytes());
            }
            _ => {
                let begin = found[..at].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
                let end = found[at..].iter().position(|byte| *byte == b'\n').map_or(found.len(), |more| at + more + 1);
                let line = found[begin..end].to_vec();
                if random(2) == 0 {
                    found.drain(begin..end).for_each(drop)
                } else {
                    found.splice(begin..begin, line).for_each(drop)
                }
            }
        }
    }
    found
}
