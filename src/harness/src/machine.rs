//! Who we are: CPU, GPU, driver, libtorch and flags; what CUDA lacks where it is not there; what limits figures.

use crate::process;
use anyhow::{Context, Result, bail, ensure};
use base::units::Bytes;
use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use record::protocol::Platform;
use sim::cards::{Card, Speed};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Which device to measure on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum DeviceChoice {
    Cpu,
    Cuda(u32),
    /// A simulated GPU, which allocates and never computes.
    Dry(Card),
    /// A simulated GPU in the place of a real one: all that would run there runs, checks and times, too, and no figure of them is kept.
    FakeCuda(Card),
}

/// Memory of a simulated GPU where none is named.
const DRY_MEMORY: u64 = 24 << 30;

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "cpu" => Ok(DeviceChoice::Cpu),
            None if text == "cuda" => Ok(DeviceChoice::Cuda(0)),
            Some(("cuda", index)) if index.parse::<u32>().is_ok_and(|i| i < 128) => {
                Ok(DeviceChoice::Cuda(index.parse().unwrap_or(0)))
            }
            None if text == "dry" => Ok(DeviceChoice::dry()),
            Some(("dry", card)) => match card.parse() {
                Ok(card) => Ok(DeviceChoice::Dry(card)),
                Err(e) => Err(format!("'{text}' is no device: {e}; a simulated GPU is written like dry:24GiB or dry:rtx-4090")),
            },
            // For `gpu-day --rehearse`.
            Some(("fake-cuda", card)) => card.parse().map(DeviceChoice::FakeCuda),
            _ => Err(format!("'{text}' is no device; there are cpu, cuda, cuda:N, dry, dry:MEMORY and dry:CARD")),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            DeviceChoice::Cpu => f.pad("cpu"),
            DeviceChoice::Cuda(index) => f.pad(&format!("cuda:{index}")),
            DeviceChoice::Dry(card) => f.pad(&format!("dry:{card}")),
            DeviceChoice::FakeCuda(card) => f.pad(&format!("fake-cuda:{card}")),
        }
    }
}

impl DeviceChoice {
    /// How many processes load libtorch at the same time before they are timed one by one.
    pub(crate) fn preloaded_processes(self) -> usize {
        match self {
            DeviceChoice::Cpu => cores().clamp(1, 4),
            // Each would hold memory of the GPU.
            DeviceChoice::Cuda(_) | DeviceChoice::Dry(_) | DeviceChoice::FakeCuda(_) => 1,
        }
    }

    /// How many of so many cells are counted at the same time without one changing the bytes of another. On a GPU they would share its memory.
    pub(crate) fn side_by_side(self, threads: u32, cells: usize) -> usize {
        match self {
            DeviceChoice::Cuda(_) => 1,
            DeviceChoice::Cpu => (cores() / threads as usize).clamp(1, cells.max(1)),
            // It computes nothing: one thread is all that a cell takes, and a Python that has loaded PyTorch takes longer than eight cells.
            DeviceChoice::Dry(_) | DeviceChoice::FakeCuda(_) => cells.div_ceil(8).clamp(1, cores()),
        }
    }

    pub fn platform(self) -> Platform {
        match self {
            DeviceChoice::Cpu => Platform::Cpu,
            DeviceChoice::Cuda(_) | DeviceChoice::FakeCuda(_) => Platform::Gpu,
            DeviceChoice::Dry(_) => Platform::Dry,
        }
    }

    /// A simulated GPU of the usual size.
    pub fn dry() -> DeviceChoice {
        DeviceChoice::Dry(Card::of_size(DRY_MEMORY))
    }

    /// The best device that is there: the first GPU that libtorch can use, else the CPU.
    pub fn best() -> DeviceChoice {
        // Looking for CUDA takes a tenth of a second, so only where a driver has left a trace; NVML may be missing where CUDA is not.
        let driver = ["/dev/nvidiactl", "/dev/dxg"].iter().any(|path| Path::new(path).exists()) || Gpu::open(0).is_ok();
        if driver && cuda_devices().is_ok_and(|count| count > 0) { DeviceChoice::Cuda(0) } else { DeviceChoice::Cpu }
    }
}

