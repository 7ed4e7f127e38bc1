//! A distant server: beside plain TCP on a far link of its own, and beside OpenSSH and rsync through a proxy that delays.
//!
//! Both parts are needed. The link has the kernel's TCP with its slow start and its buffers, but needs root. The proxy needs no root and
//! hides TCP: its ends are on loopback, so only the round trips and windows of the programs count.

use super::{delay_proxy, far_link};
use crate::prelude::*;

pub(super) fn measure(setting: &BenchSetting<'_>) -> Result<Report> {
    let mut report = far_link::measure(setting)?;
    let proxied = delay_proxy::measure(setting)?;
    report.rows.extend(proxied.rows);
    report.charts.extend(proxied.charts);
    Ok(report)
}
