//! The source of a build, for the node that holds its lease.
//!
//! Who asks is looked at twice, in the state of each moment: before the bytes are read and verified, and after. Nothing is
//! locked meanwhile, and not a byte goes out before.

use super::{Call, not_yours};
use crate::authority::refusal::{Refused, from_decision, invalid};
use crate::authority::request::secret_hash;
use crate::clock;
use crate::serve::appliance::now;
use crate::serve::gateway::jobs::expired;
use crate::wire::jobs::{HEADER_SOURCE_ARTIFACT, HEADER_SOURCE_SHA256, HEADER_SOURCE_SNAPSHOT, Held, MEDIA_SOURCE};
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header;
use state::Code;
use state::model::{Fingerprint, JobId};
use state::subject::sources::{self, Source};

impl Call<'_> {
    /// The archive.
    pub(super) async fn source(&self, id: JobId) -> Result<Response, Refused> {
        let held: Held = self.body()?;
        let token = secret_hash(&held.lease_token).ok_or_else(|| invalid("`lease_token` is not 64 digits"))?;
        let source = self.granted(id, &token)?;
        let sources = &self.appliance.sources;
        let archive = sources.read(&source, sources.slot()?).await?;
        // The token is of one attempt, and that attempt has this source: the same answer as before, or a refusal.
        let Source { artifact, snapshot, sha256, length } = self.granted(id, &token)?;
        let headers = [
            (header::CONTENT_TYPE.as_str(), MEDIA_SOURCE.to_owned()),
            (header::CONTENT_LENGTH.as_str(), length.to_string()),
            (header::CACHE_CONTROL.as_str(), "no-store".to_owned()),
            (HEADER_SOURCE_SHA256, sha256.to_string()),
            (HEADER_SOURCE_SNAPSHOT, snapshot.to_string()),
            (HEADER_SOURCE_ARTIFACT, artifact.to_string()),
        ];
        let body = Body::from(archive.send(sources.within(), self.client.place.clone()));
        Ok((headers, body).into_response())
    }

    /// The source that the caller may have at this moment.
    fn granted(&self, id: JobId, token: &Fingerprint) -> Result<Source, Refused> {
        let (state, now) = (self.state(), now().wall);
        let leased = sources::leased(&state, &self.client.certificate, id, token, now, now >= state.at);
        let (job, source) = leased
            .map_err(|refusal| if refusal.code == Code::NotFound { not_yours() } else { from_decision(&refusal) })?;
        let live = self.appliance.authority.soft().leases.live(id, job.attempt, clock::boot());
        if live { Ok(source) } else { Err(expired()) }
    }
}
