//! Processes that train together: how they find each other, and the process group that c10d's collectives run in. PyTorch's own Gloo and
//! NCCL move the tensors; a TCP store of c10d's carries only who is there.
//!
//! A launcher such as `torchrun --no-python` starts the same program once for each rank and tells each its place in the environment:
//! [`Launch::from_environment`] reads it, [`ProcessGroup::launched`] joins the others. One process by itself trains in
//! [`ProcessGroup::alone`], where no collective says anything to anybody.
//!
//! Nothing waits for ever: whoever misses another process fails after the timeout that the store and the group were given, and a process
//! whose connections break, because another was killed, fails at once. Under NCCL it is a watchdog of PyTorch's that notices, and it ends
//! the process.

use super::native::{MemoryFile, distributed as native};
use anyhow::{Context, Result, bail, ensure};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use tch::{Device, Tensor};

/// Why there is no NCCL where the program carries no library for it.
const WITHOUT_NCCL: &str = "this program was built without NCCL: build it with PyTorch's CUDA wheel, which has the headers of NCCL and of \
                            CUDA's runtime";

/// Whether this program was built with NCCL.
pub fn has_nccl() -> bool {
    !native::NCCL.is_empty()
}

/// c10d's key-value store over TCP, by which processes find each other.
#[derive(Debug)]
pub struct Store {
    store: native::NativeStore,
    port: u16,
}

impl Store {
    /// Serves a store on a port of this machine (0: one that is free) and is its first client. It serves as long as it lives.
    ///
    /// # Errors
    /// The port is taken; `host` is no name of this machine.
    pub fn listen(host: &str, port: u16, timeout: Duration) -> Result<Store> {
        let opened = native::NativeStore::open(host, port, true, milliseconds(timeout)?);
        let (store, port) = opened.with_context(|| format!("serving a store at {host}:{port}"))?;
        Ok(Store { store, port })
    }

    /// Becomes a client of a store; waits for its server.
    ///
    /// # Errors
    /// There is no server within the timeout; `host` is not known.
    pub fn connect(host: &str, port: u16, timeout: Duration) -> Result<Store> {
        let opened = native::NativeStore::open(host, port, false, milliseconds(timeout)?);
        let (store, port) = opened.with_context(|| format!("reaching the store at {host}:{port}"))?;
        Ok(Store { store, port })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The same store for a group of its own: no key of one name is a key of another.
    ///
    /// # Errors
    /// The name has a zero byte inside.
    pub fn named(&self, name: &str) -> Result<Store> {
        Ok(Store { store: self.store.prefixed(name)?, port: self.port })
    }

    /// # Errors
    /// The store's server is gone.
    pub fn set(&self, key: &str, value: &str) -> Result<()> {
        self.store.set(key, value.as_bytes()).with_context(|| format!("writing '{key}' to the store"))
    }

    /// Waits for a key and gives its value.
    ///
    /// # Errors
    /// Nobody sets the key within the store's timeout; the store's server is gone.
    pub fn get(&self, key: &str) -> Result<String> {
        let value = self.store.get(key).with_context(|| format!("waiting for '{key}' in the store"))?;
        String::from_utf8(value).with_context(|| format!("the store's '{key}' is no text"))
    }
}

fn milliseconds(timeout: Duration) -> Result<i64> {
    ensure!(!timeout.is_zero(), "a timeout of nothing leaves no time to find the other processes");
    i64::try_from(timeout.as_millis()).context("a timeout beyond all bounds")
}

/// A process's place among those that a launcher started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    pub rank: usize,
    pub world_size: usize,
    /// Number among the processes of this machine: that of its GPU.
    pub local_rank: usize,
    /// Where the store is.
    pub address: String,
    pub port: u16,
    /// Whether the launcher serves the store itself; else rank 0 does.
    pub launcher_serves: bool,
    /// How often the launcher started all processes again after a failure.
    pub restart: u64,
}