/// A machine as results describe it.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// Readable name of the results folder: `amd-epyc-2c`, `nvidia-h200`.
    pub slug: String,
    pub hardware: BTreeMap<String, String>,
    pub libtorch: String,
    /// Bytes of the device's memory, where it has its own.
    pub device_memory: Option<u64>,
    /// fp32 operations per second that the device cannot exceed: on a GPU its specification, and a seventh for clocks above it.
    pub flops_limit: Option<f64>,
}

impl Machine {
    /// Describes this machine and the chosen device.
    ///
    /// # Errors
    /// The device cannot be used, with the reason and what would help; the loaded libtorch is of another version.
    pub fn describe(choice: DeviceChoice) -> Result<Machine> {
        let (cpu, cores) = (cpu_model(), cores());
        let mut hardware = BTreeMap::from([("cpu".to_string(), cpu.clone()), ("cores".to_string(), cores.to_string())]);
        if let Some(memory) = total_memory() {
            // Whole ones: the kernel's exact figure differs from boot to boot.
            hardware.insert("memory".to_string(), format!("{} GiB", (memory + (1 << 29)) >> 30));
        }
        let libtorch = libtorch_version()?;
        match choice {
            DeviceChoice::Cpu => Ok(Machine {
                slug: format!("{}-{cores}c", slug(&cpu)),
                hardware,
                libtorch,
                device_memory: None,
                // Two 512-bit multiply-adds a cycle at 6 GHz: no core that is sold does more.
                flops_limit: Some(cores as f64 * 64.0 * 6e9),
            }),
            DeviceChoice::Cuda(index) => {
                let gpu = usable_gpu(index)?;
                let name = gpu.as_ref().map_or_else(|| "unknown GPU".to_string(), Gpu::name);
                hardware.insert("gpu".to_string(), name.clone());
                hardware.extend(gpu.as_ref().map(Gpu::describe).unwrap_or_default());
                let device_memory = gpu.as_ref().and_then(Gpu::memory);
                let flops_limit = Speed::of_gpu(&name).map(|speed| speed.single * 8.0 / 7.0);
                Ok(Machine { slug: slug(&name), hardware, libtorch, device_memory, flops_limit })
            }
            DeviceChoice::Dry(card) | DeviceChoice::FakeCuda(card) => {
                ensure!(torch::dry::is_built(), torch::dry::NOT_BUILT);
                let library = beside_libtorch("libc10_cuda.so");
                ensure!(
                    library.is_some(),
                    "this libtorch has no CUDA half, whose caching allocator a simulated GPU runs; install torch {} from its CUDA build",
                    torch::compiled_version()
                );
                // What it predicts does not depend on the machine that it was predicted on.
                let hardware = BTreeMap::from([
                    ("gpu".to_string(), card.name.map_or("simulated".to_string(), |_| format!("simulated {}", card.title))),
                    ("gpu memory".to_string(), Bytes(card.memory).exact()),
                    ("assumed".to_string(), format!("{}, {}", card.assumption(), torch::dry::CUDNN)),
                ]);
                let slug = format!("dry-{}", card.to_string().to_ascii_lowercase());
                Ok(Machine { slug, hardware, libtorch, device_memory: Some(card.memory), flops_limit: None })
            }
        }
    }
}

/// What is specified for a device; none for a CPU, a simulated GPU, and a GPU that `cards.csv` does not have.
pub fn specification(device: tch::Device) -> Option<Speed> {
    let tch::Device::Cuda(index) = device else { return None };
    Speed::of_gpu(&Gpu::open(u32::try_from(index).ok()?).ok()?.name())
}

/// Bandwidth of PCI Express in bytes a second, after its line code (8b/10b to generation 2, 128b/130b to 5, flits in 6). None for the GPUs that
/// reach their host by another link than the one that they report.
fn link_limit(gpu: &str, generation: u32, lanes: u32) -> Option<f64> {
    const TRANSFERS: [f64; 6] = [2.5e9, 5e9, 8e9, 16e9, 32e9, 64e9];
    if ["GH200", "GB200", "GB300", "GB10"].iter().any(|coherent| gpu.contains(coherent)) {
        return None;
    }
    let transfers = TRANSFERS.get(usize::try_from(generation).ok()?.checked_sub(1)?)?;
    let code = match generation {
        1 | 2 => 8.0 / 10.0,
        3..=5 => 128.0 / 130.0,
        _ => 1.0,
    };
    Some(transfers * code / 8.0 * f64::from(lanes))
}

