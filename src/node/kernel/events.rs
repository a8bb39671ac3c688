//! A signal that something in the kernel changed, so that the reconciler looks again at once. It says nothing of what
//! changed: whoever hears it compares everything.

use super::{KernelError, failed};
use futures_util::{FutureExt, StreamExt};
use rtnetlink::sys::protocols::NETLINK_NETFILTER;
use rtnetlink::sys::{AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket};
use rtnetlink::{MulticastGroup, proto};
use std::time::Duration;

/// `NFNLGRP_NFTABLES` (linux/netfilter/nfnetlink.h): every change of a ruleset.
const NFTABLES: u32 = 7;
/// One cause makes many messages, and a change of ours makes some too: they are heard as one.
const SETTLE: Duration = Duration::from_millis(50);

/// An open ear for changes of links, addresses, routes and rulesets in the namespace it was opened in.
pub struct Watch {
    messages: futures_util::stream::BoxStream<'static, ()>,
    rulesets: TokioSocket,
}

impl Watch {
    /// Begins to listen.
    pub fn open() -> Result<Self, KernelError> {
        let doing = "listening for kernel changes";
        let groups = [
            MulticastGroup::Link,
            MulticastGroup::Ipv4Ifaddr,
            MulticastGroup::Ipv6Ifaddr,
            MulticastGroup::Ipv4Route,
            MulticastGroup::Ipv6Route,
        ];
        let (connection, _, messages) = rtnetlink::new_multicast_connection(&groups).map_err(failed(doing))?;
        crate::tasks::spawn("netlink-events", connection);
        let mut rulesets = TokioSocket::new(NETLINK_NETFILTER).map_err(failed(doing))?;
        rulesets.socket_mut().bind(&SocketAddr::new(0, 0)).map_err(failed(doing))?;
        rulesets.socket_mut().add_membership(NFTABLES).map_err(failed(doing))?;
        Ok(Self { messages: messages.map(|_: (_, proto::sys::SocketAddr)| ()).boxed(), rulesets })
    }

    /// Waits for the next change and 50 ms more. May be dropped and called again without missing anything.
    pub async fn changed(&mut self) {
        self.one().await;
        tokio::time::sleep(SETTLE).await;
        while self.one().now_or_never().is_some() {}
    }

    async fn one(&mut self) {
        let mut buffer = bytes::BytesMut::with_capacity(8192);
        // An overrun (ENOBUFS) is an error here and a change like any other: everything is compared anyhow.
        tokio::select! {
            message = self.messages.next() => if message.is_none() { std::future::pending::<()>().await },
            _ = self.rulesets.recv(&mut buffer) => {}
        }
    }
}
