//! The clocks of a script, which advance by predicted time while it runs.

use super::device::CardModel;
use super::predict::{HostModel, turn};
use super::timeline::Timeline;
use crate::run::clock::Clock;
use sim::cards::Card;

/// Of one process on a card; none of a size alone, which has no speed.
pub fn clock(card: &Card, host_factor: f64) -> Option<Clock> {
    let device = CardModel::of(card).ok()?;
    let (host, mut line) = (HostModel::of(card, host_factor), Timeline::default());
    Some(Box::new(move |works, moment| {
        for work in works {
            line.take(turn(work, host.seconds(work, work.host_nanoseconds), device.takes(work).seconds), true);
        }
        if moment.has_waited {
            line.wait();
        }
        line.host += moment.idle;
        let now = line.host + host.between(moment.host_nanoseconds);
        [now, now.max(line.done(moment.device, moment.beside))]
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::work::Work;
    use crate::run::clock::Moment;

    #[test]
    fn an_event_is_reached_when_the_kernels_before_it_are_done_and_the_host_where_it_waits() {
        let mut clock = clock(&"h100".parse().unwrap(), 1.0).unwrap();
        let product = Work { host_nanoseconds: 1000, ..Work::product(8192, 8192, 8192) };
        let begin = clock(&[], Moment::default());
        assert_eq!(begin, [0.0, 0.0]);
        let [host, device] = clock(&[product; 10], Moment::default());
        // 1.1 ms each at the peak; the host goes on after 5 us each.
        assert!((11e-3..33e-3).contains(&device) && host < 1e-3, "{host} {device}");
        let [waited, _] = clock(&[], Moment { has_waited: true, ..Moment::default() });
        assert!((waited - device).abs() < 1e-9);
        let [later, _] = clock(&[], Moment { idle: 2.0, ..Moment::default() });
        assert!((later - waited - 2.0).abs() < 1e-9);
        assert!(super::clock(&"24GiB".parse().unwrap(), 1.0).is_none());
    }
}
