//! The layout of the request for a holder.
//!
//! Spawner and server are of the same build, or the greeting of the spawner has revealed the difference. So fields can
//! be added freely, as long as [`LAYOUT`] changes too.

use std::os::fd::OwnedFd;

use super::NewHolder;
use crate::cgroup::SessionCgroup;
use crate::control::DecodeError;
use crate::{ChildRestrictions, ChildUser, HolderConfig, HolderLimits};

/// Version of the request layout. The spawner sends it in its greeting.
pub(super) const LAYOUT: u32 = 5;

/// Number of fixed integer fields at the beginning, eight bytes each.
const FIELDS: usize = 10;

/// Encodes an absent limit.
const NONE: u64 = u64::MAX;

/// Encodes layout, kind, secret, fixed integers, control group, user, rlimits, and then the opaque record.
pub(super) fn encode(new: &NewHolder) -> Vec<u8> {
    #[expect(clippy::cast_possible_truncation, reason = "layout numbers are small")]
    let mut out = vec![LAYOUT as u8, 1];
    out.extend_from_slice(&new.secret);
    let limits = new.limits;
    let nofile = new.original_nofile.unwrap_or_default();
    let fields: [u64; FIELDS] = [
        limits.ttl_ms,
        limits.disk_quota_bytes,
        limits.free_floor_bytes,
        limits.free_floor_percent,
        limits.pids_max.unwrap_or(NONE),
        limits.memory_max.unwrap_or(NONE),
        limits.archive_after_ms,
        u64::from(new.original_nofile.is_some()),
        nofile.0,
        nofile.1,
    ];
    fields.iter().for_each(|field| out.extend_from_slice(&field.to_le_bytes()));
    let group = new.confine.group.encode();
    count(&mut out, group.len());
    out.extend_from_slice(&group);
    let user =
        new.confine.user.iter().flat_map(|user| [user.uid, user.gid].into_iter().chain(user.groups.iter().copied()));
    let user: Vec<u32> = user.collect();
    count(&mut out, user.len());
    user.iter().for_each(|id| out.extend_from_slice(&id.to_le_bytes()));
    count(&mut out, new.confine.rlimits.len());
    for (resource, limit) in &new.confine.rlimits {
        out.extend_from_slice(&resource.to_le_bytes());
        out.extend_from_slice(&limit.to_le_bytes());
    }
    out.extend_from_slice(&new.info);
    out
}

pub(super) fn decode(request: &[u8], dir: OwnedFd) -> Result<HolderConfig, DecodeError> {
    let mut rest = request.split_first_chunk::<2>().ok_or(DecodeError::Short)?.1;
    let secret = take(&mut rest)?;
    let mut fields = [0_u64; FIELDS];
    for field in &mut fields {
        *field = u64::from_le_bytes(take(&mut rest)?);
    }
    let [ttl_ms, disk_quota_bytes, free_floor_bytes, free_floor_percent, pids, memory, archive_after_ms, nofile @ ..] =
        fields;
    let [has_nofile, soft, hard] = nofile;
    let limit = |value: u64| (value != NONE).then_some(value);
    let length = take_count(&mut rest)?;
    let (group, after) = rest.split_at_checked(length).ok_or(DecodeError::Short)?;
    rest = after;
    let mut ids = Vec::new();
    for _ in 0..take_count(&mut rest)? {
        ids.push(u32::from_le_bytes(take(&mut rest)?));
    }
    let user = match ids[..] {
        [] => None,
        [uid, gid, ref groups @ ..] => Some(ChildUser { uid, gid, groups: groups.to_vec() }),
        [_] => return Err(DecodeError::Value("user")),
    };
    let mut rlimits = Vec::new();
    for _ in 0..take_count(&mut rest)? {
        rlimits.push((u32::from_le_bytes(take(&mut rest)?), u64::from_le_bytes(take(&mut rest)?)));
    }
    Ok(HolderConfig {
        dir,
        secret,
        info: rest.to_vec(),
        limits: HolderLimits {
            ttl_ms,
            disk_quota_bytes,
            free_floor_bytes,
            free_floor_percent,
            pids_max: limit(pids),
            memory_max: limit(memory),
            archive_after_ms,
        },
        nofile: (has_nofile != 0).then_some((soft, hard)),
        confine: ChildRestrictions { group: SessionCgroup::decode(group), user, rlimits },
        exclusive: true,
    })
}

fn count(out: &mut Vec<u8>, count: usize) {
    out.extend_from_slice(&u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], DecodeError> {
    let (bytes, after) = rest.split_first_chunk::<N>().ok_or(DecodeError::Short)?;
    *rest = after;
    Ok(*bytes)
}

fn take_count(rest: &mut &[u8]) -> Result<usize, DecodeError> {
    usize::try_from(u32::from_le_bytes(take(rest)?)).map_err(|_| DecodeError::Short)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_survives_its_bytes_and_every_cut_is_an_error_or_a_shorter_record() {
        let null = || OwnedFd::from(std::fs::File::open("/dev/null").expect("open"));
        let confine = ChildRestrictions {
            group: SessionCgroup::decode(b"u /a/b\np /c\n"),
            user: Some(ChildUser { uid: 1, gid: 2, groups: vec![3, 4] }),
            rlimits: vec![(6, 100)],
        };
        let limits = HolderLimits { pids_max: Some(5), ..HolderLimits::default() };
        let new = NewHolder {
            dir: null(),
            secret: [7; 32],
            info: b"info".to_vec(),
            limits,
            original_nofile: Some((1, 2)),
            confine: confine.clone(),
        };
        let bytes = encode(&new);
        let back = decode(&bytes, null()).expect("decoded");
        assert_eq!((back.secret, back.info.as_slice(), back.limits), ([7; 32], b"info".as_slice(), limits));
        assert_eq!((back.nofile, back.confine), (Some((1, 2)), confine));
        for length in 0..bytes.len() - 4 {
            assert!(decode(&bytes[..length], null()).is_err(), "cut at {length}");
        }
    }
}
