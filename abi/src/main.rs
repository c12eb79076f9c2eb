//! Are our structures and numbers those of rdma-core? Prints a line for each comparison; fails if one differs.

use std::mem::{offset_of, size_of};
use std::process::ExitCode;

use ibverbs_sys as theirs;
use te_sys_verbs::ffi as ours;

fn main() -> ExitCode {
    let mut differences = 0;
    let mut compared = 0;
    let mut compare = |what: &str, ours: u64, theirs: u64| {
        compared += 1;
        if ours != theirs {
            differences += 1;
            println!("DIFFERS {what}: ours {ours}, rdma-core's {theirs}");
        }
    };
    macro_rules! size {
        ($($name:ident)*) => {$(
            compare(concat!("size of ", stringify!($name)), size_of::<ours::$name>() as u64, size_of::<theirs::$name>() as u64);
        )*};
    }
    macro_rules! offsets {
        ($($name:ident { $($field:ident)* })*) => {$($(
            compare(
                concat!(stringify!($name), ".", stringify!($field)),
                offset_of!(ours::$name, $field) as u64,
                offset_of!(theirs::$name, $field) as u64,
            );
        )*)*};
    }
    size!(ibv_device ibv_device_attr ibv_port_attr ibv_gid ibv_gid_entry ibv_pd ibv_mr ibv_comp_channel ibv_qp_cap
        ibv_qp_init_attr ibv_global_route ibv_ah_attr ibv_qp_attr ibv_sge ibv_send_wr ibv_recv_wr ibv_wc ibv_async_event
        ibv_context_ops);
    offsets! {
        ibv_device { node_type transport_type name dev_name dev_path ibdev_path }
        ibv_context { device ops cmd_fd async_fd num_comp_vectors }
        ibv_context_ops { poll_cq req_notify_cq post_send post_recv }
        ibv_device_attr { fw_ver max_mr_size vendor_id vendor_part_id max_qp max_qp_wr max_sge max_cq max_cqe max_mr
            max_qp_rd_atom max_qp_init_rd_atom phys_port_cnt }
        ibv_port_attr { state max_mtu active_mtu gid_tbl_len max_msg_sz pkey_tbl_len lid active_width active_speed
            link_layer port_cap_flags2 }
        ibv_gid_entry { gid gid_index port_num gid_type ndev_ifindex }
        ibv_pd { context handle }
        ibv_mr { context pd addr length handle lkey rkey }
        ibv_comp_channel { context fd refcnt }
        ibv_cq { context channel cq_context handle cqe }
        ibv_qp { context qp_context pd send_cq recv_cq handle qp_num state qp_type }
        ibv_qp_cap { max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data }
        ibv_qp_init_attr { qp_context send_cq recv_cq srq cap qp_type sq_sig_all }
        ibv_global_route { dgid flow_label sgid_index hop_limit traffic_class }
        ibv_ah_attr { grh dlid sl src_path_bits static_rate is_global port_num }
        ibv_qp_attr { qp_state path_mtu rq_psn sq_psn dest_qp_num qp_access_flags cap ah_attr pkey_index max_rd_atomic
            max_dest_rd_atomic min_rnr_timer port_num timeout retry_cnt rnr_retry rate_limit }
        ibv_sge { addr length lkey }
        ibv_send_wr { wr_id next sg_list num_sge opcode send_flags }
        ibv_recv_wr { wr_id next sg_list num_sge }
        ibv_wc { imm_data qp_num src_qp wc_flags pkey_index slid sl dlid_path_bits }
        ibv_async_event { element event_type }
    }
    // The first fields of a completion are private there; its size and the places of the others leave them no room to differ.
    // The parts of the request's union, which bindgen names by number.
    compare(
        "ibv_send_wr.rdma",
        offset_of!(ours::ibv_send_wr, rdma) as u64,
        offset_of!(theirs::ibv_send_wr, wr) as u64,
    );
    macro_rules! numbers {
        ($($name:ident = $path:path;)*) => {$(
            compare(stringify!($name), u64::from(ours::$name as u32), u64::from($path as u32));
        )*};
    }
    numbers! {
        IBV_QPT_RC = theirs::ibv_qp_type::IBV_QPT_RC;
        IBV_QPS_RESET = theirs::ibv_qp_state::IBV_QPS_RESET;
        IBV_QPS_INIT = theirs::ibv_qp_state::IBV_QPS_INIT;
        IBV_QPS_RTR = theirs::ibv_qp_state::IBV_QPS_RTR;
        IBV_QPS_RTS = theirs::ibv_qp_state::IBV_QPS_RTS;
        IBV_QPS_ERR = theirs::ibv_qp_state::IBV_QPS_ERR;
        IBV_WR_RDMA_WRITE = theirs::ibv_wr_opcode::IBV_WR_RDMA_WRITE;
        IBV_WR_RDMA_WRITE_WITH_IMM = theirs::ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
        IBV_WR_SEND = theirs::ibv_wr_opcode::IBV_WR_SEND;
        IBV_WR_RDMA_READ = theirs::ibv_wr_opcode::IBV_WR_RDMA_READ;
        IBV_WC_LOC_PROT_ERR = theirs::ibv_wc_status::IBV_WC_LOC_PROT_ERR;
        IBV_WC_WR_FLUSH_ERR = theirs::ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
        IBV_WC_REM_ACCESS_ERR = theirs::ibv_wc_status::IBV_WC_REM_ACCESS_ERR;
        IBV_WC_RETRY_EXC_ERR = theirs::ibv_wc_status::IBV_WC_RETRY_EXC_ERR;
        IBV_WC_RNR_RETRY_EXC_ERR = theirs::ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR;
        IBV_WC_FATAL_ERR = theirs::ibv_wc_status::IBV_WC_FATAL_ERR;
        IBV_WC_GENERAL_ERR = theirs::ibv_wc_status::IBV_WC_GENERAL_ERR;
        IBV_WC_OP_SEND = theirs::ibv_wc_opcode::IBV_WC_SEND;
        IBV_WC_OP_RDMA_WRITE = theirs::ibv_wc_opcode::IBV_WC_RDMA_WRITE;
        IBV_WC_OP_RDMA_READ = theirs::ibv_wc_opcode::IBV_WC_RDMA_READ;
        IBV_WC_OP_RECV = theirs::ibv_wc_opcode::IBV_WC_RECV;
        IBV_WC_OP_RECV_RDMA_WITH_IMM = theirs::ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;
        IBV_EVENT_CQ_ERR = theirs::IBV_EVENT_CQ_ERR;
        IBV_EVENT_QP_FATAL = theirs::IBV_EVENT_QP_FATAL;
        IBV_EVENT_QP_ACCESS_ERR = theirs::IBV_EVENT_QP_ACCESS_ERR;
        IBV_EVENT_DEVICE_FATAL = theirs::IBV_EVENT_DEVICE_FATAL;
        IBV_EVENT_PORT_ACTIVE = theirs::IBV_EVENT_PORT_ACTIVE;
        IBV_EVENT_PORT_ERR = theirs::IBV_EVENT_PORT_ERR;
        IBV_EVENT_GID_CHANGE = theirs::IBV_EVENT_GID_CHANGE;
        IBV_PORT_ACTIVE = theirs::ibv_port_state::IBV_PORT_ACTIVE;
        IBV_GID_TYPE_ROCE_V2 = theirs::IBV_GID_TYPE_ROCE_V2;
    }
    macro_rules! bits {
        ($($name:ident = $path:path;)*) => {$(
            compare(stringify!($name), u64::from(ours::$name as u32), u64::from($path.0));
        )*};
    }
    bits! {
        IBV_ACCESS_LOCAL_WRITE = theirs::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
        IBV_ACCESS_REMOTE_WRITE = theirs::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
        IBV_ACCESS_REMOTE_READ = theirs::ibv_access_flags::IBV_ACCESS_REMOTE_READ;
        IBV_ACCESS_ON_DEMAND = theirs::ibv_access_flags::IBV_ACCESS_ON_DEMAND;
        IBV_ACCESS_RELAXED_ORDERING = theirs::ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING;
        IBV_SEND_FENCE = theirs::ibv_send_flags::IBV_SEND_FENCE;
        IBV_SEND_SIGNALED = theirs::ibv_send_flags::IBV_SEND_SIGNALED;
        IBV_SEND_SOLICITED = theirs::ibv_send_flags::IBV_SEND_SOLICITED;
        IBV_SEND_INLINE = theirs::ibv_send_flags::IBV_SEND_INLINE;
        IBV_QP_STATE = theirs::ibv_qp_attr_mask::IBV_QP_STATE;
        IBV_QP_ACCESS_FLAGS = theirs::ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS;
        IBV_QP_PKEY_INDEX = theirs::ibv_qp_attr_mask::IBV_QP_PKEY_INDEX;
        IBV_QP_PORT = theirs::ibv_qp_attr_mask::IBV_QP_PORT;
        IBV_QP_AV = theirs::ibv_qp_attr_mask::IBV_QP_AV;
        IBV_QP_PATH_MTU = theirs::ibv_qp_attr_mask::IBV_QP_PATH_MTU;
        IBV_QP_TIMEOUT = theirs::ibv_qp_attr_mask::IBV_QP_TIMEOUT;
        IBV_QP_RETRY_CNT = theirs::ibv_qp_attr_mask::IBV_QP_RETRY_CNT;
        IBV_QP_RNR_RETRY = theirs::ibv_qp_attr_mask::IBV_QP_RNR_RETRY;
        IBV_QP_RQ_PSN = theirs::ibv_qp_attr_mask::IBV_QP_RQ_PSN;
        IBV_QP_MAX_QP_RD_ATOMIC = theirs::ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC;
        IBV_QP_MIN_RNR_TIMER = theirs::ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER;
        IBV_QP_SQ_PSN = theirs::ibv_qp_attr_mask::IBV_QP_SQ_PSN;
        IBV_QP_MAX_DEST_RD_ATOMIC = theirs::ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC;
        IBV_QP_DEST_QPN = theirs::ibv_qp_attr_mask::IBV_QP_DEST_QPN;
        IBV_WC_WITH_IMM = theirs::ibv_wc_flags::IBV_WC_WITH_IMM;
    }
    println!("{compared} compared, {differences} differ");
    if differences == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
