//! The lab's own commands, as programs.

mod gpu_day;
mod loader_commands;
mod run_all;
