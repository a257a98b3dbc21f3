//! What processes ask for the time while they run (src/sim/native/python/clock.cpp): a socket with a name and no file.

use crate::capture::work::{RECORD, Work};
use sim::cards::Card;
use sim::trace::field;
use std::io::{Read, Result, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// When a clock is read.
#[derive(Debug, Clone, Copy, Default)]
pub struct Moment {
    pub device: u16,
    /// The host has waited for the device since the last operator.
    pub has_waited: bool,
    /// Another stream than the first is asked about.
    pub beside: bool,
    /// Processor time of the thread since its last operator.
    pub host_nanoseconds: u64,
    /// Seconds in which the script has slept, or waited for something else.
    pub idle: f64,
}

/// Predicts the time of one process, with what was launched since the last reading: the host's, and when the device comes to an event that is
/// recorded now; in seconds.
pub type Clock = Box<dyn FnMut(&[Work], Moment) -> [f64; 2] + Send>;

/// Makes the clock of a process on a card, whose host takes so many times as long as this one where that is said; none where that card has no speed.
pub type Clocks = fn(&Card, Option<f64>) -> Option<Clock>;

/// Answers as long as it is there.
#[derive(Debug)]
pub struct ClockServer {
    pub name: String,
    is_over: Arc<AtomicBool>,
}

impl ClockServer {
    /// None where nobody can predict, or the system has no such sockets.
    pub fn new(session: &Path, clocks: Clocks, card: Card, host_factor: Option<f64>) -> Option<ClockServer> {
        drop(clocks(&card, host_factor)?);
        // A folder may have one after another.
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("vramlab-{}-{number}", session.file_name()?.to_string_lossy());
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).ok()?).ok()?;
        let is_over = Arc::new(AtomicBool::new(false));
        let has_ended = is_over.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if has_ended.load(Ordering::SeqCst) {
                    break;
                }
                let Some(clock) = clocks(&card, host_factor) else { break };
                // A process that is gone asks no more.
                thread::spawn(move || answer(stream, clock).ok());
            }
        });
        Some(ClockServer { name, is_over })
    }
}

impl Drop for ClockServer {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        // The one that listens looks up.
        SocketAddr::from_abstract_name(&self.name).and_then(|name| UnixStream::connect_addr(&name)).ok();
    }
}

/// A request has 24 bytes and then its records.
fn answer(mut stream: UnixStream, mut clock: Clock) -> Result<()> {
    let mut head = [0_u8; 24];
    let mut records = Vec::new();
    loop {
        stream.read_exact(&mut head)?;
        records.resize(u32::from_le_bytes(field(&head, 0)) as usize * RECORD, 0);
        stream.read_exact(&mut records)?;
        let moment = Moment {
            device: u16::from_le_bytes(field(&head, 4)),
            has_waited: head[6] != 0,
            beside: head[7] != 0,
            host_nanoseconds: u64::from_le_bytes(field(&head, 8)),
            idle: f64::from_le_bytes(field(&head, 16)),
        };
        let said = clock(&Work::read_all(&records), moment);
        stream.write_all(&said.map(f64::to_le_bytes).concat())?;
    }
}
