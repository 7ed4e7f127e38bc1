//! Tests of messages that arrive after the server has sent its close frame.

use std::pin::Pin;

use bytes::BytesMut;
use tokio::io::{AsyncRead, ReadBuf};

use super::*;

/// Newline-framed data that is counted as it is read, as by `CountingReader`.
struct CountedLines {
    left: usize,
    budget: Arc<IncomingBudget>,
    share: Arc<BudgetShare>,
}

impl AsyncRead for CountedLines {
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

// Regression: discarded bytes were counted until the connection had ended. Until then other connections could not send
// large requests.
#[tokio::test]
async fn messages_discarded_while_closing_take_no_room_from_other_connections() {
    let budget = Arc::new(IncomingBudget::new(8 << 20));
    let share = budget.join(1);
    let lines = CountedLines { left: 64 << 20, budget: budget.clone(), share: share.clone() };
    let mut receiver = Receiver::new(Framing::Lines { max: 1 << 20 }, Box::new(lines), BytesMut::new());
    discard(&mut receiver, &budget, &share).await;
    assert!(!share.is_shed() && budget.reserve(4 << 20));
}
