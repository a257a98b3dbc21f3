//! `vramlab rehearse`, `fit` and the wheel, as strangers start them.

mod agents;
mod answers;
mod captures;
mod ends;
mod files;
mod first_minute;
mod growing;
mod guarded_by;
mod held;
mod job;
mod kernels;
mod kinds;
mod known;
mod library;
mod passes;
mod rounds;
mod scene;
mod scripts;
mod sharing;
mod strangers;
mod sweeps;
mod times;
mod versions;
mod ways_in;
mod what_if;
mod wheel;
