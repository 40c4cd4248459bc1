//! From the API server's watches to the rows of [`crate::cluster`].

pub mod pod;
