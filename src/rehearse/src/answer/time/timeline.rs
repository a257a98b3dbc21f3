//! Host and device side by side: the host goes through the operators one by one and launches their kernels, the device runs them in that order,
//! as soon as they are launched and the one before is done; where a value is read, the host waits for the device.

/// One operator, in seconds.
#[derive(Debug, Clone, Copy)]
pub struct Turn {
    /// The host's, until its kernels are launched.
    pub host: f64,
    pub device: f64,
    pub card: u16,
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
    let mut host = 0.0_f64;
    // Of each card the kernels' queue, and that of copies beside them.
    let mut queues = [[0.0_f64; 2]; 16];
    let mut ends = [0.0_f64; STEPS];
    for end in &mut ends {
        for (turn, begin) in turns.iter().zip(&mut begins) {
            if waits && turn.waited {
                host = queues.iter().flatten().fold(host, |last, queue| last.max(*queue));
            }
            host += turn.host;
            let queue = &mut queues[usize::from(turn.card) % 16][usize::from(turn.beside)];
            *begin = queue.max(host);
            *queue = *begin + turn.device;
            if waits && turn.waits {
                host = host.max(*queue);
            }
        }
        *end = queues.iter().flatten().fold(host, |last, queue| last.max(*queue));
    }
    (ends, begins)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(host: f64, device: f64, waits: bool) -> Turn {
        Turn { host, device, card: 0, beside: false, waited: false, waits }
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
        // Kernels follow on each other where the device is the slower one.
        let begins = begins(&[turn(1.0, 3.0, false); 3]);
        assert!(near(begins[1] - begins[0], 3.0) && near(begins[2] - begins[1], 3.0), "{begins:?}");
    }
}
