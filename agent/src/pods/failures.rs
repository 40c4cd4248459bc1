//! Errors of the steps as failures of the attach protocol.

use trunkline_api::attach::{Code, Failure};
use trunkline_datapath::attach::device::DeviceError;
use trunkline_datapath::link_check::LinkCheckError;

use crate::ipam::{AllocateError, IpamError};
use crate::netpolicy::PolicyWait;
use crate::reconcile::PodError;

pub(super) fn policy_failure(error: PolicyWait) -> Failure {
    let code = match &error {
        PolicyWait::Unenforceable { .. } => Code::InvalidConfiguration,
        PolicyWait::Lists(_)
        | PolicyWait::Pod(_)
        | PolicyWait::Namespace(_)
        | PolicyWait::Labels(_)
        | PolicyWait::Refused(_)
        | PolicyWait::Stopped => Code::TryAgainLater,
    };
    Failure::new(code, error.to_string())
}

pub(super) fn ipam_failure(error: IpamError) -> Failure {
    let code = match &error {
        IpamError::Allocate(AllocateError::Exhausted { .. }) => Code::PoolExhausted,
        IpamError::Allocate(AllocateError::Unavailable { .. } | AllocateError::NoSubnetFor { .. }) => {
            Code::AddressNotAvailable
        }
        IpamError::Allocate(AllocateError::SameFamily { .. } | AllocateError::AmbiguousNetwork { .. }) => {
            Code::InvalidConfiguration
        }
        IpamError::Allocate(_) => Code::NoSuchNetwork,
        IpamError::Held { .. } | IpamError::Unrecorded(_) | IpamError::Store(_) | IpamError::Stopped => {
            Code::TryAgainLater
        }
    };
    Failure::new(code, error.to_string())
}

pub(super) fn device_failure(error: DeviceError) -> Failure {
    let code = match &error {
        DeviceError::Namespace(_) => Code::UnknownContainer,
        DeviceError::Taken { .. } => Code::InvalidEnvironment,
        DeviceError::Thread(_) => Code::TryAgainLater,
        DeviceError::Foreign { .. }
        | DeviceError::Step { .. }
        | DeviceError::NoIpvlan { .. }
        | DeviceError::Parent { .. }
        | DeviceError::Setting { .. } => Code::Internal,
        DeviceError::Check(_) => Code::CheckFailed,
    };
    Failure::new(code, error.to_string())
}

/// Converts a failed link check. If another host has the address, the round robin continues, so all
/// other addresses of the subnet are allocated first.
pub(super) fn link_check_failure(error: LinkCheckError) -> Failure {
    let code = match &error {
        LinkCheckError::InUse(..) => Code::AddressNotAvailable,
        LinkCheckError::NoAnswer(..) | LinkCheckError::Link { .. } => Code::TryAgainLater,
    };
    Failure::new(code, error.to_string())
}

pub(super) fn pod_failure(error: PodError) -> Failure {
    let code = match &error {
        PodError::NotStarted | PodError::Drained | PodError::Waits(_) | PodError::Stopped => {
            Code::TryAgainLater
        }
        PodError::Plan(_) => Code::NoSuchNetwork,
        PodError::Kernel(_) => Code::Internal,
    };
    Failure::new(code, error.to_string())
}
