//! The handshake object of connection frames.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    MessageError,
    json::{Members, Writer, integer},
};

/// Request and reply of a connection frame: how a transport sets up a path to a peer. Source: reference engine, wire
/// spec.
///
/// The default value is what an engine answers whose transport needs no such set-up.
///
/// ```
/// use te_rpc::message::ConnectionBody;
/// let refusal = ConnectionBody::refusal("no NIC named mlx5_9");
/// let read = ConnectionBody::decode(&refusal.encode())?;
/// assert_eq!(read.rejection(), Some("no NIC named mlx5_9"));
/// # Ok::<(), te_rpc::message::MessageError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConnectionBody {
    /// Opaque text; the reference uses it for NCCL only.
    pub payload: String,
    /// NIC path of the sender, `server@nic`.
    pub local_nic_path: String,
    /// NIC path of the receiver as the sender believes it to be.
    pub peer_nic_path: String,
    /// Local identifier of the sender's port. A value that is no unsigned 32-bit number reads as 0, as in the
    /// reference.
    pub local_lid: u32,
    /// Global identifier of the sender's port, 16 hexadecimal bytes with colons. Empty: look the NIC up in the
    /// sender's descriptor.
    pub local_gid: String,
    /// Queue pair numbers of the sender, in order.
    pub qp_num: Vec<u32>,
    /// Present if the sender takes part in the ready-ack phase; true if this message is the ready-ack.
    pub ready_ack: Option<bool>,
    /// Empty if accepted, else why not.
    pub reply_msg: String,
    /// Jetty numbers (UB).
    pub jetty_num: Option<Vec<u32>>,
    /// Endpoint address in hexadecimal (EFA).
    pub efa_addr: Option<String>,
    /// Endpoint address (CXI).
    pub cxi_addr: Option<String>,
    /// Port of the barex listener.
    pub barex_port: Option<i64>,
    /// Members that are not listed above, kept as they are.
    pub extra: BTreeMap<String, Value>,
}

impl ConnectionBody {
    /// A reply that refuses the connection. An empty reason would mean acceptance and is replaced.
    pub fn refusal(reason: impl Into<String>) -> Self {
        let mut reply_msg = reason.into();
        if reply_msg.is_empty() {
            "refused".clone_into(&mut reply_msg);
        }
        Self { reply_msg, ..Self::default() }
    }

    /// Why the peer refused, if it did.
    pub fn rejection(&self) -> Option<&str> {
        (!self.reply_msg.is_empty()).then_some(self.reply_msg.as_str())
    }

    /// Whether this asks for the reference engine's notification channel over RDMA. Refusing it with
    /// [`refusal`](Self::refusal) makes the peer send notify frames instead.
    pub fn is_control_channel(&self) -> bool {
        self.extra.get("ctrl_channel") == Some(&Value::Bool(true))
    }

    /// Reads a body. An object with no members at all is the default value.
    pub fn decode(body: &[u8]) -> Result<Self, MessageError> {
        let mut members = Members::parse(body)?;
        let local_lid = members.raw("local_lid");
        Ok(Self {
            payload: members.text("payload")?,
            local_nic_path: members.text("local_nic_path")?,
            peer_nic_path: members.text("peer_nic_path")?,
            local_lid: local_lid.as_ref().and_then(integer).and_then(|n| u32::try_from(n).ok()).unwrap_or(0),
            local_gid: members.text("local_gid")?,
            qp_num: members.numbers("qp_num")?.unwrap_or_default(),
            ready_ack: members.flag("ready_ack")?,
            reply_msg: members.text("reply_msg")?,
            jetty_num: members.numbers("jetty_num")?,
            efa_addr: members.optional_text("efa_addr")?,
            cxi_addr: members.optional_text("cxi_addr")?,
            barex_port: members.integer("barex_port")?,
            extra: members.rest(),
        })
    }

    /// Writes the body.
    pub fn encode(&self) -> Vec<u8> {
        Writer::new(&self.extra)
            .member("payload", self.payload.as_str())
            .member("local_nic_path", self.local_nic_path.as_str())
            .member("peer_nic_path", self.peer_nic_path.as_str())
            .member("local_lid", self.local_lid)
            .member("local_gid", self.local_gid.as_str())
            .member("qp_num", self.qp_num.clone())
            .optional("ready_ack", self.ready_ack)
            .member("reply_msg", self.reply_msg.as_str())
            .optional("jetty_num", self.jetty_num.clone())
            .optional("efa_addr", self.efa_addr.as_deref())
            .optional("cxi_addr", self.cxi_addr.as_deref())
            .optional("barex_port", self.barex_port)
            .finish()
    }
}
