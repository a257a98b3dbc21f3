//! What a page for browsers needs to hold everything that it shows: how its policy names a script, and a picture as an address.

use sha2::{Digest, Sha256};

/// How a content security policy names an inline script or style that may stay: its SHA-256 in base 64, as between the tags.
pub fn policy_hash(text: &str) -> String {
    format!("sha256-{}", base64(&Sha256::digest(format!("\n{text}\n"))))
}

/// An address that is the picture itself.
pub fn picture_address(svg: &str) -> String {
    format!("data:image/svg+xml;base64,{}", base64(svg.as_bytes()))
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut written = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let bits = three.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for place in 0..4 {
            let is_there = place <= three.len();
            written.push(if is_there { char::from(DIGITS[(bits >> (18 - 6 * place)) as usize & 63]) } else { '=' });
        }
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_a_browser() {
        // printf '\nalert(1)\n' | openssl dgst -sha256 -binary | base64
        assert_eq!(policy_hash("alert(1)"), "sha256-J8+4/wmqNoqVGih0Xof49bzVEIwR8aHhR5HvZK1wlzY=");
    }

    #[test]
    fn pictures_are_addresses() {
        for (svg, end) in [("", ""), ("<", "PA=="), ("<s", "PHM="), ("<sv", "PHN2"), ("<svg", "PHN2Zw==")] {
            assert_eq!(picture_address(svg), format!("data:image/svg+xml;base64,{end}"));
        }
    }
}
