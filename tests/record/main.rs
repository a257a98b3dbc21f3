//! The judge: what it says of samples, and how often it is wrong by noise alone.

mod journal;
mod judge;
mod questions;
mod simulation;
