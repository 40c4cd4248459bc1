//! Endpoints of Services: conversion from an EndpointSlice, and to one.
//!
//! Some fields of an endpoint have no meaning in another cluster: its node (a node of this cluster
//! may have the same name, and service proxies compare names), its pod, and the hints for zones.

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use trunkline_api::names::label;
use trunkline_api::resources::{RemoteConditions, RemoteEndpoint, RemotePort};

/// The content of an EndpointSlice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// The name of its Service.
    pub service: String,
    /// `IPv4`, `IPv6` or `FQDN`.
    pub address_type: String,
    /// Its endpoints, without the fields that have no meaning in another cluster.
    pub endpoints: Vec<RemoteEndpoint>,
    /// Their ports.
    pub ports: Vec<RemotePort>,
}

impl Slice {
    /// The content of an EndpointSlice; none without a Service.
    pub fn of(slice: EndpointSlice) -> Option<Slice> {
        let service = slice.metadata.labels?.remove(label::SERVICE_NAME)?;
        Some(Slice {
            service,
            address_type: slice.address_type,
            endpoints: slice.endpoints.into_iter().map(endpoint).collect(),
            ports: slice.ports.unwrap_or_default().into_iter().map(port).collect(),
        })
    }

    /// The endpoints for an EndpointSlice.
    pub fn endpoints(&self) -> Vec<Endpoint> {
        let endpoint = |from: &RemoteEndpoint| Endpoint {
            addresses: from.addresses.clone(),
            conditions: Some(EndpointConditions {
                ready: from.conditions.ready,
                serving: from.conditions.serving,
                terminating: from.conditions.terminating,
            }),
            hostname: from.hostname.clone(),
            zone: from.zone.clone(),
            ..Endpoint::default()
        };
        self.endpoints.iter().map(endpoint).collect()
    }

    /// The ports for an EndpointSlice.
    pub fn ports(&self) -> Vec<EndpointPort> {
        let port = |from: &RemotePort| EndpointPort {
            name: from.name.clone(),
            protocol: from.protocol.clone(),
            port: from.port.map(i32::from),
            app_protocol: from.app_protocol.clone(),
        };
        self.ports.iter().map(port).collect()
    }
}

fn endpoint(from: Endpoint) -> RemoteEndpoint {
    let conditions = from.conditions.unwrap_or_default();
    RemoteEndpoint {
        addresses: from.addresses,
        conditions: RemoteConditions {
            ready: conditions.ready,
            serving: conditions.serving,
            terminating: conditions.terminating,
        },
        hostname: from.hostname,
        zone: from.zone,
        ..RemoteEndpoint::default()
    }
}

/// A port with the API server's defaults.
fn port(from: EndpointPort) -> RemotePort {
    RemotePort {
        name: Some(from.name.unwrap_or_default()),
        protocol: Some(from.protocol.unwrap_or_else(|| "TCP".to_owned())),
        port: from.port.and_then(|port| u16::try_from(port).ok()),
        app_protocol: from.app_protocol,
    }
}
