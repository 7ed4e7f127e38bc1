//! Tests of messages that arrive after the close frame.

use std::pin::Pin;

use bytes::BytesMut;
use tokio::io::{AsyncRead, ReadBuf};

use super::*;

/// Newline-framed data that is counted as it is read.
struct Lines {
    left: usize,
    budget: Arc<IncomingBudget>,
    share: Arc<BudgetShare>,
}

impl AsyncRead for Lines {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let len = buf.remaining().min(self.left).min(64 << 10);
        if len > 0 {
            buf.put_slice(&vec![b'x'; len - 1]);
            buf.put_slice(b"\n");
        }
        self.left -= len;
        self.budget.grow(&self.share, len);
        Poll::Ready(Ok(()))
    }
}

// Once, all of it was counted until the connection had ended, and other connections could not send large requests in
// that time.
#[tokio::test]
async fn what_comes_behind_a_goodbye_takes_no_room_from_others() {
    let budget = Arc::new(IncomingBudget::new(8 << 20));
    let share = budget.join(1);
    let lines = Lines { left: 64 << 20, budget: budget.clone(), share: share.clone() };
    let mut receiver = Receiver::new(Framing::Lines { max: 1 << 20 }, Box::new(lines), BytesMut::new());
    discard(&mut receiver, &budget, &share).await;
    assert!(!share.is_shed() && budget.park(4 << 20));
}
