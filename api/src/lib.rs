//! Resources and the attach protocol.
