//! The clocks of a script, which advance by predicted time while it runs.

use super::device::CardModel;
use super::stretch::{HostModel, turn};
use super::timeline::Timeline;
use crate::run::clock::Clock;
use sim::cards::Card;

/// Of one process on a card; none of a size alone, which has no speed.
pub fn clock(card: &Card, host_factor: Option<f64>) -> Option<Clock> {
    let device = CardModel::of(card).ok()?;
    let (host, mut line) = (HostModel::of(host_factor), Timeline::default());
    Some(Box::new(move |works, moment| {
        for work in works {
            line.take(turn(work, 0, host.seconds(work, work.host_nanoseconds), device.takes(work).seconds));
        }
        if moment.has_waited {
            line.wait();
        }
        let now = line.pass(moment.idle) + host.between(moment.host_nanoseconds);
        [now, now.max(line.done(moment.device, moment.beside))]
    }))
}
