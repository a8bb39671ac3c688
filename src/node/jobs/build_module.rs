//! `build.module`: what is to be built is known here, and there is nothing yet that builds it. The agent therefore never
//! reports the capability `build`, so no such job is leased to it; one that came all the same is answered as failed.

use crate::node::lanes::Finish;
use serde_json::json;
use state::subject::jobs::Outcome;
use state::subject::sources::Source;

/// Says that it cannot be done here.
pub(super) async fn build(source: Source) -> Finish {
    let error = "this machine has no builder; queue the job on a node that reports the capability `build`";
    Finish { outcome: Outcome::Failed, result: json!({ "error": error, "snapshot": source.snapshot }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::jobs::apart;

    #[test]
    fn a_node_without_a_builder_says_so() {
        let digest = "ab".repeat(32);
        let source =
            json!({ "artifact": uuid::Uuid::nil(), "snapshot": digest, "sha256": "cd".repeat(32), "length": 1 });
        let spec = json!({ "kind": "build.module", "source": source }).to_string();
        let finish: Finish = serde_json::from_str(&apart(spec.as_bytes()).unwrap()).unwrap();
        assert_eq!((finish.outcome, &finish.result["snapshot"]), (Outcome::Failed, &json!(digest)));
        assert!(finish.result["error"].as_str().unwrap().contains("has no builder"), "{}", finish.result);
    }
}
