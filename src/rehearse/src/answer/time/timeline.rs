//! Host and device side by side: the host goes through the operators one by one and launches their kernels, the device runs them in that order,
//! as soon as they are launched and the one before is done; where a value is read, the host waits for the device.

/// One operator, in seconds.
#[derive(Debug, Clone, Copy)]
pub struct Turn {
    /// The host's, until its kernels are launched.
    pub host: f64,
    pub device: f64,
    pub card: u16,
    /// Of a copy from there to another card, which waits for it and for what that card was given before.
    pub to: Option<u16>,
    /// A copy that runs beside the kernels.
    pub beside: bool,
    /// The host waits for all before it; until it is done.
    pub waited: bool,
    pub waits: bool,
}

/// Steps until what they take no longer changes.
const STEPS: usize = 5;

/// What a step takes when the same one follows on itself, in seconds.
pub fn steady(turns: &[Turn], waits: bool) -> f64 {
    let (ends, _) = run(turns, waits);
    (ends[STEPS - 1] - ends[0]) / (STEPS - 1) as f64
}

/// When the device begins each, in the last of such steps, since the end of the one before.
pub fn begins(turns: &[Turn]) -> Vec<f64> {
    let (ends, mut begins) = run(turns, true);
    begins.iter_mut().for_each(|begin| *begin = (*begin - ends[STEPS - 2]).max(0.0));
    begins
}

/// The end of each step, and when the device began each turn of the last one.
fn run(turns: &[Turn], waits: bool) -> ([f64; STEPS], Vec<f64>) {
    let mut begins = vec![0.0; turns.len()];
    let mut line = Timeline::default();
    let mut ends = [0.0_f64; STEPS];
    for end in &mut ends {
        for (turn, begin) in turns.iter().zip(&mut begins) {
            *begin = line.take(*turn, waits);
        }
        *end = line.end();
    }
    (ends, begins)
}

/// Where host and device are, in seconds.
#[derive(Debug, Default)]
pub struct Timeline {
    pub host: f64,
    /// Of each card the kernels' queue, and that of copies beside them.
    queues: Vec<[f64; 2]>,
}

impl Timeline {
    /// When the device begins it.
    pub fn take(&mut self, turn: Turn, waits: bool) -> f64 {
        if waits && turn.waited {
            self.wait();
        }
        self.host += turn.host;
        let queues = [Some((usize::from(turn.card), usize::from(turn.beside))), turn.to.map(|to| (usize::from(to), 0))];
        let cards = usize::from(turn.card.max(turn.to.unwrap_or(0))) + 1;
        self.queues.resize(self.queues.len().max(cards), [0.0; 2]);
        let begin = queues.into_iter().flatten().fold(self.host, |begin, (card, beside)| begin.max(self.queues[card][beside]));
        for (card, beside) in queues.into_iter().flatten() {
            self.queues[card][beside] = begin + turn.device;
        }
        if waits && turn.waits {
            self.host = self.host.max(begin + turn.device);
        }
        begin
    }

    /// The host waits for all that was launched.
    pub fn wait(&mut self) {
        self.host = self.end();
    }

    /// When a card is done with its kernels, and with the copies beside them where those are asked for.
    pub fn done(&self, card: u16, beside: bool) -> f64 {
        let [kernels, copies] = self.queues.get(usize::from(card)).copied().unwrap_or_default();
        if beside { kernels.max(copies) } else { kernels }
    }

    pub fn end(&self) -> f64 {
        self.queues.iter().flatten().fold(self.host, |last, queue| last.max(*queue))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(host: f64, device: f64, waits: bool) -> Turn {
        Turn { host, device, card: 0, to: None, beside: false, waited: false, waits }
    }

    #[test]
    fn the_slower_of_host_and_device_decides_and_waiting_adds() {
        let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(near(steady(&[turn(1.0, 3.0, false); 10], true), 30.0));
        assert!(near(steady(&[turn(3.0, 1.0, false); 10], true), 30.0));
        // Each waits for the other.
        assert!(near(steady(&[turn(1.0, 3.0, true); 10], true), 40.0));
        assert!(near(steady(&[turn(1.0, 3.0, true); 10], false), 30.0));
        assert!(near(steady(&[], true), 0.0));
        // What is copied to a second card waits for the first, and the second for it.
        let on = |card: u16, to| Turn { card, to, ..turn(0.1, 3.0, false) };
        assert!(near(steady(&[on(0, None), on(0, Some(1)), on(1, None), on(1, Some(0))], true), 12.0));
        assert!(near(steady(&[on(0, None), on(1, None)], true), 3.0));
        // Kernels follow on each other where the device is the slower one.
        let begins = begins(&[turn(1.0, 3.0, false); 3]);
        assert!(near(begins[1] - begins[0], 3.0) && near(begins[2] - begins[1], 3.0), "{begins:?}");
    }
}
