//! What the leader does about each kind of object.

pub mod decide;
