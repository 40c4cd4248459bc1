//! The kinds of texts in the configuration's schema. For serde a path, a prefix and an address with
//! a port are all texts.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

/// Declares types that are texts of one kind.
macro_rules! texts {
    ($($(#[doc = $about:literal])* $name:ident = $format:literal;)+) => { $(
        $(#[doc = $about])*
        pub(crate) struct $name;

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({"type": "string", "format": $format})
            }
        }
    )+ };
}

texts! {
    /// An absolute path of a file, a folder or a socket.
    FilePath = "path";
    /// `10.0.0.0/8`, `2001:db8::/32`.
    Prefix = "prefix";
    /// `127.0.0.1:9473`, `[::1]:9473`.
    AddressAndPort = "address-and-port";
}