impl Launch {
    /// Reads `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR` and `MASTER_PORT`, as `torchrun` and launchers like it set them; none where
    /// none of them is set.
    ///
    /// # Errors
    /// Some are set and others are missing, or one is malformed; all that is wrong is named at once.
    pub fn from_environment() -> Result<Option<Launch>> {
        Launch::read(|name| std::env::var(name).ok())
    }

    fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Launch>> {
        const NAMES: [&str; 5] = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"];
        let set = |name: &str| variable(name).map(|text| text.trim().to_string()).filter(|text| !text.is_empty());
        let missing: Vec<&str> = NAMES.into_iter().filter(|name| set(name).is_none()).collect();
        if missing.len() == NAMES.len() {
            return Ok(None);
        }
        let mut wrong: Vec<String> = missing.iter().map(|name| format!("{name} is missing")).collect();
        let mut number = |name: &str| {
            let text = set(name)?;
            let parsed = text.parse::<usize>();
            parsed.map_err(|_| wrong.push(format!("{name}={text} is no whole number"))).ok()
        };
        let [rank, world_size, local_rank, port] = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"].map(&mut number);
        if let (Some(rank), Some(size)) = (rank, world_size)
            && rank >= size
        {
            wrong.push(format!("RANK={rank} is not below WORLD_SIZE={size}"));
        }
        let port = port.map(u16::try_from);
        if port.is_some_and(|port| port.is_err()) {
            wrong.push("MASTER_PORT is above 65535".to_string());
        }
        match (rank, world_size, local_rank, set("MASTER_ADDR"), port) {
            (Some(rank), Some(world_size), Some(local_rank), Some(address), Some(Ok(port))) if wrong.is_empty() => {
                Ok(Some(Launch {
                    rank,
                    world_size,
                    local_rank,
                    address,
                    port,
                    launcher_serves: set("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|text| text == "True"),
                    restart: set("TORCHELASTIC_RESTART_COUNT").and_then(|text| text.parse().ok()).unwrap_or(0),
                }))
            }
            _ => bail!(
                "the environment is half a launcher's: {}. Start all processes with `torchrun --no-python`, or set these variables as it \
                 does, or unset them to train in one process",
                wrong.join(", ")
            ),
        }
    }

    /// The store by which the processes of this launch find each other.
    ///
    /// # Errors
    /// As for [`Store::listen`] and [`Store::connect`].
    pub fn store(&self, timeout: Duration) -> Result<Store> {
        let serves = self.rank == 0 && !self.launcher_serves;
        let open = if serves { Store::listen } else { Store::connect };
        open(&self.address, self.port, timeout)?.named(&format!("vramlab/{}", self.restart))
    }
}

/// The processes that train together, as one of them sees it. A handle: clones are the same group.
#[derive(Debug, Clone)]
pub struct ProcessGroup {
    shared: Rc<SharedStore>,
}

#[derive(Debug)]
struct SharedStore {
    group: native::Group,
    /// None where there is nobody to agree with.
    store: Option<Store>,
    rank: usize,
    size: usize,
    device: Device,
    agreements: Cell<u64>,
}

impl ProcessGroup {
    /// One process that is told to be rank 0 of `size` and communicates with nobody: every collective leaves its tensors as they are and is
    /// over at once. What a reducer allocates and copies is real. Where `size` is above 1 it divides gradients by it, as if all others
    /// had given zeros.
    ///
    /// # Errors
    /// A size of 0; a device that is neither the CPU nor CUDA (a simulated GPU is CUDA).
    pub fn alone(device: Device, size: usize) -> Result<ProcessGroup> {
        ensure!(size > 0, "a group has at least one process");
        let group = native::Group::alone(0, i32::try_from(size)?, is_cuda(device)?)?;
        Ok(ProcessGroup::of(group, None, (0, size), device))
    }

