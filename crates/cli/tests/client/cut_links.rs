//! The client library on a link that is cut repeatedly at seeded positions, also in the middle of messages: every byte arrives exactly once
//! in both directions. The long version is in the fault runs.

use tokio::task::JoinSet;

use crate::prelude::*;

const CUTS: u64 = 60;
const CATS: u64 = 6;
const BYTES: usize = 3 << 20;

/// 6 times 3 MiB in each direction are 24 MiB in base64. A link carries half of `LONGEST` in a direction on average, so there are more than
/// `CUTS` of them.
const LONGEST: u64 = 300 << 10;

async fn through_cuts(seed: u64) {
    let server = TestServer::builder().behind_proxy().start();
    let proxy = Proxy::start(server.address());
    let client = client_of().connect(&proxy.through(server.url())).await.expect("connect");
    let mut copying = JoinSet::new();
    for number in 0..CATS {
        let process = client.start(sh(format!("cat; exit {number}"))).await.expect("start");
        copying.spawn(async move {
            let data = Arc::new(pattern(seed ^ number, BYTES));
            let (mut stdin, mut stdout) = (process.stdin(), process.stdout());
            let there = async {
                tokio::io::copy(&mut &data[..], &mut stdin).await.expect("copy there");
                stdin.shutdown().await.expect("end of input");
            };
            let back = async {
                let mut back = Vec::new();
                stdout.read_to_end(&mut back).await.expect("copy back");
                back
            };
            let ((), back) = tokio::join!(there, back);
            assert_same(&format!("seed {seed}, process {number}"), &back, &data);
            let exit = process.wait().await.expect("it ends");
            assert_eq!(u64::from(exit.code.cast_unsigned()), number, "seed {seed}");
        });
    }
    proxy.cut_next(seed, CUTS, &[Way::Up, Way::Down], LONGEST);
    while let Some(copied) = copying.join_next().await {
        if let Err(error) = copied {
            std::panic::resume_unwind(error.into_panic());
        }
    }
    let cuts = proxy.cuts();
    assert_eq!(cuts, CUTS, "seed {seed}: the link was cut as often as planned");
    client.end_session().await.expect("end the session");
}

#[test]
fn every_byte_arrives_once_through_cuts_at_any_place() {
    bounded(through_cuts(0xC0FFEE));
}
