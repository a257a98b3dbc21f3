//! The lab's own commands, as programs.

mod evidence;
mod gpu_day;
mod run_all;