/// `AMD EPYC 7763 64-Core Processor` to `amd-epyc-7763`.
fn slug(name: &str) -> String {
    let plain = name.split('@').next().unwrap_or(name).replace("(R)", " ").replace("(TM)", " ");
    let noise = |word: &&str| {
        let word = word.to_ascii_lowercase();
        !["cpu", "processor", "with", "radeon", "graphics"].contains(&word.as_str()) && !word.ends_with("-core")
    };
    let words: Vec<String> = plain
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '-')
        .filter(|word| !word.is_empty())
        .filter(noise)
        .map(str::to_ascii_lowercase)
        .collect();
    if words.is_empty() { "unknown".to_string() } else { words.join("-") }
}

/// What the kernel says of the first core.
fn cpu_field(name: &str) -> Option<String> {
    let info = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let (_, value) = info.lines().find_map(|line| line.split_once(':').filter(|(key, _)| key.trim() == name))?;
    Some(value.trim().to_string())
}

fn cpu_model() -> String {
    cpu_field("model name").unwrap_or_else(|| std::env::consts::ARCH.to_string())
}

/// The kernel's name and release, as `uname` tells them.
pub fn kernel() -> Option<String> {
    let kernel = |file: &str| Some(std::fs::read_to_string(Path::new("/proc/sys/kernel").join(file)).ok()?.trim().to_string());
    Some(format!("{} {}", kernel("ostype")?, kernel("osrelease")?))
}

/// The CPU beyond its name, which is a family's on rented machines: `AMD EPYC, family 25, model 17, stepping 1, microcode 0xa101148`.
pub fn exact_cpu() -> String {
    let numbers = [("family", "cpu family"), ("model", "model"), ("stepping", "stepping"), ("microcode", "microcode")];
    let numbers = numbers.into_iter().filter_map(|(word, name)| Some(format!("{word} {}", cpu_field(name)?)));
    std::iter::once(cpu_model()).chain(numbers).collect::<Vec<_>>().join(", ")
}

/// Cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Bytes of this machine's memory, where the kernel tells.
pub fn total_memory() -> Option<u64> {
    process::field(Path::new("/proc/meminfo"), "MemTotal").ok()
}

/// Version of the loaded libtorch. Another than this program was compiled for would fail later and less clearly, so it fails here.
pub fn libtorch_version() -> Result<String> {
    let library = torch::loaded_library().context("the loaded libtorch cannot be located")?;
    let torch = library.parent().and_then(Path::parent).context("the loaded libtorch stands in no directory")?;
    let compiled = torch::compiled_version();
    let Some(found) = native_build::torch_version(torch) else { return Ok(compiled) };
    // Patch releases keep the binary interface.
    let release = |version: &str| version.split('.').take(2).map(str::to_string).collect::<Vec<_>>();
    ensure!(
        release(&found) == release(&compiled),
        "this program was built for libtorch {compiled}, and {} is {found}; point LD_LIBRARY_PATH to the lib directory of torch {compiled}, or build again after scripts/setup",
        torch.display()
    );
    Ok(found)
}

/// A library that lies in the folder of the loaded libtorch.
fn beside_libtorch(name: &str) -> Option<PathBuf> {
    let library = torch::loaded_library()?.parent()?.join(name);
    library.exists().then_some(library)
}

/// How many CUDA devices libtorch sees. Loads libtorch's CUDA half into this process.
fn cuda_devices() -> Result<i64> {
    ensure!(
        beside_libtorch("libtorch_cuda.so").is_some(),
        "this libtorch was built without CUDA; install torch {} from its CUDA build",
        torch::compiled_version()
    );
    torch::load_cuda().context("libtorch's CUDA half cannot be loaded")?;
    Ok(tch::Cuda::device_count())
}

/// What NVML knows of the GPU that CUDA index `index` means, if libtorch can use it; none where NVML is missing, which containers may lack.
fn usable_gpu(index: u32) -> Result<Option<Gpu>> {
    let gpu = Gpu::open(index);
    let count = cuda_devices()?;
    if count == 0 {
        bail!(
            "the driver shows a GPU ({}), but CUDA does not: the driver may be older than libtorch's CUDA needs, or CUDA_VISIBLE_DEVICES hides it",
            gpu?.name()
        );
    }
    ensure!(i64::from(index) < count, "there is no CUDA device {index}: libtorch sees {count}");
    Ok(gpu.ok())
}

