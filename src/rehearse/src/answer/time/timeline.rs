//! Hosts and devices side by side: a host goes through its operators one by one and launches their kernels; each stream runs what it was given in
//! that order, as soon as it is launched, what the stream waits for is done, and the part of the card that it takes is free. Where a value is read, the
//! host waits for all that it launched. Of several ranks, what they move between them begins when the last of them has come to it.

use std::collections::{BTreeMap, HashMap, VecDeque};

/// What of a card a turn takes: of each card one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Lane {
    #[default]
    Kernels,
    /// To the host and back.
    Copies,
    /// Between cards of a machine, and between machines.
    Wire,
    Network,
}

/// What ranks come to together: the same numbers in each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Meeting {
    pub group: u32,
    /// Of a send and its receive both ranks in the group, the sender first.
    pub pair: Option<(u16, u16)>,
}

/// One operator, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Turn {
    /// The host's, until its kernels are launched.
    pub host: f64,
    pub device: f64,
    pub card: u16,
    pub queue: u64,
    pub lane: Lane,
    /// Of a copy from there to another card, the queue that waits for it, and which it waits for.
    pub to: Option<u64>,
    /// Nothing but that its stream waits for another one, as far as that had been given these many turns of the same step.
    pub order: Option<(u64, usize)>,
    pub meets: Option<Meeting>,
    /// It goes with the one before it on its stream.
    pub joins: bool,
    /// The host waits for all before it; until it is done.
    pub waited: bool,
    pub waits: bool,
}

/// Steps until what they take no longer changes.
const STEPS: usize = 5;

/// When ranks that play their steps again and again end each, in seconds, and what the turns of the last one did.
#[derive(Debug)]
pub struct Played {
    ends: [f64; STEPS],
    /// Of each rank and turn of the last step: when it began, and when it was done.
    spans: Vec<Vec<(f64, f64)>>,
    /// Of each rank in the last step what it waited for another one, as the last that came to what they move.
    waited: Vec<BTreeMap<usize, f64>>,
    /// What a rank sent or waited for of which the other knew nothing.
    pub unmatched: usize,
}

impl Played {
    /// What a step takes when the same one follows on itself.
    pub fn step_seconds(&self) -> f64 {
        (self.ends[STEPS - 1] - self.ends[0]) / (STEPS - 1) as f64
    }

    /// When the device begins each turn of a rank, and ends it, since the end of the step before.
    pub fn spans(&self, rank: usize) -> impl Iterator<Item = (f64, f64)> {
        let before = self.ends[STEPS - 2];
        self.spans[rank].iter().map(move |(begin, end)| ((begin - before).max(0.0), (end - before).max(0.0)))
    }

    /// What a rank's streams wait for others in a step, in seconds, by whom they wait for.
    pub fn waited(&self, rank: usize) -> &BTreeMap<usize, f64> {
        &self.waited[rank]
    }
}

/// Plays ranks, each with the turns of its step, again and again; with `waits` hosts wait.
pub fn play(ranks: &[&[Turn]], waits: bool) -> Played {
    let mut lines: Vec<Line> = ranks.iter().map(|_| Line::default()).collect();
    let mut wire = Wire::of(ranks);
    let mut played = Played {
        ends: [0.0; STEPS],
        spans: ranks.iter().map(|turns| vec![(0.0, 0.0); turns.len()]).collect(),
        waited: vec![BTreeMap::new(); ranks.len()],
        unmatched: 0,
    };
    // Of each rank what can begin first, and whether that is to be found anew.
    let mut first: Vec<Option<(f64, u64)>> = vec![None; ranks.len()];
    let mut is_stale = vec![true; ranks.len()];
    loop {
        for ((line, turns), is_stale) in lines.iter_mut().zip(ranks).zip(&mut is_stale) {
            while line.taken < STEPS * turns.len() && !line.is_blocked(waits) {
                let at = line.taken % turns.len();
                if at == 0 {
                    line.base = line.taken;
                }
                if waits && turns[at].waited && !line.has_waited {
                    line.blocks = true;
                    line.has_waited = true;
                    continue;
                }
                line.has_waited = false;
                *is_stale = true;
                line.launch(turns[at]);
                line.blocks = waits && turns[at].waits;
                let step = (line.taken - 1) / turns.len();
                played.ends[step] = played.ends[step].max(line.host);
            }
        }
        let posted = wire.posted;
        for rank in 0..lines.len() {
            if std::mem::take(&mut is_stale[rank]) {
                first[rank] = lines[rank].next(rank, &mut wire);
            }
        }
        // Whom somebody waited for has come.
        if wire.posted > posted {
            for rank in 0..lines.len() {
                first[rank] = lines[rank].next(rank, &mut wire);
            }
        }
        let next = (0..lines.len()).filter_map(|rank| Some((first[rank]?, rank)));
        let next = next.min_by(|((a, ..), _), ((b, ..), _)| a.total_cmp(b));
        let (queue, rank, is_met) = match next {
            Some(((_, queue), rank)) => (queue, rank, true),
            // Of what nobody comes to, the first.
            None => match (0..lines.len()).find_map(|rank| Some((lines[rank].stuck()?, rank))) {
                Some((queue, rank)) => (queue, rank, false),
                None => break,
            },
        };
        is_stale[rank] = true;
        let length = ranks[rank].len();
        for done in lines[rank].run(queue, &wire, is_met) {
            played.unmatched += usize::from(!is_met && done.meets);
            let (step, at) = (done.index / length, done.index % length);
            played.ends[step] = played.ends[step].max(done.end);
            if step == STEPS - 1 && done.is_own {
                played.spans[rank][at] = (done.begin, done.end);
                if let Some((whom, seconds)) = done.waited.filter(|(whom, _)| *whom != rank) {
                    *played.waited[rank].entry(whom).or_default() += seconds;
                }
            }
        }
    }
    // What waits for a later step's ends no earlier.
    for step in 1..STEPS {
        played.ends[step] = played.ends[step].max(played.ends[step - 1]);
    }
    played
}

