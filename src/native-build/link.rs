//! The build script of the crates whose programs and tests link libtorch.

fn main() {
    native_build::link_libtorch();
}