/// Why CUDA cannot be used here and what would help; `None` where it can.
pub fn why_no_cuda() -> Option<String> {
    usable_gpu(0).err().map(|e| format!("{e:#}"))
}

/// What a device is like at one moment: readings for the record, and what slows it down against its will.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conditions {
    /// Metric, unit and value: clocks, temperature, power.
    pub readings: Vec<(&'static str, &'static str, f64)>,
    pub throttled: Option<String>,
    /// Joules that the GPU has taken since its driver was loaded; none where it has no such counter.
    pub energy: Option<f64>,
    /// Bytes a second that the link between host and device is specified for, in one direction.
    pub link: Option<f64>,
}

/// Where NVML lies, beside the linker's own places: under its other name, in containers, under WSL.
const NVML: [&str; 5] = [
    "libnvidia-ml.so.1",
    "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
    "/usr/lib64/libnvidia-ml.so.1",
    "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
    "/usr/lib/wsl/lib/libnvidia-ml.so.1",
];

/// What NVML knows of one GPU.
#[derive(Debug)]
pub struct Gpu {
    nvml: Nvml,
    index: u32,
}

impl Gpu {
    /// Opens a GPU by its CUDA index.
    pub fn open(index: u32) -> Result<Gpu> {
        let first = Nvml::init();
        let others = || NVML.iter().find_map(|path| Nvml::builder().lib_path(path.as_ref()).init().ok());
        let nvml = first.or_else(|e| others().ok_or(e)).map_err(|e| {
            anyhow::anyhow!("no NVIDIA driver answers on this machine ({e}); with a GPU in it, install the driver; without one, use --device cpu")
        })?;
        let setting = std::env::var("CUDA_VISIBLE_DEVICES").ok();
        let uuids: Vec<String> = (0..nvml.device_count().unwrap_or(0))
            .map(|number| nvml.device_by_index(number).and_then(|device| device.uuid()).unwrap_or_default())
            .collect();
        Gpu::shown_by(nvml, visible(index, setting.as_deref(), &uuids)?)
    }

    fn shown_by(nvml: Nvml, physical: u32) -> Result<Gpu> {
        let count = nvml.device_count().context("asking the driver for its GPUs")?;
        ensure!(physical < count, "there is no GPU {physical}: the driver shows {count}");
        Ok(Gpu { nvml, index: physical })
    }

