//! A BGP-4 speaker without I/O, and (feature `net`) the tokio shell that gives it sockets and a clock.
#![cfg_attr(not(feature = "net"), forbid(unsafe_code))]

pub mod bfd;
pub mod bmp;
pub mod config;
pub mod mrt;
#[cfg(feature = "net")]
pub mod net;
pub mod policy;
pub mod rib;
pub mod session;
pub mod speaker;
pub mod types;
pub mod wire;
