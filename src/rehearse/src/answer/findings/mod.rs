//! Something that a person should know beside the figures. Each is a file: what is found, the sentence, where it is, and what helps.

pub mod attention;
pub mod caught;
pub mod cudnn;
pub mod garbage;
pub mod gradients;
pub mod growth;
pub mod kept_by;
pub mod leftovers;
pub mod needless;
pub mod placeholders;
pub mod pools;
pub mod sized;
pub mod uncounted;
pub mod unreached;
pub mod untaken;
pub mod varied;

use crate::capture::process::Frame;
use serde::Serialize;

sim::listed! {
    /// What is found.
    #[derive(Serialize, schemars::JsonSchema)]
    #[serde(rename_all = "snake_case")]
    FindingKind {
        /// Out-of-memory errors that the script caught.
        Caught,
        Unreached,
        /// Batches of several sizes.
        Varied,
        NeedlessGraphs,
        GradientsWithoutSteps,
        ExplicitAttention,
        WithoutCudnn,
        /// What cuDNN offers on a GPU alone.
        Engines,
        Leftovers,
        Growth,
        KeptBy,
        /// Of CUDA graphs, or that the script made.
        Pools,
        SizedByFree,
        /// Of PyTorch's allocator, set by the script.
        Limit,
        /// That no coming optimizer step takes.
        UntakenGradients,
        /// That only Python's garbage collector frees.
        Garbage,
        Placeholders,
        Uncounted,
    }
}

/// A sentence with what there is to say of it.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Finding {
    pub kind: FindingKind,
    pub title: String,
    pub rows: Vec<String>,
    /// What to do about it, in short.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cure: Option<String>,
    /// Of the peak, or that are left behind each round; 0 where it is of no bytes.
    pub bytes: i64,
    pub place: Option<Frame>,
}

impl Finding {
    /// One without rows says nothing.
    fn new(kind: FindingKind, title: impl Into<String>, rows: impl IntoIterator<Item = String>) -> Option<Finding> {
        let found = Finding { kind, title: title.into(), rows: rows.into_iter().collect(), cure: None, bytes: 0, place: None };
        (!found.rows.is_empty()).then_some(found)
    }

    fn of(self, bytes: i64, place: Option<&Frame>) -> Finding {
        Finding { bytes, place: place.cloned(), ..self }
    }

    /// Whether it says what nobody knows.
    pub fn is_unknown(&self) -> bool {
        matches!(self.kind, FindingKind::Placeholders | FindingKind::Uncounted | FindingKind::Engines)
    }
}