    fn device(&self) -> Result<nvml_wrapper::Device<'_>> {
        Ok(self.nvml.device_by_index(self.index)?)
    }

    pub fn name(&self) -> String {
        self.device().and_then(|d| Ok(d.name()?)).unwrap_or_else(|_| "unknown GPU".to_string())
    }

    /// The card that it is: by its name, or by its size where no card has that name.
    pub fn card(&self) -> Option<Card> {
        let (name, memory) = (self.name(), self.memory());
        let known = sim::cards::all().iter().filter(|card| card.title == name);
        // Of two sizes under one name the nearest.
        let apart = |card: &&Card| memory.map_or(0, |bytes| card.memory.abs_diff(bytes));
        known.min_by_key(apart).copied().or_else(|| memory.map(Card::of_size))
    }

    /// As CUDA tells it: without what the driver keeps for itself.
    fn memory(&self) -> Option<u64> {
        self.device().ok()?.memory_info().ok().map(|m| m.total - m.reserved.min(m.total))
    }

    fn describe(&self) -> BTreeMap<String, String> {
        let power_limit = self.device().ok().and_then(|d| d.enforced_power_limit().ok());
        let known = [
            ("gpu", Some(self.name())),
            ("driver", self.nvml.sys_driver_version().ok()),
            ("gpu memory", self.memory().map(|bytes| format!("{} MiB", bytes >> 20))),
            ("gpu power limit", power_limit.map(|milliwatts| format!("{} W", milliwatts / 1000))),
        ];
        known.into_iter().filter_map(|(name, value)| Some((name.to_string(), value?))).collect()
    }

    /// What the link to the host is specified for, in bytes a second: the largest generation and width that GPU and slot have together.
    fn link(&self) -> Option<f64> {
        let device = self.device().ok()?;
        link_limit(&self.name(), device.max_pcie_link_gen().ok()?, device.max_pcie_link_width().ok()?)
    }

    /// Clocks, temperature, power and what throttles the GPU now. A power cap is a setting and is only recorded.
    pub fn conditions(&self) -> Conditions {
        let Ok(device) = self.device() else { return Conditions::default() };
        let mut readings = Vec::new();
        readings.extend(device.clock_info(Clock::SM).ok().map(|mhz| ("sm_clock", "Hz", f64::from(mhz) * 1e6)));
        readings.extend(
            device.temperature(TemperatureSensor::Gpu).ok().map(|celsius| ("temperature", "K", f64::from(celsius) + 273.15)),
        );
        readings.extend(device.power_usage().ok().map(|milliwatts| ("power", "W", f64::from(milliwatts) / 1e3)));
        let against_its_will = ThrottleReasons::HW_SLOWDOWN
            | ThrottleReasons::HW_THERMAL_SLOWDOWN
            | ThrottleReasons::SW_THERMAL_SLOWDOWN
            | ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN;
        let reasons = device.current_throttle_reasons().ok().map(|reasons| reasons & against_its_will);
        let throttled = reasons.filter(|reasons| !reasons.is_empty());
        Conditions {
            readings,
            throttled: throttled.map(|r| r.iter_names().map(|(name, _)| name.to_lowercase()).collect::<Vec<_>>().join(" ")),
            energy: device.total_energy_consumption().ok().map(|millijoules| millijoules as f64 / 1e3),
            link: self.link(),
        }
    }
}

/// NVML's index of a CUDA index: CUDA counts what `CUDA_VISIBLE_DEVICES` shows, by number or by the beginning of a UUID; NVML counts all.
fn visible(index: u32, setting: Option<&str>, uuids: &[String]) -> Result<u32> {
    let Some(setting) = setting.filter(|s| !s.trim().is_empty()) else { return Ok(index) };
    let listed: Vec<&str> = setting.split(',').map(str::trim).collect();
    let entry = listed.get(index as usize).with_context(|| format!("CUDA_VISIBLE_DEVICES={setting} shows no device {index}"))?;
    ensure!(
        !entry.starts_with("MIG-"),
        "CUDA_VISIBLE_DEVICES={setting} names a part of a GPU (MIG), of which the driver tells neither clocks nor power: measure on a whole GPU"
    );
    if let Ok(number) = entry.parse() {
        return Ok(number);
    }
    let named = uuids.iter().position(|uuid| uuid.starts_with(entry));
    let named = named.with_context(|| format!("CUDA_VISIBLE_DEVICES={setting}: the driver shows no GPU '{entry}'"))?;
    Ok(u32::try_from(named)?)
}

/// Variables of the environment that change figures begin so.
const ENVIRONMENT: [&str; 12] =
    ["PYTORCH_", "TORCH_", "OMP_", "KMP_", "MKL_", "ONEDNN_", "DNNL_", "ATEN_", "CUBLAS_", "CUDA_", "MALLOC_", "GLIBC_TUNABLES"];

