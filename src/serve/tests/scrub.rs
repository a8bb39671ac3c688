//! The whole store is read again every so often.

use super::rig::Rig;
use crate::cluster::SubmitError;
use crate::listen::stop;
use crate::serve::scrub::{judge, run};
use crate::tasks;
use crate::wire::operator::Nothing;
use state::model::Millis;
use state::store::StoreError;
use std::time::Duration;
use tokio::time::sleep;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_is_read_every_so_often_and_a_damage_needs_a_person() {
    let rig = Rig::new().await;
    let (stopper, stop) = stop::pair();
    let scrub = tasks::spawn("scrub", run(rig.appliance.clone(), Duration::from_millis(20), stop));
    let mut seen = 0;
    let mut last = None;
    while seen < 2 {
        let now = rig.appliance.observed.last_scrub();
        seen += usize::from(now != last);
        last = now;
        sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(last.unwrap().problem, None);
    stopper.stop();
    scrub.await.unwrap();

    let damaged = judge(Ok(Err(StoreError::Damaged("batch 7".into()))), Millis(5)).unwrap();
    assert_eq!(damaged.at, Millis(5));
    rig.appliance.observed.scrubbed(damaged);
    let (status, body) = rig.operator("GET", "/v1/status", &Nothing {}, None).await;
    assert_eq!(status, 200);
    assert!(body.contains("the store does not verify: store: damaged: batch 7"), "{body}");
    assert_eq!(judge(Err(SubmitError::Restarting), Millis(5)), None);
    let full = StoreError::Disk { doing: "reading", source: std::io::Error::other("gone") };
    assert_eq!(judge(Ok(Err(full)), Millis(5)), None, "the disk is the supervisor's");
}
