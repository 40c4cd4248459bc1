//! The fuzzer, one process for each target, with libFuzzer's options: `TRUNKLINE_FUZZ_TARGET=update
//! trunkline-fuzz CORPUS… -max_total_time=60`. `cargo lab fuzz` builds it with coverage
//! instrumentation and runs it.
#![no_main]
#![allow(unsafe_code, unsafe_op_in_unsafe_fn, reason = "libFuzzer's macros export C functions")]

use std::sync::OnceLock;

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use trunkline_fuzz::{TARGETS, Target};

fn target() -> &'static Target {
    static TARGET: OnceLock<&'static Target> = OnceLock::new();
    TARGET.get_or_init(|| {
        let name = std::env::var("TRUNKLINE_FUZZ_TARGET").unwrap_or_default();
        TARGETS.iter().find(|target| target.name == name).unwrap_or_else(|| {
            let names = TARGETS.map(|target| target.name).join(", ");
            eprintln!("TRUNKLINE_FUZZ_TARGET is {name:?}: write one of {names}");
            std::process::exit(2)
        })
    })
}

fuzz_target!(|data: &[u8]| (target().run)(data));

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let mut input = data[..size].to_vec();
    (target().mutate)(&mut input, max_size, seed, &mut |input: &mut Vec<u8>, max: usize| {
        let size = input.len().min(max);
        input.resize(max, 0);
        let size = fuzzer_mutate(input, size, max);
        input.truncate(size);
    });
    let size = input.len().min(max_size);
    data[..size].copy_from_slice(&input[..size]);
    size
});