    /// Joins the other processes on the CPU, with PyTorch's Gloo. `host` is the name or address by which the others reach this process;
    /// none: as PyTorch chooses, by `GLOO_SOCKET_IFNAME` or this machine's name.
    ///
    /// A collective fails after `timeout`, or as soon as a connection breaks.
    ///
    /// # Errors
    /// The processes do not agree on the size of their world, two have one rank, or not all come within the store's timeout: each process
    /// that is there is told. Gloo's message.
    pub fn gloo(store: Store, rank: usize, size: usize, host: Option<&str>, timeout: Duration) -> Result<ProcessGroup> {
        join(&store, rank, size)?;
        let (own_rank, own_size) = (i32::try_from(rank)?, i32::try_from(size)?);
        let group =
            native::Group::gloo(&store.store, own_rank, own_size, host, milliseconds(timeout)?).context("connecting with Gloo")?;
        Ok(ProcessGroup::of(group, Some(store), (rank, size), Device::Cpu))
    }

    /// Joins the other processes on a CUDA device of this one's own, with PyTorch's NCCL. CUDA's half of libtorch must be loaded
    /// (see [`crate::Cuda`]).
    ///
    /// Where a collective takes longer than `timeout`, PyTorch's watchdog ends the process with a message.
    ///
    /// # Errors
    /// As for [`ProcessGroup::gloo`]; the device is no CUDA device; this program was built without NCCL.
    pub fn nccl(store: Store, rank: usize, size: usize, device: Device, timeout: Duration) -> Result<ProcessGroup> {
        let Device::Cuda(index) = device else { bail!("NCCL is for CUDA devices, not for {device:?}") };
        ensure!(has_nccl(), WITHOUT_NCCL);
        join(&store, rank, size)?;
        let library = MemoryFile::new("vramlab-nccl", native::NCCL).context("keeping the library for NCCL in memory")?;
        let (own_rank, own_size) = (i32::try_from(rank)?, i32::try_from(size)?);
        let timeout = milliseconds(timeout)?;
        let group = native::Group::nccl(&library.path(), &store.store, own_rank, own_size, i32::try_from(index)?, timeout)
            .context("connecting with NCCL")?;
        Ok(ProcessGroup::of(group, Some(store), (rank, size), device))
    }

    /// Joins the processes of a launch: with NCCL on a CUDA device, with Gloo on the CPU.
    ///
    /// # Errors
    /// As for [`ProcessGroup::gloo`], [`ProcessGroup::nccl`] and [`Launch::store`].
    pub fn launched(launch: &Launch, device: Device, timeout: Duration) -> Result<ProcessGroup> {
        let store = launch.store(timeout)?;
        match device {
            Device::Cuda(_) => ProcessGroup::nccl(store, launch.rank, launch.world_size, device, timeout),
            _ => ProcessGroup::gloo(store, launch.rank, launch.world_size, None, timeout),
        }
    }

    fn of(group: native::Group, store: Option<Store>, (rank, size): (usize, usize), device: Device) -> ProcessGroup {
        ProcessGroup { shared: Rc::new(SharedStore { group, store, rank, size, device, agreements: Cell::new(0) }) }
    }

    pub fn rank(&self) -> usize {
        self.shared.rank
    }

    pub fn size(&self) -> usize {
        self.shared.size
    }

    /// Where tensors must live to be communicated.
    pub fn device(&self) -> Device {
        self.shared.device
    }

    pub(super) fn native(&self) -> &native::Group {
        &self.shared.group
    }

    /// Gives tensors the values that they have on rank 0, packed into messages of at most 250 MiB as PyTorch's DistributedDataParallel
    /// packs a model: the packing takes memory beside the tensors while it runs.
    ///
    /// # Errors
    /// A rank is gone or late; a tensor lives on another device than the group.
    pub fn broadcast(&self, tensors: &[Tensor]) -> Result<()> {
        tensors.iter().try_for_each(|tensor| self.must_live_here(tensor))?;
        self.shared.group.broadcast(tensors, 250 << 20).context("giving all ranks the tensors of rank 0")
    }

