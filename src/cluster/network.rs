//! The network of a cluster of one: there is nobody to talk to.

use super::raft::Types;
use openraft::error::{InstallSnapshotError, RPCError, RaftError, Unreachable};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse, VoteRequest,
    VoteResponse,
};
use openraft::{BasicNode, RaftNetwork, RaftNetworkFactory};

/// Reaches nobody.
#[derive(Clone, Copy, Debug)]
pub(super) struct Alone;

type Failed<E> = RPCError<u64, BasicNode, RaftError<u64, E>>;

fn nobody<E: std::error::Error>() -> Failed<E> {
    RPCError::Unreachable(Unreachable::new(&std::io::Error::other("this appliance is a cluster of one")))
}

impl RaftNetworkFactory<Types> for Alone {
    type Network = Self;

    async fn new_client(&mut self, _target: u64, _node: &BasicNode) -> Self {
        *self
    }
}

impl RaftNetwork<Types> for Alone {
    async fn append_entries(
        &mut self,
        _request: AppendEntriesRequest<Types>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, Failed<openraft::error::Infallible>> {
        Err(nobody())
    }

    async fn install_snapshot(
        &mut self,
        _request: InstallSnapshotRequest<Types>,
        _option: RPCOption,
    ) -> Result<InstallSnapshotResponse<u64>, Failed<InstallSnapshotError>> {
        Err(nobody())
    }

    async fn vote(
        &mut self,
        _request: VoteRequest<u64>,
        _option: RPCOption,
    ) -> Result<VoteResponse<u64>, Failed<openraft::error::Infallible>> {
        Err(nobody())
    }
}