/// What a step takes when the same one follows on itself, in seconds, of a rank whose others are as fast as it is.
pub fn steady(turns: &[Turn], waits: bool) -> f64 {
    play(&[turns], waits).step_seconds()
}

/// Where ranks have come to what they move.
#[derive(Debug, Default)]
struct Wire {
    /// Of each meeting how often each rank comes to it in a step; nothing where a rank plays alone.
    members: HashMap<Meeting, Vec<usize>>,
    /// By the meeting and how many there were before it: who has come to it, and when.
    posts: HashMap<(Meeting, usize), Vec<(usize, f64)>>,
    posted: usize,
}

impl Wire {
    fn of(ranks: &[&[Turn]]) -> Wire {
        let mut wire = Wire::default();
        for (rank, turns) in ranks.iter().enumerate().filter(|_| ranks.len() > 1) {
            for meeting in turns.iter().filter_map(|turn| turn.meets) {
                wire.members.entry(meeting).or_insert_with(|| vec![0; ranks.len()])[rank] += 1;
            }
        }
        wire
    }

    /// When the last of those who come to it was there, and who that is; none while one is missing.
    fn begins(&self, meeting: Meeting, turn: usize, own: f64) -> Option<(f64, Option<usize>)> {
        let Some(counts) = self.members.get(&meeting) else { return Some((own, None)) };
        let fewest = counts.iter().copied().filter(|count| *count > 0).min().unwrap_or(0);
        let most = counts.iter().copied().max().unwrap_or(0);
        // Ranks that differ in how often they come, in each of the steps.
        if fewest != most {
            return Some((own, None));
        }
        let present = counts.iter().filter(|count| **count > 0).count();
        let posts = self.posts.get(&(meeting, turn))?;
        let last = posts.iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
        (posts.len() >= present).then_some((last.1, Some(last.0)))
    }
}

/// What was launched and is not done.
#[derive(Debug)]
struct Pending {
    index: usize,
    launched: f64,
    turn: Turn,
    /// How many turns of the other queue it waits for.
    until: usize,
    meeting: Option<(Meeting, usize)>,
    is_posted: bool,
    /// The turn itself, and no order of streams that goes with it.
    is_own: bool,
}

#[derive(Debug)]
struct Done {
    index: usize,
    begin: f64,
    end: f64,
    /// For whom, and how long.
    waited: Option<(usize, f64)>,
    meets: bool,
    is_own: bool,
}

/// Where the host and the streams of a rank are, in seconds.
#[derive(Debug, Default)]
struct Line {
    host: f64,
    taken: usize,
    /// The first turn of this step.
    base: usize,
    queues: BTreeMap<u64, VecDeque<Pending>>,
    /// When a queue's last turn was done, and of each the number of its turn.
    free: HashMap<u64, f64>,
    ends: HashMap<u64, Vec<(usize, f64)>>,
    lanes: HashMap<(u16, Lane), f64>,
    met: HashMap<Meeting, usize>,
    blocks: bool,
    has_waited: bool,
    end: f64,
}

impl Line {
    /// Whether the host waits for what was launched; where that is done it goes on then.
    fn is_blocked(&mut self, waits: bool) -> bool {
        if !(waits && self.blocks) {
            return false;
        }
        if self.queues.values().all(VecDeque::is_empty) {
            self.host = self.host.max(self.end);
            self.blocks = false;
        }
        self.blocks
    }