    /// Waits for all ranks.
    ///
    /// # Errors
    /// A rank is gone or late.
    pub fn barrier(&self) -> Result<()> {
        self.shared.group.barrier().context("waiting for all ranks")
    }

    /// Has all ranks compare a text, line by line, before they rely on its being the same. Every rank must ask the same questions in the
    /// same order.
    ///
    /// # Errors
    /// A rank has another text than rank 0, or does not answer within the store's timeout: all ranks are told which.
    pub fn agree(&self, what: &str, text: &str) -> Result<()> {
        let Some(store) = &self.shared.store else { return Ok(()) };
        let number = self.shared.agreements.replace(self.shared.agreements.get() + 1);
        agree(store, &format!("agree/{number}"), (self.rank(), self.size()), what, text)
    }

    fn must_live_here(&self, tensor: &Tensor) -> Result<()> {
        let device = tensor.device();
        ensure!(device == self.device(), "a tensor lives on {device:?}, and this group communicates on {:?}", self.device());
        Ok(())
    }
}

fn is_cuda(device: Device) -> Result<bool> {
    match device {
        Device::Cpu => Ok(false),
        Device::Cuda(_) => Ok(true),
        other => bail!("process groups are for the CPU and for CUDA, not for {other:?}"),
    }
}

/// Meets the other processes of a group.
fn join(store: &Store, rank: usize, size: usize) -> Result<()> {
    ensure!(rank < size, "rank {rank} is not one of a group of {size}");
    let arrived = store.store.add(&format!("arrived/{rank}"), 1).context("telling the others that this process is there")?;
    ensure!(arrived == 1, "another process has joined as rank {rank} already: give each a RANK of its own");
    agree(store, "world", (rank, size), "the size of the world", &size.to_string())
}

/// Rank 0 compares what each rank says with its own text, and all get its answer.
fn agree(store: &Store, key: &str, (rank, size): (usize, usize), what: &str, text: &str) -> Result<()> {
    let answer_key = format!("{key}/answer");
    if rank > 0 {
        store.set(&format!("{key}/{rank}"), text)?;
        let answer = store.get(&answer_key).with_context(|| format!("waiting for rank 0 to compare {what}"))?;
        return match answer.split_once('\n') {
            Some(("agreed", common)) if common == text => Ok(()),
            // It asked nobody of this rank.
            Some(("agreed", common)) => bail!("the ranks do not agree on {what}: {}", difference(rank, text, common)),
            Some((_, refusal)) => bail!("{refusal}"),
            None => bail!("an answer that nobody understands: {answer}"),
        };
    }
    let refusal = (1..size).find_map(|other| match store.get(&format!("{key}/{other}")) {
        Ok(theirs) if theirs == text => None,
        Ok(theirs) => Some(format!("the ranks do not agree on {what}: {}", difference(other, &theirs, text))),
        Err(error) => Some(format!("rank {other} of {size} did not tell {what} in time: {error:#}")),
    });
    let answer = refusal.as_ref().map_or_else(|| format!("agreed\n{text}"), |refusal| format!("refused\n{refusal}"));
    store.set(&answer_key, &answer)?;
    refusal.map_or(Ok(()), |refusal| bail!(refusal))
}

/// The first line in which a rank's text is not rank 0's.
fn difference(rank: usize, theirs: &str, first: &str) -> String {
    let (mut theirs, mut first) = (theirs.lines(), first.lines());
    loop {
        match (theirs.next(), first.next()) {
            (Some(a), Some(b)) if a == b => {}
            (a, b) => return format!("rank {rank} has {}, rank 0 {}", a.unwrap_or("no more"), b.unwrap_or("no more")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn launch(variables: &[(&str, &str)]) -> Result<Option<Launch>> {
        let variables: BTreeMap<&str, &str> = variables.iter().copied().collect();
        Launch::read(|name| variables.get(name).map(|text| text.to_string()))
    }

    const TORCHRUN: [(&str, &str); 5] =
        [("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1"), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", "29500")];

    #[test]
    fn a_launchers_environment_is_read() {
        assert_eq!(launch(&[]).unwrap(), None);
        let mut expected = Launch {
            rank: 1,
            world_size: 2,
            local_rank: 1,
            address: "localhost".into(),
            port: 29500,
            launcher_serves: false,
            restart: 0,
        };
        assert_eq!(launch(&TORCHRUN).unwrap().as_ref(), Some(&expected));
        let elastic = [&TORCHRUN[..], &[("TORCHELASTIC_USE_AGENT_STORE", "True"), ("TORCHELASTIC_RESTART_COUNT", "3")]].concat();
        expected.launcher_serves = true;
        expected.restart = 3;
        assert_eq!(launch(&elastic).unwrap(), Some(expected));
    }

    #[test]
    fn what_is_wrong_in_the_environment_is_named() {
        let with = |name: &str, text: &'static str| {
            let changed: Vec<(&str, &str)> = TORCHRUN.iter().map(|(n, t)| (*n, if *n == name { text } else { t })).collect();
            launch(&changed).unwrap_err().to_string()
        };
        for (name, text, part) in [
            ("RANK", "2", "RANK=2 is not below WORLD_SIZE=2"),
            ("RANK", "-1", "RANK=-1 is no whole number"),
            ("WORLD_SIZE", "two", "WORLD_SIZE=two is no whole number"),
            ("WORLD_SIZE", "0", "RANK=1 is not below WORLD_SIZE=0"),
            ("MASTER_PORT", "70000", "MASTER_PORT is above 65535"),
            ("MASTER_ADDR", " ", "MASTER_ADDR is missing"),
            ("LOCAL_RANK", "", "LOCAL_RANK is missing"),
        ] {
            let error = with(name, text);
            assert!(error.contains(part) && error.contains("torchrun --no-python"), "{error}");
        }
        let error = launch(&TORCHRUN[..1]).unwrap_err().to_string();
        assert!(["WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"].iter().all(|name| error.contains(name)), "{error}");
    }

    #[test]
    fn differences_name_the_first_line() {
        assert_eq!(difference(3, "a\nb", "a\nc"), "rank 3 has b, rank 0 c");
        assert_eq!(difference(3, "a", "a\nc"), "rank 3 has no more, rank 0 c");
    }

    #[test]
    fn alone_every_collective_leaves_its_tensors() {
        let group = ProcessGroup::alone(Device::Cpu, 4).unwrap();
        let tensor = Tensor::from_slice(&[1.0, 2.0]);
        group.broadcast(&[tensor.shallow_clone()]).unwrap();
        group.barrier().unwrap();
        group.agree("nothing", "text").unwrap();
        assert_eq!((Vec::<f64>::try_from(&tensor).unwrap(), group.rank(), group.size()), (vec![1.0, 2.0], 0, 4));
        assert!(ProcessGroup::alone(Device::Cpu, 0).is_err() && ProcessGroup::alone(Device::Mps, 1).is_err());
    }

    #[test]
    fn nccl_says_what_it_lacks() {
        let store = Store::listen("127.0.0.1", 0, Duration::from_secs(20)).unwrap();
        let error = ProcessGroup::nccl(store, 0, 1, Device::Cpu, Duration::from_secs(20)).unwrap_err().to_string();
        assert!(error.contains("NCCL is for CUDA devices"), "{error}");
        let store = Store::listen("127.0.0.1", 0, Duration::from_secs(20)).unwrap();
        let error = format!("{:#}", ProcessGroup::nccl(store, 0, 1, Device::Cuda(0), Duration::from_secs(20)).unwrap_err());
        assert!(error.contains("CUDA's half of libtorch is not loaded") || error.contains("built without NCCL"), "{error}");
    }
}
