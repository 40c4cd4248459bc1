//! One subnet: the order of its addresses, and their holders.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use trunkline_api::pool::{Pool, PoolError, PoolSpec};

use super::holder::{Row, Rows};
use super::state::State;

#[derive(Debug)]
pub(super) struct SubnetAllocations {
    pub(super) name: Arc<str>,
    /// Its network's number.
    pub(super) network: u32,
    pub(super) pool: Pool,
    pub(super) rows: Rows,
}

impl SubnetAllocations {
    pub(super) fn new(spec: PoolSpec) -> Result<SubnetAllocations, PoolError> {
        let pool = Pool::new(spec)?;
        let (_, last) = pool.range();
        let span = pool.index(last).map_or(0, |index| index + 1);
        Ok(SubnetAllocations {
            name: pool.spec().subnet.as_str().into(),
            network: 0,
            pool,
            rows: Rows::new(span),
        })
    }

    /// Writes a row and updates the pool. Returns the previous row.
    pub(super) fn set(&mut self, index: u32, row: Row) -> Row {
        let before = self.rows.get(index);
        self.rows.set(index, row);
        let address = self.pool.address(index);
        match row.state {
            State::Free => self.pool.release(address),
            _ => self.pool.restore(address),
        }
        before
    }

    /// The address with the subnet's prefix length.
    pub(super) fn with_length(&self, address: IpAddr) -> IpNet {
        // The length comes from the subnet's own CIDR, so it fits the family.
        IpNet::new(address, self.pool.spec().cidr.prefix_len()).unwrap_or_else(|_| address.into())
    }
}