    fn launch(&mut self, turn: Turn) {
        self.host += turn.host;
        let (index, launched) = (self.taken, self.host);
        self.taken += 1;
        let mut push = |turn: Turn, until: usize, meeting, is_own| {
            let pending = Pending { index, launched, turn, until, meeting, is_posted: false, is_own };
            self.queues.entry(turn.queue).or_default().push_back(pending);
        };
        if let Some(to) = turn.to {
            push(Turn { order: Some((to, 0)), device: 0.0, meets: None, ..turn }, index, None, false);
        }
        let until = turn.order.map_or(0, |(_, position)| self.base + position);
        let meeting = turn.meets.map(|meeting| {
            let count = self.met.entry(meeting).or_default();
            *count += 1;
            (meeting, *count)
        });
        push(turn, until, meeting, true);
        if let Some(to) = turn.to {
            push(Turn { order: Some((turn.queue, 0)), queue: to, device: 0.0, meets: None, ..turn }, index + 1, None, false);
        }
    }

    /// When the first of a queue can begin: with what its stream waits for, and whoever it meets; none while that is not known.
    fn ready(&self, queue: u64, pending: &Pending) -> Option<f64> {
        let ready = pending.launched.max(self.free.get(&queue).copied().unwrap_or(0.0));
        let Some((source, _)) = pending.turn.order else { return Some(ready) };
        let is_under_way = self.queues.get(&source).and_then(VecDeque::front).is_some_and(|front| front.index < pending.until);
        let ends = self.ends.get(&source).map_or(&[][..], Vec::as_slice);
        let last = ends[..ends.partition_point(|(index, _)| *index < pending.until)].last();
        (!is_under_way).then(|| last.map_or(ready, |(_, end)| ready.max(*end)))
    }

    /// How many at the head of a queue go together.
    fn together(of: &VecDeque<Pending>) -> usize {
        1 + of.iter().skip(1).take_while(|pending| pending.turn.joins).count()
    }

    /// The queue whose head can begin first, and when.
    fn next(&mut self, rank: usize, wire: &mut Wire) -> Option<(f64, u64)> {
        let mut first: Option<(f64, usize, u64)> = None;
        let queues: Vec<u64> = self.queues.iter().filter(|(_, of)| !of.is_empty()).map(|(queue, _)| *queue).collect();
        for queue in queues {
            let of = &self.queues[&queue];
            let Some(ready) = self.ready(queue, &of[0]) else { continue };
            let count = Line::together(of);
            let turn = of[0].turn;
            let mut begin = ready.max(self.lanes.get(&(turn.card, turn.lane)).copied().unwrap_or(0.0));
            if turn.meets.is_some() {
                let mut is_met = true;
                for pending in self.queues.get_mut(&queue).into_iter().flatten().take(count) {
                    let Some((meeting, number)) = pending.meeting else { continue };
                    if !pending.is_posted && !wire.members.is_empty() {
                        wire.posts.entry((meeting, number)).or_default().push((rank, ready.max(pending.launched)));
                        pending.is_posted = true;
                        wire.posted += 1;
                    }
                    match wire.begins(meeting, number, ready) {
                        Some((all, _)) => begin = begin.max(all),
                        None => is_met = false,
                    }
                }
                if !is_met {
                    continue;
                }
            }
            let index = self.queues[&queue][0].index;
            if first.is_none_or(|(other, at, _)| (begin, index) < (other, at)) {
                first = Some((begin, index, queue));
            }
        }
        first.map(|(begin, _, queue)| (begin, queue))
    }

    /// A queue whose head waits for nothing but others.
    fn stuck(&self) -> Option<u64> {
        self.queues.iter().find_map(|(queue, of)| self.ready(*queue, of.front()?).map(|_| *queue))
    }

    /// Runs the head of a queue, with what goes with it.
    fn run(&mut self, queue: u64, wire: &Wire, is_met: bool) -> Vec<Done> {
        let Some(first) = self.queues.get(&queue).and_then(VecDeque::front) else { return Vec::new() };
        let came = self.ready(queue, first).unwrap_or(first.launched);
        let count = self.queues.get(&queue).map_or(0, Line::together);
        let parts: Vec<Pending> = self.queues.get_mut(&queue).map(|of| of.drain(..count).collect()).unwrap_or_default();
        let mut all = Vec::new();
        let mut whole = came;
        for Pending { index, launched, turn, meeting, is_own, .. } in parts {
            // What only orders streams takes nothing of the card.
            let lane = turn.order.is_none().then_some((turn.card, turn.lane));
            let free = lane.and_then(|lane| self.lanes.get(&lane).copied()).unwrap_or(0.0);
            let came = came.max(launched);
            let (others, last) = match meeting.filter(|_| is_met).and_then(|(meeting, number)| wire.begins(meeting, number, came)) {
                Some((begin, last)) => (begin.max(came), last),
                None => (came, None),
            };
            let begin = others.max(free);
            let end = begin + turn.device;
            if let Some(lane) = lane {
                self.lanes.insert(lane, end);
            }
            whole = whole.max(end);
            let waited = last.map(|last| (last, others - came));
            all.push(Done { index, begin, end, waited, meets: meeting.is_some(), is_own });
        }
        self.free.insert(queue, whole);
        self.ends.entry(queue).or_default().extend(all.iter().map(|done| (done.index, whole)));
        self.end = self.end.max(whole);
        all
    }
}

