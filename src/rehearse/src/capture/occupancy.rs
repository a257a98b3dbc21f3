//! Who has what of each card: the file that the processes of a rehearsal share (`src/sim/native/occupancy.cpp` writes it).

use std::fs;
use std::path::Path;

/// As the file has them.
const HEADER: usize = 64;
const PEAK: usize = 528;
const ABOUT_PROCESS: usize = 128;
const ON_CARD: usize = 48;

/// A process's part of a card, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Share {
    pub process: u32,
    /// Number of the card in the machine.
    pub card: usize,
    /// Now, its context among them.
    pub used: i64,
    /// The most that it ever had.
    pub peak: i64,
    pub context: i64,
    /// The most that others than PyTorch's allocator had of it, and the last library among them.
    pub outside: i64,
    pub library: String,
    /// When the process began and was last seen at work, or for ever where it was stopped at work or is there still.
    pub began: u64,
    pub ended: u64,
}

/// The most that was in use of a card at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CardPeak {
    pub card: usize,
    pub bytes: i64,
    /// Who had it, by process.
    pub shares: Vec<(u32, i64)>,
}

/// All that a rehearsal's processes had of its cards.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Occupancy {
    pub shares: Vec<Share>,
    /// Of the cards that were used.
    pub peaks: Vec<CardPeak>,
    /// Whether there were more processes than the file has room for.
    pub is_crowded: bool,
}

impl Occupancy {
    /// Nothing where no process used a card.
    pub fn of_session(session: &Path) -> Occupancy {
        read(&fs::read(session.join("cards")).unwrap_or_default()).unwrap_or_default()
    }
}

fn read(file: &[u8]) -> Option<Occupancy> {
    let word = |at: usize| Some(u64::from_ne_bytes(file.get(at..at + 8)?.try_into().ok()?));
    let bytes = |at: usize| word(at).map(u64::cast_signed);
    let id = |at: usize| word(at).and_then(|id| u32::try_from(id).ok());
    let mut found = Occupancy { is_crowded: word(16)? != 0, ..Occupancy::default() };
    // One that was kept by an earlier version does not say it.
    let cards = usize::try_from(word(24)?).ok().filter(|cards| *cards > 0).unwrap_or(16);
    for card in 0..cards {
        let at = HEADER + card * PEAK;
        let shares = (0..usize::try_from(word(at + 8)?).ok()?).map(|n| Some((id(at + 16 + n * 16)?, bytes(at + 24 + n * 16)?)));
        let peak = CardPeak { card, bytes: bytes(at)?, shares: shares.collect::<Option<_>>()? };
        if peak.bytes > 0 {
            found.peaks.push(peak);
        }
    }
    for n in 0..usize::try_from(word(8)?).ok()? {
        let at = HEADER + cards * PEAK + n * (ABOUT_PROCESS + cards * ON_CARD);
        let [began, last, stopped, gone] = [16, 24, 32, 40].map(|field| word(at + field));
        let ended = match (stopped?, gone?) {
            (0, 0) => u64::MAX,
            (0, _) => last?,
            (stopped, _) => stopped,
        };
        let library = file.get(at + 48..at + 128)?.split(|byte| *byte == 0).next().unwrap_or_default();
        for card in 0..cards {
            let of = at + ABOUT_PROCESS + card * ON_CARD;
            let share = Share {
                process: id(at)?,
                card,
                used: bytes(of)?,
                peak: bytes(of + 16)?,
                context: bytes(of + 24)?,
                outside: bytes(of + 40)?,
                library: String::from_utf8_lossy(library).into_owned(),
                began: began?,
                ended,
            };
            if share.peak > 0 {
                found.shares.push(share);
            }
        }
    }
    Some(found)
}
