//! The safe wrapper of `settings.cpp`: what is set in libtorch that changes figures.

use super::{Message, checked};
use anyhow::Result;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_void};

type TakeSetting = extern "C" fn(*mut c_void, *const c_char, *const c_char);

unsafe extern "C" {
    fn vl_settings(taker: *mut c_void, take: TakeSetting) -> Message;
}

/// Every setting of this process and thread, under readable names.
///
/// # Errors
/// libtorch's message, where its state is inconsistent.
pub fn settings() -> Result<BTreeMap<String, String>> {
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    // SAFETY: `keep` only runs during the call, while `found` is borrowed by nothing else.
    checked(unsafe { vl_settings((&raw mut found).cast(), keep) })?;
    Ok(found)
}

extern "C" fn keep(found: *mut c_void, name: *const c_char, value: *const c_char) {
    // SAFETY: both are C strings that live during the call.
    let text = |pointer: *const c_char| unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned();
    // SAFETY: the map is that of `settings`.
    unsafe { &mut *found.cast::<BTreeMap<String, String>>() }.insert(text(name), text(value));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_follow_what_is_set() {
        crate::native::amp::allow_tf32(true, false).unwrap();
        assert_eq!(settings().unwrap()["tf32 matmul"], "true");
        crate::native::amp::allow_tf32(false, false).unwrap();
        let found = settings().unwrap();
        assert_eq!((found["tf32 matmul"].as_str(), found["oneDNN"].as_str()), ("false", "true"));
        assert_eq!(found["threads"], tch::get_num_threads().to_string());
    }
}
