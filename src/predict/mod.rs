//! What a training step will need of a GPU's memory, known on any machine.
//!
//! A step is run on the simulated GPU ([`crate::dry`]): PyTorch's own caching allocator over a card that is only simulated. Nothing is
//! computed, so a step of a model of any size takes milliseconds; every allocation that PyTorch would make is made, and followed here.
//!
//! # Your own model
//! A process is dry or real, never both, so predictions are made in a child process. A program starts itself again, prepared by
//! [`crate::dry::prepare_beside`], and there runs the steps that it would run on a GPU. [`Follower::ended`] is told of the end of each
//! phase, with the parameters and the data, so that it knows what bytes are for.
//! ```no_run
//! use tch::{Device, Kind, Tensor, nn, nn::Module, nn::OptimizerConfig};
//! use vramlab::dry::{self, Dry};
//! use vramlab::predict::{self, Follower, taken};
//! use vramlab::torch::{Mark, Phase};
//!
//! fn main() -> anyhow::Result<()> {
//!     if std::env::var_os("DRY").is_none() {
//!         let mut command = std::process::Command::new(std::env::current_exe()?);
//!         let card = "rtx-4090".parse().map_err(anyhow::Error::msg)?;
//!         dry::prepare_beside(&mut command, card, taken(&card))?;
//!         command.env("DRY", "1").status()?;
//!         return Ok(());
//!     }
//!     let dry = Dry::open()?;
//!     let prediction = predict::follow(&dry, |follower: &mut Follower| {
//!         let store = nn::VarStore::new(follower.device());
//!         let model = nn::linear(store.root(), 4096, 4096, Default::default());
//!         let mut optimizer = nn::AdamW::default().build(&store, 1e-4)?;
//!         let x = Tensor::randn([512, 4096], (Kind::Float, follower.device()));
//!         follower.ended(Mark::LOADED, &store, &[&x])?;
//!         // The second iteration is the first that has optimizer state from its beginning.
//!         for iteration in 1..=2 {
//!             let mark = |phase| Mark { iteration, phase, micro_batch: 0 };
//!             optimizer.zero_grad();
//!             let loss = model.forward(&x).square().mean(Kind::Float);
//!             follower.ended(mark(Phase::Forward), &store, &[&x])?;
//!             loss.backward();
//!             drop(loss);
//!             follower.ended(mark(Phase::Backward), &store, &[&x])?;
//!             optimizer.step();
//!             follower.ended(mark(Phase::Step), &store, &[&x])?;
//!         }
//!         Ok(())
//!     })?;
//!     println!("{} bytes are reserved at most", prediction.reserved);
//!     Ok(())
//! }
//! ```
//! Models that the lab knows need none of this: [`predict`] takes a [`Configuration`](crate::training::Configuration).
//!
//! # What a dry run cannot see
//! - What [`crate::dry`] says: values, time, workspaces and other cards than the assumed one.
//! - What a process has beside PyTorch's allocator. It is estimated by named terms ([`terms()`]), each of which says whether a GPU has
//!   confirmed it.
//! - Other programs on the same card.

mod composer;
mod dry_run;
mod follower;
mod largest;
mod picture;
mod plan;
mod prediction;
mod snapshot;
mod terms;

pub use composer::Composer;
pub use dry_run::{follow, predict};
pub use follower::Follower;
pub use largest::{Largest, largest};
pub use picture::draw;
pub use plan::{Candidate, Plan, Search, Tried, divisors};
pub use prediction::{Peak, Prediction, Whole};
pub use snapshot::write as write_snapshot;
pub use terms::{Term, taken, terms};