/// The line of a process that goes on as it is asked.
#[derive(Debug, Default)]
pub struct Timeline {
    line: Line,
    wire: Wire,
}

impl Timeline {
    /// The host launches it, and waits where that waits.
    pub fn take(&mut self, turn: Turn) {
        if turn.waited {
            self.wait();
        }
        self.line.launch(turn);
        if turn.waits {
            self.wait();
        }
    }

    /// The host waits for all that was launched.
    pub fn wait(&mut self) {
        self.line.host = self.end();
    }

    /// The host does something else.
    pub fn pass(&mut self, seconds: f64) -> f64 {
        self.line.host += seconds;
        self.line.host
    }

    fn run(&mut self) {
        while let Some((_, queue)) = self.line.next(0, &mut self.wire) {
            self.line.run(queue, &self.wire, true);
        }
    }

    /// When a card is done with what it was given, with copies beside kernels where those are asked for.
    pub fn done(&mut self, card: u16, beside: bool) -> f64 {
        self.run();
        let of = |lane| self.line.lanes.get(&(card, lane)).copied().unwrap_or(0.0);
        let own = self.line.free.get(&(u64::MAX - u64::from(card))).copied().unwrap_or(0.0);
        if beside { of(Lane::Kernels).max(of(Lane::Copies)) } else { of(Lane::Kernels).max(own) }
    }

    pub fn end(&mut self) -> f64 {
        self.run();
        self.line.host.max(self.line.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(host: f64, device: f64, waits: bool) -> Turn {
        Turn { host, device, waits, ..Turn::default() }
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn the_slower_of_host_and_device_decides_and_waiting_adds() {
        assert!(near(steady(&[turn(1.0, 3.0, false); 10], true), 30.0));
        assert!(near(steady(&[turn(3.0, 1.0, false); 10], true), 30.0));
        // Each waits for the other.
        assert!(near(steady(&[turn(1.0, 3.0, true); 10], true), 40.0));
        assert!(near(steady(&[turn(1.0, 3.0, true); 10], false), 30.0));
        assert!(near(steady(&[], true), 0.0));
        // What is copied to a second card waits for the first, and the second for it.
        let on = |card: u16, to| Turn { card, queue: card.into(), to, ..turn(0.1, 3.0, false) };
        assert!(near(steady(&[on(0, None), on(0, Some(1)), on(1, None), on(1, Some(0))], true), 12.0));
        assert!(near(steady(&[on(0, None), on(1, None)], true), 3.0));
        // Kernels follow on each other where the device is the slower one.
        let begins: Vec<f64> = play(&[&[turn(1.0, 3.0, false); 3]], true).spans(0).map(|(begin, _)| begin).collect();
        assert!(near(begins[1] - begins[0], 3.0) && near(begins[2] - begins[1], 3.0), "{begins:?}");
    }

    #[test]
    fn what_is_moved_is_hidden_where_no_stream_waits_for_it() {
        let moves = Turn { queue: 1, lane: Lane::Wire, ..turn(0.0, 5.0, false) };
        let order = |queue, source, position| Turn { queue, order: Some((source, position)), ..Turn::default() };
        let kernel = turn(0.0, 4.0, false);
        // The wire after the first kernel, beside the second, and waited for before the third.
        let turns = [kernel, order(1, 0, 1), moves, kernel, order(0, 1, 3), kernel];
        assert!(near(steady(&turns, true), 13.0), "{}", steady(&turns, true));
        // Nobody waits for it.
        assert!(near(steady(&[turns[0], turns[1], turns[2], turns[3], turns[5]], true), 12.0));
        // Two streams of kernels have one card.
        assert!(near(steady(&[kernel, Turn { queue: 7, ..kernel }], true), 8.0));
    }

    #[test]
    fn who_waits_for_nobody_goes_on() {
        let meets = Some(Meeting { group: 1, pair: Some((0, 1)) });
        let moves = Turn { queue: 1, lane: Lane::Wire, meets, ..turn(0.0, 1.0, false) };
        let one = [moves, moves, turn(1.0, 1.0, true)];
        let other = [moves, turn(1.0, 1.0, true)];
        let played = play(&[&one, &other], true);
        assert!(played.step_seconds() > 0.0 && played.step_seconds().is_finite());
    }
}
