//! What queue pairs accept, and which states they reach.

use std::ffi::c_int;

use super::state::{Ranges, Receive, Request, State};
use crate::ffi::*;
use crate::port::LinkLayer;

impl State {
    /// Where the next list of a NIC is to be refused, if it is long enough for that.
    pub(super) fn refusal(&mut self, nic: usize, len: impl Fn() -> usize) -> Option<(usize, c_int)> {
        if self.refusals.is_empty() {
            return None;
        }
        let name = &self.nics.get(nic)?.config.name;
        let at = self.refusals.iter().position(|(nic, place, _)| nic == name && *place < len())?;
        let (_, place, errno) = self.refusals.remove(at);
        Some((place, errno))
    }

    pub(super) fn accept(
        &mut self,
        number: u32,
        wr: &ibv_send_wr,
        local: Ranges<ibv_sge>,
    ) -> Result<(), c_int> {
        let pair = self.pairs.get_mut(&number).ok_or(libc::EINVAL)?;
        let state = pair.attributes.qp_state;
        let known = matches!(
            wr.opcode,
            IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_RDMA_READ | IBV_WR_SEND
        );
        // In ERR, requests are accepted and flushed.
        if !known
            || !matches!(state, IBV_QPS_RTS | IBV_QPS_ERR)
            || local.len() > pair.size.max_send_sge as usize
        {
            return Err(libc::EINVAL);
        }
        if pair.accepted - pair.freed >= pair.size.max_send_wr.into() {
            return Err(libc::ENOMEM);
        }
        pair.accepted += 1;
        pair.waiting.push_back(Request {
            number: pair.accepted,
            id: wr.wr_id,
            opcode: wr.opcode,
            flags: wr.send_flags,
            immediate: wr.imm_data,
            local,
            remote: wr.rdma.remote_addr,
            rkey: wr.rdma.rkey,
        });
        Ok(())
    }

    pub(super) fn accept_receive(&mut self, number: u32, receive: Receive) -> Result<(), c_int> {
        let pair = self.pairs.get_mut(&number).ok_or(libc::EINVAL)?;
        if pair.attributes.qp_state == IBV_QPS_RESET || receive.local.len() > pair.size.max_recv_sge as usize
        {
            return Err(libc::EINVAL);
        }
        if pair.receives.len() >= pair.size.max_recv_wr as usize {
            return Err(libc::ENOMEM);
        }
        let failed = pair.attributes.qp_state == IBV_QPS_ERR;
        pair.receives.push_back(receive);
        if failed {
            self.fail_pair(number);
        }
        Ok(())
    }

    /// Moves a queue pair to another state, if that is reached from its own with these values.
    pub(super) fn change(
        &mut self,
        number: u32,
        nic: usize,
        wanted: &ibv_qp_attr,
        mask: c_int,
    ) -> Result<(), c_int> {
        let known = self.nics.get(nic).ok_or(libc::ENODEV)?;
        let pair = self.pairs.get(&number).ok_or(libc::EINVAL)?;
        let (from, to) = (pair.attributes.qp_state, wanted.qp_state);
        let must = match (from, to) {
            (IBV_QPS_RESET | IBV_QPS_INIT, IBV_QPS_INIT) => {
                IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS
            }
            (IBV_QPS_INIT, IBV_QPS_RTR) => {
                IBV_QP_STATE
                    | IBV_QP_AV
                    | IBV_QP_PATH_MTU
                    | IBV_QP_DEST_QPN
                    | IBV_QP_RQ_PSN
                    | IBV_QP_MAX_DEST_RD_ATOMIC
                    | IBV_QP_MIN_RNR_TIMER
            }
            (IBV_QPS_RTR, IBV_QPS_RTS) => {
                IBV_QP_STATE
                    | IBV_QP_TIMEOUT
                    | IBV_QP_RETRY_CNT
                    | IBV_QP_RNR_RETRY
                    | IBV_QP_SQ_PSN
                    | IBV_QP_MAX_QP_RD_ATOMIC
            }
            (_, IBV_QPS_ERR | IBV_QPS_RESET) => IBV_QP_STATE,
            _ => return Err(libc::EINVAL),
        };
        let path = &wanted.ah_attr;
        let gid = known.config.gids.get(path.grh.sgid_index as usize);
        let fits = match to {
            IBV_QPS_INIT => wanted.port_num == 1 && wanted.pkey_index == 0,
            IBV_QPS_RTR => {
                let global = gid.is_some_and(|gid| !gid.is_null()) && path.grh.dgid.raw != [0; 16];
                let local = known.config.link_layer == LinkLayer::InfiniBand && path.dlid != 0;
                wanted.path_mtu <= known.config.mtu.code()
                    && path.port_num == 1
                    && wanted.max_dest_rd_atomic <= known.config.reads
                    && if path.is_global != 0 { global } else { local }
            }
            IBV_QPS_RTS => wanted.max_rd_atomic <= known.config.reads && wanted.timeout < 32,
            _ => true,
        };
        if mask & must != must || !fits {
            return Err(libc::EINVAL);
        }
        match to {
            IBV_QPS_ERR => {
                self.fail_pair(number);
                return Ok(());
            }
            IBV_QPS_RESET => {
                let pair = self.pairs.get_mut(&number).ok_or(libc::EINVAL)?;
                pair.waiting.clear();
                pair.receives.clear();
                pair.freed = pair.accepted;
                pair.attributes = ibv_qp_attr::default();
                return Ok(());
            }
            _ => {}
        }
        let pair = self.pairs.get_mut(&number).ok_or(libc::EINVAL)?;
        let own = &mut pair.attributes;
        own.qp_state = to;
        match to {
            IBV_QPS_INIT => (own.port_num, own.qp_access_flags) = (wanted.port_num, wanted.qp_access_flags),
            IBV_QPS_RTR => {
                (own.ah_attr, own.dest_qp_num) = (wanted.ah_attr, wanted.dest_qp_num);
                (own.path_mtu, own.rq_psn) = (wanted.path_mtu, wanted.rq_psn);
            }
            _ => {
                (own.timeout, own.retry_cnt, own.rnr_retry) =
                    (wanted.timeout, wanted.retry_cnt, wanted.rnr_retry);
            }
        }
        Ok(())
    }
}
