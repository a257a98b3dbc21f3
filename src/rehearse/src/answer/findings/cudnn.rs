//! Convolutions without cuDNN.

use super::{Finding, FindingKind};
use crate::capture::process::Frame;
use crate::words::place_of;

pub fn find(line: Option<&Frame>) -> Option<Finding> {
    let line = line?;
    let title = "Convolutions run without cuDNN, in kernels of PyTorch's that take longer and of whose time there is no record:";
    let row = format!(
        "first at {}: torch.backends.cudnn.enabled is False there, as cudnn.flags(...) makes it where it is not given enabled=True",
        place_of(line)
    );
    Some(Finding::new(FindingKind::WithoutCudnn, title, [row])?.of(0, Some(line)))
}
