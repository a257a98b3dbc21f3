//! Loaders that are started and stopped again and again leave neither threads nor memory. A process of its own: it counts both.

use harness::process;
use loader::*;

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// One loader's life: a whole epoch, an epoch that is left early, and its end with a batch still in use.
fn cycle(number: usize) {
    let data = FnDataset::new(40, &[16 * 1024], |index, _, into: &mut [f32]| {
        into.fill(index as f32);
        Ok(0)
    });
    let config = Config { batch: 4, workers: 3, persistent: !number.is_multiple_of(3), ..Config::default() };
    let mut loader = Loader::new(data, config).unwrap();
    if number.is_multiple_of(5) {
        assert_eq!(loader.epoch(0).unwrap().count(), 10);
    }
    let kept = loader.epoch(1).unwrap().nth(number % 4).unwrap().unwrap();
    drop(loader);
    assert_eq!(kept.samples.double_value(&[0, 0]), f64::from(kept.indices[0]));
}

#[test]
fn a_thousand_cycles_leak_neither_threads_nor_memory() {
    (0..100).for_each(cycle);
    let (threads_before, memory_before) = (threads(), process::resident().unwrap());
    (0..1000).for_each(cycle);
    assert_eq!(threads(), threads_before);
    let grown = process::resident().unwrap().saturating_sub(memory_before);
    // One leaked batch a cycle would be 256 MiB, one leaked thread's stack 8 MiB of addresses and some 10 KiB in memory.
    assert!(grown < 8 << 20, "{grown} bytes more after 1000 cycles");
}
