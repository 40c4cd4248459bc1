//! Repairs of kernel objects that other programs changed, as events. Many repairs within `PACE` are
//! one event.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;
use trunkline_api::control::EventKind;
use trunkline_datapath::kernel::Repairs;

use super::History;

/// Time for gathering related repairs.
const GATHER: Duration = Duration::from_millis(200);
/// Minimum time between two events.
const PACE: Duration = Duration::from_secs(10);

/// Records repairs until the history is closed, or the kernel thread ends.
pub async fn follow(history: History, mut repairs: watch::Receiver<Repairs>) {
    let mut recorded = Repairs::default();
    loop {
        tokio::select! {
            changed = repairs.changed() => if changed.is_err() { return },
            () = history.closed() => return,
        }
        sleep(GATHER).await;
        let now = repairs.borrow_and_update().clone();
        if let Some(text) = now.since(&recorded) {
            history.record(EventKind::Repaired, None, None, text);
        }
        recorded = now;
        sleep(PACE).await;
    }
}

#[cfg(test)]
mod tests {
    use trunkline_datapath::kernel::RepairKind;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn many_repairs_are_one_event() {
        let history = History::default();
        let (sender, receiver) = watch::channel(Repairs::default());
        let follower = tokio::spawn(follow(history.clone(), receiver));
        let change = |number| {
            sender.send_modify(|repairs: &mut Repairs| {
                repairs.add(RepairKind::Route, number, "10.0.0.1/32 in table 39999")
            })
        };
        let texts = || history.since(0).events.into_iter().map(|event| event.text).collect::<Vec<_>>();
        change(1);
        sleep(Duration::from_secs(1)).await;
        assert_eq!(texts(), ["changed by others and restored: 1 route (10.0.0.1/32 in table 39999)"]);
        for _ in 0..50 {
            change(2);
            sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(texts().len(), 1);
        sleep(PACE).await;
        assert_eq!(texts().len(), 2);
        assert!(texts()[1].contains("100 routes (last "), "{:?}", texts());
        history.close();
        follower.await.unwrap();
    }
}