/// Settings that change figures and must agree between two runs of one comparison, and between both sides of a comparison with Python.
pub fn flags(threads: usize) -> Result<BTreeMap<String, String>> {
    let mut flags = torch::settings()?;
    flags.insert("threads".to_string(), threads.to_string());
    flags.extend(std::env::vars().filter(|(name, _)| ENVIRONMENT.iter().any(|prefix| name.starts_with(prefix))));
    Ok(flags)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// An NVML with one GPU, compiled for the test: an H200 whose link has this generation, or -1 where NVML does not support the question.
    fn nvml(folder: &Path, generation: i32) -> Nvml {
        let source = r#"
            #include <cstring>
            using Device = void*;
            struct Memory { unsigned version; unsigned long long total, reserved, free, used; };
            extern "C" {
            int nvmlInit_v2() { return 0; }
            int nvmlShutdown() { return 0; }
            int nvmlSystemGetDriverVersion(char* text, unsigned) { std::strcpy(text, "580.65.06"); return 0; }
            int nvmlDeviceGetCount_v2(unsigned* count) { *count = 1; return 0; }
            int nvmlDeviceGetHandleByIndex_v2(unsigned, Device* device) { *device = device; return 0; }
            int nvmlDeviceGetName(Device, char* name, unsigned) { std::strcpy(name, "NVIDIA H200"); return 0; }
            int nvmlDeviceGetMemoryInfo_v2(Device, Memory* memory) {
              memory->total = 143771ull << 20;
              memory->reserved = 600ull << 20;
              return 0;
            }
            int nvmlDeviceGetMaxPcieLinkGeneration(Device, unsigned* value) { *value = GENERATION; return GENERATION < 0 ? 3 : 0; }
            int nvmlDeviceGetMaxPcieLinkWidth(Device, unsigned* value) { *value = 16; return 0; }
            }"#;
        let (file, library) = (folder.join("nvml.cpp"), folder.join(format!("nvml{generation}.so")));
        std::fs::write(&file, source.replace("GENERATION", &generation.to_string())).unwrap();
        let compiled = Command::new("c++").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&file).status().unwrap();
        assert!(compiled.success());
        Nvml::builder().lib_path(library.as_os_str()).init().unwrap()
    }

    #[test]
    fn nvml_figures_are_optional() {
        let folder = tempfile::tempdir().unwrap();
        for (generation, link) in [(5, Some(63e9)), (0, None), (-1, None)] {
            let gpu = Gpu::shown_by(nvml(folder.path(), generation), 0).unwrap();
            assert_eq!(gpu.name(), "NVIDIA H200");
            // As CUDA has it: without what the driver keeps.
            assert_eq!(gpu.memory(), Some((143_771 - 600) << 20));
            assert_eq!(gpu.describe()["driver"], "580.65.06");
            assert!(!gpu.describe().contains_key("gpu power limit"));
            assert_eq!(gpu.card().and_then(|card| card.name), Some("h200"));
            let found = gpu.conditions();
            assert_eq!((found.readings, found.throttled), (vec![], None));
            assert_eq!(found.link.map(|link| (link / 1e9).round() * 1e9), link);
        }
        let error = Gpu::shown_by(nvml(folder.path(), 5), 1).unwrap_err().to_string();
        assert!(error.contains("no GPU 1") && error.contains("shows 1"), "{error}");
    }

    #[test]
    fn links_have_their_specified_bandwidth() {
        let gigabytes = |generation, lanes| link_limit("NVIDIA H200", generation, lanes).map(|limit| (limit / 1e7).round() / 100.0);
        assert_eq!(gigabytes(3, 16), Some(15.75));
        assert_eq!(gigabytes(5, 16), Some(63.02));
        assert_eq!((gigabytes(1, 1), gigabytes(2, 8)), (Some(0.25), Some(4.0)));
        assert_eq!((gigabytes(0, 16), gigabytes(7, 16)), (None, None));
        assert_eq!(link_limit("NVIDIA GH200 480GB", 5, 16), None, "NVLink to its CPU");
    }

    #[test]
    fn names_become_folders() {
        assert_eq!(slug("AMD EPYC"), "amd-epyc");
        assert_eq!(slug("Intel(R) Xeon(R) Platinum 8480C CPU @ 2.00GHz"), "intel-xeon-platinum-8480c");
        assert_eq!(slug("AMD EPYC 7763 64-Core Processor"), "amd-epyc-7763");
        assert_eq!(slug("NVIDIA H200"), "nvidia-h200");
        assert_eq!(slug("../.."), "unknown");
    }

    #[test]
    fn cuda_indices_follow_what_is_visible() {
        let uuids = ["GPU-11", "GPU-22"].map(str::to_string);
        assert_eq!(visible(1, None, &uuids).unwrap(), 1);
        assert_eq!(visible(0, Some("3,1"), &uuids).unwrap(), 3);
        assert!(visible(2, Some("3,1"), &uuids).is_err());
        assert_eq!(visible(0, Some("GPU-2"), &uuids).unwrap(), 1, "not the first of all");
        for (setting, said) in [("GPU-3", "no GPU 'GPU-3'"), ("MIG-22", "whole GPU")] {
            assert!(visible(0, Some(setting), &uuids).unwrap_err().to_string().contains(said), "{setting}");
        }
    }
}
