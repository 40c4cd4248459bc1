//! The types that read an object of the API server, without the unused fields.

/// Implements `kube::Resource` for a type with the field `metadata`: type, scope, API group,
/// version, kind and plural. The scope is a type of `k8s_openapi`.
#[macro_export]
macro_rules! kube_resource {
    ($Type:ty, $Scope:ident, $group:expr, $version:expr, $kind:expr, $plural:expr) => {
        impl ::kube::Resource for $Type {
            type DynamicType = ();
            type Scope = ::k8s_openapi::$Scope;

            fn kind((): &()) -> ::std::borrow::Cow<'_, str> {
                $kind.into()
            }

            fn group((): &()) -> ::std::borrow::Cow<'_, str> {
                $group.into()
            }

            fn version((): &()) -> ::std::borrow::Cow<'_, str> {
                $version.into()
            }

            fn plural((): &()) -> ::std::borrow::Cow<'_, str> {
                $plural.into()
            }

            fn meta(&self) -> &::kube::core::ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ::kube::core::ObjectMeta {
                &mut self.metadata
            }
        }
    };
}
