//! One subnet: which of its addresses come next, and who has those that are given.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use trunkline_api::pool::{Pool, PoolSpec};

use super::holder::{Row, Rows};
use super::state::State;

#[derive(Debug)]
pub(super) struct SubnetBook {
    pub(super) name: Arc<str>,
    /// Its network's number.
    pub(super) network: u32,
    pub(super) pool: Pool,
    pub(super) rows: Rows,
}

impl SubnetBook {
    pub(super) fn new(spec: PoolSpec) -> Result<SubnetBook, String> {
        let pool = Pool::new(spec)?;
        let (_, last) = pool.range();
        let span = pool.index(last).map_or(0, |index| index + 1);
        Ok(SubnetBook { name: pool.spec().subnet.as_str().into(), network: 0, pool, rows: Rows::new(span) })
    }

    /// Puts a row in its place, and the pool in step with it. Returns what was there.
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

    /// An address with the subnet's length.
    pub(super) fn with_length(&self, address: IpAddr) -> IpNet {
        // The length is the subnet's own, which its family can have.
        IpNet::new(address, self.pool.spec().cidr.prefix_len()).unwrap_or_else(|_| address.into())
    }
}
