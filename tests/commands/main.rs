//! The lab's own commands, as programs.

mod gpu_day;
mod run_all;
