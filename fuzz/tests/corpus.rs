//! Replays the committed corpus of every target. So a fixed bug cannot return unnoticed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use trunkline_fuzz::TARGETS;
use trunkline_fuzz::mutate::Random;

#[test]
fn every_input_of_the_corpus_does_no_harm() {
    for target in TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
        let mut files: Vec<_> =
            std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        assert!(!files.is_empty(), "{} has no corpus", target.name);
        for file in files {
            println!("{}", file.display()); // this input is at fault if the next line panics
            (target.run)(&std::fs::read(&file).unwrap());
        }
    }
}

/// Runs each target on inputs of its own mutator. A mutator must neither exceed the length nor
/// panic.
#[test]
fn every_mutator_keeps_to_the_length() {
    for target in TARGETS {
        let mut random = Random::new(7);
        let mut input = Vec::new();
        for seed in 1..3000 {
            (target.mutate)(&mut input, 300, seed, &mut |input, max| {
                input.resize((input.len() + random.below(9)).min(max), seed as u8);
                if let Some(last) = input.len().checked_sub(1) {
                    input[random.below(last + 1)] = random.below(256) as u8;
                }
            });
            assert!(input.len() <= 300, "{}: {} octets", target.name, input.len());
            (target.run)(&input);
        }
    }
}
