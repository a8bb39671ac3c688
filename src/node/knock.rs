//! A machine that was given an admission token and is no node yet: it asks to be let in until somebody does.

use crate::keys::{ClientKey, NodeKeys};
use crate::node::client::{Appliances, CallError, Client, Sequence, Signer};
use crate::node::directory::{Directory, NodeFile};
use crate::node::failure::Failure;
use crate::node::join::{accept, local_endpoints, underlay};
use crate::wire::peers::{Envelope, Knock, RegisterBody};
use crate::{entropy, limits};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::SigningKey as Private;
use state::model::{Revision, SigningKey, fingerprint_words};
use std::sync::Arc;

/// Registers until it is admitted; then keeps what it is told, as `join` does.
pub(super) async fn knock(directory: &Directory, keys: &NodeKeys, node: NodeFile) -> Result<(), Failure> {
    let dir = directory.path();
    let own = keys.public();
    let signing = Private::from_bytes(&keys.signing.to_bytes());
    let signer = Signer::new(signing, Some(directory.mesh_token()?), Sequence::open(dir)?);
    let client = Client::new(Appliances::from(node.appliances.as_slice()), Arc::new(signer));
    let certificate_request = STANDARD.encode(ClientKey::make(dir)?.request());
    let instance = entropy::uuid();
    let mut told = String::new();
    loop {
        let seen = underlay(&node.ifname).await?;
        let body = RegisterBody {
            envelope: Envelope { seq: 0, audience: node.fleet, epoch: None },
            instance,
            wireguard_key: own.wireguard_key,
            sealing_key: own.sealing_key,
            listen_port: node.listen_port,
            endpoints: Vec::new(),
            local_endpoints: local_endpoints(&seen.addresses, node.listen_port),
            services: Vec::new(),
            agent_version: env!("CARGO_PKG_VERSION").into(),
            roster_revision: Revision(0),
            held_revision: Revision(0),
            knock: Some(Knock {
                name: node.name.clone(),
                site: node.site.clone(),
                certificate_request: certificate_request.clone(),
            }),
        };
        let news = match client.register(body).await {
            Ok(answer) => match answer.enrolled {
                Some(enrolled) => return accept(directory, node, &own.signing_key, &enrolled),
                None => "an appliance answered as if this machine were a node already".to_owned(),
            },
            Err(CallError::Refused(problem)) if problem.code == "not_admitted" => waiting(&own.signing_key),
            Err(error) => format!("asking to be admitted failed: {error}"),
        };
        if told != news {
            tracing::info!("{news}");
            told = news;
        }
        let jitter = f64::from(u32::from_ne_bytes(entropy::bytes())) / f64::from(u32::MAX);
        tokio::time::sleep(limits::HEARTBEAT.mul_f64(0.9 + 0.2 * jitter)).await;
    }
}

fn waiting(key: &SigningKey) -> String {
    format!(
        "waiting to be admitted: `holdfast node admit {key}` on the appliance; the key reads {}",
        fingerprint_words(key)
    )
}
