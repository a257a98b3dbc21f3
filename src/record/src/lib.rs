//! What an experiment records and what follows from it, as plain data: the protocol, the samples, and the verdicts. Nothing here measures.

pub mod judge;
pub mod protocol;
pub mod results;
pub mod rounds;
pub mod rules;
